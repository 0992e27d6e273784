"""`via: PortForward`: requests through the port-forwarding of an API server, and API servers that do not keep to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.http.exchange import Exchange
from mcproxy.http.tunnel import TunnelSide
from mcproxy.kube.spdy_frames import SpdySession
from mcproxy.kube.websocket_frames import BINARY, CLOSE, PING, TEXT, frame
from mcproxy.net.plain_stream import PlainStream
from mcproxy.services.endpoint_table import BackendKey, PodEndpoint, PortEndpoints
from mcproxy.services.ingress.pod_tunnel import PodTunnel
from tests.net.peers import CA, in_thread
from tests.proxy.harness import Client, Upstream, UpstreamEnd, listener
from tests.services.ingress.config import backend, ingress
from tests.services.ingress.grpc_server import Calls, GRPCServer
from tests.services.ingress.kubelet import DATA, ERROR, PROTOCOL, Kubelet, accepts
from tests.services.ingress.stand import Stand
from tests.services.ingress.whole import LISTENER, Whole, ingress_config

PATH = b"/api/v1/namespaces/demo/pods/echo-0/portforward"


class Site:
    """An ingress over one cluster whose API server is a `Kubelet`."""

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        self.server = whole.upstream()
        self.kubelet = Kubelet(whole.reactor)
        self.server.reply = self.kubelet

    async def start(self, *, listeners: tuple[model.ListenerConfig, ...] = (), **more: Any) -> None:
        via = replace(
            ingress("one", default="echo"), default_backend=backend("echo", via=model.Via.PORT_FORWARD, **more)
        )
        config = ingress_config(via, listeners=listeners)
        east = model.ClusterConfig(
            name="east",
            endpoints=(model.EndpointConfig(name="e", scheme="http", host="127.0.0.1", port=self.server.port),),
            credentials=model.Credentials(token=model.Secret("own-token")),
            identity=model.UpstreamIdentity.PROXY,
            health_check=model.HealthCheck(interval=3600.0),
        )
        await self.whole.serve(replace(config, clusters=(east, *config.clusters[1:])))

    def pods(self, *pods: Upstream | int, names: bool = True) -> None:
        ports = [pod if isinstance(pod, int) else pod.port for pod in pods]
        found = [PodEndpoint("192.0.2.1", port, pod=f"echo-{n}" if names else None) for n, port in enumerate(ports)]
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


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_grpc_through_it(site: Site) -> None:
    """All kinds of calls, over one forwarded connection; each ends with the status of the pod."""
    plain = listener(
        LISTENER,
        tls=False,
        serves=model.Serves.INGRESS,
        protocols=(model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1),
    )
    await site.start(listeners=(plain,), protocol=model.BackendProtocol.GRPC)
    server = GRPCServer()
    site.pods(server.port)
    calls = Calls(site.whole.port(0))
    try:
        answer, call = await in_thread(lambda: calls.unary("Unary").with_call(b"hello", timeout=60))
        assert (answer, dict(call.trailing_metadata())["x-last"]) == (b"hello one", "end")
        assert await in_thread(lambda: calls.join("Join")(iter([b"a", b"b"]), timeout=60)) == b"ab"
        assert await in_thread(lambda: list(calls.split("Split")(b"3", timeout=60))) == [b"0", b"1", b"2"]
        talk = await in_thread(lambda: list(calls.talk("Talk")(iter([b"a"]), timeout=60)))
        assert talk == [b"heard a", b"bye"]

        def fail() -> Any:
            with pytest.raises(grpc.RpcError) as caught:
                calls.unary("Fail")(b"", timeout=60)
            return caught.value

        assert (await in_thread(fail)).code() is grpc.StatusCode.FAILED_PRECONDITION
        hanging = calls.unary("Hang").future(b"", timeout=60)
        assert await in_thread(lambda: server.hanging.wait(60))
        hanging.cancel()
        assert await in_thread(lambda: server.cancelled.wait(60))
        assert len(site.kubelet.requests) == 1
    finally:
        calls.channel.close()
        server.cancelled.set()
        server.stop()


@pytest.mark.parametrize("name", ["localhost", "other.test"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_tls_to_the_pod_is_verified_as_without_it(site: Site, stand: Stand, name: str) -> None:
    """The API server is only on the way: the pod's certificate must be valid for the name."""
    asked: list[str] = []

    def handle(exchange: Exchange) -> None:
        asked.append(exchange.protocol)
        exchange.answer(200, b"", b"secret\n")

    pod = stand.pod(handle, tls=True)
    ca = model.PEMFile("ca", CA.cert_pem.bytes())
    await site.start(retries=0, protocol=model.BackendProtocol.HTTPS, tls=model.BackendTLS(ca=ca, server_name=name))
    site.pods(pod)
    if name == "localhost":
        assert [await site.get() for _ in range(2)] == [(200, b"secret")] * 2
        assert asked == ["HTTP/2.0"] * 2
        assert len(site.kubelet.requests) == 1
    else:
        assert (await site.get())[0] == 502
        assert asked == []


