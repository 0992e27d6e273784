"""A server of the engine under test with a trivial handler, over real sockets and TLS, and a raw client to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from mcproxy.config.model import Limits, TCPBind
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header
from mcproxy.http.server_factory import ServerFactory
from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.net.certificate_store import CertificateStore
from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from tests.http.h2 import raw
from tests.http.h2.conformance import Case, Result
from tests.http.h2.raw import Seen
from tests.net.peers import certificate, client_tls, reactor

STREAMS = 20  # limits.streams
LARGE = 200_000  # bytes that /large answers
HEAD_BYTES = 32768

_LIMITS = Limits(head_bytes=HEAD_BYTES, streams=STREAMS)


class Asked:
    """One request that reached the handler. It is answered when it is complete: with its body, or "hello".

    /hold is never answered, nor is /paused, whose body is not read; /large has a long answer, /empty none,
    /early one before the request is complete; /reset is aborted at once.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.path = exchange.head.target.partition(b"?")[0]
        self.fields = exchange.head.fields  # an exchange that has ended may have none
        self.body = b""
        self.trailers: list[Header] | None = None
        self.cancellations = 0
        self.ends = 0
        self.paused = False
        exchange.on_done = self
        if self.path == b"/reset":
            exchange.abort()
            return
        exchange.attach(self)
        if self.path == b"/paused":
            exchange.pause_body()
        elif not exchange.head.length or self.path == b"/early":
            self._complete()

    def body_data(self, data: bytes) -> None:
        assert data
        self.body += data

    def body_end(self, trailers: list[Header]) -> None:
        assert self.trailers is None
        self.trailers = trailers
        if not self.exchange.responded:
            self._complete()

    def _complete(self) -> None:
        if self.path == b"/large":
            self.answer(b"x" * LARGE)
        elif self.path == b"/empty":
            self.answer(b"")
        elif self.path not in (b"/hold", b"/paused"):
            self.answer(self.body or b"hello")

    def answer(self, body: bytes) -> None:
        self.exchange.answer(200, b"X-Test: ok\r\n", body)

    def cancelled(self) -> None:
        self.cancellations += 1

    def pause_response(self) -> None:
        self.paused = True

    def resume_response(self) -> None:
        self.paused = False

    def end_gracefully(self) -> None:
        self.exchange.end()

    def exchange_done(self, exchange: Exchange) -> None:
        self.ends += 1


class Peer(Protocol):
    """A client that sends what the test says, and remembers what comes."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.lost: BaseException | None = None
        self._marks = 0
        self._waits: list[tuple[Callable[[], Any], Deferred[None]]] = []

    def dataReceived(self, data: bytes) -> None:
        self.seen.take(data)
        self._look()

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = reason.value
        self._look()

    def _look(self) -> None:
        for wait in [each for each in self._waits if each[0]()]:
            self._waits.remove(wait)
            wait[1].callback(None)

    def send(self, data: bytes) -> None:
        if self.transport is not None and self.lost is None:
            self.transport.write(data)

    async def until(self, condition: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait until the condition holds, which is looked at whenever something came."""
        if not condition():
            waiting: Deferred[None] = Deferred()
            self._waits.append((condition, waiting))
            await waiting.addTimeout(seconds, reactor())

    async def settled(self) -> None:
        """Wait until all that was sent has been processed, and answered as far as it will be; or the connection's end.

        The second PING follows the answer to the first one: what was held until the end of the reactor's turn has come.
        """
        for _ in range(2):
            if self.lost:
                return
            self._marks += 1
            mark = b"%08d" % self._marks
            self.send(raw.ping(mark))
            await self.until(lambda mark=mark: self.lost or self.seen.goaway or self.seen.ponged(mark))  # type: ignore[misc]
        if self.seen.goaway:
            await self.until(lambda: self.lost)

    def close(self) -> None:
        if self.lost is None and self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]


class Origin:
    """The server. `asked` are the requests that reached its handler."""

    def __init__(self, limits: Limits = _LIMITS, handle: Callable[[Exchange], Any] | None = None) -> None:
        self.asked: list[Asked] = []
        self.deadlines = Deadlines(reactor())
        self.factory = ServerFactory(self.deadlines, limits, handle or self._handle, lambda *_: (b"", b"refused"))
        settings = ListenerSettings(certificates=_store(), limits=limits)
        self.listener = Listener(reactor(), self.factory, settings, TCPBind("127.0.0.1", 0), None)
        self.listener.start()
        self.peers: list[Peer] = []

    def _handle(self, exchange: Exchange) -> None:
        self.asked.append(Asked(exchange))

    async def dial(self, preface: bytes = raw.PREFACE + raw.settings()) -> Peer:
        peer = Peer()
        self.peers.append(peer)
        address = self.listener.address
        assert isinstance(address, TCPBind)
        await connect(reactor(), "127.0.0.1", address.port, peer, tls=_client_tls(), timeout=60, alpn=(H2,))
        peer.send(preface)
        return peer

    async def close(self) -> None:
        self.listener.stop_accepting()
        self.listener.drop_pending()
        for peer in self.peers:
            peer.close()
        for stream in self.listener:
            stream.abortConnection()
        for peer in self.peers:
            await peer.until(lambda peer=peer: peer.lost)  # type: ignore[misc]
        self.deadlines.stop()


@functools.cache
def _store() -> CertificateStore:
    return CertificateStore.build([certificate("only", "localhost", "k8s.test")], protocols=(H2, HTTP1_1))


@functools.cache
def _client_tls() -> ClientTLS:
    return client_tls(verify=False)


async def play(case: Case) -> Result:
    """Run a case on a connection of its own."""
    origin = Origin()
    try:
        peer = await origin.dial(case.preface)
        for step in raw.steps(case.sends):
            peer.send(step)
            await peer.settled()
        await peer.settled()
        cancelled = sum(each.cancellations for each in origin.asked)
        return Result(peer.seen, peer.lost is not None, len(origin.asked), cancelled)
    finally:
        await origin.close()
