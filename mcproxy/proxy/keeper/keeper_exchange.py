"""One request and its response in the keeper: an exchange whose client is a worker.

Each call becomes a frame, and the worker makes the same call on its client's exchange. Back-pressure comes from the
client (PAUSE), and from the connection to the worker, which pauses writing exchanges while it is blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header
from mcproxy.kube.status import StatusError
from mcproxy.net.wall_time import wall_clock
from mcproxy.proxy.keeper import wire
from mcproxy.proxy.keeper.keeper_frames import FrameType

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.http.exchange import ServerConnection
    from mcproxy.http.messages import RequestHead
    from mcproxy.http.tunnel import TunnelSide

_MOST_AT_ONCE = 256 * 1024  # maximum bytes of a body in one frame


class WorkerConnection(Protocol):
    """The connection to a worker (`keeper_server.WorkerLink`)."""

    blocked: bool

    @property
    def full(self) -> bool:
        """Whether so much data is queued that even shared data must wait."""
        ...

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None: ...

    def send_pieces(self, kind: int, stream: int, pieces: Sequence[bytes], size: int) -> None: ...

    def send_shared(self, stream: int, data: bytes) -> None: ...

    def hold(self, exchange: KeeperExchange) -> None:
        """Call the exchange's `released` when the worker reads again."""

    def over(self, exchange: KeeperExchange) -> None:
        """The exchange has ended."""


