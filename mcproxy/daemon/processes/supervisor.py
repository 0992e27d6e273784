"""A daemon of several processes, as the state machine of the daemon drives it: `lifecycle.Service` over all children.

The supervisor reads and checks files, opens listening sockets, and moves no client's bytes. Every call goes to all
children. A configuration is applied in two steps: each child prepares it beside the one in force; when all have, all
commit it, the keeper first; where one cannot, all discard it. A child that ends is replaced: its successor gets the
same name, sockets and configuration.
"""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, DeferredList, TimeoutError
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy import __version__
from mcproxy.config import model
from mcproxy.daemon import figures
from mcproxy.daemon.errors import DaemonError, describe
from mcproxy.daemon.listening_sockets import PreparedSockets, SocketTable
from mcproxy.daemon.processes import passed_config
from mcproxy.daemon.processes.children import Child, Children, Role
from mcproxy.daemon.processes.common_log import CommonLogs
from mcproxy.daemon.processes.errors import ProcessError, ProcessLost
from mcproxy.daemon.processes.health_relay import HealthRelay
from mcproxy.daemon.processes.interpreter import describe_end
from mcproxy.daemon.processes.keeper import KeeperLinks, needs_keeper
from mcproxy.daemon.processes.slot import Slot
from mcproxy.daemon.worker_count import worker_count
from mcproxy.dispatch.shared_memory import SharedMemory
from mcproxy.net.bind import SystemdSockets

log = Logger()

PREPARE_TIMEOUT = 120.0
"""Seconds that a child may take to prepare a configuration; one that takes longer is killed."""
REPLACED_WITHIN = 30.0
"""Seconds that a reload waits for the successor of a child that has ended."""
FIGURES_TIMEOUT = 5.0
"""Seconds that a child may take to report its figures; without them, status has those of the others."""
END_TIMEOUT = 3.0
"""Seconds that a child may take to end once it has nothing left to do, or at once."""
LEAVING_DELAY = 0.25
"""Seconds before a child that was sent SIGTERM is replaced: if all processes were, the supervisor stops by then."""


class Phase(enum.Enum):
    RUNNING = enum.auto()
    DRAINING = enum.auto()
    """Everything is still accepted, so whoever ends is still replaced."""
    FINISHING = enum.auto()


@dataclass(eq=False, slots=True)
class Applied:
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


