"""Maps the memory in which limits count, and repairs it after the death of a process that shares it.

A process that changes several shared words first writes their old values into the region's undo log. If it dies, the
next process that gets its mutex (`mutexes.py`) restores them. Totals are counted again.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcproxy.dispatch.tables import layout

if TYPE_CHECKING:
    from mcproxy.dispatch.tables.mutexes import Mutexes


class MemoryMismatch(ValueError):
    """The descriptor is not shared memory of this version of the program."""


class Memory:
    """The mapped memory. Use it only in the reactor's thread: a thread that waits for another's mutex stops both."""

    def __init__(self, fd: int) -> None:
        """Map the memory of `create`; -1: private memory of this process, without mutexes.

        Raises MemoryMismatch, OSError.
        """
        size = layout.WORDS * layout.WORD
        if fd >= 0 and os.fstat(fd).st_size != size:
            raise MemoryMismatch("the descriptor of the shared limits is not their memory")
        self.fd = fd
        #: Number of words of a slot of requests in flight.
        self.count_words = layout.COUNT_WORDS if fd >= 0 else layout.C_COLUMNS + 1
        self._map = mmap.mmap(fd, size)  # always shared, because a sparse shared mapping gets no huge pages
        view = memoryview(self._map)
        self.words: memoryview[int] = view.cast("Q")
        #: The same memory, as floats.
        self.floats: memoryview[float] = view.cast("d")
        self.mutexes: Mutexes | NoMutexes = NoMutexes() if fd < 0 else self._mutexes()

    @classmethod
    def private(cls) -> Memory:
        """Map empty private memory. Raises OSError."""
        memory = cls(-1)
        memory.words[layout.H_MULTIPLIER] = secrets.randbits(64) | 1
        return memory

    @classmethod
    def create(cls) -> Memory:
        """Create empty memory, and map it. Raises OSError."""
        fd = os.memfd_create("mcproxy-limits", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, layout.WORDS * layout.WORD)
            memory = cls(fd)
            memory.words[layout.H_MULTIPLIER] = secrets.randbits(64) | 1
            memory.words[layout.H_CREATOR] = os.getpid()
            assert not isinstance(memory.mutexes, NoMutexes)
            memory.mutexes.initialize()
            memory.words[layout.H_MAGIC] = layout.MAGIC
        except BaseException:
            os.close(fd)
            raise
        return memory

    @classmethod
    def attach(cls, fd: int, column: int) -> Memory:
        """Map the memory of another process, and use a column of it. Raises MemoryMismatch, OSError."""
        memory = cls(fd)
        if memory.words[layout.H_MAGIC] != layout.MAGIC:
            raise MemoryMismatch("the memory of the shared limits is that of another version of the program")
        memory.words[layout.H_PIDS + column] = os.getpid()
        return memory

    def undo_log(self, region: int, *places: int) -> int:
        """Log the words at `places` before their change; return the offset where to write 0 after the change."""
        words = self.words
        log = layout.REGIONS_AT + region * layout.REGION_WORDS + layout.R_UNDO
        assert len(places) <= layout.UNDO_MAX
        at = log
        for place in places:
            words[at + 1] = place
            words[at + 2] = words[place]
            at += 2
        words[log] = len(places)
        return log

    def _mutexes(self) -> Mutexes:
        import ctypes

        from mcproxy.dispatch.tables.mutexes import Mutexes  # not needed in one process

        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + layout.MUTEXES_AT * layout.WORD
        return Mutexes(address, layout.MUTEXES, self._repair, self._is_ours)

    def _repair(self, mutex: int) -> None:
        """Repair the words that a mutex covers, after the death of the process that held it."""
        if mutex == layout.DIRECTORY_MUTEX:
            return  # the directory needs no repair, because the last written word makes a record valid
        region = mutex - layout.BUCKETS_MUTEX
        words = self.words
        log = layout.REGIONS_AT + region * layout.REGION_WORDS + layout.R_UNDO
        for at in range(log + 1, log + 1 + 2 * words[log], 2):
            words[words[at]] = words[at + 1]
        words[log] = 0
        if region >= layout.REGIONS:
            for base in count_slots(self, region - layout.REGIONS):
                columns = base + layout.C_COLUMNS
                words[base + layout.C_TOTAL] = sum(words[columns : columns + layout.COLUMNS])

    def _is_ours(self, pid: int) -> bool:
        words = self.words
        return pid == words[layout.H_CREATOR] or pid in words[layout.H_PIDS : layout.H_PIDS + layout.COLUMNS].tolist()


class NoMutexes:
    """The mutexes of private memory, which do nothing."""

    #: A C function that returns 0, for speed, because each request calls both.
    try_lock = unlock = staticmethod(().count)
    pointers: Sequence[None] = (None,) * layout.MUTEXES

    def lock(self, number: int) -> None:
        """Do nothing."""

    release = lock

    def lock_slowly(self, number: int, code: int) -> None:
        """Never called: `try_lock` has locked."""


def wake(wakers: Sequence[int], columns: int) -> None:
    """Wake the processes of the columns whose bits are set, by their eventfds."""
    while columns:
        bit = columns & -columns
        columns ^= bit
        try:
            os.eventfd_write(wakers[bit.bit_length() - 1], 1)
        except BlockingIOError:
            pass  # the counter of the eventfd is full: the process was woken 2^64 times without a read


def count_slots(memory: Memory, region: int) -> list[int]:
    """Return the offsets of the used slots in a region of the counts, and in the directory."""
    words, size = memory.words, memory.count_words
    given = words[layout.REGIONS_AT + (layout.REGIONS + region) * layout.REGION_WORDS + layout.R_GIVEN]
    in_block = layout.COUNTS // layout.REGIONS // layout.BLOCKS * size
    first = layout.COUNTS_AT + region * in_block * layout.BLOCKS
    used = [
        base
        for block in range(layout.BLOCKS)
        if given >> block & 1
        for base in range(first + block * in_block, first + (block + 1) * in_block, size)
        if words[base] > layout.DROPPED
    ]
    return used + overflow_slots(words, region, layout.OF_COUNTS)


def overflow_slots(words: memoryview[int], region: int, kind: int) -> list[int]:
    """Return the offsets of the slots for keys without room that the mutex of a region covers."""
    identities = words[layout.IDENTITIES_AT + region : layout.DIRECTORY_AT : layout.REGIONS].tolist()
    step = layout.REGIONS * layout.RECORD_WORDS
    first = layout.DIRECTORY_AT + region * layout.RECORD_WORDS
    records = [first + number * step for number, identity in enumerate(identities) if identity]
    return [base + layout.D_OVERFLOW for base in records if words[base + layout.D_KIND] == kind]
