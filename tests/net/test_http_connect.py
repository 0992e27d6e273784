"""Connections through an HTTP proxy: what it is asked for, what it may answer, and in which words they fail."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.task import deferLater

from mcproxy.net.causes import CauseCode, code_of
from mcproxy.net.connect import connect
from mcproxy.net.connect_errors import ConnectError, ConnectionRefused, ConnectTimeout, DNSError, TLSError
from mcproxy.net.happy_eyeballs import SILENT
from mcproxy.net.http_connect import HTTPProxy, ProxyRefused, connect_request
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from tests.net.conftest import Serve
from tests.net.peers import (
    OTHER_CA,
    Echo,
    Recorder,
    Recorders,
    client_tls,
    in_thread,
    reactor,
    tls_settings,
    until,
)
from tests.net.test_connect import ClockedReactor, ReactorWith, Resolver, port_of
from tests.support.clock import Clock
from tests.support.connect_proxy import ESTABLISHED, ConnectProxy, ConnectRequest

Reply = Callable[[socket.socket, ConnectRequest], bool]

NAME = "api.behind-the-proxy.example:6443"  # no DNS has it


def used(proxy: ConnectProxy, authorization: bytes | None = None) -> HTTPProxy:
    return HTTPProxy("127.0.0.1", proxy.port, authorization)


def answering(*parts: bytes, passes_on: bool = False) -> Reply:
    """A proxy's answer, in parts that do not arrive together."""

    def reply(client: socket.socket, request: ConnectRequest) -> bool:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            with contextlib.suppress(OSError):
                client.sendall(part)
        return passes_on

    return reply


async def through(proxy: ConnectProxy, name: str = NAME, authorization: bytes | None = None) -> Recorder:
    """Connect with TLS to the server that the proxy knows by `name`."""
    host, _, port = name.rpartition(":")
    client = Recorder()
    target = used(proxy, authorization)
    await connect(reactor(), host, int(port), client, tls=client_tls(), timeout=60, proxy=target)
    return client


async def close(client: Recorder, listener_side: Recorders) -> None:
    client.stream.loseConnection()
    await client.lost
    for each in listener_side.all:
        await each.lost


async def refused(reply: Reply) -> ConnectError:
    """Return the error of a connection through a proxy that gives this answer."""
    protocol = Recorder()
    with ConnectProxy(reply=reply) as proxy:
        with pytest.raises(ConnectError) as caught:
            await connect(reactor(), "a.example", 443, protocol, tls=None, timeout=60, proxy=used(proxy))
        where = f"the proxy 127.0.0.1:{proxy.port}"
    assert protocol.events == []
    assert str(caught.value).startswith(where)
    return caught.value


def routed(listener: Listener) -> dict[str, tuple[str, int]]:
    return {NAME: ("127.0.0.1", port_of(listener))}


# -- what it asks for ----------------------------------------------------------------------------------------------


async def test_the_proxy_resolves_the_name_and_tls_is_with_the_server(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings())
    with ConnectProxy(routes=routed(listener)) as proxy:
        client = await through(proxy)
        assert client.events == ["made"]
        assert client.stream.is_tls
        assert proxy.opened == [NAME]
        expected = f"CONNECT {NAME} HTTP/1.1\r\nHost: {NAME}\r\n\r\n"
        assert [request.head for request in proxy.requests] == [expected.encode()]
        await close(client, recorders)


async def test_credentials_go_to_the_proxy(serve: Serve, recorders: Recorders) -> None:
    listener = serve(tls_settings())
    with ConnectProxy(credentials=("edge", "pä:ss"), routes=routed(listener)) as proxy:
        client = await through(proxy, authorization=proxy.authorization)
        assert proxy.opened == [NAME]
        await close(client, recorders)


async def test_a_connection_without_tls_passes_bytes_both_ways(serve: Serve) -> None:
    echo = Recorders(Echo)
    listener = serve(ListenerSettings(), factory=echo)
    with ConnectProxy() as proxy:
        client = Recorder()
        await connect(reactor(), "127.0.0.1", port_of(listener), client, tls=None, timeout=60, proxy=used(proxy))
        client.stream.write(b"x" * 100_000)
        await until(lambda: len(client.received) == 100_000)
        await close(client, echo)


@pytest.mark.parametrize(
    ("host", "authority"),
    [
        ("10.0.0.1", b"10.0.0.1:443"),
        ("fd00::1", b"[fd00::1]:443"),
        ("a_b.example.", b"a_b.example.:443"),
        ("bücher.example", b"xn--bcher-kva.example:443"),
    ],
)
def test_the_request_names_the_server(host: str, authority: bytes) -> None:
    request = connect_request(HTTPProxy("proxy", 3128, b"Basic eA=="), host, 443)
    fields = b"Host: %b\r\nProxy-Authorization: Basic eA==\r\n\r\n" % authority
    assert request == b"CONNECT %b HTTP/1.1\r\n%b" % (authority, fields)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a\r\nx: y",
        "a b",
        "a\0",
        "a/b",
        "a:b",
        "user@a",
        "[::1]",
        "fe80::1%eth0",
        "fe80::1%\r\nx",
        "::1\n",
        "ü\r\n.example",
        "a\u2028b",
        "x" * 256,
        "ü" * 70,
    ],
)
async def test_a_host_that_is_no_name_never_gets_into_the_request(host: str) -> None:
    with ConnectProxy() as proxy:
        with pytest.raises(ConnectError, match="is neither a host name nor an address"):
            await connect(reactor(), host, 443, Recorder(), tls=None, timeout=60, proxy=used(proxy))
        assert proxy.requests == []