class Processes:
    """All processes but the supervisor."""

    def __init__(self, reactor: Any, *, systemd_sockets: SystemdSockets, write_line: Callable[[str], None]) -> None:
        """`write_line` writes a line of a child to the log."""
        self._reactor = reactor
        self._sockets = SocketTable(systemd_sockets)
        self._slots: dict[str, Slot] = {}
        self._applied: Applied | None = None
        self._phase = Phase.RUNNING
        self._drain_timeout = 0.0
        self._cut: Counter[str] = Counter()
        self._started_at = reactor.seconds()
        self._limits = SharedMemory.create()
        self.children = Children(reactor)
        self.children.on_lost(lambda child: self._limits.reclaim(child.column))
        KeeperLinks(self.children)
        self._common_logs = CommonLogs(self.children, reactor, write_line)
        self._health = HealthRelay(self.children, reactor)
        self.children.on("leaving", lambda child, message: self._leaving(child))
        reactor.addSystemEventTrigger("after", "shutdown", self.children.end_all, END_TIMEOUT)

    # -- what the lifecycle asks ------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Open requests, watches and tunnels, as the children said within the last second.

        A request that the keeper has is a worker's, too.
        """
        return sum(child.open for child in self.children if child.role is Role.WORKER)

    async def collect_figures(self) -> dict[str, Any]:
        """Connections and requests of each listener and cluster, summed, and the processes, for JSON."""
        children = list(self.children)
        asked = [child.channel.ask("figures", timeout=FIGURES_TIMEOUT) for child in children]
        answers: list[dict[str, Any]] = []
        for child, answer in zip(children, await _all(asked), strict=True):
            if isinstance(answer, dict):
                child.open = answer.pop("open")
                answers.append(answer)
        return {**figures.summed(answers), "processes": self._processes()}

    async def start(self, config: model.Config) -> None:
        """Start all processes with `config`; raises with nothing left open."""
        try:
            await self.apply(config)
        except BaseException:
            self._phase = Phase.FINISHING
            self._kill_all()
            self._sockets.close()
            raise

    async def apply(self, config: model.Config) -> None:
        """Apply a new configuration in all processes; raises with nothing changed in any."""
        await self._commit(await self._prepare(config))

    def begin_shutdown(self) -> None:
        """Fail readiness, and close kept connections with the next response. Everything is still accepted."""
        self._phase = Phase.DRAINING
        self.children.tell_all("begin_shutdown")

    async def drain(self, timeout: float) -> None:
        """Refuse new tunnels and followed logs and wait for the open ones, at most `timeout` seconds; then cut them."""
        self._drain_timeout = timeout
        await self._ask_all("drain", self._serving(), seconds=timeout)

    def stop_accepting(self) -> None:
        """Close the listening sockets."""
        self._phase = Phase.FINISHING
        for slot in self._slots.values():
            slot.give_up()
            if slot.child is not None and not slot.serving:
                slot.child.kill()
        self._sockets.close()  # before the workers', the last of which accepts what is queued
        for child in self._serving(Role.WORKER):
            child.channel.tell("stop_accepting")

    async def finish(self) -> None:
        """End watches cleanly, wait for short requests, both within fixed times, and close everything."""
        self._cut.update(await self._finish(self._serving(Role.WORKER)))
        await self._finish(self._serving(Role.KEEPER))  # the workers' requests needed it
        for child in self.children:  # those that retire
            child.channel.tell("abort")
        await _all([_ended(child, END_TIMEOUT, self._reactor) for child in self.children])

    @property
    def cut(self) -> Mapping[str, int]:
        """The number of requests that were cut in all processes, by kind."""
        return self._cut

    def abort(self) -> None:
        """End everything at once. The children have `END_TIMEOUT` for it, at the end of the reactor."""
        self._phase = Phase.FINISHING
        for slot in self._slots.values():
            slot.give_up()
        self.children.tell_all("abort")
        self._sockets.close()

    # -- step one ---------------------------------------------------------------------------------------------------

    async def _prepare(self, config: model.Config) -> Applied:
        """Let all children prepare `config`; raises what the first of them raised, with nothing changed in any."""
        workers = worker_count(config.daemon)
        sockets = self._sockets.prepare([listener.bind for listener in config.listeners], workers)
        try:
            new = Applied(config, workers, passed_config.write(config), sockets)
        except BaseException:
            sockets.discard()
            raise
        wanted = [Slot(Role.WORKER, index) for index in range(workers)]
        if needs_keeper(config):
            wanted.insert(0, Slot(Role.KEEPER, 0))
        new.added = [slot for slot in wanted if slot.name not in self._slots]
        kept = [self._slots[slot.name] for slot in wanted if slot.name in self._slots]
        outcomes = await _all(self._prepare_slot(slot, new) for slot in (*kept, *new.added))
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:
            await self._discard(new)
            raise _most_telling(errors)
        return new

    async def _prepare_slot(self, slot: Slot, new: Applied) -> None:
        """Let the slot's child prepare `new`; one that ends meanwhile is replaced and asked again, once."""
        for last in (False, True):
            child = await (self._spawn(slot) if slot in new.added else self._child_serving(slot))
            try:
                await self._configure(child, new)
            except ProcessLost:
                status = await child.when_ended()
                if last:
                    raise DaemonError(
                        f"{slot.name} ended while it prepared the configuration, twice: {describe_end(status)}",
                        todo="see its lines in the log",
                    ) from None
            else:
                new.prepared[slot] = child
                return

    async def _child_serving(self, slot: Slot) -> Child:
        try:
            return await slot.child_serving().addTimeout(REPLACED_WITHIN, self._reactor)
        except TimeoutError:
            raise DaemonError(
                f"{slot.name} has ended, and its successor does not start", todo="see the lines of both in the log"
            ) from None

    async def _discard(self, new: Applied) -> None:
        for slot in new.added:
            if slot.child is not None:
                slot.child.kill()
        asked = [
            child.channel.ask("discard", timeout=PREPARE_TIMEOUT)
            for slot, child in new.prepared.items()
            if slot not in new.added
        ]
        await _all(asked)
        assert new.sockets is not None
        new.sockets.discard()
        os.close(new.file)

    # -- step two ---------------------------------------------------------------------------------------------------

    async def _commit(self, new: Applied) -> None:
        """Put `new` in force. It never fails: a child that cannot is replaced by one that has `new`."""
        before, self._applied = self._applied, new
        assert new.sockets is not None
        new.sockets.commit()
        new.sockets = None
        for slot in new.added:
            self._slots[slot.name] = slot
        removed = [slot for slot in self._slots.values() if slot not in new.prepared]
        for role in (Role.KEEPER, Role.WORKER):
            await _all(self._commit_child(slot, child) for slot, child in new.prepared.items() if slot.role is role)
        for slot in removed:
            del self._slots[slot.name]
            self._retire(slot)
        if before is not None:
            os.close(before.file)
        new.prepared.clear()
        self._health.configured(new.config)
        self._common_logs.reloaded()
        self._choose_leader()

    async def _commit_child(self, slot: Slot, child: Child) -> None:
        if slot.child is not child:  # it has ended since it prepared
            if slot in self._slots.values() and slot.child is None and slot.waiting is None:
                self._replace(slot, 0.0)
            return
        try:
            await child.channel.ask("commit", timeout=None)
        except ProcessLost:
            return
        except Exception as error:
            self._log_error("a process could not commit the configuration, it is replaced", slot, error)
            child.kill()
            return
        if slot.child is child:
            slot.serves()

    # -- children ---------------------------------------------------------------------------------------------------

    async def _spawn(self, slot: Slot) -> Child:
        """Start a child in a slot; it has no configuration yet. Raises OSError, ProcessLost."""
        child = slot.child = self.children.spawn(slot.role, slot.index)
        child.when_ended().addCallback(lambda status: self._ended(slot, child, status))
        fields, descriptors = self._start_fields(child)
        answer = await self.children.start(child, list(descriptors.values()), descriptors=list(descriptors), **fields)
        if answer["version"] != __version__:
            log.error(
                "the program was replaced under a running daemon",
                process=slot.name,
                cause=f"this is {__version__}, its new process is {answer['version']}",
                todo="run `mcproxy upgrade`, which replaces all of it",
            )
        return child

    def _start_fields(self, child: Child) -> tuple[dict[str, Any], dict[str, int]]:
        """Return what `start` tells a child, and the descriptors that it passes, by name."""
        level = "info" if self._applied is None else self._applied.config.logging.level
        fields = {
            "role": child.role,
            "name": child.name,
            "index": child.index,
            "column": child.column,
            "level": level,
        }
        return fields, self._limits.descriptors

    async def _configure(self, child: Child, applied: Applied) -> None:
        """Let a child prepare a configuration. Raises ProcessLost, or what the child raised."""
        sockets = self._sockets.of_worker(child.index, applied.sockets) if child.role is Role.WORKER else []
        try:
            await child.channel.ask(
                "prepare",
                [applied.file, *(descriptor for _, descriptor in sockets)],
                timeout=PREPARE_TIMEOUT,
                addresses=[address for address, _ in sockets],
                workers=applied.workers,
            )
        except ProcessError:
            child.kill()
            raise

    def _ended(self, slot: Slot, child: Child, status: int) -> None:
        """A child was reaped."""
        in_force = self._slots.get(slot.name) is slot
        if slot.child is child:
            slot.empty()
            if in_force and self._phase is not Phase.FINISHING:
                delay = slot.delay(self._reactor.seconds() - child.started_at)
                slot.restarts += 1
                log.error(
                    "process has ended, it is replaced",
                    process=child.name,
                    pid=child.pid,
                    open=child.open,
                    seconds=delay,
                    cause=describe_end(status),
                )
                self._replace(slot, delay)
        if child is self.children.leader:
            self._choose_leader()

    def _replace(self, slot: Slot, delay: float) -> None:
        """Start a new child in a slot after `delay` seconds, with the configuration that is in force by then."""

        def start() -> None:
            slot.waiting = None
            Deferred.fromCoroutine(self._start_successor(slot)).addErrback(
                lambda failure: log.failure("replacing a process failed", failure=failure, process=slot.name)
            )

        slot.waiting = self._reactor.callLater(delay, start)

    async def _start_successor(self, slot: Slot) -> None:
        try:
            child = await self._spawn(slot)
        except ProcessLost:
            return  # `_ended` has started the next one
        except OSError as error:
            slot.empty()
            self._log_error("a process cannot be started", slot, error)
            self._replace(slot, max(1.0, slot.delay(0.0)))
            return
        applied: Applied | None = None
        try:
            while applied is not self._applied:
                applied = self._applied
                assert applied is not None
                await self._configure(child, applied)
                await child.channel.ask("commit", timeout=None)
        except ProcessLost:
            return
        except Exception as error:
            self._log_error("the successor of a process cannot serve", slot, error)
            child.kill()
            return
        if slot.child is not child:
            return
        if self._phase is Phase.DRAINING:
            child.channel.tell("begin_shutdown")
            child.channel.tell("drain", seconds=self._drain_timeout)
        slot.serves()
        log.info("process serves", process=slot.name, pid=child.pid)
        self._choose_leader()

    def _leaving(self, child: Child) -> None:
        """A child was sent SIGTERM: another one takes its place."""

        def replace() -> None:
            slot = next((slot for slot in self._slots.values() if slot.child is child), None)
            if slot is not None and self._phase is Phase.RUNNING:
                log.info("process was told to end, it is replaced", process=child.name, pid=child.pid)
                slot.restarts += 1
                self._retire(slot)
                self._replace(slot, 0.0)

        self._reactor.callLater(LEAVING_DELAY, replace)

    def _retire(self, slot: Slot) -> None:
        """Let the child of a slot end what it has; others serve its addresses."""
        slot.give_up()
        child = slot.child
        slot.empty()
        if child is None:
            return
        child.retiring = True
        assert self._applied is not None
        Deferred.fromCoroutine(self._retired(child, self._applied.config.daemon.drain_timeout)).addErrback(
            lambda failure: log.failure("a process could not retire", failure=failure, process=child.name)
        )
        if child is self.children.leader:
            self._choose_leader()

    async def _retired(self, child: Child, timeout: float) -> None:
        try:
            answer = await child.channel.ask("retire", timeout=None, seconds=timeout)
        except ProcessLost:
            return
        log.info("process has retired", process=child.name, pid=child.pid, cut=sum(answer["cut"].values()))

    def _choose_leader(self) -> None:
        """Let the leader stay, or else the first worker that serves be it."""
        serving = self._serving(Role.WORKER)
        before = self.children.leader
        if before in serving:
            return
        leader = self.children.leader = serving[0] if serving else None
        if before is not None:
            before.channel.tell("lead", leads=False)
        if leader is not None:
            leader.channel.tell("lead", leads=True)

    def _serving(self, role: Role | None = None) -> list[Child]:
        """Return the children that have a configuration in force, by index."""
        return [
            slot.child
            for slot in sorted(self._slots.values(), key=lambda slot: (slot.role, slot.index))
            if slot.serving and slot.child is not None and role in (None, slot.role)
        ]

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _ask_all(self, kind: str, children: Iterable[Child], **fields: Any) -> list[dict[str, Any]]:
        """Ask all, and return the answers; a child that has ended has none, and an error is logged."""
        asked = list(children)
        answers: list[dict[str, Any]] = []
        for child, answer in zip(
            asked, await _all(child.channel.ask(kind, timeout=None, **fields) for child in asked), strict=True
        ):
            if isinstance(answer, dict):
                answers.append(answer)
            elif not isinstance(answer, ProcessLost):
                log.error("a process failed", process=child.name, doing=kind, cause=str(answer), todo="see its log")
        return answers

    async def _finish(self, children: Sequence[Child]) -> Counter[str]:
        """Let children finish; return the number of requests that they cut, by kind."""
        cut = Counter[str]()
        for answer in await self._ask_all("finish", children):
            cut.update(answer["cut"])
        await _all(_ended(child, END_TIMEOUT, self._reactor) for child in children)
        return cut

    def _kill_all(self) -> None:
        for slot in self._slots.values():
            slot.give_up()
        for child in self.children:
            child.kill()

    def _processes(self) -> list[dict[str, Any]]:
        now = self._reactor.seconds()
        restarts = {slot.child: slot.restarts for slot in self._slots.values() if slot.child is not None}
        supervisor = {
            "name": "supervisor",
            "pid": os.getpid(),
            "role": "supervisor",
            "uptimeSeconds": round(now - self._started_at, 1),
            "restarts": 0,
            "leader": False,
            "open": 0,
        }
        return [
            supervisor,
            *(
                {
                    "name": child.name,
                    "pid": child.pid,
                    "role": str(child.role),
                    "uptimeSeconds": round(now - child.started_at, 1),
                    "restarts": restarts.get(child, 0),
                    "leader": child is self.children.leader,
                    "open": child.open,
                }
                for child in sorted(self.children, key=lambda child: (child.role, child.index, child.started_at))
            ),
        ]

    def _log_error(self, what: str, slot: Slot, error: Exception) -> None:
        cause, todo = describe(error) or (str(error), "report this bug, with the log")
        trace = getattr(error, "trace", "")
        log.error(what, process=slot.name, cause=cause, todo=todo, **({"traceback": trace} if trace else {}))


class LogFilesOfChildren:
    """The log files of all processes (`lifecycle.LogFiles`)."""

    def __init__(self, children: Children) -> None:
        self._children = children

    def reopen(self) -> None:
        self._children.tell_all("reopen_logs")

    def close(self) -> None:
        """Nothing: each process closes its own."""


async def _all(work: Iterable[Coroutine[Deferred[Any], Any, Any]]) -> list[Any]:
    """Await everything, and return each result, or the exception that it raised."""
    results: list[tuple[bool, Any]] = await DeferredList(
        [Deferred.fromCoroutine(each) for each in work], consumeErrors=True
    )
    return [result.value if isinstance(result, Failure) else result for _, result in results]


async def _ended(child: Child, timeout: float, reactor: Any) -> None:
    """Wait until a child has ended; one that takes longer than `timeout` seconds is killed."""
    try:
        await child.when_ended().addTimeout(timeout, reactor)
    except TimeoutError:
        log.error("process does not end, it is killed", process=child.name, pid=child.pid)
        child.kill()


def _most_telling(errors: Sequence[BaseException]) -> BaseException:
    """Return an error that an operator can mend, if there is one among them."""
    return next((error for error in errors if describe(error) is not None), errors[0])
