"""A stage for the HTTP/2 client engine: a transport without a socket, and an upstream of raw frames."""

from __future__ import annotations

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h2.frames import END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame
from mcproxy.http.h2.h2_client import H2ClientConnection, H2ClientResources
from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.http.messages import RequestHead
from tests.http.h1.harness import Answer, request_to_send
from tests.http.h2.harness import Frame, H2Wire, frames
from tests.support.clock import Clock

#: `:status: 200`, and the same with a content-length of one digit, which is to follow.
OK = b"\x88"
OK_LENGTH = b"\x88\x0f\x0d\x01"


def response(stream_id: int, block: bytes = OK, *, end: bool = False, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags | (END_STREAM if end else 0), stream_id, block)


class H2ClientHarness:
    """The engine, which has begun; it is its own pool."""

    presumed_limit = 100
    waits = False

    def __init__(self, *settings: tuple[int, int], begun: bool = True) -> None:
        self.clock = Clock()
        self.clock.advance(1000.0)
        self.roomy = 0  # calls of `room`
        self.unusable = 0
        self.limits: list[int] = []
        self.violations: list[str] = []
        self.connection = H2ClientConnection(
            self,
            Deadlines(self.clock),
            H2ClientResources(),
            self.violations.append,
        )
        self.wire = H2Wire(self.connection)
        self.connection.makeConnection(self.wire)
        self.first = self.wire.taken()
        assert self.first.startswith(PREFACE)
        if begun:
            payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings)
            self.answers(frame(SETTINGS, 0, 0, payload), frame(SETTINGS, 1, 0))
            self.gets()

    # -- the pool -----------------------------------------------------------------------------------------------

    def room(self, connection: H2ClientConnection) -> None:
        self.roomy += 1

    def limit_announced(self, connection: H2ClientConnection) -> None:
        self.limits.append(connection.limit)

    def connection_unusable(self, connection: H2ClientConnection) -> None:
        self.unusable += 1

    def connection_ended(self, connection: H2ClientConnection) -> None:
        """Nothing counts it here."""

    # -- requests -----------------------------------------------------------------------------------------------

    def asks(
        self, method: bytes = b"GET", *, length: int = 0, timeout: float = 60.0, lasting: bool = False
    ) -> tuple[H2ClientStream, Answer]:
        """A request that was sent."""
        answer = Answer()
        stream = self.connection.new_request(lasting)
        stream.send_head(self.head(method, length), b"/", b"host", (b"Accept: a\r\n",), answer, timeout)
        return stream, answer

    def head(self, method: bytes, length: int) -> RequestHead:
        return request_to_send(method, length=length)

    def answers(self, *data: bytes) -> H2ClientHarness:
        """The upstream sends, in one read."""
        self.wire.deliver(b"".join(data))
        return self

    def gets(self) -> list[Frame]:
        """What the upstream got since the last look."""
        return frames(self.wire.taken())

    def resets(self) -> list[int]:
        """The codes of the RST_STREAM frames that the upstream got since the last look."""
        return [sent.code for sent in self.gets() if sent.kind == RST_STREAM]

    def passes(self, seconds: float) -> None:
        """Let time pass in small steps, as it does."""
        for _ in range(round(seconds / 0.25)):
            self.clock.advance(0.25)
            self.wire.turn()

    @property
    def ended_with(self) -> int | None:
        """The code of the GOAWAY with which the connection was closed; None while it is open."""
        last = [one for one in self.gets() if one.kind == GOAWAY]
        return last[-1].code if last and not self.wire.open else None

    @property
    def timers(self) -> int:
        """Requests whose time is running."""
        items = self.connection.deadlines._items
        return sum(isinstance(item, H2ClientStream) and item.deadline is not NEVER for item in items)
