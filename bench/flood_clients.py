"""The clients of `bench floods`, in asyncio: legitimate ones that are counted and timed, and those of the flood.

They pause between requests, so that the flood does not slow the legitimate clients down here rather than in the proxy.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

PERIOD = 0.25
"""Seconds from one request of a legitimate client to its next."""
FLOOD_PAUSE = 1.0
"""Seconds that a connection of the flood waits after each answer."""
LEGITIMATE_ADDRESS = "127.0.0.1"
_TIMEOUT = 10.0
_RAMP = 60.0  # seconds that a flood has to try all its connections
_AT_A_TIME = 50  # connections of the flood that are being opened

Requests = Iterator[bytes]
"""The heads that a client sends, one after the other."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Outcome:
    """What clients got: how many of each status (0: no answer), and the seconds that each request with 200 took."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of requests that were answered with 200."""
        return self.statuses[200] / max(1, self.statuses.total())


class Clients:
    """Clients of localhost:`port`."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port, self._context = port, context

    async def legitimate(self, requests: Sequence[Requests], seconds: float, *, keep: bool) -> Outcome:
        """Run one client for each of `requests`, on a kept connection or with one for each request."""
        outcome = Outcome()
        until = asyncio.get_running_loop().time() + seconds
        await asyncio.gather(*(self._ask_regularly(each, outcome, until, keep=keep) for each in requests))
        return outcome

    async def _ask_regularly(self, requests: Requests, outcome: Outcome, until: float, *, keep: bool) -> None:
        loop = asyncio.get_running_loop()
        connection = _Connection(self._port, self._context, LEGITIMATE_ADDRESS)
        while (began := loop.time()) < until:
            status = await connection.ask(next(requests))
            outcome.statuses[status] += 1
            if status == 200:
                outcome.seconds.append(loop.time() - began)
            if not keep:
                connection.close()
            await asyncio.sleep(max(0.0, began + PERIOD - loop.time()))
        connection.close()


class FloodClients:
    """Connections of a flood, opened again whenever they end. A context: in it all have been tried once."""

    def __init__(self, port: int, context: ssl.SSLContext, connections: Sequence[tuple[str, Requests | None]]) -> None:
        """`connections`: the source address of each, and what it sends; None: it is held, and nothing is sent."""
        self.outcome = Outcome()
        self._port, self._context = port, context
        self._connections = connections
        self._tasks: list[asyncio.Task[None]] = []
        self._opening = asyncio.Semaphore(_AT_A_TIME)

    async def __aenter__(self) -> FloodClients:
        tried = [asyncio.Event() for _ in self._connections]
        self._tasks = [
            asyncio.create_task(self._run(source, requests, event))
            for (source, requests), event in zip(self._connections, tried, strict=True)
        ]
        async with asyncio.timeout(_RAMP):
            await asyncio.gather(*(event.wait() for event in tried))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, source: str, requests: Requests | None, tried: asyncio.Event) -> None:
        connection = _Connection(self._port, self._context, source)
        try:
            while True:
                if not connection.is_open:
                    async with self._opening:
                        await connection.open()
                    tried.set()
                if requests is None:
                    await connection.hold()
                    await asyncio.sleep(FLOOD_PAUSE / 10)
                else:
                    self.outcome.statuses[await connection.ask(next(requests))] += 1
                    await asyncio.sleep(FLOOD_PAUSE)
        finally:
            connection.close()


class _Connection:
    """A connection from one address, opened when it is needed."""

    def __init__(self, port: int, context: ssl.SSLContext, source: str) -> None:
        self._port, self._context, self._source = port, context, source
        self._streams: Streams | None = None

    @property
    def is_open(self) -> bool:
        return self._streams is not None

    async def open(self) -> bool:
        """Connect; whether that succeeded within `_TIMEOUT`."""
        arguments: dict[str, Any] = {"ssl": self._context, "server_hostname": "localhost"}
        arguments["local_addr"] = (self._source, 0)
        try:
            async with asyncio.timeout(_TIMEOUT):
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, **arguments)
        except OSError:  # TimeoutError is one
            return False
        return True

    async def ask(self, head: bytes) -> int:
        """Send a request and read the answer; return its status, 0 without one. It stays open if it can be reused."""
        if self._streams is None and not await self.open():
            return 0
        assert self._streams is not None
        reader, writer = self._streams
        try:
            async with asyncio.timeout(_TIMEOUT):
                writer.write(head)
                answer = await reader.readuntil(b"\r\n\r\n")
                lines = answer.lower().split(b"\r\n")
                fields = dict(line.split(b":", 1) for line in lines[1:] if b":" in line)
                await reader.readexactly(int(fields.get(b"content-length", b"0")))
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0
        if b"close" in fields.get(b"connection", b""):
            self.close()
        return int(lines[0].split(b" ", 2)[1])

    async def hold(self) -> None:
        """Wait until the proxy ends it."""
        if self._streams is None:
            return
        try:
            await self._streams[0].read()
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
