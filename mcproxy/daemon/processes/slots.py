"""Starts a successor for each ended worker or keeper, and chooses the leader of the workers.

A successor gets the name, the sockets and the configuration of the ended child. It starts after the permits of that
child in shared memory are released.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from mcproxy import __version__
from mcproxy.daemon.channel import ChannelMessage
from mcproxy.daemon.errors import DaemonError, ProcessLost, describe
from mcproxy.daemon.interpreter import describe_end, remedy_of_end
from mcproxy.daemon.processes.children import Child, Children, Role

log = Logger(__name__)

LONGEST_DELAY = 30.0
"""Longest delay between the end of a child and the start of its successor (seconds)."""
STABLE_AFTER = 60.0
"""Lifetime in seconds after which the end of a child does not count as early. The delays then restart at zero."""
REPLACED_WITHIN = 60.0
"""Seconds that a reload waits for the successor of an ended child."""
LEAVING_DELAY = 0.25
"""Seconds until a child that received SIGTERM is replaced. If all processes received it, the supervisor begins to stop
within this time."""


class Phase(enum.Enum):
    RUNNING = enum.auto()
    DRAINING = enum.auto()
    """The phase in which connections are still accepted, so an ended child is still replaced."""
    FINISHING = enum.auto()


class Slot:
    """A slot for one worker or the keeper, which stays when its child is replaced."""

    def __init__(self, role: Role, index: int) -> None:
        self.role = role
        self.index = index
        self.child: Child | None = None
        """The child that starts or serves; None while the start of a successor is delayed."""
        self.serving = False
        """Whether `child` has a configuration in force."""
        self.restarts = 0
        self.waiting: IDelayedCall | None = None
        """The delayed start of the successor."""
        self.delayed = False
        self.leaving: list[Child] = []
        """Former children that serve until their successor serves."""
        self._early_ends = 0  # number of consecutive early ends
        self._waiters: list[Deferred[Child | None]] = []

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}" if self.role is Role.WORKER else str(self.role)

    def delay(self, lived: float) -> float:
        """Return the start delay, in seconds, of the successor of a child that ended after `lived` seconds.

        After the first early end the successor starts at once; then the delay is 1, 2, 4 … 30 s.
        """
        self._early_ends = 1 if lived >= STABLE_AFTER else self._early_ends + 1
        return 0.0 if self._early_ends == 1 else min(2.0 ** (self._early_ends - 2), LONGEST_DELAY)

    def child_serving(self) -> Deferred[Child | None]:
        """Return a Deferred that fires with a child that has a configuration in force.

        It fires with None if the start of a successor is delayed.
        """
        wanted: Deferred[Child | None] = Deferred()
        if self.waiting is not None and self.delayed:
            wanted.callback(None)
        elif self.serving:
            wanted.callback(self.child)
        else:
            self._waiters.append(wanted)
        return wanted

    def serves(self) -> None:
        """Note that the slot's child now has a configuration in force."""
        assert self.child is not None
        self.serving = True
        self._tell(self.child)

    def wait(self, start: IDelayedCall, *, delayed: bool) -> None:
        """Note the scheduled call `start` of the next child's start; `delayed`: it is not immediate."""
        self.waiting, self.delayed = start, delayed
        if delayed:
            self._tell(None)

    def _tell(self, child: Child | None) -> None:
        wanting, self._waiters = self._waiters, []
        for wanted in wanting:
            if not wanted.called:
                wanted.callback(child)

    def empty(self) -> None:
        """Note that the slot's child has ended or left the slot."""
        self.child = None
        self.serving = False

    def give_up(self) -> None:
        """Cancel the start of a successor."""
        if self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None