class KeeperExchange(Exchange):
    """An exchange of the keeper. In addition to the base class, its worker can refuse it or forward it."""

    __slots__ = ("_held", "_link", "_paused", "_reads_body", "note", "reason", "stream")

    protocol = "HTTP/1.1"

    def __init__(
        self, link: WorkerConnection, stream: int, origin: ServerConnection, head: RequestHead, now: float
    ) -> None:
        super().__init__(origin, head, now)
        self._link = link
        self.stream = stream
        self.note: Callable[[], bytes] | None = None  # returns the next NOTE, b"" if there is nothing new
        self.reason = ""  # the access log's reason for a broken-off response
        self._paused = False  # the client reads slowly
        self._held = False  # the worker reads slowly
        self._reads_body = False

    @property
    def write_blocked(self) -> bool:
        return self._paused or self._held

    def set_long_running(self) -> None:
        self.long_running = True

    # -- the worker's frames --------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The client reads slowly."""
        self._paused = True
        if not self._held and self.handler is not None:
            self.handler.pause_response()

    def resume(self) -> None:
        """The client reads again."""
        self._paused = False
        if not self._held and self.handler is not None:
            self.handler.resume_response()

    def released(self) -> None:
        """The worker reads again."""
        self._held = False
        if not self._paused and self.handler is not None:
            self.handler.resume_response()

    def _hold(self) -> None:
        if self._held or self.ended:
            return
        self._held = True
        self._link.hold(self)
        if not self._paused and self.handler is not None:
            self.handler.pause_response()

    # -- the request's body -------------------------------------------------------------------------------------

    def attach(self, handler: object) -> None:
        super().attach(handler)  # type: ignore[arg-type]
        if self.head.length and not self._reads_body and not self.ended:
            self._reads_body = True
            self._link.send(FrameType.READ_BODY, self.stream)

    def _unread_bodies(self) -> None:
        """Return None: the worker has the listener and counts unread bytes; the keeper requests the body to read it."""

    def pause_body(self) -> None:
        if self._reads_body and not self.ended:
            self._link.send(FrameType.PAUSE_BODY, self.stream)

    def resume_body(self) -> None:
        if self._reads_body and not self.ended:
            self._link.send(FrameType.RESUME_BODY, self.stream)

    # -- the response -------------------------------------------------------------------------------------------

    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        if not self.ended and not self.responded:
            self._link.send(FrameType.INTERIM, self.stream, wire.encode(wire.Interim(status, reason, fields)))

    def send_note(self) -> None:
        """Send the worker a NOTE for its access log, if it has changed."""
        note, self.note = self.note, None
        if note is not None:
            self._link.send(FrameType.NOTE, self.stream, note())

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        if self.ended:
            return
        self.send_note()
        self.responded = True
        self.status = status
        response = wire.Response(status, reason, fields, length, declared)
        self._link.send(FrameType.RESPOND, self.stream, wire.encode(response))

    def write(self, data: bytes) -> None:
        if not self.ended and data:
            self.bytes_out += len(data)
            self._link.send(FrameType.DATA, self.stream, data)

    def write_shared(self, data: bytes, chunk: bytes) -> None:
        if self.ended:
            return
        self.bytes_out += len(data)
        self._link.send_shared(self.stream, data)
        if self._link.blocked and self._link.full:
            self._hold()

    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        if not self.ended and size:
            self.bytes_out += size
            self._link.send_pieces(FrameType.DATA, self.stream, pieces, size)

    def flush(self) -> None:
        if self._link.blocked:
            self._hold()

    def end(self, trailers: list[Header] | None = None) -> None:
        if self.ended:
            return
        self.completed = True
        self.send_note()
        self._link.send(FrameType.END, self.stream, wire.encode(trailers or []))
        self._finish()

    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
        if self.ended:
            return
        size = len(body)
        if size > _MOST_AT_ONCE and self.head.method == b"HEAD":
            self.respond(status, reason, fields, 0, size)  # the body is dropped here
            self.end()
            return
        if size > _MOST_AT_ONCE:
            self.respond(status, reason, fields, size)
            for begin in range(0, size, _MOST_AT_ONCE):
                self.write(body[begin : begin + _MOST_AT_ONCE])
            self.end()
            return
        self.responded = self.completed = True
        self.status = status
        self.bytes_out = size
        self.send_note()
        self._link.send(FrameType.WHOLE, self.stream, wire.encode(wire.Whole(status, fields, body, reason)))
        self._finish()

    def abort(self) -> None:
        if not self.ended:
            self._link.send(FrameType.ABORT, self.stream, self.reason.encode())
            self._finish()

    def begin_lasting(self) -> None:
        """Notify the worker that the response is a watch that has begun."""
        if not self.ended:
            self.send_note()
            self._link.send(FrameType.LASTING, self.stream)

    def refuse(self, refusal: StatusError, reason: str) -> None:
        """Let the worker refuse the request in its usual way."""
        if not self.ended:
            self.send_note()
            self._link.send(
                FrameType.REFUSE, self.stream, wire.encode(wire.Refusal(wire.encode_refusal(refusal), reason))
            )
            self._finish()

    def forward(self, member: str, target: bytes) -> None:
        """Let the worker forward the request to a member, whose response is sent to the client unchanged."""
        if not self.ended:
            self.send_note()
            self._link.send(FrameType.FORWARD, self.stream, wire.encode(wire.Forwarding(member, target)))
            self._finish()

    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        raise AssertionError("a tunnel goes from the worker to the member")

    def _finish(self) -> None:
        self.note = None
        self._link.over(self)
        super()._finish()


class RelayedClient:
    """The keeper's data about a client and its connection, which the worker has."""

    __slots__ = (
        "_forwarded",
        "client",
        "factory",
        "handle",
        "handler_state",
        "log_address",
        "seconds",
        "transport",
        "wall_seconds",
    )

    def __init__(
        self, factory: object, clock: IReactorTime, client: object, log_address: str, forwarded: bytes
    ) -> None:
        """`factory` stands for the listener; `forwarded` is the block of X-Forwarded-* fields."""
        self.factory = factory
        self.seconds = clock.seconds
        self.wall_seconds = wall_clock(clock)
        self.client = client
        self.log_address = log_address
        self.handler_state = self.handle = self.transport = None
        self._forwarded = forwarded

    def forwarded_fields(self, head: RequestHead) -> bytes:
        """Return the X-Forwarded-* fields (`ClientConnectionInfo.forwarded_fields`)."""
        return self._forwarded

    @property
    def as_connection(self) -> ServerConnection:
        return cast("ServerConnection", self)
