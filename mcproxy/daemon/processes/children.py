"""All running children of the supervisor: their processes, their channels, and whether they answer.

`processes.slots` replaces children, `processes.config_rollout` sends them configurations. A configuration is a pickle
in a memory file (memfd_create(2)). This is safe: parent and child are the same program, and children read pickles from
the supervisor only. One descriptor is passed many times, so all children and their successors read the same pages.
"""

from __future__ import annotations

import enum
import mmap
import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.config import model
from mcproxy.daemon import interpreter
from mcproxy.daemon.channel import Channel, ChannelMessage, Fields, socket_pair
from mcproxy.daemon.errors import DaemonError, ProcessLost
from mcproxy.dispatch.tables.layout import COLUMNS, KEEPER_COLUMN

log = Logger(__name__)

CHILD_MODULE = "mcproxy.daemon.processes"

HEARTBEAT = 1.0
"""Seconds between two pings of a child."""
SILENCE = 10.0
"""Seconds without an answer to pings after which a child is killed."""
STARTING = 30.0
"""The same limit for the first answer. The child imports all modules before it (0.7 s on an idle core)."""


class Role(enum.StrEnum):
    WORKER = "worker"
    KEEPER = "keeper"


class Child:
    """A worker or keeper process. Its successor is another Child with the same name."""

    def __init__(self, role: Role, index: int, column: int, channel: Channel, now: float) -> None:
        self.role = role
        self.index = index
        self.column = column
        """The column of shared memory that belongs to the process while it runs."""
        self.name = f"{role}-{index}" if role is Role.WORKER else str(role)
        self.channel = channel
        self.interpreter: Interpreter
        self.ended = False
        """Whether the process is reaped."""
        self.killed = False
        """Whether the supervisor itself killed the process."""
        self._status = 0
        self._waiting: list[Deferred[int]] = []
        self.started_at = now
        self.heard_at = now
        self.answered = False
        """Whether the process has answered a ping."""
        self.pinged = False
        self.open = 0
        """The number of open requests of the process, from its last answer to a ping or its last figures."""
        self.retiring = False
        """Whether the process only finishes its requests. It is not replaced when it ends."""

    @property
    def pid(self) -> int:
        return self.interpreter.pid

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.killed = True
        self.interpreter.signal(signal.SIGKILL)

    def when_ended(self) -> Deferred[int]:
        """Return a Deferred that fires with the exit status (`Interpreter`), after the callbacks of `Children.on_lost`.

        The Deferreds fire in the order of the calls.
        """
        ended: Deferred[int] = Deferred()
        if self.ended:
            ended.callback(self._status)
        else:
            self._waiting.append(ended)
        return ended

    def reaped(self, status: int) -> None:
        """Handle the end of the process; called by `Children`."""
        self.ended = True
        self._status = status
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.called:  # the wait has timed out
                each.callback(status)


ChildHandler = Callable[[Child, ChannelMessage], "Awaitable[Fields | None] | Fields | None"]