def test_credentials_are_not_shown() -> None:
    assert "secret" not in repr(HTTPProxy("proxy", 3128, b"Basic secret"))


# -- what the proxy may answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.0 200 OK\r\n\r\n",),
        (b"HTTP/1.1 299\r\n\r\n",),
        (b"HTTP/1.1 200 OK\nVia: x\n\n",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n",),  # RFC 9110 9.3.6: ignored
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nA: b\r\n\r\n" + ESTABLISHED,),
        (b"HTTP/1.1 100 Continue\r\n\r\n", ESTABLISHED),
        tuple(bytes([byte]) for byte in b"HTTP/1.1 103 Early Hints\r\n\r\n" + ESTABLISHED),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * 16_000 + b"\r\n\r\n",),
    ],
    ids=["1.0", "no phrase", "LF", "lengths ignored", "1xx together", "1xx apart", "byte by byte", "long"],
)
async def test_every_2xx_opens_the_connection(serve: Serve, recorders: Recorders, parts: tuple[bytes, ...]) -> None:
    listener = serve(tls_settings())
    with ConnectProxy(routes=routed(listener), reply=answering(*parts, passes_on=True)) as proxy:
        client = await through(proxy)
        assert client.events == ["made"]
        await close(client, recorders)


async def test_no_byte_behind_the_head_is_lost() -> None:
    early = b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + b"x" * 50_000
    client = Recorder()
    with ConnectProxy(reply=answering(b"HTTP/1.1 100 C\r\n\r\n" + ESTABLISHED + early)) as proxy:
        await connect(reactor(), "a.example", 443, client, tls=None, timeout=60, proxy=used(proxy))
        await client.lost
    assert client.received == early


@pytest.mark.parametrize(
    ("answer", "cause", "code"),
    [
        (b"407 Please Pay", "407 Proxy Authentication Required", CauseCode.PROXY_CREDENTIALS),
        (b"403 \x1b[31mNo", "403 Forbidden", CauseCode.REFUSED_BY_PROXY),
        (b"302 Found", "302 Found", CauseCode.REFUSED_BY_PROXY),
        (b"101 Switching Protocols", "101 Switching Protocols", CauseCode.REFUSED_BY_PROXY),
        (b"502 Bad Gateway", "502 Bad Gateway", CauseCode.NOT_REACHED_BY_PROXY),
        (b"999 Whatever", "999", CauseCode.NOT_REACHED_BY_PROXY),
    ],
)
async def test_another_status_refuses_it(answer: bytes, cause: str, code: CauseCode) -> None:
    body = b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n" + b"x" * 100_000
    error = await refused(answering(b"HTTP/1.1 %b\r\n%b" % (answer, body)))
    assert isinstance(error, ProxyRefused)
    assert error.cause.endswith(f" refuses the connection to a.example:443: {cause}")
    assert code_of(error.cause) is code


async def test_the_wrong_password_is_407(serve: Serve) -> None:
    with ConnectProxy(credentials=("edge", "right")) as proxy:
        with pytest.raises(ProxyRefused, match="407 Proxy Authentication Required"):
            await through(proxy, authorization=b"Basic d3Jvbmc=")
        assert proxy.opened == []


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ((b"SSH-2.0-OpenSSH_9.6\r\n",), "does not answer as an HTTP proxy"),
        ((b"\x15\x03\x01\x00\x02\x02\x46",), "does not answer as an HTTP proxy"),
        ((b"HTTP/2 200 OK\r\n\r\n",), "does not answer as an HTTP proxy"),
        ((b"HTTP/1.1 2000 OK\r\n\r\n",), "does not answer as an HTTP proxy"),
        ((b"HTTP/1.1 099 OK\r\n\r\n",), "does not answer as an HTTP proxy"),
        ((b"HTTP/1.1  200 OK\r\n\r\n",), "does not answer as an HTTP proxy"),
        ((b"HTTP/1.1 200 OK\r\n\r", b"HT"), "closed the connection without an answer"),
        ((b"",), "closed the connection without an answer"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n",), "closed the connection without an answer"),
        ((b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000,), "answered with heads of more than 16 KiB"),
        ((b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,), "answered with heads of more than 16 KiB"),
        ((b"HTTP/1." + b"1" * 20_000,), "answered with heads of more than 16 KiB"),
    ],
)
async def test_what_is_no_answer_of_a_proxy_ends_it(parts: tuple[bytes, ...], cause: str) -> None:
    error = await refused(answering(*parts))
    assert cause in error.cause
    assert code_of(error.cause) is CauseCode.NOT_AN_HTTP_PROXY


