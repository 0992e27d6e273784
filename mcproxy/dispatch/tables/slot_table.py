"""Hash tables in shared memory, with one slot for each key of each limit.

A key can be in a window of slots that begins at its hash. The search ends at the first slot that was never used. A slot
that is no longer needed is not emptied, but given to the next key that finds no other slot. A slot is needed while its
removal would change a count: a bucket that is not full, or requests in flight. So a client cannot reset a limit with
many names: keys without room in their window share the one slot of their limit's record.

The hash depends on a random number that belongs to the memory, so that a client cannot choose names for one window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.directory import clear_slot, level_at
from mcproxy.dispatch.tables.layout import (
    B_LEVEL,
    B_PARAMETERS,
    C_OWN_MAXIMUM,
    C_RESERVED,
    C_TOTAL,
    C_WAITING,
    D_OVERFLOW,
    D_OWNER,
    D_PARAMETERS,
    P_BURST,
    P_FLOOR,
    R_USED,
    S_OWNER,
    S_REFUSED,
    S_TAG,
    S_TAKEN,
)
from mcproxy.dispatch.tables.memory import Memory

# Seconds after which a region without room is searched again for slots that are no longer needed.
_SEARCH_EVERY = 1.0


class SlotPlace(NamedTuple):
    """The slot of a key, valid as long as the slot has the key's tag."""

    base: int
    tag: int
    mutex: int
    region: int  # number of the region among those of both tables, as for the undo logs


class SlotTable(ABC):
    """One of the two tables, used by one process."""

    first: int
    slot_words: int
    slots: int
    first_region: int
    counts: bool

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._words, self._floats = memory.words, memory.floats
        self._multiplier = memory.words[layout.H_MULTIPLIER]
        self._in_region = self.slots // layout.REGIONS
        self._search_again = [0.0] * layout.REGIONS

    def place(self, tag: int, owner: int, now: float, *, make: bool = True) -> SlotPlace | None:
        """Return the slot of a key; if it has none, give it one (`make`) or return None."""
        region, start = self._where(tag)
        mutex = layout.BUCKETS_MUTEX + self.first_region + region
        self._memory.mutexes.lock(mutex)
        try:
            base = self._search(region, start, tag)
            if base is None and make:
                base = self._make(region, start, tag, owner, now)
        finally:
            self._memory.mutexes.release(mutex)
        return None if base is None else SlotPlace(base, tag, mutex, self.first_region + region)

    def overflow(self, record: int) -> SlotPlace:
        """Return the slot in which keys without their own slot count."""
        region = self.first_region + (record - layout.DIRECTORY_AT) // layout.RECORD_WORDS % layout.REGIONS
        base = record + D_OVERFLOW
        return SlotPlace(base, self._words[base + S_TAG], layout.BUCKETS_MUTEX + region, region)

    def block(self, base: int) -> int:
        """Return the bit of a slot's block in its region; 0 for slots of the directory."""
        if base < self.first:
            return 0
        size = self._in_region * self.slot_words
        return 1 << (base - self.first) % size * layout.BLOCKS // size

    def note_demand(self, base: int, region: int, admitted: bool) -> None:
        """Count demand, for the agent of the limits over replicas. The region's mutex must be held.

        `region`: see `SlotPlace.region`.
        """
        words = self._words
        words[base + (S_TAKEN if admitted else S_REFUSED)] += 1
        words[layout.REGIONS_AT + region * layout.REGION_WORDS + R_USED] |= self.block(base)

    @abstractmethod
    def _is_needed(self, base: int, record: int, now: float) -> bool:
        """Whether the slot must be kept, because its removal would change its key's count."""

    def _where(self, tag: int) -> tuple[int, int]:
        """Return the region of a key, and the first slot of its window in that region."""
        mixed = (tag * self._multiplier) & layout.ALL_ONES
        return mixed >> 58, mixed >> 40 & self._in_region - 1

    def _window(self, region: int, start: int) -> list[int]:
        first, mask, words = (
            self.first + region * self._in_region * self.slot_words,
            self._in_region - 1,
            self.slot_words,
        )
        return [first + (start + number & mask) * words for number in range(layout.WINDOW)]

    def _search(self, region: int, start: int, tag: int) -> int | None:
        words = self._words
        first, mask, size = (
            self.first + region * self._in_region * self.slot_words,
            self._in_region - 1,
            self.slot_words,
        )
        for number in range(start, start + layout.WINDOW):
            base = first + (number & mask) * size
            found = words[base]
            if found == tag:
                return base
            if not found:
                return None
        return None

    def _make(self, region: int, start: int, tag: int, owner: int, now: float) -> int | None:
        words = self._words
        for base in self._window(region, start):
            if words[base] <= layout.DROPPED:
                return self._give(region, base, tag, owner)
        if now < self._search_again[region]:
            return None
        for base in self._window(region, start):
            if not self._still_needed(base, now):
                return self._give(region, base, tag, owner)
        self._search_again[region] = now + _SEARCH_EVERY
        return None

    def _still_needed(self, base: int, now: float) -> bool:
        owner = self._words[base + S_OWNER]
        record = layout.DIRECTORY_AT + (owner & 0xFFFF) * layout.RECORD_WORDS
        return self._words[record + D_OWNER] == owner and self._is_needed(base, record, now)

    def _give(self, region: int, base: int, tag: int, owner: int) -> int:
        state = layout.REGIONS_AT + (self.first_region + region) * layout.REGION_WORDS
        self._words[state + layout.R_GIVEN] |= self.block(base)
        if self._words[base] != layout.FREE:
            self._words[base] = layout.DROPPED
        clear_slot(self._memory, base, owner, counts=self.counts)
        self._words[base] = tag
        return base


class BucketSlots(SlotTable):
    """Slots of token buckets; a slot is needed if its bucket is not full, or has its own parameters."""

    first, slot_words, slots = layout.BUCKETS_AT, layout.BUCKET_WORDS, layout.BUCKETS
    first_region, counts = 0, False

    def _is_needed(self, base: int, record: int, now: float) -> bool:
        words, floats = self._words, self._floats
        if words[base + B_PARAMETERS]:
            return True
        at = words[record + D_PARAMETERS]
        return floats[base + B_LEVEL] > max(level_at(floats, at, now) - floats[at + P_BURST], floats[at + P_FLOOR])


class CountSlots(SlotTable):
    """Slots of requests in flight; a slot is needed with such requests, with queues, or with its own maximum."""

    first, slots = layout.COUNTS_AT, layout.COUNTS
    first_region, counts = layout.REGIONS, True

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.slot_words = memory.count_words

    def _is_needed(self, base: int, record: int, now: float) -> bool:
        words = self._words
        return bool(
            words[base + C_TOTAL]
            or words[base + C_WAITING]
            or words[base + C_RESERVED]
            or words[base + C_OWN_MAXIMUM] != layout.ALL_ONES
        )
