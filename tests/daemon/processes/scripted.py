"""The supervisor's side with scripted children: real channels over socket pairs, but no processes, and no waiting.

A scripted child does what its name's script says: it answers each message at once, raises, ends, or waits.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.internet import reactor as real_reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.daemon.channel import Channel, ChannelMessage, Fields
from mcproxy.daemon.processes import children
from mcproxy.daemon.processes.socket_table import SocketTable
from mcproxy.daemon.processes.supervisor import Supervisor
from tests.support.clock import Clock


class Reactor(Clock):
    """Real descriptors, but time passes only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("addReader", "addWriter", "removeReader", "removeWriter"):
            setattr(self, name, getattr(real_reactor, name))

    def addSystemEventTrigger(self, *trigger: Any) -> None:
        """The end of the reactor is not part of these tests."""


class ScriptedChild:
    """Stands for a process: takes the place of `children.Interpreter`."""

    def __init__(self, world: World, name: str, end: socket.socket, ended: Callable[[int], None]) -> None:
        self.world = world
        self.name = name
        self.pid = next(world.pids)
        self.running = True
        self.answers_pings = True
        self.config: model.Config | None = None
        self.in_force: model.Config | None = None
        self.sockets: list[tuple[str, int]] = []
        """Its listening sockets: address and inode."""
        self._ended = ended
        self.channel = Channel(real_reactor, end.dup())
        for kind in KINDS:
            self.channel.on(kind, self._handle)
        world.living.append(self)

    def die(self, status: int = -signal.SIGKILL) -> None:
        """End, as the process would: the kernel closes the channel, and the supervisor is told a moment later."""
        if self.running:
            self.running = False
            self.world.note(self.name, "dies")
            self.world.living.remove(self)
            self.channel.close()
            real_reactor.callLater(0, self._ended, status)

    def signal(self, number: signal.Signals) -> None:
        assert number is signal.SIGKILL
        self.die()

    def wait(self, timeout: float) -> bool:
        return not self.running

    def forget(self) -> None:
        pass

    async def _handle(self, message: ChannelMessage) -> Fields | None:
        kind = message.kind
        if kind == "lead":
            self.world.leads.append((self.name, message["leads"]))
        elif kind != "ping":
            self.world.note(self.name, kind)
        await self.world.act(self, kind)
        match kind:
            case "ping":
                if not self.answers_pings:
                    await Deferred()
                return {"open": self.world.open.get(self.name, 0)}
            case "start":
                message.close()
                return {"version": self.world.version}
            case "prepare":
                config_file, *sockets = message.fds
                self.config = children.config_from_memory(config_file)
                self._take(message["addresses"], sockets)
            case "use_sockets":
                self._take(message["addresses"], message.fds)
            case "commit":
                self.in_force = self.config
            case "figures":
                return {"open": self.world.open.get(self.name, 0), "listeners": [], "clusters": []}
            case "finish" | "retire":
                self.world.note(self.name, "has ended")
                real_reactor.callLater(0, self.end)
                return {"cut": self.world.cut.get(self.name, {})}
            case "abort":
                real_reactor.callLater(0, self.end)
                return {"cut": self.world.cut.get(self.name, {})}
        return None

    def _take(self, addresses: list[str], descriptors: list[int]) -> None:
        self.sockets = [(address, os.fstat(fd).st_ino) for address, fd in zip(addresses, descriptors, strict=True)]
        for fd in descriptors:
            os.close(fd)

    def end(self) -> None:
        """End with status 0."""
        if self.running:
            self.running = False
            self.world.living.remove(self)
            self.channel.close()
            real_reactor.callLater(0, self._ended, 0)


KINDS = (
    *("start", "ping", "prepare", "commit", "discard", "use_sockets", "figures", "reopen_logs", "lead", "save"),
    *("begin_shutdown", "drain", "stop_accepting", "finish", "retire", "abort", "keeper_link", "health_states"),
)
Script = Callable[[ScriptedChild], Any]


