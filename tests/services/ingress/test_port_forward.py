"""`via: PortForward`: requests through the port-forwarding of an API server, and API servers that do not keep to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.kube.spdy_frames import SpdySession
from mcproxy.kube.websocket_frames import BINARY, CLOSE, PING, TEXT, frame
from mcproxy.services.endpoint_table import BackendKey, PodEndpoint, PortEndpoints
from tests.proxy.harness import Upstream, UpstreamEnd
from tests.services.ingress.config import backend, ingress
from tests.services.ingress.kubelet import DATA, ERROR, PROTOCOL, Kubelet, accepts
from tests.services.ingress.whole import Whole, ingress_config

PATH = b"/api/v1/namespaces/demo/pods/echo-0/portforward"


class Site:
    """An ingress over one cluster whose API server is a `Kubelet`."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.server = whole.upstream()
        self.kubelet = Kubelet(whole.reactor)
        self.server.reply = self.kubelet

    async def start(self, **more: Any) -> None:
        via = replace(
            ingress("one", default="echo"), default_backend=backend("echo", via=model.Via.PORT_FORWARD, **more)
        )
        config = ingress_config(via)
        east = model.Cluster(
            name="east",
            endpoints=(model.Endpoint(name="e", scheme="http", host="127.0.0.1", port=self.server.port),),
            credentials=model.Credentials(token=model.Secret("own-token")),
            identity=model.UpstreamIdentity.PROXY,
            health_check=model.HealthCheck(interval=3600.0),
        )
        await self.whole.serve(replace(config, clusters=(east, *config.clusters[1:])))

    def pods(self, *pods: Upstream, names: bool = True) -> None:
        found = [PodEndpoint("192.0.2.1", pod.port, pod=f"echo-{n}" if names else None) for n, pod in enumerate(pods)]
        self.whole.services.endpoints.set(
            BackendKey("east", "demo", "echo", 8080), PortEndpoints(tuple(found), known=True)
        )

    async def get(self, *fields: str, **how: Any) -> tuple[int, bytes]:
        status, _, body = await self.whole.get("/", *fields, **how)
        return status, body.partition(b"\n")[0]


@pytest.fixture
def site(whole: Whole) -> Site:
    return Site(whole)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_requests_go_to_the_port_of_the_pod_as_the_proxy_itself(site: Site) -> None:
    await site.start()
    site.pods(site.whole.pod("echo"))
    assert [await site.get("Authorization: Bearer client") for _ in range(2)] == [(200, b"echo")] * 2
    [request] = site.kubelet.requests  # one connection for both
    lines = request.decode().split("\r\n")
    assert lines[0] == f"GET {PATH.decode()} HTTP/1.1"
    assert f"Sec-WebSocket-Protocol: {PROTOCOL.decode()}" in lines
    assert [line for line in lines if "uthorization" in line] == ["Authorization: Bearer own-token"]
    headers = site.kubelet.last.headers
    assert [headers[ERROR]["streamtype"], headers[DATA]["streamtype"]] == ["error", "data"]
    assert headers[ERROR]["requestid"] == headers[DATA]["requestid"]
    assert ERROR in site.kubelet.last.fins


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_megabyte_in_each_direction(site: Site) -> None:
    """More than SPDY's window of 64 KiB, of which kubelets know nothing."""
    pod = site.whole.upstream()
    body = bytes(range(256)) * 4096

    def reply(end: UpstreamEnd) -> None:
        if end.received.endswith(body):
            end.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    pod.reply = reply
    await site.start()
    site.pods(pod)
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    client = await site.whole.asks(head + body, tls=False)
    status, _, answered = await site.whole.answer(client)
    assert (status, answered == body) == (200, True)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_pod_that_is_gone_ends_its_connection_in_an_orderly_way(site: Site) -> None:
    await site.start()
    site.pods(site.whole.pod("echo"))
    assert await site.get() == (200, b"echo")
    site.pods()
    await site.whole.until(lambda: site.kubelet.last.closed, "the CLOSE")
    assert DATA in site.kubelet.last.fins
    assert (await site.get())[0] == 503


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_nothing_listens_on_the_port(site: Site) -> None:
    await site.start(retries=0)
    pod = site.whole.pod("echo")
    site.pods(pod)
    pod.stop()
    assert (await site.get())[0] == 502


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_endpoints_without_a_pod_are_none(site: Site) -> None:
    await site.start()
    site.pods(site.whole.pod("echo"), names=False)
    assert (await site.get())[0] == 503
    assert site.kubelet.requests == []


