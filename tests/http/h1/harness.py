"""A stage for the engines: a transport without a socket, and both engines on it, so that a test reads as a script.

`Wire` keeps Twisted's rules where the engines could trip over them: with a producer registered, loseConnection and
loseWriteConnection wait until it is unregistered; nothing is handed on after the end was asked for.
"""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.python.failure import Failure

from mcproxy.config.model import Limits
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h1.h1_client import H1ClientConnection
from mcproxy.http.h1.h1_server import H1ServerConnection
from mcproxy.http.messages import CHUNKED, Header, ProtocolError, RequestHead, ResponseHead
from mcproxy.http.server_factory import ServerFactory
from mcproxy.http.tunnel import TunnelSide
from tests.support.clock import Clock


class Wire:
    """One end of a connection; the test is the other end."""

    is_tls = False
    server_name = None
    alpn: bytes | None = None

    def __init__(self, protocol: Any) -> None:
        self.protocol = protocol
        self.out = b""  # written and not yet looked at
        self.reading = True
        self.half_closed = False
        self.closed = False  # in an orderly way
        self.aborted = False
        self.lost = False
        self.producer: Any = None
        self.sent_from_queue = 0
        self._waits: list[str] = []  # what was asked for while a producer was registered

    # -- the engine's side --

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        if not (self._waits or self.half_closed or self.closed or self.aborted or self.lost):
            self.out += data

    def writeSequence(self, iovec: Any) -> None:
        self.write(b"".join(iovec))

    def pauseProducing(self) -> None:
        self.reading = False

    def resumeProducing(self) -> None:
        self.reading = True

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert self.producer is None
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None
        waits, self._waits = self._waits, []
        for what in waits:
            getattr(self, what)()

    def loseConnection(self) -> None:
        if self.producer is not None:
            self._waits.append("loseConnection")
        else:
            self.closed = True

    def loseWriteConnection(self) -> None:
        if self.producer is not None:
            self._waits.append("loseWriteConnection")
        else:
            self.half_closed = True

    def abortConnection(self) -> None:
        self.aborted = True

    def getPeer(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.7", 40000)

    def getHost(self) -> IPv4Address:
        return IPv4Address("TCP", "192.0.2.1", 443)

    def peer_certificate(self) -> None:
        return None

    # -- the test's side --

    @property
    def open(self) -> bool:
        return not (self.closed or self.aborted or self.lost)

    def deliver(self, data: bytes) -> None:
        """The other end sent bytes, in one read."""
        if self.open and data:
            self.protocol.dataReceived(data)

    def drip(self, data: bytes) -> None:
        """The other end sent bytes, one at a time."""
        for index in range(len(data)):
            self.deliver(data[index : index + 1])

    def taken(self) -> bytes:
        """What was written since the last look."""
        out, self.out = self.out, b""
        return out

    def end(self) -> None:
        """The other end sends no more, in an orderly way."""
        self.protocol.readConnectionLost()

    def lose(self, reason: type[Exception] = ConnectionLost) -> None:
        """The connection is gone."""
        assert not self.lost
        self.lost = True
        self.protocol.connectionLost(Failure(reason()))  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Tell the protocol of the end that it asked for itself."""
        if not self.lost and (self.closed or self.aborted):
            self.lose(ConnectionAborted if self.aborted else ConnectionDone)

    def block(self) -> None:
        """The send buffer is full."""
        if self.producer is not None:
            self.producer.pauseProducing()

    def unblock(self) -> None:
        if self.producer is not None:
            self.producer.resumeProducing()


class Handled:
    """One exchange that the server engine gave out, and what became of it."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.body = b""
        self.trailers: list[Header] | None = None  # None until the body's end
        self.cancellations = 0
        self.ends = 0
        self.paused = False
        exchange.on_done = self

    # ExchangeHandler
    def body_data(self, data: bytes) -> None:
        assert data
        self.body += data

    def body_end(self, trailers: list[Header]) -> None:
        assert self.trailers is None
        self.trailers = trailers

    def cancelled(self) -> None:
        self.cancellations += 1

    def pause_response(self) -> None:
        self.paused = True

    def resume_response(self) -> None:
        self.paused = False

    def end_gracefully(self) -> None:
        raise AssertionError("nobody asked for it")

    # ExchangeObserver
    def exchange_done(self, exchange: Exchange) -> None:
        assert exchange is self.exchange
        self.ends += 1

    def answer(self, body: bytes = b"ok", status: int = 200) -> None:
        self.exchange.answer(status, b"X: y\r\n", body)


class ServerHarness:
    """The server engine with a client at the other end; `attach`: a handler takes each exchange at once."""

    def __init__(self, *, attach: bool = True, **bounds: Any) -> None:
        self.clock = Clock()
        self.requests: list[Handled] = []
        self.deadlines = Deadlines(self.clock)
        self.factory = ServerFactory(self.deadlines, Limits(**bounds), self._handle, self._refusal)
        self._attach = attach
        self.wire = Wire(None)
        connection = self.factory.build(cast(Any, self.wire))
        assert isinstance(connection, H1ServerConnection)
        self.connection = self.wire.protocol = connection
        self.connection.makeConnection(self.wire)

    def _handle(self, exchange: Exchange) -> None:
        handled = Handled(exchange)
        self.requests.append(handled)
        if self._attach:
            exchange.attach(handled)

    def _refusal(self, connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
        return b"Content-Type: text/plain\r\n", problem.message.encode()

    def sends(self, data: bytes) -> ServerHarness:
        self.wire.deliver(data)
        return self

    def gets(self) -> bytes:
        return self.wire.taken()

    def status(self) -> int:
        """The status of the answer that came; 0 if none did."""
        out = self.wire.taken()
        return int(out.split(b" ", 2)[1]) if out else 0

    @property
    def last(self) -> Handled:
        return self.requests[-1]

    def passes(self, seconds: float) -> None:
        """Let time pass in small steps, as it does."""
        self.clock.pump([0.25] * round(seconds / 0.25))


class Answer:
    """A ResponseSink that remembers."""

    def __init__(self) -> None:
        self.informed: list[int] = []
        self.head: ResponseHead | None = None
        self.body = b""
        self.trailers: list[Header] | None = None  # None until the end
        self.failure: Exception | None = None
        self.upgraded: TunnelSide | None = None
        self.flushes = 0
        self.request_paused = False
        self.on_head: Any = None

    def response_interim(self, head: ResponseHead) -> None:
        self.informed.append(head.status)

    def response_head(self, head: ResponseHead) -> None:
        assert self.head is None
        self.head = head
        if self.on_head is not None:
            self.on_head()

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        self.response_head(head)
        self.response_data(body)
        self.response_end([])

    def response_data(self, data: bytes) -> None:
        assert data
        self.body += data

    def response_flush(self) -> None:
        self.flushes += 1

    def response_end(self, trailers: list[Header]) -> None:
        assert self.trailers is None
        assert self.failure is None
        self.trailers = trailers

    def response_failed(self, problem: Exception) -> None:
        assert self.failure is None
        assert self.trailers is None
        self.failure = problem

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        self.head = head
        self.upgraded = side

    def pause_request(self) -> None:
        self.request_paused = True

    def resume_request(self) -> None:
        self.request_paused = False

    @property
    def complete(self) -> bool:
        return self.trailers is not None


def request_to_send(method: bytes = b"GET", *, length: int = 0, upgrade: bytes | None = None) -> RequestHead:
    """What an engine needs to know of the client's request."""
    head = RequestHead()
    head.method, head.length, head.upgrade = method, length, upgrade
    head.expects_continue = head.te_trailers = False
    return head


class ClientHarness:
    """The client engine with an upstream at the other end; it is its own pool."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.idle = 0
        self.closed = 0
        self.connection = H1ClientConnection(self, Deadlines(self.clock))
        self.wire = Wire(self.connection)
        self.connection.makeConnection(self.wire)

    def connection_idle(self, connection: H1ClientConnection) -> None:
        self.idle += 1

    def closed_after_idleness(self, seconds: float) -> None:
        """Nothing is kept for less time here."""

    def connection_closed(self, connection: H1ClientConnection) -> None:
        self.closed += 1

    def asks(
        self, method: bytes = b"GET", *, body: bool = False, upgrade: bool = False, timeout: float = 60.0
    ) -> Answer:
        answer = Answer()
        length = CHUNKED if body else 0
        head = request_to_send(method, length=length, upgrade=b"websocket" if upgrade else None)
        self.connection.send_head(head, b"/", b"host", (), answer, timeout)
        return answer

    def answers(self, data: bytes) -> ClientHarness:
        self.wire.deliver(data)
        return self

    def passes(self, seconds: float) -> None:
        self.clock.pump([0.25] * round(seconds / 0.25))
