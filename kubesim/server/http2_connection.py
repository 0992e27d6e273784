"""One HTTP/2 connection: the `h2` package between the TLS transport and the streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import Frame, GoAwayFrame

from kubesim.faults import Fault, Faults
from kubesim.server.http2_stream import CutOff, Field, MalformedError, RequestHead, Stream

MAX_ERRORS_KEPT = 100


@dataclass(frozen=True)
class HTTP2Settings:
    """The settings announced to clients; the defaults are kube-apiserver's (windows in bytes)."""

    max_concurrent_streams: int = 250
    initial_window: int = 256 << 10
    connection_window: int = 250 * (256 << 10)


@dataclass
class EndpointState:
    """The counts are of all connections since the start."""

    endpoint: int
    faults: Faults
    settings: HTTP2Settings
    connections_seen: int = 0
    streams_seen: int = 0
    most_streams: int = 0
    """The most streams that were open at once on one connection."""
    refused: int = 0
    """Streams refused with RST_STREAM, because of a fault or beyond the limit."""
    over_limit: int = 0
    """Refused streams that a client began although it had acknowledged the limit."""
    resets_received: int = 0
    pings_received: int = 0
    protocol_errors: list[str] = field(default_factory=list)

    def note_protocol_error(self, text: str) -> None:
        """Record a client's violation of the protocol."""
        if len(self.protocol_errors) < MAX_ERRORS_KEPT:
            self.protocol_errors.append(text)

    def pick_fault(self, head: RequestHead) -> Fault | None:
        """Return the fault of HTTP/2 for a request."""
        method, target = head.method.decode("latin-1"), head.target.decode("latin-1")
        return self.faults.pick(method, target, self.endpoint, http2=True)

    def as_dict(self) -> dict[str, Any]:
        return {
            "connectionsSeen": self.connections_seen,
            "streamsSeen": self.streams_seen,
            "mostStreams": self.most_streams,
            "refused": self.refused,
            "overLimit": self.over_limit,
            "resetsReceived": self.resets_received,
            "pingsReceived": self.pings_received,
            "protocolErrors": self.protocol_errors,
        }


MAX_STREAM = (1 << 31) - 1
IDLE_SECONDS = 180.0
LINGER_SECONDS = 0.1  # Go: a second; the client has the time to read the GOAWAY
DEFAULT_WINDOW = 65_535
READ_LIMIT = 1 << 18  # kube-apiserver's frame size and stream window (256 KiB): 99 % of its objects are smaller
MAX_HEAD = 1 << 20  # Go's DefaultMaxHeaderBytes
SEND_AT_ONCE = 1 << 16


class _Engine(H2Connection):
    """`h2`'s connection, with two changes that make it more like Go's.

    A stream beyond MAX_CONCURRENT_STREAMS is for the owner to refuse; `h2` would end the connection. The client's
    GOAWAY does not end the streams that are open.
    """

    @property
    def open_inbound_streams(self) -> int:
        self._open_streams(1)  # this also removes those that are closed
        return 0

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[events.Event]]:
        return [], []


