"""The inputs and outputs of programs in a simulated container, and the line discipline of a terminal.

They have `read` and `write` coroutines, so that back-pressure reaches the writer from a slow reader of an exec session.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

PIPE_CHUNKS = 16


class BrokenPipe(Exception):
    """The reader of a pipe has stopped reading."""


class Input(Protocol):
    async def read(self) -> bytes:
        """Return some bytes; b"" at the end, on every call."""
        ...


class Output(Protocol):
    async def write(self, data: bytes) -> None: ...


class Empty:
    """An input that has ended."""

    async def read(self) -> bytes:
        return b""


class Null:
    """An output that discards everything."""

    async def write(self, data: bytes) -> None:
        return None


class Pipe:
    """A bounded pipe. The writer closes its end when done; after `abandon`, writing raises BrokenPipe."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(PIPE_CHUNKS)
        self._abandoned = asyncio.Event()
        self._ended = False

    async def read(self) -> bytes:
        if self._ended:
            return b""
        data = await self._queue.get()
        self._ended = not data
        return data

    async def write(self, data: bytes) -> None:
        if self._abandoned.is_set():
            raise BrokenPipe
        if data:
            await self._put(data)

    async def close(self) -> None:
        """End the stream for the reader."""
        if not self._abandoned.is_set():
            await self._put(b"")

    async def _put(self, data: bytes) -> None:
        if not self._queue.full():
            self._queue.put_nowait(data)
            return
        put = asyncio.ensure_future(self._queue.put(data))
        left = asyncio.ensure_future(self._abandoned.wait())
        try:
            await asyncio.wait((put, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            put.cancel()
            left.cancel()

    def abandon(self) -> None:
        """The reader stops reading."""
        self._abandoned.set()

    @property
    def abandoned(self) -> bool:
        return self._abandoned.is_set()

    def end(self) -> None:
        """End the stream without waiting: unread data is lost when the pipe is full."""
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(b"")


class LineReader:
    """Reads lines from an input and leaves the rest readable."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._buffer = b""
        self._ended = False

    async def readline(self) -> bytes:
        """Return a line with its newline, which the last one may lack; b"" at the end."""
        while b"\n" not in self._buffer and not self._ended:
            data = await self._source.read()
            self._ended = not data
            self._buffer += data
        line, newline, self._buffer = self._buffer.partition(b"\n")
        return line + newline

    async def read(self) -> bytes:
        data, self._buffer = self._buffer, b""
        if data or self._ended:
            return data
        return await self._source.read()


class TerminalOutput:
    """The output of a terminal: a newline becomes carriage return and newline."""

    def __init__(self, output: Output) -> None:
        self._output = output

    async def write(self, data: bytes) -> None:
        await self._output.write(data.replace(b"\n", b"\r\n"))


class TerminalInput:
    """The input of a terminal: echo, backspace, ^C drops the line, ^D ends the input on an empty line."""

    def __init__(self, source: Input, echo: Output) -> None:
        self._source = source
        self._echo = echo
        self._line = bytearray()
        self._ready: list[bytes] = []
        self._ended = False

    async def read(self) -> bytes:
        while not self._ready and not self._ended:
            data = await self._source.read()
            if not data:
                self._ended = True
            for value in data:
                await self._key(value)
        return self._ready.pop(0) if self._ready else b""

    async def _key(self, value: int) -> None:
        if value in (0x0D, 0x0A):
            await self._echo.write(b"\n")
            self._ready.append(bytes(self._line) + b"\n")
            self._line.clear()
        elif value == 0x03:
            await self._echo.write(b"^C\n")
            self._line.clear()
            self._ready.append(b"\n")
        elif value == 0x04:
            if not self._line:
                self._ended = True
        elif value in (0x08, 0x7F):
            if self._line:
                self._line.pop()
                await self._echo.write(b"\b \b")
        else:
            self._line.append(value)
            await self._echo.write(bytes((value,)))
