"""An API server that forwards to ports of this machine, as kubelets do for pods; in the test's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import ClientFactory, Protocol

from mcproxy.kube.spdy_frames import Data, SpdySession, SynStream
from mcproxy.kube.websocket_frames import BINARY, CLOSE, WebSocketFrameReader, accept_key, frame
from tests.proxy.harness import UpstreamEnd

PROTOCOL = b"SPDY/3.1+portforward.k8s.io"
ERROR, DATA = 1, 3


def accepts(end: UpstreamEnd, protocol: bytes = PROTOCOL) -> None:
    """Answer the request for a port-forward that has come with 101."""
    lines = end.received[end.answered :].split(b"\r\n")
    [key] = [line.partition(b": ")[2] for line in lines if line.lower().startswith(b"sec-websocket-key:")]
    end.answered = len(end.received)
    end.send(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\nSec-WebSocket-Protocol: %b\r\n\r\n"
        % (accept_key(key.decode()).encode(), protocol)
    )


class Forwarded:
    """One forwarded connection."""

    def __init__(self, end: UpstreamEnd, kubelet: Kubelet) -> None:
        self.end = end
        self.closed = False  # by a CLOSE of the client
        self.headers: dict[int, dict[str, str]] = {}
        self.fins: set[int] = set()
        self._kubelet = kubelet
        self._frames = WebSocketFrameReader()
        self._spdy = SpdySession()
        self._pod: Any = None
        self._early: list[Data] = []

    def send(self, data: bytes) -> None:
        self.end.send(frame(BINARY, data))

    def say(self, stream: int, data: bytes, *, fin: bool = False) -> None:
        self.send(SpdySession.data(stream, data, fin))

    def feed(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            self.closed = self.closed or message.opcode == CLOSE
            for event in self._spdy.feed(message.payload) if message.opcode == BINARY else ():
                if isinstance(event, SynStream):
                    self.headers[event.stream] = event.headers
                    if self._kubelet.replies:
                        self.send(self._spdy.syn_reply(event.stream))
                    if len(self.headers) == 2 and self._kubelet.connects:
                        self._connect(int(event.headers["port"]))
                elif isinstance(event, Data):
                    self.fins |= {event.stream} if event.fin else set()
                    if event.stream == DATA:
                        self._pass_on(event)

    def _connect(self, port: int) -> None:
        factory = ClientFactory()
        factory.protocol = lambda: _PodSide(self)
        factory.clientConnectionFailed = lambda *_: self.refuse(port)  # type: ignore[method-assign]
        self._kubelet.reactor.connectTCP("127.0.0.1", port, factory)

    def refuse(self, port: int) -> None:
        self.say(ERROR, b"failed to connect to localhost:%d: connection refused" % port, fin=True)
        self.say(DATA, b"", fin=True)

    def connected(self, pod: Any) -> None:
        self._pod = pod
        early, self._early = self._early, []
        for event in early:
            self._pass_on(event)

    def _pass_on(self, event: Data) -> None:
        if self._pod is None:
            self._early.append(event)
            return
        self._pod.write(event.payload)
        if event.fin:
            self._pod.loseConnection()


class _PodSide(Protocol):
    def __init__(self, forwarded: Forwarded) -> None:
        self._forwarded = forwarded

    def connectionMade(self) -> None:
        self._forwarded.connected(self.transport)

    def dataReceived(self, data: bytes) -> None:
        self._forwarded.say(DATA, data)

    def connectionLost(self, reason: Any = None) -> None:
        self._forwarded.say(DATA, b"", fin=True)


class Kubelet:
    """The `reply` of an `Upstream`. `answer`, if set, answers requests for port-forwards in its own way."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.replies = self.connects = True
        self.answer: Callable[[UpstreamEnd], None] | None = None
        self.requests: list[bytes] = []
        self.forwarded: dict[UpstreamEnd, Forwarded] = {}

    @property
    def last(self) -> Forwarded:
        return list(self.forwarded.values())[-1]

    def __call__(self, end: UpstreamEnd) -> None:
        known = self.forwarded.get(end)
        rest = end.received[end.answered :]
        if known is not None:
            end.answered = len(end.received)
            known.feed(rest)
        elif b"/portforward HTTP/1.1\r\n" in rest and rest.endswith(b"\r\n\r\n"):
            self.requests.append(rest)
            if self.answer is not None:
                self.answer(end)
            else:
                accepts(end)
                self.forwarded[end] = Forwarded(end, self)