class World:
    """The supervisor's side, with children that do as they are told."""

    def __init__(self) -> None:
        from mcproxy import __version__

        self.reactor = Reactor()
        self.version = __version__
        self.pids = iter(range(1_000_000, 2_000_000))
        self.living: list[ScriptedChild] = []
        self.events: list[str] = []
        """``"worker-0 prepare"``, in the order in which the children got it."""
        self.leads: list[tuple[str, bool]] = []
        self.scripts: dict[tuple[str, str], list[Script]] = {}
        self.fails: OSError | None = None
        """Raised instead of starting a process."""
        self.open: dict[str, int] = {}
        self.cut: dict[str, dict[str, int]] = {}
        self.sockets = SocketTable()
        self.lines: list[str] = []
        self.supervisor = Supervisor(self.reactor, sockets=self.sockets, write_line=self.lines.append)

    def spawn(self, reactor: Any, name: str, end: socket.socket, ended: Callable[[int], None]) -> ScriptedChild:
        if self.fails is not None:
            raise self.fails
        self.note(name, "spawned")
        return ScriptedChild(self, name, end, ended)

    def note(self, name: str, what: str) -> None:
        self.events.append(f"{name} {what}")

    def on(self, name: str, kind: str, *scripts: Script) -> None:
        """Let the next children of a name do this, one after the other, before they answer a message of that kind."""
        self.scripts.setdefault((name, kind), []).extend(scripts)

    async def act(self, child: ScriptedChild, kind: str) -> None:
        scripts = self.scripts.get((child.name, kind))
        if scripts:
            result = scripts.pop(0)(child)
            if isinstance(result, Deferred):
                await result

    def child(self, name: str) -> ScriptedChild:
        """Return the newest living child of a name."""
        return next(child for child in reversed(self.living) if child.name == name)

    def since(self, mark: int, *kinds: str) -> list[str]:
        """Return the events from the number `mark` on, those of some kinds only if any are named."""
        return [event for event in self.events[mark:] if not kinds or event.split()[1] in kinds]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Let the channels work until it is true; time stands still."""
        for _ in range(2000):
            if condition():
                return
            await deferLater(real_reactor, 0)
        raise AssertionError(f"it did not come to that; until now: {self.events}")

    async def settled(self) -> None:
        """Let the channels work until nothing happens any more."""
        quiet = 0
        while quiet < 20:
            before = len(self.events)
            await deferLater(real_reactor, 0)
            quiet = quiet + 1 if len(self.events) == before else 0

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, in steps that let the channels work."""
        left = seconds
        while left > 0:
            self.reactor.advance(min(0.5, left))
            left -= 0.5
            await self.settled()

    def close(self) -> None:
        for child in list(self.living):
            child.end()
        self.sockets.close()
        self.supervisor._limits.close()  # 64 descriptors


def die(child: ScriptedChild) -> Deferred[None]:
    """A script: end instead of answering."""
    child.die()
    return Deferred()


def fail(error: Exception) -> Script:
    """A script: raise this."""

    def script(child: ScriptedChild) -> None:
        raise error

    return script


def wait(for_: Deferred[None]) -> Script:
    """A script: answer once this has fired."""
    return lambda child: for_


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two workers' worth of scripted children; nothing is started yet."""
    made = World()
    monkeypatch.setattr(children, "Interpreter", made.spawn)
    yield made
    made.close()


def config(workers: int = 2, *, keeper: bool = False, level: str = "info", **daemon: Any) -> model.Config:
    """A configuration that a reload can tell from others by its level."""
    aggregate = model.Server(name="all", listeners=(), backend=model.AggregateBackendConfig("all", ("east",)))
    return model.Config(
        daemon=model.DaemonConfig(workers=workers, **daemon),
        logging=model.Logging(level=level),
        servers=(aggregate,) if keeper else (),
    )
