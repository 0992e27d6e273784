"""Ingress listeners over HTTP/2: hosts that share a connection, cookies in several fields, prior knowledge."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.config.model import Affinity, HTTPProtocol, RouteFilters
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.tls_contexts import client_context
from tests.proxy.harness import CA, always, listener
from tests.proxy.http2_peers import H2Client, PeerStream
from tests.services.ingress.config import backend, ingress, path, rule
from tests.services.ingress.whole import HOST, LISTENER, Whole, ingress_config, tls_listener

OTHER = "a.wild.example.com"
BOTH = (HTTPProtocol.HTTP2, HTTPProtocol.HTTP1)


async def client(whole: Whole, *, tls: bool = True) -> H2Client:
    """Return a client that has connected, by the name HOST if with TLS."""
    found = H2Client()
    settings = ClientTLS(client_context(CA.cert_pem.bytes(), None, verify=True), HOST, verify=True) if tls else None
    await connect(
        whole.reactor, "127.0.0.1", whole.port(), found, tls=settings, timeout=60.0, alpn=(b"h2",) if tls else ()
    )
    whole.closing(found.abort)
    return found


async def ask(
    whole: Whole, client: H2Client, host: str = HOST, target: str = "/", *fields: tuple[str, str], scheme: str = "https"
) -> PeerStream:
    """Send a GET, and return its stream when it is over."""
    stream = PeerStream(client, client.engine.get_next_available_stream_id())
    client.streams[stream.number] = stream
    pseudo = [(":method", "GET"), (":scheme", scheme), (":authority", host), (":path", target)]
    stream.head([(name.encode(), value.encode()) for name, value in (*pseudo, *fields)], end=True)
    await whole.until(lambda: stream.over)
    return stream


async def serve(whole: Whole, *hosts: str, **more: Any) -> None:
    rules = [rule(host, path("/", backend("web", **more))) for host in hosts]
    await whole.serve(ingress_config(ingress("web", *rules), listeners=(tls_listener(protocols=BOTH),)))


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_hosts_that_the_certificate_covers_share_a_connection_and_others_are_misdirected(whole: Whole) -> None:
    await serve(whole, HOST, OTHER, "other.example.com")
    whole.endpoints("web", whole.pod("web"))
    connection = await client(whole)
    hosts = (HOST, OTHER, "other.example.com", HOST, "nobody.wild.example.com")
    found = [await ask(whole, connection, host) for host in hosts]
    assert [stream.status for stream in found] == [200, 200, 421, 200, 404]
    assert found[2].fields[b"content-type"] == b"text/plain; charset=utf-8"
    assert found[2].data == b"421 Misdirected Request: open another connection for this host\n"
    assert connection.lost is None


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_the_pod_is_told_who_asked_and_how(whole: Whole) -> None:
    await serve(whole, HOST)
    whole.endpoints("web", whole.pod("web"))
    stream = await ask(whole, await client(whole), HOST, "/x", ("x-forwarded-for", "1.2.3.4"), ("forwarded", "for=x"))
    head = stream.data.decode().split("\r\n")
    assert "X-Forwarded-For: 127.0.0.1" in head
    assert f"Forwarded: for=127.0.0.1;proto=https;host={HOST}" in head
    assert f"Host: {HOST}" in head
    assert b"1.2.3.4" not in stream.data


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_authority_and_host_that_differ_and_paths_with_two_readings_are_refused(whole: Whole) -> None:
    await serve(whole, HOST)
    pod = whole.pod("web")
    whole.endpoints("web", pod)
    connection = await client(whole)
    connection.engine.config.validate_outbound_headers = False
    assert (await ask(whole, connection, HOST, "/", ("host", OTHER))).reset is not None  # RFC 9113 8.3.1: malformed
    stream = await ask(whole, connection, HOST, "/a/..%2fb")
    assert (stream.status, stream.fields[b"content-type"]) == (400, b"text/plain; charset=utf-8")
    assert not pod.connections


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_affinity_cookie_is_found_among_several_cookie_fields(whole: Whole) -> None:
    """RFC 9113 8.2.3: a client may split the field."""
    await serve(whole, HOST, affinity=Affinity.COOKIE)
    whole.endpoints("web", *(whole.pod(name) for name in "abc"))
    connection = await client(whole)
    first = await ask(whole, connection)
    cookie = first.fields[b"set-cookie"].partition(b";")[0].decode()
    for _ in range(3):
        stream = await ask(whole, connection, HOST, "/", ("cookie", "a=b"), ("cookie", cookie), ("cookie", "c=d"))
        assert stream.fields[b"server"] == first.fields[b"server"]
        assert b"set-cookie" not in stream.fields


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_prior_knowledge_on_a_listener_without_tls(whole: Whole) -> None:
    plain = listener(LISTENER, tls=False, serves=model.Serves.INGRESS, protocols=BOTH)
    configuration = ingress_config(ingress("web", rule(HOST, path("/", "web"))), listeners=(plain,))
    await whole.serve(configuration)
    whole.endpoints("web", whole.pod("web"))
    stream = await ask(whole, await client(whole, tls=False), scheme="http")
    assert stream.status == 200
    assert b"X-Forwarded-Proto: http\r\n" in stream.data
    assert await whole.who() == "web"  # HTTP/1.1 beside it


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_body_without_a_declared_length_is_counted(whole: Whole) -> None:
    limited = path("/", "web", filters=RouteFilters(body_bytes=10))
    await whole.serve(ingress_config(ingress("web", rule(HOST, limited)), listeners=(tls_listener(protocols=BOTH),)))
    pod = whole.pod("web")
    pod.reply = lambda end: None
    whole.endpoints("web", pod)
    connection = await client(whole)
    stream = PeerStream(connection, connection.engine.get_next_available_stream_id())
    connection.streams[stream.number] = stream
    head = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", HOST.encode()), (b":path", b"/")]
    stream.head(head)
    stream.send(b"x" * 8)
    stream.send(b"x" * 8)
    await whole.until(lambda: stream.status)
    assert stream.status == 413
    assert (await ask(whole, connection, "nobody.wild.example.com")).status == 404  # the connection goes on


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
@pytest.mark.parametrize(("fields", "length"), [(b"Content-Length: 0\r\n", b"0"), (b"", None)])
async def test_an_empty_response_has_the_length_that_the_pod_declared(
    whole: Whole, fields: bytes, length: bytes | None
) -> None:
    await serve(whole, HOST)
    pod = whole.pod("web")
    status = b"200 OK" if fields else b"204 No Content"
    pod.reply = always(b"HTTP/1.1 " + status + b"\r\n" + fields + b"\r\n")
    whole.endpoints("web", pod)
    stream = await ask(whole, await client(whole))
    assert stream.status == int(status[:3])
    assert stream.fields.get(b"content-length") == length
    assert stream.data == b""
