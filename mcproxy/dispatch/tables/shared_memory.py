"""Manages the memory of limits in the process that owns it: the supervisor, or the only process of a daemon.

Processes mark the blocks of slots that they use, so that this module can read the demand for limits over replicas.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.directory import Directory, fill_of, hash_of, set_share, tag_of
from mcproxy.dispatch.tables.in_flight_counts import hand_over
from mcproxy.dispatch.tables.layout import (
    ALL_ONES,
    B_LEVEL,
    B_PARAMETERS,
    C_COLUMNS,
    C_LATE,
    C_OWN_MAXIMUM,
    C_RESERVED,
    C_TOTAL,
    C_WAITING,
    D_KIND,
    D_LEASES_END,
    D_OVERFLOW,
    D_OWNER,
    D_PARAMETERS,
    D_SHARED,
    P_BURST,
    P_RATE,
    R_USED,
    S_OWNER,
    S_REFUSED,
    S_TAG,
    S_TAKEN,
)
from mcproxy.dispatch.tables.limit_shares import Demand, LimitId, Share
from mcproxy.dispatch.tables.memory import Memory, count_slots, wake
from mcproxy.dispatch.tables.slot_table import BucketSlots, CountSlots, SlotPlace, SlotTable

_RETURNED_AT_ONCE = 64  # keys that one call of `demands` returns to the default share; they take 1 or 2 ms


class SharedMemory:
    """The memory, with the eventfds of the processes that count in it. Use it only in the reactor's thread."""

    def __init__(
        self,
        memory: Memory,
        wake: Callable[[int], None],
        seconds: Callable[[], float],
        wakers: tuple[int, ...] = (),
    ) -> None:
        """`wake(columns)` wakes the processes whose bits are set, by their `wakers` if there are several."""
        self.memory = memory
        self.wake = wake
        #: An eventfd for each column; a process reads its own one, and writes to those of others.
        self.wakers = wakers
        self._seconds = seconds
        self._directory = Directory(memory)
        self._buckets, self._counts = BucketSlots(memory), CountSlots(memory)
        self._demands = Demands(memory, (self._buckets, self._counts))
        # Keys that get the default share when their buckets are full again; the least recently checked key first.
        self._returning: dict[LimitId, dict[int, None]] = {}

    @classmethod
    def create(cls, seconds: Callable[[], float] = time.monotonic) -> SharedMemory:
        """Create empty memory. `seconds`: a clock that all processes share.

        Raises OSError; then no descriptor stays open.
        """
        memory = Memory.create()
        opened = [memory.fd]
        try:
            for _ in range(layout.COLUMNS):
                opened.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))  # noqa: PERF401  those before a failure
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        wakers = tuple(opened[1:])
        return cls(memory, partial(wake, wakers), seconds, wakers)

    @property
    def fd(self) -> int:
        """The descriptor of the memory, for the processes that count in it."""
        return self.memory.fd

    @property
    def descriptors(self) -> dict[str, int]:
        """The descriptors that a process needs to count in it, by name: see `LimitTables.of_process`."""
        return {"limits": self.fd, **{f"wake-{column}": fd for column, fd in enumerate(self.wakers)}}

    def close(self) -> None:
        """Close the descriptors; the memory exists as long as processes have mapped it."""
        for fd in (self.memory.fd, *self.wakers):
            os.close(fd)

    def reclaim(self, column: int) -> None:
        """Release the requests in flight of a column whose process has ended, and wake the waiting processes."""
        words = self.memory.words
        words[layout.H_PIDS + column] = 0
        given = 0
        for region in range(layout.REGIONS):
            mutex = layout.COUNTS_MUTEX + region
            self.memory.mutexes.lock(mutex)
            try:
                for base in count_slots(self.memory, region):
                    if words[base + C_COLUMNS + column] or words[base + C_WAITING] >> column & 1:
                        given |= self._take_off(base, layout.REGIONS + region, column)
            finally:
                self.memory.mutexes.release(mutex)
        self._directory.reclaim(column)
        self.wake(given)

    def demands(self, limit: LimitId) -> list[Demand]:
        """Return the demand for a limit over replicas since the last call, with the requests in flight."""
        record = self._directory.find(limit, shared=True)
        if record is None:
            return []
        for key in list(islice(self._returning.get(limit, ()), _RETURNED_AT_ONCE)):
            self.grant(limit, key, None)
        return self._demands.of(record)

    def default_share(self, limit: LimitId, share: Share) -> None:
        """Set the share of keys without their own share. Tokens are kept, cut to the new burst.

        Raises DirectoryFullError.
        """
        record = self._directory.find(limit, shared=True)
        if record is None or not self._directory.is_kept(record):
            record = self._directory.open(limit, share, self._seconds(), shared=True, column=None)
        if limit.kind == "bucket":
            self._directory.resize(record, share.rate, share.burst, self._seconds())
            for key in tuple(self._returning.get(limit, ())):
                self.grant(limit, key, None)
        elif self._directory.set_maximum(record, share.maximum):
            self._hand_over_all(record)

    def leases_end(self, limit: LimitId, time: float) -> None:
        """Set when the shares of single keys end: from then on each key has the default share, until it gets another.

        All processes check this time themselves, so it applies even if this process has died or stopped.
        """
        record = self._directory.find(limit, shared=True)
        if record is not None:
            self.memory.floats[record + D_LEASES_END] = time

    def forget(self, limit: LimitId) -> None:
        """Forget a limit for which the agent sets no more shares."""
        record = self._directory.find(limit, shared=True)
        if record is not None:
            self._demands.forget(record)
            self._directory.close(record, None)
        self._returning.pop(limit, None)

    def grant(self, limit: LimitId, key: int, share: Share | None) -> None:
        """Set the share of one key (`key_hash`); None, or a lack of room, means the default share.

        A larger share adds no tokens at once; a smaller one cuts the tokens. Unknown limits are ignored.
        """
        record = self._directory.find(limit, shared=True)
        if record is None:
            return
        slots: SlotTable = self._buckets if limit.kind == "bucket" else self._counts
        owner = self.memory.words[record + D_OWNER]
        tag = tag_of(key, owner)
        place: SlotPlace | None = slots.overflow(record)
        assert place is not None
        if place.tag != tag:
            place = slots.place(tag, owner, self._seconds(), make=share is not None)
        if place is None:
            self._returning.get(limit, {}).pop(key, None)
            return
        given = 0
        self.memory.mutexes.lock(place.mutex)
        try:
            if self.memory.words[place.base] != tag:
                return  # another key has taken the slot in the meantime
            if limit.kind == "bucket":
                self._set_rate(limit, key, record, place, share)
            else:
                maximum = None if share is None else share.maximum
                own = layout.NO_MAXIMUM if maximum is None else maximum
                self.memory.words[place.base + C_OWN_MAXIMUM] = ALL_ONES if share is None else own
                given = hand_over(self.memory, record, place.base, place.region, self._seconds())
        finally:
            self.memory.mutexes.release(place.mutex)
        self.wake(given)

    def _set_rate(self, limit: LimitId, key: int, record: int, place: SlotPlace, share: Share | None) -> None:
        words, floats = self.memory.words, self.memory.floats
        base = place.base
        own, general = words[base + B_PARAMETERS], words[record + D_PARAMETERS]
        now = self._seconds()
        returning = self._returning.setdefault(limit, {})
        returning.pop(key, None)
        if share is None:
            if not own:
                return
            full = fill_of(floats, -math.inf, general, now)
            if fill_of(floats, floats[base + B_LEVEL], own, now) >= full >= floats[general + P_BURST]:
                done = self.memory.undo_log(place.region, base + B_LEVEL, base + B_PARAMETERS)
                floats[base + B_LEVEL] = -math.inf  # the bucket is full, and needs no slot any more
                words[base + B_PARAMETERS] = 0
                words[done] = 0
                return
            # The origin of the level differs from the limit's, also for tokens taken in advance.
            returning[key] = None
            share = Share(floats[general + P_RATE], floats[general + P_BURST])
        set_share(words, floats, base, own, general, share.rate, share.burst, now)

    def _take_off(self, base: int, region: int, column: int) -> int:
        """Subtract the count of a process from a slot; return the bits of the processes that were given places."""
        words, keep = self.memory.words, ~(1 << column)
        total, theirs = base + C_TOTAL, base + C_COLUMNS + column
        changed = (total, theirs, base + C_WAITING, base + C_RESERVED, base + C_LATE)
        done = self.memory.undo_log(region, *changed)
        words[total] -= words[theirs]
        words[theirs] = 0
        for at in (C_WAITING, C_RESERVED, C_LATE):
            words[base + at] &= keep
        words[done] = 0
        record = layout.DIRECTORY_AT + (words[base + S_OWNER] & 0xFFFF) * layout.RECORD_WORDS
        return hand_over(self.memory, record, base, region, self._seconds())

    def _hand_over_all(self, record: int) -> None:
        """Hand over the new places after a maximum was raised for all keys."""
        words = self.memory.words
        owner = words[record + D_OWNER]
        given = 0
        for region in range(layout.REGIONS):
            mutex = layout.COUNTS_MUTEX + region
            self.memory.mutexes.lock(mutex)
            try:
                for base in count_slots(self.memory, region):
                    if words[base + S_OWNER] == owner and words[base + C_WAITING]:
                        given |= hand_over(self.memory, record, base, layout.REGIONS + region, self._seconds())
            finally:
                self.memory.mutexes.release(mutex)
        self.wake(given)


