"""h2's server as an oracle: what a sequence of frames means, and which errors are in it."""

from __future__ import annotations

from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions

from tests.http.h2 import raw

_OF_THIS_HOP = frozenset(
    {b"host", b"content-length", b"te", b"expect", b"proxy-authorization", b"proxy-authenticate", b"cookie"}
)
_NEVER_TRAILERS = _OF_THIS_HOP - {b"cookie", b"expect"} | {b"authorization", b"trailer"}


@dataclass
class Received:
    """One request, as far as it has come."""

    method: bytes = b""
    target: bytes = b""
    host: bytes = b""
    fields: bytes = b""
    body: bytes = b""
    complete: bool = False
    trailers: list[raw.Field] = field(default_factory=list)
    reset: bool = False


@dataclass
class Verdict:
    """What a piece of input has come to: one of these, or nothing wrong."""

    connection_error: int | None = None
    stream_errors: dict[int, int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        if self.connection_error is not None:
            return "connection"
        return "stream" if self.stream_errors else "fine"


class ServerOracle:
    """h2's server, which gives credit back at once. `received` are the requests, by stream."""

    def __init__(self) -> None:
        # Without its normalizing, for cookies would be moved to the end.
        configuration = h2.config.H2Configuration(
            client_side=False, header_encoding=None, normalize_inbound_headers=False
        )
        self.protocol = h2.connection.H2Connection(configuration)
        self.protocol.initiate_connection()
        self.protocol.clear_outbound_data_buffer()
        self.received: dict[int, Received] = {}

    def feed(self, data: bytes) -> Verdict:
        try:
            events = self.protocol.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            return Verdict(connection_error=int(error.error_code))
        for event in events:
            self._take(event)
        return self._said()

    def _said(self) -> Verdict:
        frames, _ = raw.parse(self.protocol.data_to_send())
        return Verdict(stream_errors={one.stream: one.code for one in frames if one.kind == raw.RST_STREAM})

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            assert event.stream_id is not None
            self.received[event.stream_id] = _request(event.headers or [])
        elif isinstance(event, h2.events.TrailersReceived):
            assert event.stream_id is not None
            self.received[event.stream_id].trailers = [
                (bytes(name), bytes(value)) for name, value in event.headers or [] if name not in _NEVER_TRAILERS
            ]
        elif isinstance(event, h2.events.DataReceived):
            assert event.stream_id is not None
            self.received[event.stream_id].body += event.data or b""
            if event.flow_controlled_length:
                self.protocol.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            assert event.stream_id is not None
            self.received[event.stream_id].complete = True
        elif isinstance(event, h2.events.StreamReset):
            assert event.stream_id is not None
            if event.stream_id in self.received and event.remote_reset:
                self.received[event.stream_id].reset = True

    def answer(self, stream: int) -> None:
        """A response without a body."""
        self.protocol.send_headers(stream, [(":status", "200"), ("content-length", "0")], end_stream=True)
        self.protocol.clear_outbound_data_buffer()


def _request(headers: list[tuple[bytes, bytes]]) -> Received:
    """The request of these fields as `RequestHead` has it."""
    one = Received()
    lines: list[bytes] = []
    cookie = -1
    for name, value in ((bytes(name), bytes(value)) for name, value in headers):
        if name == b":method":
            one.method = value
        elif name == b":path":
            one.target = value
        elif name == b":authority" or (name == b"host" and not one.host):
            one.host = value.lower()
        elif name == b"cookie":
            if cookie < 0:
                cookie = len(lines)
                lines.append(b"cookie: %b\r\n" % value)
            else:
                lines[cookie] = lines[cookie][:-2] + b"; %b\r\n" % value
        elif name[:1] != b":" and name not in _OF_THIS_HOP:
            lines.append(b"%b: %b\r\n" % (name, value))
    one.fields = b"".join(lines)
    return one
