"""A daemon of several processes, as the state machine of the daemon drives it: `lifecycle.Service` over all children.

The supervisor reads and checks files, opens listening sockets, and moves no client's bytes. Every call goes to all
children. A configuration is applied in two steps: each child prepares it beside the one in force; when all have, all
commit it, the keeper first; where one cannot, all discard it. A child that ends is replaced (`processes.slots`).
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.daemon import figures
from mcproxy.daemon.errors import DaemonError, describe
from mcproxy.daemon.listening_sockets import PreparedSockets, SocketTable
from mcproxy.daemon.processes import passed_config
from mcproxy.daemon.processes.children import Child, Children, Role
from mcproxy.daemon.processes.common_log import CommonLogs
from mcproxy.daemon.processes.errors import ProcessLost, ProcessTimeoutError
from mcproxy.daemon.processes.health_relay import HealthRelay
from mcproxy.daemon.processes.interpreter import describe_end
from mcproxy.daemon.processes.keeper import KeeperLinks, needs_keeper
from mcproxy.daemon.processes.process_list import process_list
from mcproxy.daemon.processes.slot import Slot
from mcproxy.daemon.processes.slots import Phase, Slots
from mcproxy.daemon.processes.waiting import outcomes
from mcproxy.daemon.shared_limits import SharedLimits
from mcproxy.daemon.worker_count import worker_count
from mcproxy.dispatch.shared_memory import SharedMemory

log = Logger()

PREPARE_TIMEOUT = 120.0
"""Seconds that a child may take to prepare a configuration; one that takes longer is killed."""
FIGURES_TIMEOUT = 5.0
"""Seconds that a child may take to report its figures; without them, status has those of the others."""
END_TIMEOUT = 3.0
"""Seconds that a child may take to end once it has nothing left to do, or at once."""


@dataclass(eq=False, slots=True)
class Generation:
    """A configuration as the children get it; in force, or prepared."""

    config: model.Config
    workers: int
    file: int
    """Descriptor (`passed_config`)."""
    sockets: PreparedSockets | None
    """None once it is in force."""
    prepared: dict[Slot, Child] = field(default_factory=dict)
    """The children that have prepared it."""
    added: list[Slot] = field(default_factory=list)
    """Slots that it has more than the one in force."""
    removed: list[Slot] = field(default_factory=list)
    """Slots that only the one in force has; their children get it too, for what they end with it."""


class Processes:
    """All processes but the supervisor."""

    def __init__(self, reactor: Any, *, sockets: SocketTable, write_line: Callable[[str], None]) -> None:
        """`write_line` writes a line of a child to the log."""
        self._reactor = reactor
        self._sockets = sockets
        self._in_force: Generation | None = None
        self._preparing: Generation | None = None
        self._drain_timeout = 0.0
        self._cut: Counter[str] = Counter()
        self._started_at = reactor.seconds()
        self._limits = SharedMemory.create()
        self._shared_limits = SharedLimits(reactor, lambda: self._limits)
        self.children = Children(reactor)
        self.children.on_lost(lambda child: self._limits.reclaim(child.column))
        KeeperLinks(self.children)
        self._slots = Slots(
            reactor,
            self.children,
            start=self._start_child,
            configure=self._catch_up,
            drain=self._drain_late,
            changed=self._lend_sockets,
        )
        self._lent: dict[Child, list[tuple[str, int]]] = {}
        self._health = HealthRelay(self.children, reactor)
        self._common_logs = CommonLogs(self.children, reactor, write_line)
        reactor.addSystemEventTrigger("after", "shutdown", self.children.end_all, END_TIMEOUT)

    # -- what the lifecycle asks ------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Open requests, watches and tunnels, as the workers said within the last second."""
        return sum(child.open for child in self.children if child.role is Role.WORKER)

    async def collect_figures(self) -> dict[str, Any]:
        """Return connections and requests of each listener and cluster, summed, and the processes, for JSON."""
        children = list(self.children)
        asked = [child.channel.ask("figures", timeout=FIGURES_TIMEOUT) for child in children]
        answers: list[dict[str, Any]] = []
        for child, answer in zip(children, await outcomes(asked), strict=True):
            if isinstance(answer, dict):
                child.open = answer.pop("open")
                answers.append(answer)
        return {
            **figures.summed(answers),
            "processes": process_list(self.children, self._slots, self._reactor.seconds(), self._started_at),
        }

    async def start(self, config: model.Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start all processes with `config`, await `ready`, then let them accept; raises with nothing left open."""
        new = await self.prepare(config)
        if ready is not None:
            try:
                await ready()
            except BaseException:
                await self.discard(new)
                raise
        await self.commit(new)

    async def apply(self, config: model.Config) -> None:
        """Apply a new configuration in all processes; raises with nothing changed in any."""
        await self.commit(await self.prepare(config))

    async def save(self) -> None:
        """Save the state of aggregates, for a daemon that takes over."""
        await self._ask_all("save", self._slots.serving(Role.KEEPER))

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force and their listening descriptors, which stay this process's."""
        return self._sockets.all

    def restore_sockets(self) -> None:
        """Undo what another daemon that used these sockets too, and is gone, may have changed of them."""
        self._sockets.restore()

    def begin_shutdown(self) -> None:
        """Fail readiness, and close kept connections with the next response. Everything is still accepted."""
        self._slots.begin_shutdown()
        self.children.tell_all("begin_shutdown")

    async def drain(self, timeout: float) -> None:
        """Refuse new tunnels and followed logs and wait for the open ones, at most `timeout` seconds; then cut them."""
        self._drain_timeout = timeout
        until = self._reactor.seconds() + timeout
        await self._ask_all("drain", self._slots.serving(), seconds=timeout)
        await self._retired(until)

    def stop_accepting(self) -> None:
        """Close the listening sockets."""
        self._slots.finish()
        self._sockets.close()  # before the workers', the last of which accepts what is queued
        for child in self._slots.serving(Role.WORKER):
            child.channel.tell("stop_accepting")

    async def finish(self) -> None:
        """End watches cleanly, wait for short requests, both within fixed times, and close everything."""
        self._cut.update(await self._finish(self._slots.serving(Role.WORKER)))
        self._cut.update(await self._finish(self._slots.serving(Role.KEEPER)))  # the workers' requests needed it
        retiring = list(self.children)
        self._cut.update(_cut(await self._ask_all("abort", retiring)))
        await outcomes(self._see_end(child) for child in retiring)
        await self._shared_limits.stop()

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        """End what is open, for another daemon that serves the addresses `handed_over` from the same sockets."""
        workers, keepers = self._slots.serving(Role.WORKER), self._slots.serving(Role.KEEPER)
        until = self._reactor.seconds() + timeout
        self._slots.finish()
        self._sockets.close(handed_over=handed_over)
        await outcomes(self._slots.retire(child, handed_over) for child in workers)
        await self._retired(until)
        await self._finish(keepers)
        await outcomes(self._see_end(child) for child in self.children)
        await self._shared_limits.stop()

    @property
    def cut(self) -> Mapping[str, int]:
        """The number of requests that were cut in all processes, by kind."""
        return self._cut + self._slots.cut

    def abort(self) -> None:
        """End everything at once. The children have `END_TIMEOUT` for it, at the end of the reactor."""
        self._slots.finish()
        for child in self.children:
            child.channel.tell("abort")
        self._shared_limits.abort()
        self._sockets.close()

    # -- step one ---------------------------------------------------------------------------------------------------

    async def prepare(self, config: model.Config) -> Generation:
        """Let all children prepare `config`; raises what the first of them raised, with nothing changed in any.

        `commit` or `discard` must follow.
        """
        workers = worker_count(config.daemon)
        sockets = self._sockets.prepare([listener.bind for listener in config.listeners], workers)
        try:
            new = Generation(config, workers, passed_config.write(config), sockets)
        except BaseException:
            sockets.discard()
            raise
        self._preparing = new
        wanted = {slot.name: slot for slot in _wanted_slots(config, workers)}
        new.added = [slot for name, slot in wanted.items() if name not in self._slots]
        new.removed = [slot for slot in self._slots.all() if slot.name not in wanted]
        kept = [slot for slot in self._slots.all() if slot.name in wanted]
        preparing = [self._prepare_slot(slot, new) for slot in (*kept, *new.added)]
        results = await outcomes([*preparing, *(self._prepare_removed(slot, new) for slot in new.removed)])
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await self.discard(new)
            raise _most_telling(errors)
        return new

    async def _prepare_slot(self, slot: Slot, new: Generation) -> None:
        """Let the slot's child prepare `new`; one that ends meanwhile is replaced and asked again, once.

        One whose predecessors have ended early, and which is not even started, is not waited for: a reload may be what
        mends it.
        """
        cause = ""
        for last in (False, True):
            try:
                child = await (self._slots.spawn(slot) if slot in new.added else self._slots.serving_in(slot))
                if child is None:
                    break
                await self._prepare_child(child, new)
            except ProcessLost:
                cause = "it was ended" if slot.child is None else describe_end(await slot.child.when_ended())
                if last or self._slots.phase is Phase.FINISHING:
                    break
            else:
                new.prepared[slot] = child
                return
        if cause:
            raise DaemonError(
                f"{slot.name} ended while it prepared the configuration: {cause}", todo="see its lines in the log"
            )

    async def _prepare_removed(self, slot: Slot, new: Generation) -> None:
        """Let a child that is about to retire prepare `new`; nothing replaces it if it ends."""
        child = slot.child
        if child is None or not slot.serving:
            return
        try:
            await self._prepare_child(child, new)
        except ProcessLost:
            return
        new.prepared[slot] = child

    async def discard(self, new: Generation) -> None:
        """Undo `prepare`."""
        self._preparing = None
        for slot in new.added:
            if slot.child is not None:
                slot.child.kill()
        asked = [
            child.channel.ask("discard", timeout=PREPARE_TIMEOUT)
            for slot, child in new.prepared.items()
            if slot not in new.added
        ]
        await outcomes(asked)
        assert new.sockets is not None
        new.sockets.discard()
        os.close(new.file)

    # -- step two ---------------------------------------------------------------------------------------------------

    async def commit(self, new: Generation) -> None:
        """Put `new` in force. It never fails: a child that cannot is replaced by one that has `new`."""
        before, self._in_force = self._in_force, new
        self._lent.clear()  # each child has just the sockets that it was given with `new`
        assert new.sockets is not None
        new.sockets.commit()
        new.sockets = None
        for slot in new.added:
            self._slots.add(slot)
        for role in (Role.KEEPER, Role.WORKER):
            await outcomes(self._commit_slot(slot, child) for slot, child in new.prepared.items() if slot.role is role)
        for slot in new.removed:
            self._slots.remove(slot)
        starting = [slot for slot in self._slots.all() if slot.child is not None and not slot.serving]
        await outcomes(self._slots.serving_in(slot) for slot in starting)  # they may have the old one for a moment yet
        if before is not None:
            os.close(before.file)
        new.prepared.clear()
        self._preparing = None
        self._slots.hurry()
        self._lend_sockets()
        self._slots.choose_leader()
        self._health.configured(new.config)
        self._shared_limits.configured(new.config)
        self._common_logs.reloaded()

    async def _commit_slot(self, slot: Slot, child: Child) -> None:
        if slot.child is not child:  # it has ended since it prepared
            if slot.child is None and slot.waiting is None:
                self._slots.replace(slot, 0.0)
            return
        try:
            await child.channel.ask("commit", timeout=None)
        except ProcessLost:
            return
        except Exception as error:
            self._slots.log_error("a process could not commit the configuration, it is replaced", slot, error)
            child.kill()
            return
        if slot.child is child:
            slot.serves()

    # -- one child --------------------------------------------------------------------------------------------------

    async def _start_child(self, child: Child) -> str:
        """Tell a new child what it is, and return its version."""
        generation = self._in_force or self._preparing
        assert generation is not None
        fields = {
            "role": child.role,
            "name": child.name,
            "index": child.index,
            "column": child.column,
            "level": generation.config.logging.level,
        }
        descriptors = self._limits.descriptors
        answer = await self.children.start(child, list(descriptors.values()), descriptors=list(descriptors), **fields)
        return str(answer["version"])

    async def _prepare_child(self, child: Child, generation: Generation) -> None:
        """Let a child prepare a configuration. Raises ProcessLost, or what the child raised."""
        worker = child.role is Role.WORKER and child.index < generation.workers
        sockets = self._sockets.of_worker(child.index, generation.sockets) if worker else []
        try:
            await child.channel.ask(
                "prepare",
                [generation.file, *(descriptor for _, descriptor in sockets)],
                timeout=PREPARE_TIMEOUT,
                addresses=[address for address, _ in sockets],
                workers=generation.workers,
                retiring=child.role is Role.WORKER and not worker,
            )
        except ProcessTimeoutError:
            child.kill()
            raise

    async def _catch_up(self, child: Child) -> None:
        """Put the configuration in force in a child, also if it becomes another one meanwhile."""
        generation: Generation | None = None
        while generation is not self._in_force:
            generation = self._in_force
            assert generation is not None
            await self._prepare_child(child, generation)
            decided = "commit" if generation is self._in_force else "discard"
            await child.channel.ask(decided, timeout=None)

    def _drain_late(self, child: Child) -> None:
        child.channel.tell("begin_shutdown")
        child.channel.tell("drain", seconds=self._drain_timeout)

    def _lend_sockets(self) -> None:
        """Let the other workers accept what is queued for one that is away for longer than a start takes."""
        serving = self._slots.serving(Role.WORKER)
        if not serving or self._preparing is not None:  # then `commit` does it
            return
        lent: dict[Child, list[tuple[str, int]]] = {}
        for number, slot in enumerate(self._slots.vacant()):
            borrower = serving[number % len(serving)]
            lent.setdefault(borrower, []).extend(self._sockets.of_worker(slot.index))
        for child in serving:
            if lent.get(child) != self._lent.get(child):
                sockets = [*self._sockets.of_worker(child.index), *lent.get(child, [])]
                child.channel.tell("use_sockets", [fd for _, fd in sockets], addresses=[each for each, _ in sockets])
        self._lent = lent

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _ask_all(self, kind: str, children: Iterable[Child], **fields: Any) -> list[dict[str, Any]]:
        """Ask all, and return the answers; a child that has ended has none, and an error is logged."""
        asked = list(children)
        work: list[Coroutine[Deferred[Any], Any, Any]] = [
            child.channel.ask(kind, timeout=None, **fields) for child in asked
        ]
        answers: list[dict[str, Any]] = []
        for child, answer in zip(asked, await outcomes(work), strict=True):
            if isinstance(answer, dict):
                answers.append(answer)
            elif not isinstance(answer, ProcessLost):
                log.error("a process failed", process=child.name, doing=kind, cause=str(answer), todo="see its log")
        return answers

    async def _finish(self, children: Sequence[Child]) -> Counter[str]:
        """Let children finish; return the number of requests that they cut, by kind."""
        cut = _cut(await self._ask_all("finish", children))
        await outcomes(self._see_end(child) for child in children)
        return cut

    async def _retired(self, until: float) -> None:
        """Wait for the children that retire, until then."""
        for child in self.children:
            if child.retiring and (left := until - self._reactor.seconds()) > 0:
                with contextlib.suppress(TimeoutError):
                    await child.when_ended().addTimeout(left, self._reactor)

    async def _see_end(self, child: Child) -> None:
        """Wait until a child has ended; one that takes too long is killed."""
        try:
            await child.when_ended().addTimeout(END_TIMEOUT, self._reactor)
        except TimeoutError:
            log.error("process does not end, it is killed", process=child.name, pid=child.pid)
            child.kill()


def _cut(answers: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the requests that children cut, by kind."""
    cut = Counter[str]()
    for answer in answers:
        cut.update(answer["cut"])
    return cut


def _wanted_slots(config: model.Config, workers: int) -> list[Slot]:
    keepers = [Slot(Role.KEEPER, 0)] if needs_keeper(config) else []
    return [*keepers, *(Slot(Role.WORKER, index) for index in range(workers))]


def _most_telling(errors: Sequence[BaseException]) -> BaseException:
    """Return an error that an operator can mend, if there is one among them."""
    return next((error for error in errors if describe(error) is not None), errors[0])