class Demands:
    """Collects the demands of all limits, and returns them by limit."""

    def __init__(self, memory: Memory, tables: Sequence[SlotTable]) -> None:
        self._memory = memory
        self._tables = tables
        self._words = memory.words
        self._found: dict[int, dict[int, Demand]] = {}  # by owner word and key

    def of(self, record: int) -> list[Demand]:
        """Return the demand for a limit since the last call for this limit, with the requests in flight."""
        words = self._words
        self._collect()
        kind = words[record + D_KIND]
        region = (record - layout.DIRECTORY_AT) // layout.RECORD_WORDS % layout.REGIONS
        first = 0 if kind == layout.OF_BUCKETS else layout.REGIONS
        mutex = layout.BUCKETS_MUTEX + first + region
        self._memory.mutexes.lock(mutex)
        try:
            self._read(record + D_OVERFLOW)
        finally:
            self._memory.mutexes.release(mutex)
        return list(self._found.pop(words[record + D_OWNER], {}).values())

    def forget(self, record: int) -> None:
        """Drop the demand for a limit."""
        self._found.pop(self._words[record + D_OWNER], None)

    def _collect(self) -> None:
        words = self._words
        for table in self._tables:
            size = table.slots // layout.REGIONS
            for number in range(layout.REGIONS):
                region = table.first_region + number
                used = layout.REGIONS_AT + region * layout.REGION_WORDS + R_USED
                if not words[used]:
                    continue
                mutex = layout.BUCKETS_MUTEX + region
                self._memory.mutexes.lock(mutex)
                try:
                    blocks, words[used] = words[used], 0
                    first = table.first + number * size * table.slot_words
                    words[used] = self._read_blocks(blocks, first, table.slot_words, size // layout.BLOCKS)
                finally:
                    self._memory.mutexes.release(mutex)

    def _read_blocks(self, blocks: int, first: int, slot_words: int, in_block: int) -> int:
        """Read the marked blocks of a region; return the bits of blocks with requests in flight."""
        again = 0
        while blocks:
            bit = blocks & -blocks
            blocks ^= bit
            start = first + (bit.bit_length() - 1) * in_block * slot_words
            for base in range(start, start + in_block * slot_words, slot_words):
                if self._words[base] > layout.DROPPED and self._read(base):
                    again |= bit
        return again

    def _read(self, base: int) -> bool:
        """Read a slot, whose mutex is held; return whether it has requests in flight."""
        words = self._words
        owner = words[base + S_OWNER]
        record = layout.DIRECTORY_AT + (owner & 0xFFFF) * layout.RECORD_WORDS
        if words[record + D_OWNER] != owner or not words[record + D_SHARED]:
            return False
        taken, refused = words[base + S_TAKEN], words[base + S_REFUSED]
        in_flight = words[base + C_TOTAL] if words[record + D_KIND] == layout.OF_COUNTS else 0
        if taken or refused or in_flight:
            words[base + S_TAKEN] = words[base + S_REFUSED] = 0
            key = hash_of(words[base + S_TAG], owner)
            found = self._found.setdefault(owner, {})
            before = found.get(key)
            if before is not None:
                taken, refused = taken + before.taken, refused + before.refused
            found[key] = Demand(key, taken, refused, in_flight)
        return in_flight > 0
