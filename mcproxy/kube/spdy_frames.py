"""SPDY/3.1 framing of both sides, in the subset that kubectl and Kubernetes use.

A parser from bytes to events, and functions that encode frames. Source: the SPDY/3.1 draft
(draft-mbelshe-httpbis-spdy-00), sections 2.2 (frames), 2.6 (control frames) and 2.6.10.1 (the header dictionary).
Priorities, push and credentials are not supported.

Input is bounded: a control frame and its headers to 64 KiB, the headers also after decompression. The payload of a DATA
frame is passed on as it arrives, and not kept.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Data",
    "GoAway",
    "Ping",
    "RstStream",
    "SettingsFrame",
    "SpdyError",
    "SpdySession",
    "SynReply",
    "SynStream",
    "WindowUpdate",
]

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FLAG_FIN = 1
MAX_CONTROL = 1 << 16
"""Maximum of bytes of a control frame, and of its decompressed headers."""
MAX_HEADERS = 100

_NAMES = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match
if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade
user-agent vary via warning www-authenticate method get status
"""
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    names = [*_NAMES.split(), "200 OK", "version", "HTTP/1.1", "url", "public", "set-cookie", "keep-alive", "origin"]
    return b"".join(struct.pack(">I", len(name)) + name.encode() for name in names) + _TEXT.encode()


DICTIONARY = _dictionary()


class SpdyError(Exception):
    """The peer violated SPDY/3.1; the session must end."""


@dataclass(frozen=True)
class SynStream:
    stream: int
    headers: dict[str, str]
    fin: bool


@dataclass(frozen=True)
class SynReply:
    stream: int
    headers: dict[str, str]
    fin: bool


@dataclass(frozen=True)
class Data:
    """A part of a DATA frame. `fin`: the part is the last one of a frame with FIN."""

    stream: int
    payload: bytes
    fin: bool


@dataclass(frozen=True)
class RstStream:
    stream: int
    status: int


@dataclass(frozen=True)
class Ping:
    ident: int


@dataclass(frozen=True)
class GoAway:
    last_stream: int


@dataclass(frozen=True)
class WindowUpdate:
    stream: int
    delta: int


@dataclass(frozen=True)
class SettingsFrame:
    values: dict[int, int]


Event = SynStream | SynReply | Data | RstStream | Ping | GoAway | WindowUpdate | SettingsFrame