async def test_a_silent_proxy_is_a_timeout() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = HTTPProxy("127.0.0.1", silent.getsockname()[1])
        attempt = connect(ClockedReactor(clock), "a.example", 443, Recorder(), tls=None, timeout=5, proxy=proxy)
        accepted, _ = silent.accept()
        with accepted:
            accepted.settimeout(60)
            assert (await in_thread(accepted.recv, 4096)).startswith(b"CONNECT a.example:443 ")
            accepted.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2")
            await deferLater(reactor(), 0.01)
            clock.advance(5)
            cause = "a.example:443 took longer than 5 s in the CONNECT request to the proxy"
            with pytest.raises(ConnectTimeout, match=cause) as caught:
                await attempt
            assert code_of(caught.value.cause) is CauseCode.NOT_REACHED_BY_PROXY
            assert await in_thread(accepted.recv, 1) == b"", "our end is closed"


async def test_cancelling_closes_the_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = HTTPProxy("127.0.0.1", silent.getsockname()[1])
        attempt = connect(reactor(), "a.example", 443, Recorder(), tls=None, timeout=60, proxy=proxy)
        accepted, _ = silent.accept()
        with accepted:
            accepted.settimeout(60)
            assert await in_thread(accepted.recv, 4096)
            attempt.cancel()
            with pytest.raises(CancelledError):
                await attempt
            assert await in_thread(accepted.recv, 1) == b""


# -- the ways that fail before and after ---------------------------------------------------------------------------


async def test_a_proxy_that_does_not_listen_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy = HTTPProxy("127.0.0.1", unused.getsockname()[1])
        cause = rf"\Athe proxy 127\.0\.0\.1:{proxy.port} refused the connection\Z"
        with pytest.raises(ConnectionRefused, match=cause) as caught:
            await connect(reactor(), "a.example", 443, Recorder(), tls=None, timeout=60, proxy=proxy)
        assert code_of(caught.value.cause) is CauseCode.PROXY_UNREACHABLE


async def test_a_proxy_without_an_address_is_named() -> None:
    proxy = HTTPProxy("proxy.example", 3128)
    with pytest.raises(DNSError, match=r"the name proxy\.example has no address"):
        await connect(ReactorWith(Resolver()), "127.0.0.1", 1, Recorder(), tls=None, timeout=60, proxy=proxy)


async def test_a_proxy_whose_name_is_not_resolved_in_time_is_named() -> None:
    proxy = HTTPProxy("proxy.example", 3128)
    cause = r"the proxy proxy\.example:3128 took longer than 0\.05 s in resolving its name"
    hosts = ReactorWith(Resolver(answers=False))
    with pytest.raises(ConnectTimeout, match=cause):
        await connect(hosts, "127.0.0.1", 1, Recorder(), tls=None, timeout=0.05, proxy=proxy)


async def test_the_certificate_of_the_server_is_verified(serve: Serve) -> None:
    listener = serve(tls_settings())
    with ConnectProxy(routes=routed(listener)) as proxy:
        for tls, cause in (
            (client_tls(ca=OTHER_CA), f"the certificate of {NAME} is not trusted"),
            (client_tls("other.example"), "the certificate is not for other.example"),
        ):
            host, _, port = NAME.rpartition(":")
            with pytest.raises(TLSError, match=cause):
                await connect(reactor(), host, int(port), Recorder(), tls=tls, timeout=60, proxy=used(proxy))
        assert proxy.opened == [NAME, NAME]
    await until(lambda: listener.connections == 0)


async def test_an_address_of_the_proxy_that_is_another_server_is_tried_last_the_next_time(serve: Serve) -> None:
    listener = serve(tls_settings())
    with ConnectProxy(routes=routed(listener)) as proxy, socket.create_server(("127.0.0.2", proxy.port)) as other:
        address = (socket.AF_INET, ("127.0.0.2", proxy.port))
        hosts = ReactorWith(Resolver("127.0.0.2", "127.0.0.1"))
        target = HTTPProxy("proxy.example", proxy.port)
        host, _, port = NAME.rpartition(":")
        try:
            attempt = connect(hosts, host, int(port), Recorder(), tls=client_tls(), timeout=60, proxy=target)
            accepted, _ = await in_thread(other.accept)
            accepted.close()
            with pytest.raises(ConnectError, match="closed the connection without an answer"):
                await attempt
            client = Recorder()
            await connect(hosts, host, int(port), client, tls=client_tls(), timeout=60, proxy=target)
            client.stream.loseConnection()
            await client.lost
        finally:
            SILENT.forget(address)


async def test_a_refusal_says_nothing_against_the_address_of_the_proxy() -> None:
    with ConnectProxy(credentials=("edge", "pw")) as proxy:
        address = (socket.AF_INET, ("127.0.0.1", proxy.port))
        hosts = ReactorWith(Resolver("127.0.0.1", "127.0.0.2"))
        target = HTTPProxy("proxy.example", proxy.port)
        with pytest.raises(ProxyRefused):
            await connect(hosts, "a.example", 443, Recorder(), tls=None, timeout=60, proxy=target)
        assert not SILENT.is_silent(address, reactor().seconds())