class HTTP2Connection(asyncio.Protocol):
    """Serves the streams of one connection, each with its own protocol over a `Stream`."""

    def __init__(
        self,
        state: EndpointState,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        ended: Callable[[HTTP2Connection], None],
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self._state = state
        self._report_end = ended
        self._make_protocol = make_protocol
        self._engine = _Engine(
            H2Configuration(client_side=False, header_encoding=False, validate_outbound_headers=False)
        )
        self._transport: Any = None
        self._ready: deque[Stream] = deque()
        self._blocked: dict[int, Stream] = {}
        self._paused = False
        self._scheduled = False
        self._silent = False
        self._held: list[bytes] = []
        self._resuming: asyncio.Task[None] | None = None
        self._last = MAX_STREAM
        """The greatest stream that is processed; less than MAX_STREAM after a GOAWAY."""
        self._acknowledged = False
        self._idle: asyncio.TimerHandle | None = None
        self._handlers: dict[type[events.Event], Callable[[Any], None]] = {
            events.RequestReceived: self._request_received,
            events.DataReceived: self._data_received,
            events.TrailersReceived: self._trailers_received,
            events.StreamEnded: self._stream_ended,
            events.StreamReset: self._stream_reset,
            events.WindowUpdated: self._window_updated,
            events.RemoteSettingsChanged: self._unblock,
            events.SettingsAcknowledged: self._settings_acknowledged,
            events.PingReceived: self._ping_received,
        }

    # asyncio's protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        settings = self._state.settings
        first = {
            SettingCodes.MAX_FRAME_SIZE: READ_LIMIT,
            SettingCodes.MAX_CONCURRENT_STREAMS: settings.max_concurrent_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEAD,
            SettingCodes.INITIAL_WINDOW_SIZE: max(DEFAULT_WINDOW, settings.initial_window),
        }
        self._engine.local_settings = Settings(client=False, initial_values=first)
        self._engine.max_inbound_frame_size = READ_LIMIT
        self._engine.initiate_connection()
        if settings.initial_window < DEFAULT_WINDOW:  # in force when the client acknowledges, not before
            self._engine.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: settings.initial_window})
        window = settings.connection_window - DEFAULT_WINDOW
        if window > 0:
            self._engine.increment_flow_control_window(window)
        self._rest()
        self._send()

    def data_received(self, data: bytes) -> None:
        if self._silent:
            self._held.append(data)
            return
        try:
            received = self._engine.receive_data(data)
        except ProtocolError as error:
            self._state.note_protocol_error(f"{type(error).__name__}: {error}")
            self._send()
            self._close()
            self._drop(self.streams, str(error))
            return
        for event in received:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._report_end(self)
        if self._idle is not None:
            self._idle.cancel()
        self._drop(self.streams, "the connection is lost")

    def _drop(self, idents: Iterable[int], why: str) -> None:
        """End streams for their handlers, without a frame."""
        for ident in list(idents):
            self._blocked.pop(ident, None)
            self.streams.pop(ident).lost(ConnectionResetError(why))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send()

    # Events of the engine.

    def _request_received(self, event: events.RequestReceived) -> None:
        ident = event.stream_id
        if ident > self._last:
            return
        if len(self.streams) >= self._state.settings.max_concurrent_streams:
            self._state.over_limit += self._acknowledged
            self._refuse(ident, ErrorCodes.REFUSED_STREAM)
            return
        ended = event.stream_ended is not None
        fields: list[Field] = [(bytes(name), bytes(value)) for name, value in event.headers]
        try:
            head = RequestHead(fields, end_stream=ended)
        except MalformedError:
            self._engine.reset_stream(ident, ErrorCodes.PROTOCOL_ERROR)
            return
        fault = self._state.pick_fault(head)
        if fault is not None and not self._apply(fault, ident):
            return
        self._serve(ident, head, ended=ended, cut_off=_cut_off(fault))

    def _serve(self, ident: int, head: RequestHead, *, ended: bool, cut_off: CutOff | None) -> None:
        stream = Stream(self, ident, head, ended=ended, cut_off=cut_off)
        self.streams[ident] = stream
        self._state.streams_seen += 1
        self._state.most_streams = max(self._state.most_streams, len(self.streams))
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        stream.begin(self._make_protocol(), head.data)

    def _apply(self, fault: Fault, ident: int) -> bool:
        """Apply a fault to a request; return whether the request is served."""
        if fault.kind == "goaway":
            self.goaway(_code(fault, ErrorCodes.NO_ERROR), ident - 2 if fault.unprocessed else ident)
            return not fault.unprocessed
        if fault.kind == "refuseStream":
            self._refuse(ident, _code(fault, ErrorCodes.REFUSED_STREAM))
            return False
        if fault.kind == "silentConnection":
            self.silence()
            self._resuming = asyncio.get_running_loop().create_task(self._resume_after(fault))
        return True

    async def _resume_after(self, fault: Fault) -> None:
        await fault.removed.wait()
        self.resume()

    def _refuse(self, ident: int, code: int) -> None:
        self._state.refused += 1
        self._engine.reset_stream(ident, code)

    def _data_received(self, event: events.DataReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            self.acknowledge_lost(event.flow_controlled_length)
        else:
            stream.content_received(event.data, event.flow_controlled_length)

    def _trailers_received(self, event: events.TrailersReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            trailers = [(bytes(name), bytes(value)) for name, value in event.headers]
            stream.content_ended(trailers)

    def _stream_ended(self, event: events.StreamEnded) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None and not stream.request_ended:
            stream.content_ended()

    def _stream_reset(self, event: events.StreamReset) -> None:
        self._state.resets_received += event.remote_reset
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            self._finish(stream, ConnectionResetError("the client has reset the stream"))

    def _ping_received(self, event: events.PingReceived) -> None:
        self._state.pings_received += 1

    def _settings_acknowledged(self, event: events.SettingsAcknowledged) -> None:
        self._acknowledged = True

    def _window_updated(self, event: events.WindowUpdated) -> None:
        if event.stream_id == 0:
            self._unblock(event)
            return
        stream = self._blocked.pop(event.stream_id, None)
        if stream is not None:
            self._ready.append(stream)

    def _unblock(self, event: events.Event) -> None:
        self._ready.extend(self._blocked.values())
        self._blocked.clear()

    # Methods for streams.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def acknowledge(self, stream: Stream, size: int) -> None:
        self.acknowledge_lost(size)
        if not stream.request_ended:
            # not acknowledge_received_data, which withholds less than half of a window: when that window then becomes
            # smaller, neither side sends again
            with contextlib.suppress(StreamClosedError):
                self._engine.increment_flow_control_window(size, stream.ident)

    def acknowledge_lost(self, size: int) -> None:
        if size and not self._transport.is_closing():
            self._engine.increment_flow_control_window(size)
            self._schedule()

    def send_head(self, stream: Stream, status: int, fields: list[Field], *, end_stream: bool) -> None:
        if stream.done:
            return
        self._engine.send_headers(stream.ident, [(b":status", b"%d" % status), *fields], end_stream=end_stream)
        if end_stream:
            self._ended(stream)
        self._schedule()

    def content_ready(self, stream: Stream) -> None:
        if not stream.done and not stream.queued:
            stream.queued = True
            self._ready.append(stream)
            self._schedule()

    def reset_stream(self, stream: Stream, code: int) -> None:
        self._engine.reset_stream(stream.ident, code)
        self._finish(stream, ConnectionResetError("the stream was reset"))
        self._schedule()

    def _ended(self, stream: Stream) -> None:
        """A response has been sent; like Go, stop the upload of a request that has not ended."""
        if not stream.request_ended:
            self._engine.reset_stream(stream.ident, ErrorCodes.NO_ERROR)
        self._finish(stream, None)

    def _finish(self, stream: Stream, error: Exception | None) -> None:
        self.streams.pop(stream.ident, None)
        self._blocked.pop(stream.ident, None)
        stream.lost(error)
        if not self.streams:
            self._rest()

    def _rest(self) -> None:
        """Handle that no stream is open: close after a GOAWAY, else send one after a long idle time."""
        loop = asyncio.get_running_loop()
        if self._last < MAX_STREAM:
            self._idle = loop.call_later(LINGER_SECONDS, self._close_if_idle)
        else:
            self._idle = loop.call_later(IDLE_SECONDS, self._idle_too_long)

    def _idle_too_long(self) -> None:
        self.goaway(ErrorCodes.NO_ERROR)

    def _close_if_idle(self) -> None:
        if not self.streams:
            self._send()
            self._close()

    def _close(self) -> None:
        if not self._transport.is_closing():  # asyncio's TLS transport loses its state at a second close()
            self._transport.close()

    # Sending.

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        """Send frames of the streams in turn, while the transport and the windows take them."""
        self._scheduled = False
        if self._silent:
            return
        unsent = 0
        while self._ready and not self._paused:
            stream = self._ready.popleft()
            unsent += self._send_frame(stream)
            if unsent >= SEND_AT_ONCE:
                self._write()
                unsent = 0
        self._write()

    def _write(self) -> None:
        data = self._engine.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def _send_frame(self, stream: Stream) -> int:
        """Send one DATA frame of a stream; return its size. The stream is queued again if it has more."""
        stream.queued = False
        if stream.done:
            return 0
        size, end = len(stream.pending), stream.content_complete
        if size:
            engine = self._engine
            size = min(size, engine.local_flow_control_window(stream.ident), engine.max_outbound_frame_size)
            if size <= 0:
                self._blocked[stream.ident] = stream
                stream.queued = True
                return 0
        end = end and size == len(stream.pending)
        if size or end:
            self._engine.send_data(stream.ident, bytes(stream.pending[:size]), end_stream=end)
            stream.sent(size)
        if stream.cut_off is not None:
            stream.cut_off.left -= size
        if end:
            self._ended(stream)
        elif stream.cut_off is not None and stream.cut_off.left <= 0:
            self.reset_stream(stream, stream.cut_off.code)
        elif stream.pending:
            self.content_ready(stream)
        return size

    # Faults and the end.

    def goaway(self, code: int = ErrorCodes.NO_ERROR, last: int | None = None) -> None:
        """Send GOAWAY with the greatest stream that is processed, by default all that have been begun.

        Those above it are dropped without an answer. The connection closes when the last stream has ended, at once for
        an error. (`h2`'s own close_connection ends all streams.)
        """
        last = self._engine.highest_inbound_stream_id if last is None else max(0, last)
        self._last = min(self._last, last)
        self._write()
        frame = GoAwayFrame(0, last_stream_id=self._last, error_code=int(code))
        if not self._silent:
            self._transport.write(frame.serialize())
        self._drop([ident for ident in self.streams if ident > self._last], "dropped by GOAWAY")
        if code != ErrorCodes.NO_ERROR:
            self._close()
        elif not self.streams:
            self._rest()

    def change_settings(self, changed: dict[SettingCodes | int, int]) -> None:
        """Announce other settings."""
        self._engine.update_settings(changed)
        self._acknowledged = False
        self._schedule()

    def silence(self) -> None:
        """Read and send nothing, PING neither, without closing."""
        self._silent = True
        self._transport.pause_reading()

    def resume(self) -> None:
        """Continue with the data that was held since `silence`."""
        if not self._silent:
            return
        self._silent = False
        held, self._held = self._held, []
        for data in held:
            self.data_received(data)
        self._transport.resume_reading()
        self._send()

    @property
    def transport(self) -> asyncio.Transport:
        found: asyncio.Transport = self._transport
        return found


def _code(fault: Fault, default: int) -> int:
    return default if fault.errorCode is None else fault.errorCode


def _cut_off(fault: Fault | None) -> CutOff | None:
    if fault is None or fault.kind != "resetStream":
        return None
    return CutOff(fault.bytes, _code(fault, ErrorCodes.INTERNAL_ERROR))
