"""TCP relays that delay, freeze, reset and half-close single connections, or one direction of them.

A relay stands before one endpoint of a cluster. It sees nothing of what TLS hides: only when bytes come, how many, and
from which side, which is enough to tell a watch (answers go on coming though nothing more was asked) from the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, TypeVar

T = TypeVar("T")
Way = Literal["up", "down"]
"""Up: towards the cluster. Down: towards its client."""
BOTH: tuple[Way, ...] = ("up", "down")

CHUNK = 1 << 16
FOREVER = math.inf
UNASKED = 0.25
"""Seconds after anything was asked after which what still comes belongs to a watch, more often than not."""


class _Pump:
    """Bytes in one direction of a connection."""

    def __init__(self) -> None:
        self.free_at = 0.0
        """What has not been passed on waits until then (monotonic); infinity: for good."""
        self.latency = 0.0
        """Seconds by which each piece is late."""
        self.drip = 0.0
        """Seconds after each byte or so: see `Connection.drip`."""
        self.drip_bytes = 1
        self.bytes = 0
        self.last = time.monotonic()
        """When the last bytes came in."""
        self.changed = asyncio.Event()
        self.cut = False
        """Its end was told to the receiver: what comes later is dropped."""

    async def wait(self, came: float) -> None:
        """Wait until what came in then may be passed on."""
        while (until := max(self.free_at, came + self.latency)) > time.monotonic():
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(until - time.monotonic(), 3600.0)):
                    await self.changed.wait()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[], None]) -> None:
        """Pass bytes on until the sender has ended; raises OSError."""
        while data := await reader.read(CHUNK):
            self.last = time.monotonic()
            self.bytes += len(data)
            count()
            await self.wait(self.last)
            while data and not self.cut:
                size = self.drip_bytes if self.drip > 0 else len(data)
                writer.write(data[:size])
                await writer.drain()
                data = data[size:]
                if self.drip > 0:
                    await asyncio.sleep(self.drip)
        await self.wait(time.monotonic())
        if not self.cut:
            writer.write_eof()


class Connection:
    """One connection through a relay. All methods are the loop's; others use `Relay.act`."""

    def __init__(self, number: int, client: asyncio.StreamWriter, *, turned: bool = False) -> None:
        """`turned`: what opens the connection is the one that serves requests, as of a tunnel."""
        self.number = number
        self.opened = time.monotonic()
        self.pumps: dict[Way, _Pump] = {"up": _Pump(), "down": _Pump()}
        self.streams = False
        """Whether something came down long after anything was asked: a watch, or several over HTTP/2."""
        self._there: Way = "down" if turned else "up"
        self._back: Way = "up" if turned else "down"
        self._writers: dict[Way, asyncio.StreamWriter] = {self._back: client}

    def __str__(self) -> str:
        kind = "stream" if self.streams else "connection"
        return f"{kind} {self.number} ({self.pumps['up'].bytes} up, {self.pumps['down'].bytes} down)"

    def hold(self, seconds: float, ways: tuple[Way, ...] = BOTH) -> None:
        """Pass nothing on for some time, then go on; `FOREVER`: for good."""
        for way in ways:
            self.pumps[way].free_at = time.monotonic() + seconds
            self.pumps[way].changed.set()

    def thaw(self) -> None:
        """Pass on what was held, and go on without delays."""
        for pump in self.pumps.values():
            pump.free_at = pump.latency = pump.drip = 0.0
            pump.changed.set()

    def delay(self, seconds: float, ways: tuple[Way, ...] = BOTH) -> None:
        """Make all that comes from now on late."""
        for way in ways:
            self.pumps[way].latency = seconds

    def drip(self, count: int, seconds: float, ways: tuple[Way, ...] = BOTH) -> None:
        """Pass on `count` bytes, then wait, and so on."""
        for way in ways:
            self.pumps[way].drip, self.pumps[way].drip_bytes = seconds, count

    def half_close(self, way: Way) -> None:
        """Tell the receiver of one direction that it has ended; the other goes on."""
        pump = self.pumps[way]
        if not pump.cut:
            pump.cut = True
            pump.changed.set()
            with contextlib.suppress(OSError, KeyError):
                self._writers[way].write_eof()

    def reset(self) -> None:
        """Reset both sides (RST), with all that was not passed on."""
        for writer in self._writers.values():
            found = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def _answered(self) -> None:
        if self.pumps["down"].last - self.pumps["up"].last > UNASKED:
            self.streams = True

    async def run(self, reader: asyncio.StreamReader, port: int) -> None:
        """Connect to the cluster and pass bytes on until both sides have ended, or one broke."""
        try:
            server_reader, server = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.reset()
            return
        self._writers[self._there] = server
        count = {"up": lambda: None, "down": self._answered}
        try:
            async with asyncio.TaskGroup() as both:
                for way, source in ((self._there, reader), (self._back, server_reader)):
                    both.create_task(self.pumps[way].run(source, self._writers[way], count[way]))
        except* OSError:
            self.reset()
        finally:
            for writer in self._writers.values():
                writer.close()


class Relay:
    """Listens on `port` and passes on to `target`, a port of 127.0.0.1 that may be changed."""

    def __init__(self, relays: Relays, target: int, *, turned: bool = False) -> None:
        """`turned`: as of `Connection`."""
        self.target = target
        self._turned = turned
        self.port = 0
        self.refusing = False
        """New connections are reset."""
        self.opening: Callable[[Connection], None] = lambda connection: None
        """What is done to each new connection."""
        self._relays = relays
        self._open: dict[int, Connection] = {}
        self._count = 0
        self._server: asyncio.Server | None = None

    async def listen(self, host: str) -> None:
        self._server = await asyncio.start_server(self._accepted, host, 0, limit=CHUNK)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._count += 1
        connection = Connection(self._count, writer, turned=self._turned)
        if self.refusing:
            connection.reset()
            return
        self._open[connection.number] = connection
        try:
            self.opening(connection)
            await connection.run(reader, self.target)
        finally:
            del self._open[connection.number]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._open.values()):
            connection.reset()

    def act(self, what: Callable[[list[Connection]], T]) -> T:
        """Call this in the loop with the open connections, oldest first; return what it returns."""

        async def call() -> T:
            return what([self._open[number] for number in sorted(self._open)])

        return self._relays.run(call())

    def heal(self) -> None:
        """End all that was done to connections: what was held comes, and those that are half closed are reset."""

        def healed(found: list[Connection]) -> None:
            self.refusing, self.opening = False, lambda connection: None
            for connection in found:
                if any(pump.cut for pump in connection.pumps.values()):
                    connection.reset()
                connection.thaw()

        self.act(healed)


class Relays:
    """The thread of all relays. A context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays", daemon=True)
        self._each: list[Relay] = []

    def run(self, what: Awaitable[T]) -> T:
        """Run a coroutine in the loop; call it in another thread."""

        async def awaited() -> T:
            return await what

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(30)

    def relay(self, target: int, *, turned: bool = False, host: str = "127.0.0.1") -> Relay:
        """Open a relay before a port of 127.0.0.1, at the address `host`. `turned`: as of `Connection`."""
        relay = Relay(self, target, turned=turned)
        self.run(relay.listen(host))
        self._each.append(relay)
        return relay

    def __enter__(self) -> Relays:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for relay in self._each:
            self.run(relay.close())
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        tasks: list[asyncio.Task[Any]] = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