class Slots:
    """The slots of the configuration in force, by name."""

    def __init__(
        self,
        reactor: Any,
        children: Children,
        *,
        start: Callable[[Child], Awaitable[str]],
        drain: Callable[[Child], None],
    ) -> None:
        """`start` sends a new child its properties and returns its version; raises ProcessLost, or the child's error.

        `drain` notifies it of a shutdown that has begun."""
        self._reactor = reactor
        self._children = children
        self._start = start
        self._drain = drain
        self.configure: Callable[[Child], Awaitable[None]]
        """Sends a child the configuration in force; raises as `start`. `ConfigRollout` sets it."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the set of `vacant` slots has changed."""
        self._slots: dict[str, Slot] = {}
        self.phase = Phase.RUNNING
        self.cut: Counter[str] = Counter()
        """The requests that retired children have cut, by kind."""
        children.on("leaving", self._child_leaving)

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __getitem__(self, name: str) -> Slot:
        return self._slots[name]

    def all(self) -> list[Slot]:
        return list(self._slots.values())

    def add(self, slot: Slot) -> None:
        """Keep a slot filled from now on."""
        self._slots[slot.name] = slot

    def serving(self, role: Role | None = None) -> list[Child]:
        """Return the children that have the configuration in force, by index."""
        return [
            slot.child
            for slot in sorted(self._slots.values(), key=lambda slot: (slot.role, slot.index))
            if slot.serving and slot.child is not None and role in (None, slot.role)
        ]

    def ending(self) -> list[Child]:
        """Return the workers without a slot, which finish their requests or serve until their successor serves."""
        filling = {slot.child for slot in self._slots.values()}
        return [
            child for child in self._children if child.role is Role.WORKER and child.answered and child not in filling
        ]

    def vacant(self) -> list[Slot]:
        """Return the workers' slots whose next child starts after a delay, because of early ends."""
        return [slot for slot in self._slots.values() if slot.role is Role.WORKER and slot.waiting and slot.delayed]

    def restarts(self, child: Child) -> int:
        """Return the number of former children of the child's slot."""
        return next((slot.restarts for slot in self._slots.values() if slot.child is child), 0)

    # -- a child's life ---------------------------------------------------------------------------------------------

    async def spawn(self, slot: Slot) -> Child:
        """Start a child in a slot, without a configuration. Raises OSError, ProcessLost, or the child's error."""
        if self.phase is Phase.FINISHING:
            raise ProcessLost
        child = slot.child = self._children.spawn(slot.role, slot.index)
        child.when_ended().addCallback(lambda status: self._ended(slot, child, status))
        version = await self._start(child)
        if version != __version__:
            log.error(
                "the program was replaced under a running daemon",
                event="program_versions_differ",
                process=slot.name,
                cause=f"the supervisor is {__version__}, its new process {version}",
            )
        return child

    async def serving_in(self, slot: Slot) -> Child | None:
        """Return the slot's child when it has the configuration in force.

        None if its start is delayed after early ends. Raises DaemonError after `REPLACED_WITHIN` seconds."""
        try:
            return await slot.child_serving().addTimeout(REPLACED_WITHIN, self._reactor)
        except TimeoutError:
            raise DaemonError(
                f"{slot.name} has ended, and its successor does not start", todo="see the lines of both in the log"
            ) from None

    def hurry(self) -> None:
        """Start delayed children at once, because the new configuration can avoid their early ends."""
        for slot in self._slots.values():
            if slot.waiting is not None:
                slot.waiting.reset(0)

    def replace(self, slot: Slot, delay: float) -> None:
        """Start a new child in a slot after `delay` seconds, with the configuration then in force."""

        def start() -> None:
            slot.waiting = None
            Deferred.fromCoroutine(self._start_successor(slot)).addErrback(
                lambda failure: log.failure(
                    "replacing a process failed", event="internal_error", failure=failure, process=slot.name
                )
            )

        slot.wait(self._reactor.callLater(delay, start), delayed=delay > 0)
        if delay:
            self.changed()

    async def _start_successor(self, slot: Slot) -> None:
        try:
            child = await self.spawn(slot)
        except ProcessLost:
            return  # `_ended` has scheduled the next start
        except Exception as error:
            self.log_error("a process cannot be started", slot, error, event="process_start_failed")
            if self._slots.get(slot.name) is not slot:  # a reload has removed the slot
                return
            if slot.child is None:
                self.replace(slot, max(1.0, slot.delay(0.0)))
            else:
                slot.child.kill()
            return
        try:
            await self.configure(child)
        except ProcessLost:
            return
        except Exception as error:
            self.log_error("the replacement of a process cannot serve", slot, error, event="process_start_failed")
            child.kill()
            return
        if slot.child is not child:
            return
        if self.phase is Phase.DRAINING:
            self._drain(child)
        slot.serves()
        log.info("a process is ready", event="process_ready", process=slot.name, pid=child.pid)
        self.choose_leader()
        self.changed()
        self._retire_leaving(slot)

    def _ended(self, slot: Slot, child: Child, status: int) -> None:
        """Handle a reaped child: replace it, unless its slot was removed or the daemon finishes."""
        in_force = self._slots.get(slot.name) is slot and self.phase is not Phase.FINISHING
        what = {"process": child.name, "pid": child.pid, "open": child.open}
        why = {"cause": describe_end(status), "todo": remedy_of_end(status)}
        if child.killed:
            why = {"cause": "the supervisor killed it, see the line before"}
        if slot.child is child:
            slot.empty()
            if in_force:
                delay = slot.delay(self._reactor.seconds() - child.started_at)
                slot.restarts += 1
                log.error(
                    "a process ended unexpectedly and is replaced",
                    event="process_died",
                    **what,
                    replacedAfterSeconds=round(delay, 3),
                    **why,
                )
                self.replace(slot, delay)
                status = 0
        if status != 0 and not child.killed:
            log.error("a process ended early", event="process_died", **what, **why)
        if child is self._children.leader:
            self.choose_leader()

    def _child_leaving(self, child: Child, message: ChannelMessage) -> None:
        """Start a successor of a child that received SIGTERM. When the successor serves, the child retires."""

        def replace() -> None:
            slot = next((slot for slot in self._slots.values() if slot.child is child), None)
            if slot is not None and self.phase is Phase.RUNNING:
                log.info(
                    "a process received SIGTERM and is replaced",
                    event="process_replaced",
                    process=child.name,
                    pid=child.pid,
                )
                slot.restarts += 1
                slot.empty()
                slot.leaving.append(child)
                self.replace(slot, 0.0)

        self._reactor.callLater(LEAVING_DELAY, replace)

    def remove(self, slot: Slot) -> None:
        """Remove a slot; its child finishes its requests."""
        del self._slots[slot.name]
        slot.give_up()
        if slot.child is not None:
            slot.leaving.append(slot.child)
        slot.empty()
        self._retire_leaving(slot)

    def _retire_leaving(self, slot: Slot) -> None:
        leaving, slot.leaving = slot.leaving, []
        for child in leaving:
            child.retiring = True
            Deferred.fromCoroutine(self.retire(child)).addErrback(
                lambda failure: log.failure("a process could not retire", event="internal_error", failure=failure)
            )
        self.choose_leader()

    async def retire(self, child: Child, handed_over: Collection[str] | None = None) -> None:
        """Let a child finish its requests. Other processes serve the addresses `handed_over` (None: all addresses)."""
        addresses = None if handed_over is None else list(handed_over)
        try:
            answer = await child.channel.ask("retire", timeout=None, addresses=addresses)
        except ProcessLost:
            return
        self.cut.update(answer["cut"])
        log.info(
            "a replaced process has ended",
            event="process_retired",
            process=child.name,
            pid=child.pid,
            cut=sum(answer["cut"].values()),
        )

    def choose_leader(self) -> None:
        """Keep the leader while it serves; else choose the first serving worker."""
        serving = self.serving(Role.WORKER)
        before = self._children.leader
        if before in serving:
            return
        leader = self._children.leader = serving[0] if serving else None
        if before is not None:
            before.channel.tell("lead", leads=False)
        if leader is not None:
            leader.channel.tell("lead", leads=True)

    def begin_shutdown(self) -> None:
        """From now on, start successors only for children that have ended.

        Children that wait for a successor before they retire (`Slot.leaving`) retire at once.
        """
        self.phase = Phase.DRAINING
        for slot in self._slots.values():
            self._retire_leaving(slot)

    def finish(self) -> None:
        """Stop replacing children, and kill those that do not serve yet."""
        self.phase = Phase.FINISHING
        for slot in self._slots.values():
            slot.give_up()
            if slot.child is not None and not slot.serving:
                slot.child.kill()

    def log_error(self, what: str, slot: Slot, error: Exception, *, event: str) -> None:
        """Log an error of a child. For a bug, the child itself has logged the traceback."""
        cause, todo = describe(error) or (str(error), "report this bug, with the log")
        log.error(what, event=event, process=slot.name, cause=cause, todo=todo)
