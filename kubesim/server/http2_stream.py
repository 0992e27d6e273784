"""One HTTP/2 stream as the transport of an HTTP/1.1 connection in memory.

A stream becomes an HTTP/1.1 exchange with aiohttp's request handler, so that handlers and faults are the same for both
versions. HTTP/2 is that of the `h2` package: it shares no code with the proxy's own engine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Protocol

import httptools
from h2.errors import ErrorCodes

Field = tuple[bytes, bytes]
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OF_HTTP1 = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})


class MalformedError(ValueError):
    """A message that cannot be translated; the text has the reason."""


class RequestHead:
    """The head of a request, whose fields the `h2` package has checked."""

    def __init__(self, fields: Iterable[Field], *, end_stream: bool) -> None:
        """Raise MalformedError for fields that would not give one request line."""
        pseudo: dict[bytes, bytes] = {}
        lines: list[bytes] = []
        host, length = b"", False
        for name, value in fields:
            if name.startswith(b":"):
                pseudo[name] = value
            elif name == b"host":
                host = value
            else:
                length = length or name == b"content-length"
                lines.append(name + b": " + value)
        self.method = pseudo.get(b":method", b"")
        self.target = pseudo.get(b":path", b"")
        if not _METHOD.fullmatch(self.method) or not _TARGET.fullmatch(self.target):
            raise MalformedError("a method or path that is none")
        self.chunked = not end_stream and not length
        """Whether the content is to be framed as chunks, since its length is not announced."""
        if self.chunked:
            lines.append(b"transfer-encoding: chunked")
        first = self.method + b" " + self.target + b" HTTP/1.1"
        self.data = b"\r\n".join([first, b"host: " + pseudo.get(b":authority", host), *lines, b"", b""])


class ResponseReader:
    """Reads one response and the interim ones before it.

    The result is in `heads`, `content` and `complete`; the caller removes it from there.
    """

    def __init__(self, *, head_only: bool) -> None:
        self.heads: list[tuple[int, list[Field]]] = []
        self.content: list[bytes] = []
        self.complete = False
        self.until_close = False
        """Whether the content ends with the connection."""
        self._head_only = head_only
        self._fields: list[Field] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raise MalformedError for bytes that are no response; bytes after a complete response are ignored."""
        if self.complete:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.complete:
                raise MalformedError(str(error)) from None

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        names = {name for name, _ in self._fields}
        self.heads.append((status, [field for field in self._fields if field[0] not in _OF_HTTP1]))
        self._fields = []
        if status == 101:
            raise ValueError("HTTP/2 has no upgrades")
        if status >= 200:
            self.complete = self._head_only
            self.until_close = status not in (204, 304) and not names & {b"content-length", b"transfer-encoding"}

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self.content.append(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self.complete = True


HIGH_WATER = 1 << 16  # unsent bytes of a response at which its handler waits
LOW_WATER = 1 << 14


class Sender(Protocol):
    """The methods of a connection for its streams."""

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...

    def acknowledge(self, stream: Stream, size: int) -> None:
        """Give back the window of content that has been read."""

    def acknowledge_lost(self, size: int) -> None:
        """Give back only the connection's window, for a stream that has ended."""

    def send_head(self, stream: Stream, status: int, fields: list[Field], *, end_stream: bool) -> None: ...

    def content_ready(self, stream: Stream) -> None:
        """Send a stream's pending content in its turn."""

    def reset_stream(self, stream: Stream, code: int) -> None: ...


class CutOff:
    """A response that ends before its end: after `size` bytes of content, by `code`."""

    def __init__(self, size: int, code: int) -> None:
        self.left = size
        self.code = code


class Stream(asyncio.Transport):
    """The transport of one request.

    The bytes that the protocol (aiohttp's handler, or its successor after an upgrade) writes are read as an HTTP/1.1
    response. A transport that is closed within a response, or whose bytes are no response, resets the stream with
    INTERNAL_ERROR, as Go does for an aborted handler.
    """

    of_http2 = True
    """Distinguishes it from the transport of a connection without an import of this module."""

    def __init__(
        self, connection: Sender, ident: int, head: RequestHead, *, ended: bool, cut_off: CutOff | None
    ) -> None:
        super().__init__()
        self.ident = ident
        self.request_ended = ended
        self.cut_off = cut_off
        self.done = False
        """Whether nothing more is sent: END_STREAM or RST_STREAM has been, or the client has reset it."""
        self.pending = bytearray()
        """Content that has not been sent."""
        self.queued = False
        """Whether the connection has queued the stream for sending."""
        self._connection = connection
        self._chunked = head.chunked
        self._reader = ResponseReader(head_only=head.method == b"HEAD")
        self._protocol: Any = None
        self._reading = True
        self._unread: list[bytes] = []
        self._unacknowledged = 0
        self._writing_paused = False
        self._closing = False
        self._shortened = False

    def begin(self, protocol: asyncio.BaseProtocol, head: bytes) -> None:
        """Connect the protocol and hand it the request head."""
        self._protocol = protocol
        self._protocol.connection_made(self)
        self._protocol.data_received(head)

    # From the client.

    def content_received(self, data: bytes, flow_controlled: int) -> None:
        """Pass content to the protocol; the window is given back when it reads."""
        if data:
            self._pass_on(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self._unacknowledged += flow_controlled
        self._acknowledge()

    def content_ended(self, trailers: Iterable[Field] = ()) -> None:
        """Handle the end of the request."""
        self.request_ended = True
        if self._chunked:
            lines = [name + b": " + value for name, value in trailers]
            self._pass_on(b"\r\n".join([b"0", *lines, b"", b""]))

    def _pass_on(self, data: bytes) -> None:
        if self._reading and not self._unread:
            self._protocol.data_received(data)
        else:
            self._unread.append(data)

    def _acknowledge(self) -> None:
        if self._reading and self._unacknowledged:
            self._connection.acknowledge(self, self._unacknowledged)
            self._unacknowledged = 0

    def lost(self, error: Exception | None) -> None:
        """Notify the protocol, once, that the stream has ended; an error cancels its handler, as in Go."""
        self.done = self._closing = True
        self.pending.clear()
        if self._protocol is not None:
            protocol, self._protocol = self._protocol, None
            self._connection.acknowledge_lost(self._unacknowledged)
            self._unacknowledged = 0
            asyncio.get_running_loop().call_soon(_lose, protocol, error)

    # To the client.

    def sent(self, size: int) -> None:
        """Record that `size` bytes of `pending` have been sent."""
        del self.pending[:size]
        if self._writing_paused and len(self.pending) <= LOW_WATER and self._protocol is not None:
            self._writing_paused = False
            self._protocol.resume_writing()

    @property
    def content_complete(self) -> bool:
        """Whether END_STREAM follows on what is pending."""
        return self._reader.complete and not self._shortened

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        try:
            self._reader.feed(bytes(data))
        except MalformedError:
            self.abort()
            return
        self._take()

    def _take(self) -> None:
        """Queue the content that the reader has parsed."""
        reader = self._reader
        for index, (status, fields) in enumerate(reader.heads):
            last = index + 1 == len(reader.heads) and status >= 200
            end = last and reader.complete and not reader.content
            self._connection.send_head(self, status, fields, end_stream=end)
        reader.heads.clear()
        if self.done:
            return
        for part in reader.content:
            self.pending += part
        reader.content.clear()
        if self.cut_off is not None and len(self.pending) > self.cut_off.left:
            self._shortened = True
            del self.pending[self.cut_off.left :]
        self._connection.content_ready(self)
        if len(self.pending) > HIGH_WATER and not self._writing_paused and self._protocol is not None:
            self._writing_paused = True
            self._protocol.pause_writing()

    def close(self) -> None:
        if self._closing:
            return
        if self._reader.until_close:
            self._reader.complete = True
            self._take()
        self._closing = True
        if not self._reader.complete:
            self.abort()

    def abort(self) -> None:
        self._closing = True
        if not self.done:
            self._connection.reset_stream(self, ErrorCodes.INTERNAL_ERROR)

    # The rest of asyncio's transport.

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        while self._unread and self._reading and self._protocol is not None:
            self._protocol.data_received(self._unread.pop(0))
        if not self.done:
            self._acknowledge()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the extra info of the connection; `http2_stream` is this object; no socket, which streams share."""
        if name == "http2_stream":
            return self
        if name == "socket":
            return default
        return self._connection.get_extra_info(name, default)

    @property
    def connection(self) -> Sender:
        return self._connection


def _lose(protocol: Any, error: Exception | None) -> None:
    task: asyncio.Task[None] | None = getattr(protocol, "_task_handler", None)  # of aiohttp's handler
    protocol.connection_lost(error)
    if error is not None and task is not None:
        task.cancel()
