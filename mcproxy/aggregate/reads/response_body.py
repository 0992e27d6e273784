"""Streams a response body: with back-pressure, in short turns of the reactor, compressed in a thread.

A list of 40 MB needs memory only for references to cached bytes and for the slice that is being sent. Framing is that
of a kube-apiserver: Content-Length up to 2 KiB (the buffer size of Go's net/http), chunks above, and gzip from 128 KiB
for clients that accept it. YAML and `pretty=true` need the whole body, so only small bodies are sent in these forms;
clients that read large lists request JSON.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from mcproxy.aggregate.encoding.yaml_and_pretty import MAX_PRETTY, MAX_YAML, to_pretty, to_yaml
from mcproxy.kube.media_types import JSON, YAML
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header

log = Logger(__name__)


class Pieces(NamedTuple):
    """Consecutive pieces of bytes; `size` is their total."""

    parts: list[bytes]
    size: int


InThread = Callable[[Callable[[bytes], bytes], bytes], "Deferred[bytes]"]
"""Calls a function with bytes in a thread (`deferToThreadPool`)."""

CHUNKED_FROM = 2048
GZIP_FROM = 128 * 1024
SLICE = 64 * 1024
"""Bytes that are joined for one write, so that they stay in the CPU cache until they are encrypted."""
TURN_SECONDS = 0.005
"""Maximum seconds for which one response keeps the reactor busy."""
TURN_BYTES = 256 * 1024
NOT_READY = Pieces([], 0)
"""A source yields this if no piece is ready yet, so that the reactor can do other work first."""


class ResponseBody:
    """Sends one response. It is the handler of the exchange while it sends."""

    def __init__(self, clock: IReactorTime, exchange: Exchange, in_thread: InThread) -> None:
        self._clock = clock
        self._exchange = exchange
        self._in_thread = in_thread
        self._paused = False
        self._gone = False
        self._waiting: Deferred[None] | None = None
        self._turn_began = 0.0
        self._turn_sent = 0

    async def send(self, fields: bytes, source: Iterator[Pieces], *, gzip: bool, gzip_from: int = GZIP_FROM) -> None:
        """Send a 200 with the pieces of `source`; return when all bytes are handed over or the client disconnects.

        `source` yields pieces of about SLICE bytes, each of which takes about a millisecond, or NOT_READY if no piece
        is ready. `gzip`: the client accepts gzip, which is used for bodies of `gzip_from` bytes and more. `fields` are
        the response's header fields, as a block without framing. An error of `source` is logged and ends the
        connection.
        """
        if self._exchange.ended:
            return
        self._exchange.attach(self)
        try:
            await self._send(fields, source, gzip_from if gzip else 0)
        except CancelledError:
            self._exchange.abort()  # the client has disconnected, which is not an error
        except Exception:
            log.failure("an answer from cache could not be made", event="internal_error")
            self._exchange.abort()

    async def _send(self, fields: bytes, source: Iterator[Pieces], gzip: int) -> None:
        parts: list[bytes] = []
        size, threshold, complete = 0, gzip or CHUNKED_FROM, False
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
        """Wait while the client reads slowly, and give other work a turn of the reactor."""
        while self._paused and not self._gone:
            self._waiting = Deferred()
            await self._waiting
            self._turn_began, self._turn_sent = self._clock.seconds(), 0
        if self._turn_sent >= TURN_BYTES or self._clock.seconds() - self._turn_began >= TURN_SECONDS:
            await next_turn(self._clock)
            self._turn_began, self._turn_sent = self._clock.seconds(), 0

    # -- ExchangeHandler --------------------------------------------------------------------------------------

    def body_data(self, data: bytes) -> None:
        """The body of a GET is ignored."""

    def body_end(self, trailers: list[Header]) -> None:
        """The body of a GET is ignored."""

    def cancelled(self) -> None:
        self._gone = True
        self._wake()

    def pause_response(self) -> None:
        self._paused = True

    def resume_response(self) -> None:
        self._paused = False
        self._wake()

    def end_gracefully(self) -> None:
        """Do nothing: a list ends soon by itself."""

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.callback(None)


async def next_turn(clock: IReactorTime) -> None:
    """Let all other pending work of the reactor run first."""
    turn: Deferred[None] = Deferred()
    call: Any = clock.callLater(0, turn.callback, None)
    try:
        await turn
    finally:
        if call.active():
            call.cancel()


async def in_media_type(
    clock: IReactorTime, in_thread: InThread, source: Iterator[Pieces], media_type: str, *, pretty: bool
) -> Iterator[Pieces]:
    """Return a body in the requested media type; JSON that is too long for `pretty` stays on one line.

    Raises StatusError 406 for a body that is too long for YAML.
    """
    if media_type == YAML:
        found, complete = await _collected(clock, source, MAX_YAML)
        if not complete:
            text = f"more than {MAX_YAML} bytes are answered as {JSON} only; use limit or a selector for {YAML}"
            raise StatusError(406, text, indented=True)
        body = await in_thread(to_yaml, b"".join(found.parts))
        return iter((Pieces([body], len(body)),))
    if pretty:
        found, complete = await _collected(clock, source, MAX_PRETTY)
        if not complete:
            return chain((found,), source)
        body = await in_thread(to_pretty, b"".join(found.parts))
        return iter((Pieces([body], len(body)),))
    return source


async def _collected(clock: IReactorTime, source: Iterator[Pieces], limit: int) -> tuple[Pieces, bool]:
    """Return pieces of `source` until they exceed `limit` bytes, and whether these are all pieces."""
    parts: list[bytes] = []
    size, began = 0, clock.seconds()
    for more in source:
        parts += more.parts
        size += more.size
        if size > limit:
            return Pieces(parts, size), False
        if clock.seconds() - began > TURN_SECONDS:
            await next_turn(clock)
            began = clock.seconds()
    return Pieces(parts, size), True