class SpdySession:
    """The state of one session: unparsed bytes and the two header compression contexts."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._needed = 0  # length that `_pending` must have to be parsed
        self._data = Data(0, b"", False)  # the DATA frame whose payload is arriving
        self._left = 0  # bytes of its payload still to arrive
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(9, zlib.DEFLATED, 15, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Yield the events that these bytes complete, and the received part of a DATA frame's payload.

        Raises SpdyError for bytes that are not frames. Empty DATA frames without FIN make no event.
        """
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed:
                return
            data = bytes(self._pending)
            self._pending.clear()
        position, end = 0, len(data)
        while position < end:
            if self._left:
                payload = data[position : position + self._left]
                position += len(payload)
                self._left -= len(payload)
                yield Data(self._data.stream, payload, self._data.fin and not self._left)
                continue
            if end - position < 8:
                self._needed = 8
                break
            head = data[position : position + 8]
            length = int.from_bytes(head[5:8], "big")
            if not head[0] & 0x80:
                self._data = Data(int.from_bytes(head[:4], "big"), b"", bool(head[4] & FLAG_FIN))
                self._left = length
                position += 8
                if not length and self._data.fin:
                    yield self._data
                continue
            if length > MAX_CONTROL:
                raise SpdyError("control frame too long")
            if end - position < 8 + length:
                self._needed = 8 + length
                break
            event = self._frame(head, data[position + 8 : position + 8 + length])
            position += 8 + length
            if event is not None:
                yield event
        self._pending += data[position:]

    def _frame(self, head: bytes, payload: bytes) -> Event | None:
        version, kind = struct.unpack(">HH", head[:4])
        if version != 0x8003:
            raise SpdyError(f"SPDY version {version & 0x7FFF} is not 3")
        try:
            return self._control(kind, head[4], payload)
        except (struct.error, zlib.error, UnicodeDecodeError, IndexError) as error:
            raise SpdyError(f"damaged control frame of type {kind}: {error}") from error

    def _control(self, kind: int, flags: int, payload: bytes) -> Event | None:
        if kind == SYN_STREAM:
            (stream,) = struct.unpack(">I", payload[:4])
            return SynStream(stream & 0x7FFFFFFF, self._headers(payload[10:]), bool(flags & FLAG_FIN))
        if kind == SYN_REPLY:
            (stream,) = struct.unpack(">I", payload[:4])
            return SynReply(stream & 0x7FFFFFFF, self._headers(payload[4:]), bool(flags & FLAG_FIN))
        if kind == PING:
            return Ping(*struct.unpack(">I", payload))
        if kind == SETTINGS:
            (count,) = struct.unpack(">I", payload[:4])
            if count > len(payload) // 8:
                raise SpdyError("a SETTINGS frame has fewer entries than it says")
            entries = (struct.unpack(">II", payload[4 + 8 * i : 12 + 8 * i]) for i in range(count))
            return SettingsFrame({ident & 0xFFFFFF: value for ident, value in entries})
        if kind in (RST_STREAM, GOAWAY, WINDOW_UPDATE):
            first, second = struct.unpack(">II", payload)
            made: Event = RstStream(first & 0x7FFFFFFF, second)
            if kind == GOAWAY:
                made = GoAway(first & 0x7FFFFFFF)
            elif kind == WINDOW_UPDATE:
                made = WindowUpdate(first & 0x7FFFFFFF, second & 0x7FFFFFFF)
            return made
        if kind == HEADERS:
            self._headers(payload[4:])  # always decoded, because all headers share one compression context
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        raw = self._inflate.decompress(block, MAX_CONTROL)
        if self._inflate.unconsumed_tail:
            raise SpdyError("headers too long")
        (count,) = struct.unpack(">I", raw[:4])
        if count > MAX_HEADERS:
            raise SpdyError("too many headers")
        position, items = 4, []
        for _ in range(count * 2):
            (length,) = struct.unpack(">I", raw[position : position + 4])
            items.append(raw[position + 4 : position + 4 + length].decode("latin-1"))
            position += 4 + length
        return {name.lower(): value for name, value in zip(items[::2], items[1::2], strict=True)}

    def _block(self, headers: dict[str, str]) -> bytes:
        parts = [struct.pack(">I", len(headers))]
        for text in (part for item in headers.items() for part in item):
            encoded = text.encode("latin-1")
            parts.append(struct.pack(">I", len(encoded)) + encoded)
        return self._deflate.compress(b"".join(parts)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def syn_stream(self, stream: int, headers: dict[str, str]) -> bytes:
        """Encode a SYN_STREAM, which opens a stream; names are in lower case (2.6.10)."""
        return _control_frame(SYN_STREAM, 0, struct.pack(">IIH", stream, 0, 0) + self._block(headers))

    def syn_reply(self, stream: int, headers: dict[str, str] | None = None) -> bytes:
        return _control_frame(SYN_REPLY, 0, struct.pack(">I", stream) + self._block(headers or {}))

    @staticmethod
    def data(stream: int, payload: bytes, fin: bool = False) -> bytes:
        """Encode one DATA frame; its payload is under 16 MiB."""
        return struct.pack(">II", stream, (FLAG_FIN if fin else 0) << 24 | len(payload)) + payload

    @staticmethod
    def reset(stream: int, status: int) -> bytes:
        return _control_frame(RST_STREAM, 0, struct.pack(">II", stream, status))

    @staticmethod
    def ping(ident: int) -> bytes:
        return _control_frame(PING, 0, struct.pack(">I", ident))

    @staticmethod
    def go_away(last_stream: int) -> bytes:
        return _control_frame(GOAWAY, 0, struct.pack(">II", last_stream, 0))

    @staticmethod
    def window_update(stream: int, delta: int) -> bytes:
        return _control_frame(WINDOW_UPDATE, 0, struct.pack(">II", stream, delta))


def _control_frame(kind: int, flags: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", 0x8003, kind, flags << 24 | len(payload)) + payload