async def upgraded(site: Site, pod: Upstream) -> Client:
    """Return a client with a tunnel to a pod that has answered nothing but the 101."""

    def reply(end: UpstreamEnd) -> None:
        if b"\r\n\r\n" in end.received and not end.answered:
            end.answered = len(end.received)
            end.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")

    pod.reply = reply
    site.pods(pod)
    client = await site.whole.asks(
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", tls=False
    )
    await site.whole.until(lambda: b"101" in client.received, "the upgrade")
    return client


MOST = 64 << 20
"""Bytes; the kernel's buffers of the connections on the way have less than half of it."""
PIECE = bytes(1 << 18)


def unsent(end: Any) -> int:
    """Return the bytes that the transport of a test's end has not given to the kernel."""
    transport = end.transport
    if isinstance(transport, PlainStream):
        return transport.queued
    queued: int = len(transport.dataBuffer) - transport.offset + sum(map(len, transport._tempDataBuffer))
    return queued


async def fill(site: Site, end: Any, send: Callable[[bytes], None]) -> int:
    """Send until nothing more is taken, or MOST; return the bytes that were sent."""
    sent = waited = 0
    while sent < MOST and waited < 50:
        if unsent(end):
            waited += 1
        else:
            send(PIECE)
            sent, waited = sent + len(PIECE), 0
        await site.whole.turns(1)
    return sent


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_client_that_does_not_read_stops_the_pod(site: Site) -> None:
    await site.start()
    client = await upgraded(site, site.whole.upstream())
    client.transport.pauseProducing()  # type: ignore[union-attr]
    start, kubelet = len(client.received), site.kubelet.last
    sent = await fill(site, kubelet.end, lambda data: kubelet.say(DATA, data))
    assert sent < MOST // 2
    client.transport.resumeProducing()  # type: ignore[union-attr]
    await site.whole.until(lambda: len(client.received) - start == sent, "all of it")
    client.close()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_pod_that_does_not_read_stops_the_client(site: Site) -> None:
    await site.start()
    client = await upgraded(site, site.whole.upstream())
    kubelet = site.kubelet.last
    kubelet.end.transport.pauseProducing()  # type: ignore[union-attr]
    assert await fill(site, client, client.send) < MOST // 2
    kubelet.end.abort()
    await site.whole.until(lambda: client.over, "the end")
    client.close()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_tunnel_keeps_little_of_what_its_user_does_not_read(whole: Whole) -> None:
    """What is beyond the kernel's buffers is at most one read of the connection and one high-water mark."""
    server = PausedEnd()
    side = TunnelSide(server)
    tunnel = PodTunnel(whole.reactor, 80, "a pod", lambda _: None)
    end = tunnel.start(side)
    spdy = SpdySession()
    side.received(frame(BINARY, spdy.syn_reply(ERROR) + spdy.syn_reply(DATA)))
    await tunnel.opened
    sent = 0
    while not server.paused and sent < 16 << 20:
        side.received(frame(BINARY, SpdySession.data(DATA, bytes(1 << 15))))
        sent += 1 << 15
        await whole.turns(1)
    assert server.paused
    assert sent <= 1 << 20
    end.close()
    await whole.until(lambda: side.lost or server.closed, "the end")
    tunnel.abort()


@pytest.mark.parametrize("way", ["pod", "cluster", "reset"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_pod_that_goes_away_within_a_tunnel_ends_it(site: Site, way: str) -> None:
    """Its client sees the end, and nothing of it stays; the next request opens a connection of its own."""
    await site.start()
    pod = site.whole.upstream()
    client = await upgraded(site, pod)
    forwarded = site.kubelet.last
    if way == "pod":
        pod.last.abort()
    elif way == "cluster":
        forwarded.end.abort()
    else:
        forwarded.send(SpdySession.reset(DATA, 3))
    await site.whole.until(lambda: client.over, "the end of the client's tunnel")
    client.close()
    await site.whole.until(lambda: forwarded.closed or forwarded.end.over, "the end of the WebSocket")
    await site.whole.until(lambda: not site.whole.service.running, "no request in flight")
    site.pods(site.whole.pod("next"))
    assert await site.get() == (200, b"next")


class PausedEnd:
    """The connection behind a `TunnelSide`; `paused` is what it was told."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.paused = self.closed = False

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False

    def write(self, data: bytes) -> None:
        """Swallow it."""

    def unregisterProducer(self) -> None:
        """There is none."""

    def loseConnection(self) -> None:
        self.closed = True

    abortConnection = loseWriteConnection = loseConnection

    def tunnel_ended(self) -> None:
        self.closed = True

    def transport_taken(self) -> None:
        """Nobody takes it."""
