"""Shared memory and its tables for tests: several columns in one process, where what they decide is the matter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from typing import Any

from mcproxy.dispatch.shared_memory import SharedMemory, SharedTables
from tests.support.clock import Clock


class Readers:
    """The part of a reactor that tables use; `run` does what it would do for those that can be read."""

    def __init__(self) -> None:
        self.readers: list[Any] = []

    def addReader(self, reader: Any) -> None:
        self.readers.append(reader)

    def removeReader(self, reader: Any) -> None:
        self.readers.remove(reader)

    def run(self) -> None:
        for reader in select(self.readers, [], [], 0)[0]:
            reader.doRead()


class Machine:
    """Processes that share limits, by a clock of the test."""

    def __init__(self, memory: SharedMemory, clock: Clock) -> None:
        self.memory = memory
        self.clock = clock
        self.readers = Readers()

    def tables(self, column: int) -> SharedTables:
        """The tables of the process of a column."""
        return SharedTables(
            self.memory.memory,
            column=column,
            wakers=self.memory.wakers,
            reactor=self.readers,
            seconds=self.clock.seconds,
        )

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
