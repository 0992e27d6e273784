"""An HTTP/2 client on the `h2` package, for asyncio tests that look at frames: settings, windows, resets, GOAWAY."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

__all__ = ["HTTP2Client", "Reply", "StreamLost"]

Headers = list[tuple[str, str]]


class StreamLost(Exception):
    """A stream ended without END_STREAM: by RST_STREAM (`code`), or with its connection (`code` is None)."""

    def __init__(self, code: int | None) -> None:
        super().__init__("the connection is lost" if code is None else ErrorCodes(code).name)
        self.code = code


@dataclass
class Reply:
    """The response to one request, while it comes."""

    stream: int
    status: int = 0
    interim: list[int] = field(default_factory=list)
    headers: Headers = field(default_factory=list)
    received: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    head: asyncio.Event = field(default_factory=asyncio.Event)
    lost: StreamLost | None = None

    async def begun(self) -> Reply:
        """Wait for the head. Raises StreamLost."""
        await self.head.wait()
        if not self.status:
            assert self.lost is not None
            raise self.lost
        return self

    async def read(self) -> bytes:
        """Return the whole content. Raises StreamLost when it has no end."""
        await self.begun()
        return await self.received.read()

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class _Engine(H2Connection):
    """`h2`'s connection, whose streams outlive a GOAWAY of the server."""

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        self.goaways: list[tuple[int, int]] = []

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[events.Event]]:
        self.goaways.append((int(frame.error_code), int(frame.last_stream_id)))
        return [], []


class HTTP2Client(asyncio.Protocol):
    """One connection. `settings` are the client's own; with `reads=False` no window is given back."""

    def __init__(self, settings: dict[int, int] | None = None, *, reads: bool = True) -> None:
        self.engine = _Engine(H2Configuration(client_side=True, header_encoding="latin-1"))
        own = {SettingCodes.ENABLE_PUSH: 0, **{SettingCodes(key): value for key, value in (settings or {}).items()}}
        self.engine.local_settings = Settings(client=True, initial_values=own)
        self.reads = reads
        self.replies: dict[int, Reply] = {}
        self.announced: list[dict[int, int]] = []
        """The settings of each SETTINGS frame received."""
        self.pongs = 0
        self.closed = asyncio.Event()
        self.ready = asyncio.Event()
        """Set when the server's settings are known."""
        self._authority = ""
        self._bodies: dict[int, tuple[bytearray, bool]] = {}
        self._transport: Any = None
        self._events: deque[events.Event] = deque()

    @property
    def goaways(self) -> list[tuple[int, int]]:
        """(code, last stream) of each GOAWAY received."""
        return self.engine.goaways

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext, *, wait: bool = True, **options: Any) -> HTTP2Client:
        """Connect to a loopback port, and wait for the server's settings; `context` must offer h2 by ALPN."""
        client = cls(**options)
        client._authority = f"127.0.0.1:{port}"
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", port, ssl=context)
        if wait:
            await client.ready.wait()
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        chosen = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        assert chosen == "h2", f"the server has chosen {chosen}"
        self.engine.initiate_connection()
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self.engine.receive_data(data):
            self._handle(event)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
        self.ready.set()
        for reply in self.replies.values():
            self._lose(reply, None)

    def flush(self) -> None:
        data = self.engine.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _handle(self, event: events.Event) -> None:
        reply = self.replies.get(getattr(event, "stream_id", 0) or 0)
        if isinstance(event, events.RemoteSettingsChanged):
            self.announced.append({int(key): each.new_value for key, each in event.changed_settings.items()})
            self.ready.set()
            self._send_bodies()
        elif isinstance(event, events.WindowUpdated):
            self._send_bodies()
        elif isinstance(event, events.PingAckReceived):
            self.pongs += 1
        elif reply is not None:
            self._handle_reply(reply, event)

    def _handle_reply(self, reply: Reply, event: events.Event) -> None:
        if isinstance(event, events.InformationalResponseReceived):
            reply.interim.append(int(event.headers[0][1]))
        elif isinstance(event, events.ResponseReceived):
            headers = [(str(name), str(value)) for name, value in event.headers]
            reply.status, reply.headers = int(headers[0][1]), headers[1:]
            reply.head.set()
        elif isinstance(event, events.DataReceived):
            reply.received.feed_data(event.data)
            if self.reads and event.flow_controlled_length:
                self.engine.acknowledge_received_data(event.flow_controlled_length, reply.stream)
        elif isinstance(event, events.StreamEnded):
            reply.received.feed_eof()
        elif isinstance(event, events.StreamReset):
            self._lose(reply, int(event.error_code or 0))

    def _lose(self, reply: Reply, code: int | None) -> None:
        if reply.lost is None and not reply.received.at_eof():
            reply.lost = StreamLost(code)
            if not reply.received._eof:  # type: ignore[attr-defined]
                reply.received.set_exception(reply.lost)
        reply.head.set()

    def request(
        self,
        method: str,
        path: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes | None = None,
        *,
        end: bool = True,
    ) -> Reply:
        """Begin a request, with its content as the server's windows allow; `end=False` leaves it open."""
        ident = self.engine.get_next_available_stream_id()
        reply = self.replies[ident] = Reply(ident)
        fields = [(":method", method), (":scheme", "https"), (":authority", self._authority), (":path", path)]
        fields += [(name.lower(), value) for name, value in headers]
        if body is not None and end and not any(name == "content-length" for name, _ in fields):
            fields.append(("content-length", str(len(body))))
        self.engine.send_headers(ident, fields, end_stream=end and not body)
        if body:
            self._bodies[ident] = bytearray(body), end
            self._send_bodies()
        self.flush()
        return reply

    def _send_bodies(self) -> None:
        for ident, (body, end) in list(self._bodies.items()):
            try:
                while body and (room := self._room(ident)) > 0:
                    last = len(body) <= room
                    self.engine.send_data(ident, bytes(body[:room]), end_stream=last and end)
                    del body[:room]
            except StreamClosedError:
                body.clear()
            if not body:
                del self._bodies[ident]

    def _room(self, ident: int) -> int:
        """How much a DATA frame may have; a window is negative after the server has made it smaller."""
        return min(self.engine.local_flow_control_window(ident), self.engine.max_outbound_frame_size)

    def unsent(self, reply: Reply) -> int:
        """Return how many bytes of a request's content wait for a window."""
        return len(self._bodies[reply.stream][0]) if reply.stream in self._bodies else 0

    def reset(self, reply: Reply, code: int = ErrorCodes.CANCEL) -> None:
        self.engine.reset_stream(reply.stream, code)
        self.flush()

    def give_window(self, size: int, reply: Reply | None = None) -> None:
        """Send WINDOW_UPDATE for a stream, or for the connection."""
        with contextlib.suppress(StreamClosedError):
            self.engine.increment_flow_control_window(size, None if reply is None else reply.stream)
        self.flush()

    def ping(self) -> None:
        self.engine.ping(b"12345678")
        self.flush()

    def close(self) -> None:
        self._transport.abort()