class Children:
    """All children that are not reaped, retiring ones included."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._children: list[Child] = []
        self._handlers: dict[str, ChildHandler] = {}
        self._on_started: list[Callable[[Child], None]] = []
        self._on_lost: list[Callable[[Child], None]] = []
        self._heartbeat = LoopingCall(self._beat)
        self._heartbeat.clock = reactor
        self._beat_at = 0.0
        self.leader: Child | None = None
        """The worker that checks health and rights for all processes; the supervisor chooses it."""

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._children))

    # -- for parts of the daemon that communicate with each process ---------------------------------------------------

    def on(self, kind: str, handler: ChildHandler) -> None:
        """Register `handler` for the messages of a kind from every child (`Channel.on`)."""
        if kind in self._handlers:
            raise ValueError(f"two handlers of {kind}")
        self._handlers[kind] = handler
        for child in self._children:
            self._handle(child, kind, handler)

    def tell_all(self, kind: str, *, but: Child | None = None, **fields: Any) -> None:
        """Send a notice to every child that has started, except `but`."""
        for child in self._children:
            if child is not but and child.answered:
                child.channel.tell(kind, **fields)

    def ask_all(self, kind: str, *, timeout: float) -> Deferred[None]:
        """Send a request to every started child. The Deferred fires when each has answered, failed or timed out."""
        asked = [
            Deferred.fromCoroutine(child.channel.ask(kind, timeout=timeout))
            for child in self._children
            if child.answered
        ]
        return DeferredList(asked, consumeErrors=True).addCallback(lambda _: None)

    def on_started(self, callback: Callable[[Child], None]) -> None:
        """Call `callback` with each new child when its channel is open, before its first configuration."""
        self._on_started.append(callback)

    def on_lost(self, callback: Callable[[Child], None]) -> None:
        """Call `callback` with each child that is reaped, before its successor starts."""
        self._on_lost.append(callback)

    # -- for the supervisor ------------------------------------------------------------------------------------------

    def spawn(self, role: Role, index: int) -> Child:
        """Start a process. Raises OSError and DaemonError."""
        column = self._free_column(role, index)
        ours, theirs = socket_pair()
        channel = Channel(self._reactor, ours)
        child = Child(role, index, column, channel, self._reactor.seconds())
        for kind, handler in self._handlers.items():
            self._handle(child, kind, handler)
        try:
            with theirs:
                child.interpreter = Interpreter(
                    self._reactor, child.name, theirs, lambda status: self._reaped(child, status)
                )
        except BaseException:
            channel.close()
            raise
        self._children.append(child)
        if not self._heartbeat.running:
            self._beat_at = self._reactor.seconds()
            self._heartbeat.start(HEARTBEAT)
        return child

    async def start(self, child: Child, fds: Sequence[int], **fields: Any) -> Fields:
        """Send a child its properties, call the `on_started` callbacks, and return its answer. Raises ProcessLost."""
        answer = await child.channel.ask("start", fds, timeout=None, **fields)
        child.answered = True
        child.heard_at = self._reactor.seconds()
        for callback in self._on_started:
            callback(child)
        return answer

    def end_all(self, timeout: float) -> None:
        """At the end of the daemon, block at most `timeout` seconds until all children have ended; kill the others."""
        if self._heartbeat.running:
            self._heartbeat.stop()
        deadline = self._reactor.seconds() + timeout
        for child in self._children:
            child.interpreter.forget()
            if not child.interpreter.wait(max(0.0, deadline - self._reactor.seconds())):
                child.kill()
                child.interpreter.wait(timeout)
            child.channel.close()
        self._children.clear()

    def _free_column(self, role: Role, index: int) -> int:
        """Return a free column: `index` (the last column for the keeper) or, if a retiring child has that, another one.

        Raises DaemonError if all columns are taken.
        """
        taken = {child.column for child in self._children}
        wanted = index if role is Role.WORKER else KEEPER_COLUMN
        candidates: list[int] = [wanted, *range(COLUMNS)]
        for column in candidates:
            if column not in taken:
                return column
        raise DaemonError(
            f"there are {len(taken)} processes already, including those that finish their requests",
            todo="wait until some of them have ended, or set daemon.workers lower",
        )

    def _handle(self, child: Child, kind: str, handler: ChildHandler) -> None:
        child.channel.on(kind, lambda message: handler(child, message))

    def _reaped(self, child: Child, status: int) -> None:
        self._children.remove(child)
        child.channel.close_after_rest()  # the process can be reaped before its last answer was read
        if not self._children:
            self._heartbeat.stop()
        for callback in self._on_lost:
            try:
                callback(child)
            except Exception:
                log.failure(
                    "handling the end of a process failed",
                    event="internal_error",
                    process=child.name,
                )
        child.reaped(status)

    def _beat(self) -> None:
        now = self._reactor.seconds()
        if now - self._beat_at > 3 * HEARTBEAT:  # this process was stopped (SIGSTOP), the children are not silent
            for child in self._children:
                child.heard_at = now
        self._beat_at = now
        for child in self._children:
            silent = now - child.heard_at
            if silent > (SILENCE if child.answered else STARTING):
                log.error(
                    "a process does not respond and is killed",
                    event="process_unresponsive",
                    process=child.name,
                    pid=child.pid,
                    cause=f"it was stopped, got no processor time, or hung, for {silent:.0f} s",
                )
                child.heard_at = now  # so that one line is logged per timeout
                child.kill()
            elif not child.pinged:
                child.pinged = True
                Deferred.fromCoroutine(self.ping(child)).addErrback(
                    lambda failure: log.failure("ping failed", event="internal_error", failure=failure)
                )

    async def ping(self, child: Child, timeout: float | None = None) -> None:
        """Ping a child, which returns the number of its open requests. Raises ProcessTimeoutError."""
        try:
            answer = await child.channel.ask("ping", timeout=timeout)
        except ProcessLost:
            return
        child.pinged = False
        child.heard_at = self._reactor.seconds()
        child.open = answer["open"]


@implementer(IReadDescriptor)
class Interpreter:
    """The process of one child."""

    def __init__(self, reactor: Any, name: str, end: socket.socket, ended: Callable[[int], None]) -> None:
        """Start the process; the caller closes `end`, its end of the channel. Raises OSError and DaemonError.

        When the process is reaped, `ended` is called with its exit status (negative: the signal that ended it).
        """
        self._reactor = reactor
        self._ended = ended
        with interpreter.group_signals_blocked():
            self._process = subprocess.Popen(
                interpreter.command(CHILD_MODULE, name, str(end.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=(end.fileno(),),
                env=interpreter.environment(os.environ),
            )
        self.pid = self._process.pid
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as error:
            self._process.kill()
            self._process.wait()
            raise DaemonError(
                f"the end of a process cannot be watched: pidfd_open: {error.strerror}",
                todo="raise the limit of open files, or let Linux (from 5.3 on) and the container runtime permit this "
                "system call, or set daemon.workers to 1",
            ) from error
        reactor.addReader(self)

    @property
    def running(self) -> bool:
        """Whether the process is not reaped yet."""
        return self._process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.running:
            self._process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """At the end of the daemon, block at most `timeout` seconds; return whether the process has ended."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def fileno(self) -> int:
        return self._pidfd

    def logPrefix(self) -> str:
        return "child"

    def doRead(self) -> Any:
        """Reap the process when its pidfd becomes readable."""
        status = self._process.poll()
        if status is not None:
            self.forget()
            self._ended(status)
        return None

    def connectionLost(self, reason: Failure) -> None:
        self.forget()

    def forget(self) -> None:
        """Stop watching the process. A second call does nothing."""
        if self._pidfd >= 0:
            self._reactor.removeReader(self)
            os.close(self._pidfd)
            self._pidfd = -1


async def gather_results(work: Iterable[Coroutine[Deferred[Any], Any, Any]]) -> list[Any]:
    """Await all coroutines at the same time; return each one's result, or the exception that it raised."""
    results: list[tuple[bool, Any]] = await DeferredList(
        [Deferred.fromCoroutine(each) for each in work], consumeErrors=True
    )
    return [result.value if isinstance(result, Failure) else result for _, result in results]


def config_to_memory(config: model.Config) -> int:
    """Return the descriptor of a memory file with `config`; the caller closes it. Raises OSError."""
    descriptor = os.memfd_create("mcproxy-config")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            pickle.dump(config, file, pickle.HIGHEST_PROTOCOL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def config_from_memory(descriptor: int) -> model.Config:
    """Return the configuration, and close the descriptor."""
    try:
        # read(2) is not used, because all processes share one file offset.
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as content:
            config: model.Config = pickle.loads(content)
    finally:
        os.close(descriptor)
    return config
