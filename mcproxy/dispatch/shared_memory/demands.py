"""The demand for limits over replicas: processes that count mark the blocks of their slots, which are read here."""

from __future__ import annotations

from mcproxy.dispatch.shared_memory import layout
from mcproxy.dispatch.shared_memory.directory import hash_of
from mcproxy.dispatch.shared_memory.layout import (
    C_TOTAL,
    D_KIND,
    D_OVERFLOW,
    D_OWNER,
    D_SHARED,
    R_USED,
    S_OWNER,
    S_REFUSED,
    S_TAG,
    S_TAKEN,
)
from mcproxy.dispatch.shared_memory.limit_shares import Demand
from mcproxy.dispatch.shared_memory.memory import Memory
from mcproxy.dispatch.shared_memory.slot_table import BucketSlots, CountSlots


class Demands:
    """Collects demands of all limits, and hands them out by limit."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._words = memory.words
        self._found: dict[int, dict[int, Demand]] = {}  # by owner word and key

    def of(self, record: int) -> list[Demand]:
        """Return what was asked for of a limit since the last call for it, and what is in flight."""
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
        """Nobody asks for a limit any more."""
        self._found.pop(self._words[record + D_OWNER], None)

    def _collect(self) -> None:
        words = self._words
        for table in (BucketSlots, CountSlots):
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
        """Read the marked blocks of a region; return the bits of those that have anything in flight."""
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
        """Read a slot, whose mutex is held; return whether anything is in flight."""
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
