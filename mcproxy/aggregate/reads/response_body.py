"""Sending a body that is made piece by piece: under back-pressure, in short turns, and compressed in a thread.

A list of 40 MB costs references to cached bytes and one slice that is on its way. Framing is that of a kube-apiserver:
Content-Length up to 2 KiB (what fits the buffer of Go's net/http), chunks for more, gzip from 128 KiB for who takes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header

log = Logger()


class Pieces(NamedTuple):
    """Bytes that follow each other, `size` together."""

    parts: list[bytes]
    size: int


InThread = Callable[[Callable[[bytes], bytes], bytes], "Deferred[bytes]"]
"""Calls a function with bytes in a thread (`deferToThreadPool`)."""

CHUNKED_FROM = 2048
GZIP_FROM = 128 * 1024
SLICE = 64 * 1024
"""Bytes that are joined for one write: they stay in the processor's cache until they are encrypted."""
TURN_SECONDS = 0.005
"""Time for which one response may keep the reactor busy."""
TURN_BYTES = 256 * 1024
NOT_READY = Pieces([], 0)
"""Nothing yet: others may have their turn."""


class ResponseBody:
    """Sends one response; the handler of its exchange while it does."""

    def __init__(self, clock: IReactorTime, exchange: Exchange, in_thread: InThread) -> None:
        self._clock = clock
        self._exchange = exchange
        self._in_thread = in_thread
        self._paused = False
        self._gone = False
        self._waiting: Deferred[None] | None = None
        self._turn_began = 0.0
        self._turn_sent = 0

    async def send(self, fields: bytes, source: Iterator[Pieces], *, gzip: bool) -> None:
        """Send a 200 with the pieces of `source`; returns when all is handed over, or the client has gone.

        `source` yields pieces that are made in a millisecond or so, about SLICE bytes; NOT_READY where it has none yet.
        `fields` are the response's, as a block without framing. An error of `source` is logged and ends the connection.
        """
        if self._exchange.ended:
            return
        self._exchange.attach(self)
        try:
            await self._send(fields, source, gzip)
        except CancelledError:
            self._exchange.abort()  # the client has gone, which is nothing to report
        except Exception:
            log.failure("an answer from cache could not be made", event="internal_error")
            self._exchange.abort()

    async def _send(self, fields: bytes, source: Iterator[Pieces], gzip: bool) -> None:
        parts: list[bytes] = []
        size, threshold, complete = 0, GZIP_FROM if gzip else CHUNKED_FROM, False
        self._turn_began = self._clock.seconds()
        while size < threshold and not self._gone:
            more = next(source, None)
            if more is None:
                complete = True
                break
            parts += more.parts
            size += more.size
            await self._turn()
        if self._gone:
            return
        exchange = self._exchange
        if complete and size <= CHUNKED_FROM:
            exchange.answer(200, fields, b"".join(parts))
            return
        if gzip and not complete:
            fields += b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
            exchange.respond(200, b"", fields, -1)
            await self._send_compressed(parts, size, source)
        else:
            exchange.respond(200, b"", fields, -1)
            await self._send_plain(parts, size, source)
        if not self._gone:
            exchange.end()

    async def _send_plain(self, parts: list[bytes], size: int, source: Iterator[Pieces]) -> None:
        exchange = self._exchange
        for more in source:
            parts += more.parts
            size += more.size
            if size >= SLICE:
                exchange.write_pieces(parts, size)
                exchange.flush()
                self._turn_sent += size
                parts, size = [], 0
            await self._turn()
            if self._gone:
                return
        exchange.write_pieces(parts, size)

    async def _send_compressed(self, parts: list[bytes], size: int, source: Iterator[Pieces]) -> None:
        exchange = self._exchange
        compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
        for more in source:
            parts += more.parts
            size += more.size
            if size >= SLICE:
                data = b"".join(parts)
                parts, size = [], 0
                exchange.write(await self._in_thread(compressor.compress, data))
                exchange.flush()
                self._turn_began = self._clock.seconds()
            await self._turn()
            if self._gone:
                return
        exchange.write(await self._in_thread(compressor.compress, b"".join(parts)))
        exchange.write(await self._in_thread(lambda _: compressor.flush(), b""))

    async def _turn(self) -> None:
        """Wait where the client reads slowly, or where others have to have their turn."""
        while self._paused and not self._gone:
            self._waiting = Deferred()
            await self._waiting
            self._turn_began, self._turn_sent = self._clock.seconds(), 0
        if self._turn_sent >= TURN_BYTES or self._clock.seconds() - self._turn_began >= TURN_SECONDS:
            await next_turn(self._clock)
            self._turn_began, self._turn_sent = self._clock.seconds(), 0

    # -- ExchangeHandler --------------------------------------------------------------------------------------

    def body_data(self, data: bytes) -> None:
        """A GET's body means nothing."""

    def body_end(self, trailers: list[Header]) -> None:
        """A GET's body means nothing."""

    def cancelled(self) -> None:
        self._gone = True
        self._wake()

    def pause_response(self) -> None:
        self._paused = True

    def resume_response(self) -> None:
        self._paused = False
        self._wake()

    def finish_up(self) -> None:
        """A list ends by itself soon."""

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)


async def next_turn(clock: IReactorTime) -> None:
    """Let everything else that is ready run first."""
    turn: Deferred[None] = Deferred()
    call: Any = clock.callLater(0, turn.callback, None)
    try:
        await turn
    finally:
        if call.active():
            call.cancel()
