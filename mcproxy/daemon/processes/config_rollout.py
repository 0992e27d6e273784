"""Applies a configuration in all children by a two-phase commit: in all of them or in none.

Each child prepares the new configuration while the old one stays in force. If all succeed, all commit it, the keeper
first. If one fails, all discard it. If a child is replaced meanwhile, its successor gets the configuration in force.
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
"""Seconds within which a child must prepare a configuration; otherwise it is killed."""


@dataclass(eq=False, slots=True)
class Generation:
    """A configuration for the children, which is in force or being prepared."""

    config: model.Config
    workers: int
    file: int
    """Descriptor of the memory file with the configuration (`children.config_to_memory`)."""
    sockets: PreparedSockets | None
    """The prepared sockets; None once the configuration is in force."""
    prepared: dict[Slot, Child] = field(default_factory=dict)
    """The children that have prepared the configuration."""
    added: list[Slot] = field(default_factory=list)
    """Slots that the configuration adds."""
    removed: list[Slot] = field(default_factory=list)
    """Slots that the configuration removes. Their children also prepare it, for their last requests."""
    ending: list[Child] = field(default_factory=list)
    """Children without a slot that have prepared the configuration: removals by a reload also end their requests."""


class ConfigRollout:
    """The configuration in force, and the configuration being prepared."""

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
        """The configuration in force; at the start, the configuration being prepared."""
        generation = self._in_force or self._preparing
        assert generation is not None
        return generation.config

    async def prepare(self, config: model.Config) -> Generation:
        """Have all children prepare `config`; `commit` or `discard` must follow.

        If a child fails, raises its error, with nothing changed in any child.
        """
        workers = worker_count(config.daemon)
        binds = [listener.bind for listener in config.listeners if listener.bind is not None]
        sockets = self._sockets.prepare(binds, workers)
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
        """Have the slot's child prepare `new`. If the child ends meanwhile, try its successor, once.

        If the start of a child is delayed because its predecessors ended early, do not wait for it: the reload can
        solve the problem.
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
        """Have a child that will retire prepare `new`. The child is not replaced if it ends."""
        child = slot.child
        if child is None or not slot.serving:
            return
        try:
            await self._prepare_child(child, new)
        except ProcessLost:
            return
        new.prepared[slot] = child

    async def _prepare_ending(self, child: Child, new: Generation) -> None:
        """Have a child that finishes its requests prepare `new`. Its failure does not fail the reload."""
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
        self._lend_sockets()  # was postponed during the preparation

    async def commit(self, new: Generation) -> None:
        """Put `new` in force. This never fails: a child that cannot commit is replaced by a child with `new`."""
        before, self._in_force = self._in_force, new
        self._lent.clear()  # each child now has only its sockets from `new`
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
        )  # these children can have the old configuration for a moment
        if before is not None:
            os.close(before.file)
        new.prepared.clear()
        self._preparing = None
        self._slots.hurry()
        self._lend_sockets()
        self._slots.choose_leader()

    async def _commit_slot(self, slot: Slot, child: Child) -> None:
        if slot.child is None and slot.waiting is None:  # the child has ended after it prepared
            self._slots.replace(slot, 0.0)
        try:  # a leaving child also commits, because it serves until its successor does
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

        Raises ProcessLost, or the child's error. An `ending` child gets no sockets, because it has no index or
        shares its index with another child.
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
        """Put the configuration in force into effect in a child, also if a reload changes it meanwhile."""
        generation: Generation | None = None
        while generation is not self._in_force:
            generation = self._in_force
            assert generation is not None
            await self._prepare_child(child, generation)
            decided = "commit" if generation is self._in_force else "discard"
            await child.channel.ask(decided, timeout=None)

    def _lend_sockets(self) -> None:
        """Let other workers accept connections queued for a worker whose restart is delayed."""
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
    """Return an operational error among `errors`, or else any of them."""
    return next((error for error in errors if describe(error) is not None), errors[0])
