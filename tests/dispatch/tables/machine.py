"""Shared memory and its tables for tests: several columns in one process, where what they decide is the matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from typing import Any

from mcproxy.dispatch.limit_tables import LimitTables, WakeUpReader
from mcproxy.dispatch.tables.shared_memory import SharedMemory
from tests.support.clock import Clock


class Readers:
    """The part of a reactor that tables use; `run` does what it would do for those that can be read."""

    def __init__(self) -> None:
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        self.readers.append(reader)

    def run(self) -> None:
        for reader in select(self.readers, [], [], 0)[0]:
            reader.doRead()


class Machine:
    """Processes that share limits, by a clock of the test."""

    def __init__(self, memory: SharedMemory, clock: Clock) -> None:
        self.memory = memory
        self.clock = clock
        self.readers = Readers()

    def tables(self, column: int) -> LimitTables:
        """The tables of the process of a column."""
        tables = LimitTables(self.memory.memory, column=column, wake=self.memory.wake, seconds=self.clock.seconds)
        self.readers.addReader(WakeUpReader(self.memory.wakers[column], tables.on_handed_over))
        return tables

    def advance(self, seconds: float) -> None:
        """Let time pass, and each process do what it is told."""
        self.readers.run()
        self.clock.advance(seconds)
        self.readers.run()


@contextmanager
def machine(start: float = 1000.0) -> Iterator[Machine]:
    clock = Clock()
    clock.rightNow = start
    memory = SharedMemory.create(clock.seconds)
    try:
        yield Machine(memory, clock)
    finally:
        memory.close()
