"""Steps of random sequences of frames: most are right, some are wrong, and the wrong ones have names."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.http.h2 import raw
from tests.http.h2.raw import literal, request

NUMBERS = st.integers(0, 2**20)  # which one of those there are: modulo their number
Step = tuple[Any, ...]

EXTRA: tuple[bytes, ...] = (
    b"",
    literal(b"x-test", b"v"),
    raw.indexing(b"x-kept", b"w" * 30),
    raw.indexing(b"x-kept-too", b"w" * 2000),
    raw.never_indexed(b"authorization", b"Bearer abc"),
    literal(b"cookie", b"a=b") + literal(b"x-a", b"1") + literal(b"cookie", b"c=d"),
    b"\x40" + raw.huffman(b"x-huffman") + raw.huffman(b"some value; with=blanks, and more"),
    b"\x7e" + raw.string(b"accept-of-the-table"),  # the name of the newest entry, if there is one
    raw.indexed(62),
    raw.indexed(16) + raw.indexed(31) + literal(b"te", b"trailers"),
)

MALFORMED: dict[str, bytes] = {
    "upper case": request((b"X-Test", b"v")),
    "name with blank": request((b"x test", b"v")),
    "empty name": request((b"", b"v")),
    "value with line end": request((b"x-test", b"a\r\nb: c")),
    "value with NUL": request((b"x-test", b"a\0")),
    "value with blank in front": request((b"x-test", b" a")),
    "connection": request((b"connection", b"close")),
    "te": request((b"te", b"gzip")),
    "no path": request(path=None),
    "empty path": request(path=b""),
    "no method": request(method=None),
    "no scheme": request(scheme=None),
    "two paths": literal(b":path", b"/x") + raw.GET,
    "status": request((b":status", b"200")),
    "pseudo behind": raw.GET[: -len(literal(b":path", b"/"))] + literal(b"x-a", b"b") + literal(b":path", b"/"),
    "unknown pseudo": literal(b":x", b"y") + raw.GET,
    "host differs": request((b"host", b"other.test")),
    "lengths": request((b"content-length", b"1"), (b"content-length", b"2")),
    "length": request((b"content-length", b"-1")),
}


class ConnectionFrames:
    """Right frames of the connection, the same from either side."""

    def settings(self, identifier: int, value: int) -> bytes:
        bounds = {raw.ENABLE_PUSH: 2, raw.INITIAL_WINDOW_SIZE: 2**20, raw.MAX_FRAME_SIZE: 1, 8: 2, 9: 2}
        if identifier == raw.MAX_FRAME_SIZE:
            value = 16384 + value % 1000
        elif identifier in bounds:
            value %= bounds[identifier]
        return raw.settings((identifier, value))

    def ping(self, chosen: int, ack: bool) -> bytes:
        return raw.ping(struct.pack(">Q", chosen), raw.ACK if ack else 0)


class Composer(ConnectionFrames):
    """Makes the bytes of steps; knows which streams the client has opened and ended."""

    def __init__(self) -> None:
        self.next = 1
        self.open: list[int] = []  # the request is not complete
        self.ended: list[int] = []  # it is, or was reset

    def choose(self, chosen: int) -> int | None:
        return self.open[chosen % len(self.open)] if self.open else None

    def opens(self, gap: int) -> int:
        stream = self.next + 2 * gap
        self.next = stream + 2
        return stream

    # right ones; None: there is nothing to do it with

    def request(self, end: bool, extra: int, form: int, gap: int) -> bytes | None:
        stream = self.opens(gap if gap < 3 else 0)
        (self.ended if end else self.open).append(stream)
        block = request(method=b"GET" if end else b"POST", path=b"/hold") + EXTRA[extra % len(EXTRA)]
        flags = raw.END_STREAM if end else 0
        if form == 4:  # nothing but the path differs from others
            block = (b"\x82" if end else b"\x83") + b"\x87\x01" + raw.string(b"k8s.test")
            block += b"\x04" + raw.string(b"/hold?%d" % stream) + EXTRA[extra % len(EXTRA)]
        if form == 1:
            return raw.headers(stream, raw.padded(block, 9), flags | raw.END_HEADERS | raw.PADDED)
        if form == 2:
            return raw.headers(stream, raw.dependency(0, 7) + block, flags | raw.END_HEADERS | raw.HAS_PRIORITY)
        if form == 3:
            return (
                raw.headers(stream, block[:7], flags)
                + raw.continuation(stream, block[7:40], 0)
                + raw.continuation(stream, block[40:])
            )
        return raw.headers(stream, block, flags | raw.END_HEADERS)

    def data(self, chosen: int, size: int, end: bool, padding: int) -> bytes | None:
        stream = self.choose(chosen)
        if stream is None:
            return None
        body = bytes((chosen + number) % 256 for number in range(size))
        flags = raw.END_STREAM if end else 0
        if end:
            self.open.remove(stream)
            self.ended.append(stream)
        if padding:
            return raw.data(stream, raw.padded(body, padding), flags | raw.PADDED)
        return raw.data(stream, body, flags)

    def trailers(self, chosen: int, extra: int) -> bytes | None:
        stream = self.choose(chosen)
        if stream is None:
            return None
        self.open.remove(stream)
        self.ended.append(stream)
        return raw.headers(stream, literal(b"x-sum", b"%d" % chosen) + EXTRA[extra % 3])

    def reset(self, chosen: int, code: int) -> bytes | None:
        stream = self.choose(chosen)
        if stream is None:
            return None
        self.open.remove(stream)
        self.ended.append(stream)
        return raw.rst_stream(stream, code)

    def window(self, chosen: int, more: int) -> bytes | None:
        return raw.window_update(0 if chosen % 3 == 0 else self.choose(chosen) or 0, more)

    def priority(self, chosen: int, on: int) -> bytes | None:
        stream = 2 * (chosen % 50) + 1
        return raw.priority(stream, on) if stream != on else None

    def unknown(self, kind: int, flags: int, chosen: int) -> bytes:
        return raw.frame(0x20 + kind % 200, flags, chosen % 100, b"u" * (chosen % 50))

    # wrong ones

    def malformed(self, name: str) -> bytes:
        return raw.headers(self.opens(0), MALFORMED[name])

    def noise(self, kind: int, flags: int, where: int, payload: bytes) -> bytes:
        """Any frame on any stream."""
        streams = (0, self.next, 2, self.choose(where) or 0, self.ended[where % len(self.ended)] if self.ended else 0)
        return raw.frame(kind, flags, streams[where % 5], payload)

    def behind_the_end(self, chosen: int, kind: int) -> bytes | None:
        """A frame on a stream whose request has ended."""
        if not self.ended:
            return None
        stream = self.ended[chosen % len(self.ended)]
        return (
            raw.data(stream, b"x"),
            raw.headers(stream, literal(b"x-test", b"v")),
            raw.window_update(stream, 1),
            raw.rst_stream(stream),
            raw.priority(stream),
            raw.continuation(stream, b""),
        )[kind % 6]

    def wrong_trailers(self, chosen: int, kind: int) -> bytes | None:
        stream = self.choose(chosen)
        if stream is None:
            return None
        self.open.remove(stream)
        self.ended.append(stream)
        return (
            raw.headers(stream, literal(b"x-test", b"v"), raw.END_HEADERS),
            raw.headers(stream, literal(b":path", b"/x")),
            raw.headers(stream, literal(b"X-Test", b"v")),
            raw.headers(stream, literal(b"x-test", b"a\nb")),
        )[kind % 4]

    def interrupted(self, kind: int) -> bytes:
        stream = self.opens(0)
        return (
            raw.headers(stream, raw.GET[:9], raw.END_STREAM)
            + (raw.ping(), raw.data(stream, b"x"), raw.headers(stream + 2, raw.GET), raw.frame(0x77))[kind % 4]
        )


BYTE = st.integers(0, 255)
RIGHT: dict[str, tuple[Callable[..., bytes | None], tuple[st.SearchStrategy[Any], ...]]] = {
    "request": (Composer.request, (st.booleans(), BYTE, st.integers(0, 4), st.integers(0, 9))),
    "data": (Composer.data, (NUMBERS, st.sampled_from((0, 1, 10, 900)), st.booleans(), st.sampled_from((0, 0, 1, 99)))),
    "trailers": (Composer.trailers, (NUMBERS, BYTE)),
    "reset": (Composer.reset, (NUMBERS, st.integers(0, 20))),
    "window": (Composer.window, (NUMBERS, st.integers(1, 1000))),
    "settings": (Composer.settings, (st.integers(0, 20), NUMBERS)),
    "ping": (Composer.ping, (NUMBERS, st.booleans())),
    "priority": (Composer.priority, (NUMBERS, st.integers(0, 9))),
    "unknown": (Composer.unknown, (BYTE, BYTE, NUMBERS)),
}
WRONG: dict[str, tuple[Callable[..., bytes | None], tuple[st.SearchStrategy[Any], ...]]] = {
    "malformed": (Composer.malformed, (st.sampled_from(sorted(MALFORMED)),)),
    "noise": (
        Composer.noise,
        (st.integers(0, 9), st.sampled_from((0, 1, 4, 5, 8, 0x20, 0xFF)), NUMBERS, st.binary(max_size=20)),
    ),
    "behind_the_end": (Composer.behind_the_end, (NUMBERS, BYTE)),
    "wrong_trailers": (Composer.wrong_trailers, (NUMBERS, BYTE)),
    "interrupted": (Composer.interrupted, (BYTE,)),
}


def steps(table: dict[str, Any], *, max_size: int) -> st.SearchStrategy[list[Step]]:
    """Sequences of the steps of a table."""
    return st.lists(_one(table), max_size=max_size)


def _one(table: dict[str, Any]) -> st.SearchStrategy[Step]:
    return st.one_of(*(st.tuples(st.just(name), *arguments) for name, (_, arguments) in table.items()))


#: One of six is wrong, so that much has happened before it.
sequences: st.SearchStrategy[list[Step]] = st.lists(st.one_of(*[_one(RIGHT)] * 5, _one(WRONG)), min_size=8, max_size=60)
