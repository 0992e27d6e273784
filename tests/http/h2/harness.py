"""A stage for the HTTP/2 server engine: a transport without a socket, a client on the `h2` package, and raw frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    InformationalResponseReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from mcproxy.config.model import Limits
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h2.frames import DATA, END_HEADERS, END_STREAM, HEADER, HEADERS, PREFACE, SETTINGS, frame
from mcproxy.http.h2.h2_server import H2ServerConnection
from mcproxy.http.messages import ProtocolError
from mcproxy.http.server_factory import ServerFactory
from tests.http.h1.harness import Handled, Wire
from tests.support.clock import Clock

NAME = "api.example.com"
#: The header block of a GET of / at host h: static fields and one literal that is not indexed.
REQUEST = b"\x82\x87\x84\x01\x01h"


def headers(stream_id: int, block: bytes, flags: int = END_HEADERS | END_STREAM) -> bytes:
    return frame(HEADERS, flags, stream_id, block)


def request(stream_id: int, method: bytes = b"GET", *, end: bool = True, fields: bytes = b"") -> bytes:
    """A request for a path that is the stream's number; `fields` are encoded already."""
    path = b"/%d" % stream_id
    block = b"\x02%c%b\x87\x01\x01h\x04%c%b" % (len(method), method, len(path), path)
    return headers(stream_id, block + fields, END_HEADERS | (END_STREAM if end else 0))


def data(stream_id: int, body: bytes, *, end: bool = False) -> bytes:
    return frame(DATA, END_STREAM if end else 0, stream_id, body)


class H2Wire(Wire):
    """`Wire` with the end of a reactor's turn: `turn`."""

    is_tls = True
    alpn: bytes | None = b"h2"

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self.flushed: Any = None

    def flush_later(self, item: Any) -> None:
        self.flushed = item

    def turn(self) -> None:
        """The reactor's turn ends."""
        while self.flushed is not None and self.open:
            item, self.flushed = self.flushed, None
            item.flush_coalesced()

    def taken(self) -> bytes:
        self.turn()
        return super().taken()


class Frame:
    """A frame that the engine sent."""

    def __init__(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        self.kind, self.flags, self.stream_id, self.payload = kind, flags, stream_id, payload

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[-4:] if len(self.payload) == 4 else self.payload[4:8], "big")

    @property
    def number(self) -> int:
        """The first integer of the payload: an increment, a last stream id."""
        return int.from_bytes(self.payload[:4], "big")

    def __repr__(self) -> str:
        return f"Frame({self.kind}, {self.flags}, {self.stream_id}, {self.payload[:20]!r})"


def frames(data: bytes) -> list[Frame]:
    found, at = [], 0
    while at < len(data):
        kind, flags, stream_id = HEADER.unpack_from(data, at)
        stop = at + 9 + (kind >> 8)
        found.append(Frame(kind & 255, flags, stream_id, data[at + 9 : stop]))
        at = stop
    assert at == len(data)
    return found


class H2ServerHarness:
    """The engine with a raw client at the other end, which has begun the connection if `begun`."""

    def __init__(
        self, *, attach: bool = True, begun: bool = True, goaway_chance: float = 0.0, random: float = 0.5, **bounds: Any
    ) -> None:
        self.clock = Clock()
        self.requests: list[Handled] = []
        self.deadlines = Deadlines(self.clock)
        self.factory = ServerFactory(
            self.deadlines,
            Limits(**bounds),
            self._handle,
            self._refusal,
            goaway_chance=goaway_chance,
            random=lambda: random,
        )
        self._attach = attach
        self.wire = H2Wire(None)
        connection = self.factory.build(cast(Any, self.wire))
        assert isinstance(connection, H2ServerConnection)
        self.connection = connection
        self.wire.protocol = connection
        connection.makeConnection(self.wire)
        if begun:
            self.sends(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, 1, 0))
            self.gets()

    def _handle(self, exchange: Exchange) -> None:
        handled = Handled(exchange)
        self.requests.append(handled)
        if self._attach:
            exchange.attach(handled)

    def _refusal(self, connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
        return b"Content-Type: text/plain\r\n", problem.message.encode()

    def sends(self, *data: bytes) -> H2ServerHarness:
        """The client sends, in one read."""
        self.wire.deliver(b"".join(data))
        return self

    def gets(self) -> list[Frame]:
        """What the client got since the last look."""
        return frames(self.wire.taken())

    @property
    def last(self) -> Handled:
        return self.requests[-1]

    def passes(self, seconds: float) -> None:
        """Let time pass in small steps, as it does."""
        for _ in range(round(seconds / 0.25)):
            self.clock.advance(0.25)
            self.wire.turn()

    @property
    def ended_with(self) -> int | None:
        """The code of the GOAWAY with which the connection was closed; None while it is open."""
        last = [one for one in self.gets() if one.kind == 7]
        return last[-1].code if last and not self.wire.open else None


class Client:
    """A client on the `h2` package."""

    def __init__(self, **bounds: Any) -> None:
        self.server = H2ServerHarness(begun=False, **bounds)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.status: dict[int, int] = {}
        self.fields: dict[int, dict[bytes, bytes]] = {}
        self.bodies: dict[int, bytes] = {}
        self.trailers: dict[int, list[tuple[bytes, bytes]]] = {}
        self.informational: dict[int, list[bytes]] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.goaways: list[tuple[int, int]] = []
        self.reads = True
        """Whether it gives windows back."""
        self.h2.initiate_connection()
        self.exchange()

    def exchange(self) -> Client:
        """Pass bytes both ways until both are silent."""
        while True:
            sent = self.h2.data_to_send()
            if sent:
                self.server.wire.deliver(sent)
            got = self.server.wire.taken()
            for event in self.h2.receive_data(got) if got else ():
                self._seen(event)
            if not sent and not got:
                return self

    def _seen(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            assert event.stream_id is not None
            self.fields[event.stream_id] = dict(event.headers or ())
            self.status[event.stream_id] = int(self.fields[event.stream_id][b":status"])
        elif isinstance(event, InformationalResponseReceived):
            assert event.stream_id is not None
            self.informational.setdefault(event.stream_id, []).append(dict(event.headers or ())[b":status"])
        elif isinstance(event, DataReceived):
            assert event.stream_id is not None
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + (event.data or b"")
            if self.reads and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, TrailersReceived):
            assert event.stream_id is not None
            self.trailers[event.stream_id] = list(event.headers or ())
        elif isinstance(event, StreamEnded):
            assert event.stream_id is not None
            self.ended.add(event.stream_id)
        elif isinstance(event, StreamReset):
            assert event.stream_id is not None
            self.resets[event.stream_id] = int(event.error_code or 0)
        elif isinstance(event, ConnectionTerminated):
            self.goaways.append((event.last_stream_id or 0, int(event.error_code or 0)))

    def asks(
        self,
        method: str = "GET",
        path: str = "/api/v1/pods",
        fields: Iterable[tuple[str, str]] = (),
        *,
        body: bytes | None = None,
        end: bool = True,
    ) -> int:
        """Send a request; `body` as far as the windows permit it, `end`: it is whole."""
        number = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "https"), (":authority", NAME), (":path", path), *fields]
        self.h2.send_headers(number, head, end_stream=end and body is None)
        if body is not None:
            for at in range(0, len(body), 16384):
                self.h2.send_data(number, body[at : at + 16384])
            if end:
                self.h2.end_stream(number)
        self.exchange()
        return number

    @property
    def last(self) -> Handled:
        return self.server.last
