"""Applies a configuration in all children in two steps, so that it comes into force in all of them or in none.

Each child prepares it while the one in force stays. When all have prepared it, all commit it, the keeper first; if one
cannot, all discard it. A child that is replaced meanwhile gets the one that is in force then.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.daemon.errors import DaemonError, ProcessLost, ProcessTimeoutError, describe
from mcproxy.daemon.interpreter import describe_end
from mcproxy.daemon.process_setup import worker_count
from mcproxy.daemon.processes.children import Child, Role, config_to_memory, gather_results
from mcproxy.daemon.processes.keeper_links import needs_keeper
from mcproxy.daemon.processes.slots import Phase, Slot, Slots
from mcproxy.daemon.processes.socket_table import PreparedSockets, SocketTable

log = Logger(__name__)

PREPARE_TIMEOUT = 120.0
"""Seconds that a child may take to prepare a configuration; one that takes longer is killed."""


@dataclass(eq=False, slots=True)
class Generation:
    """A configuration for the children; in force, or prepared."""

    config: model.Config
    workers: int
    file: int
    """Descriptor (`children.config_to_memory`)."""
    sockets: PreparedSockets | None
    """None once it is in force."""
    prepared: dict[Slot, Child] = field(default_factory=dict)
    """The children that have prepared it."""
    added: list[Slot] = field(default_factory=list)
    """Slots that it adds to those in force."""
    removed: list[Slot] = field(default_factory=list)
    """Slots that it removes; their children get it too, for their last requests."""
    ending: list[Child] = field(default_factory=list)
    """The children without a slot that have prepared it: a reload's removals apply to their last requests, too."""


class ConfigRollout:
    """The configuration in force, and the one that is prepared."""

    def __init__(self, slots: Slots, sockets: SocketTable) -> None:
        self._slots = slots
        self._sockets = sockets
        self._in_force: Generation | None = None
        self._preparing: Generation | None = None
        self._lent: dict[Child, list[tuple[str, int]]] = {}
        slots.configure = self._catch_up
        slots.changed = self._lend_sockets

    @property
    def newest(self) -> model.Config:
        """The configuration in force; while the first one is prepared, that one."""
        generation = self._in_force or self._preparing
        assert generation is not None
        return generation.config

    async def prepare(self, config: model.Config) -> Generation:
        """Have all children prepare `config`; raises the error of the first that failed, with nothing changed in any.

        `commit` or `discard` must follow.
        """
        workers = worker_count(config.daemon)
        sockets = self._sockets.prepare([listener.bind for listener in config.listeners], workers)
        try:
            new = Generation(config, workers, config_to_memory(config), sockets)
        except BaseException:
            sockets.discard()
            raise
        self._preparing = new
        wanted = {slot.name: slot for slot in _wanted_slots(config, workers)}
        new.added = [slot for name, slot in wanted.items() if name not in self._slots]
        new.removed = [slot for slot in self._slots.all() if slot.name not in wanted]
        kept = [slot for slot in self._slots.all() if slot.name in wanted]
        preparing = [self._prepare_slot(slot, new) for slot in (*kept, *new.added)]
        preparing += [self._prepare_removed(slot, new) for slot in new.removed]
        preparing += [self._prepare_ending(child, new) for child in self._slots.ending()]
        results = await gather_results(preparing)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            await self.discard(new)
            raise _operational_first(errors)
        return new

    async def _prepare_slot(self, slot: Slot, new: Generation) -> None:
        """Have the slot's child prepare `new`; if it ends meanwhile, ask its successor, once.

        A child whose start is delayed, since its predecessors ended early, is not waited for: the reload may be the
        remedy.
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
        """Have a child that is about to retire prepare `new`; it is not replaced if it ends."""
        child = slot.child
        if child is None or not slot.serving:
            return
        try:
            await self._prepare_child(child, new)
        except ProcessLost:
            return
        new.prepared[slot] = child

    async def _prepare_ending(self, child: Child, new: Generation) -> None:
        """Have a child that finishes its requests prepare `new`. A failure in it does not refuse the reload."""
        try:
            await self._prepare_child(child, new, ending=True)
        except ProcessLost:
            return
        except Exception as error:
            log.warn(
                "a process that is ending keeps its configuration",
                event="process_keeps_config",
                process=child.name,
                cause=str(error),
            )
            return
        new.ending.append(child)

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
        asked += [child.channel.ask("discard", timeout=PREPARE_TIMEOUT) for child in new.ending]
        await gather_results(asked)
        assert new.sockets is not None
        new.sockets.discard()
        os.close(new.file)
        self._lend_sockets()  # it was postponed meanwhile

    async def commit(self, new: Generation) -> None:
        """Put `new` in force. It never fails: a child that cannot commit is replaced by one with `new`."""
        before, self._in_force = self._in_force, new
        self._lent.clear()  # each child has only the sockets that it got with `new`
        assert new.sockets is not None
        new.sockets.commit()
        new.sockets = None
        for slot in new.added:
            self._slots.add(slot)
        for role in (Role.KEEPER, Role.WORKER):
            await gather_results(
                self._commit_slot(slot, child) for slot, child in new.prepared.items() if slot.role is role
            )
        await gather_results(child.channel.ask("commit", timeout=None) for child in new.ending)
        for slot in new.removed:
            self._slots.remove(slot)
        starting = [slot for slot in self._slots.all() if slot.child is not None and not slot.serving]
        await gather_results(
            self._slots.serving_in(slot) for slot in starting
        )  # they may still have the old one for a moment
        if before is not None:
            os.close(before.file)
        new.prepared.clear()
        self._preparing = None
        self._slots.hurry()
        self._lend_sockets()
        self._slots.choose_leader()

    async def _commit_slot(self, slot: Slot, child: Child) -> None:
        if slot.child is None and slot.waiting is None:  # it has ended since it prepared
            self._slots.replace(slot, 0.0)
        try:  # also if it has begun to leave, and serves until its successor does
            await child.channel.ask("commit", timeout=None)
        except ProcessLost:
            return
        except Exception as error:
            self._slots.log_error(
                "a process could not apply the configuration and is replaced",
                slot,
                error,
                event="process_commit_failed",
            )
            child.kill()
            return
        if slot.child is child:
            slot.serves()

    async def _prepare_child(self, child: Child, generation: Generation, *, ending: bool = False) -> None:
        """Have a child prepare a configuration.

        Raises ProcessLost, or the child's error. `ending`: its index is none or another child's, and it gets no
        sockets.
        """
        worker = child.role is Role.WORKER and child.index < generation.workers and not ending
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
        """Put the configuration that is in force into a child, also if a reload changes it meanwhile."""
        generation: Generation | None = None
        while generation is not self._in_force:
            generation = self._in_force
            assert generation is not None
            await self._prepare_child(child, generation)
            decided = "commit" if generation is self._in_force else "discard"
            await child.channel.ask(decided, timeout=None)

    def _lend_sockets(self) -> None:
        """Let the other workers accept the connections queued for one that is away for longer than a start takes."""
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


def _wanted_slots(config: model.Config, workers: int) -> list[Slot]:
    keepers = [Slot(Role.KEEPER, 0)] if needs_keeper(config) else []
    return [*keepers, *(Slot(Role.WORKER, index) for index in range(workers))]


def _operational_first(errors: Sequence[BaseException]) -> BaseException:
    """Return an operational error if there is one among them, else any."""
    return next((error for error in errors if describe(error) is not None), errors[0])