def refuses(status: bytes, body: bytes = b"") -> Any:
    def answer(end: UpstreamEnd) -> None:
        end.answered = len(end.received)
        end.send(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    return answer


FORBIDDEN = b'{"kind":"Status","reason":"Forbidden","message":"pods \\"echo-0\\" is forbidden: no"}'


@pytest.mark.parametrize(
    "answer",
    [
        refuses(b"403 Forbidden", FORBIDDEN),
        refuses(b"401 Unauthorized"),
        refuses(b"500 Internal Server Error", b"x" * 100_000),
        refuses(b"200 OK", b"a page"),
        lambda end: accepts(end, b"v4.channel.k8s.io"),
        lambda end: accepts(end, b""),
    ],
)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_api_server_that_refuses_is_a_failed_connection(site: Site, answer: Any) -> None:
    await site.start()
    site.kubelet.answer = answer
    site.pods(site.whole.pod("echo"))
    status, body = await site.get()
    assert status == 502
    assert b"forbidden" not in body.lower()  # what the API server says is for operators


RUBBISH = [
    b"\xff" * 100,
    frame(TEXT, b"x"),
    frame(BINARY, b"\x80\x02" + bytes(20)),
    frame(BINARY, SpdySession().syn_stream(2, {})),
    frame(BINARY, SpdySession().syn_reply(7)),
    frame(BINARY, SpdySession.data(9, b"x")),
    frame(BINARY, SpdySession.reset(DATA, 3)),
    frame(BINARY, SpdySession.data(ERROR, b"no such container", fin=True)),
    frame(BINARY, SpdySession.go_away(0)),
    frame(CLOSE, b"\x03\xf3broken"),
    b"\x82\x7f" + b"\x7f" * 8,
    frame(PING, b"x") * 3 + b"\x03\x00",
]


@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_rubbish_in_place_of_the_streams_is_a_failed_connection(site: Site, rubbish: bytes) -> None:
    await site.start()

    def answer(end: UpstreamEnd) -> None:
        accepts(end)
        end.send(rubbish)

    site.kubelet.answer = answer
    site.pods(site.whole.pod("echo"))
    assert (await site.get())[0] == 502


@pytest.mark.parametrize("rubbish", [each for each in RUBBISH if each != frame(BINARY, SpdySession.go_away(0))])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_rubbish_within_a_response_breaks_it(site: Site, rubbish: bytes) -> None:
    pod = site.whole.upstream()
    pod.reply = lambda end: end.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbegin")  # until the connection ends
    await site.start(retries=0)
    site.pods(pod)
    client = await site.whole.asks(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", tls=False)
    await site.whole.until(lambda: b"begin" in client.received, "the response")
    site.kubelet.last.end.send(rubbish)
    await site.whole.until(lambda: client.over, "the end")
    assert not client.received.endswith(b"0\r\n\r\n")  # it is not complete
    client.close()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_api_server_that_freezes_is_a_timeout(site: Site) -> None:
    await site.start(connect_timeout=0.3, retries=0)
    site.kubelet.replies = False
    site.pods(site.whole.pod("echo"))
    assert (await site.get())[0] == 504


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_websocket_through_it(site: Site) -> None:
    pod = site.whole.upstream()

    def reply(end: UpstreamEnd) -> None:
        if b"\r\n\r\n" in end.received and not end.answered:
            end.answered = len(end.received)
            end.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        elif end.answered:
            end.send(end.received[end.answered :].upper())
            end.answered = len(end.received)

    pod.reply = reply
    await site.start()
    site.pods(pod)
    client = await site.whole.asks(
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", tls=False
    )
    await site.whole.until(lambda: b"101" in client.received, "the upgrade")
    client.send(b"hello")
    await site.whole.until(lambda: client.received.endswith(b"HELLO"), "the echo")
    client.close()
    await site.whole.until(lambda: site.kubelet.last.closed or site.kubelet.last.end.lost, "the end of the tunnel")
