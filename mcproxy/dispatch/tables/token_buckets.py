"""Token buckets by key, shared by one or several processes.

A bucket is one number, its level: see `layout.P_LEVEL`. So buckets do not have to be refilled. A bucket that was unused
for the time that it takes to fill is full, as every bucket is at first, so its slot can be given to another key. Rate
and burst belong to the limit, and all processes have the same values at any time. So a new rate or burst does not
change the buckets.

A waiting request takes its token in advance: the bucket's level is raised at once, and the request is admitted when the
limit's level has reached the former level. So waiting processes take turns in the order of their arrival, before later
requests in other processes, without messages between processes. A process that dies while it waits costs one token.
"""

from __future__ import annotations

import math

from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.directory import Directory, RecordUse, fill_of, level_at, set_share, tag_of
from mcproxy.dispatch.tables.layout import (
    B_LEVEL,
    B_PARAMETERS,
    D_LEASES_END,
    D_PARAMETERS,
    P_BURST,
    P_FLOOR,
    P_LEVEL,
    P_NEEDED,
    P_RATE,
    P_TIME,
)
from mcproxy.dispatch.tables.limit_shares import LimitId, hash_after, prefix_of
from mcproxy.dispatch.tables.memory import Memory
from mcproxy.dispatch.tables.slot_table import BucketSlots, SlotPlace

# Maximum of keys whose slots a process remembers.
_REMEMBERED = 16384
# The minimum rate, so that a wait is never endless.
_SLOWEST = 1e-9


class TokenBuckets:
    """The buckets of one limit, used by one process. Times are those of a clock that all processes share."""

    def __init__(
        self,
        memory: Memory,
        slots: BucketSlots,
        directory: Directory,
        use: RecordUse,
        limit: LimitId,
        qps: float,
        burst: int,
    ) -> None:
        self.qps, self.burst = qps, burst  # values of this process's configuration
        record = use.record
        self._directory, self._record, self._use = directory, record, use
        self._words, self._floats = memory.words, memory.floats
        self._mutexes = memory.mutexes
        self._pointers = memory.mutexes.pointers
        self._try_lock, self._unlock = memory.mutexes.try_lock, memory.mutexes.unlock
        self._slots = slots
        self._owner = memory.words[record + layout.D_OWNER]
        self._parameters, self._leases_end = record + D_PARAMETERS, record + D_LEASES_END
        self._shared = directory.is_shared(record)  # whether the limit applies over replicas
        self._prefix = prefix_of(limit)
        self._overflow = slots.overflow(record)
        self._places: dict[str, SlotPlace] = {}
        self._in_advance: dict[
            str, tuple[SlotPlace, float]
        ] = {}  # by key: the token taken in advance, and the level from which it is valid

    def take(self, key: str, time: float) -> bool:
        """Take a token; return False if there is none."""
        place = self._places.get(key)
        if place is None:
            place = self._find(key, time)
        base, tag, mutex, region = place
        pointer = self._pointers[mutex]
        words, floats = self._words, self._floats
        if code := self._try_lock(pointer):
            self._mutexes.lock_slowly(mutex, code)
        try:
            if words[base] == tag:
                at = words[base + B_PARAMETERS]
                if not at:
                    at = words[self._parameters]
                elif time >= floats[self._leases_end]:
                    at = self._end_share(base, at, time)
                level = floats[at + P_LEVEL] + (time - floats[at + P_TIME]) * floats[at + P_RATE]
                own, floor = floats[base + B_LEVEL], floats[at + P_FLOOR]
                full = level - floats[at + P_BURST]
                if own < full:
                    own = full
                if own < floor:
                    own = floor
                admitted: bool = level - own >= floats[at + P_NEEDED]
                if admitted:
                    floats[base + B_LEVEL] = own + 1.0
                if self._shared:
                    self._slots.note_demand(base, region, admitted)
                return admitted
        finally:
            self._unlock(pointer)
        self._places.pop(key, None)  # another key has the slot now
        return self.take(key, time)

    def take_in_turn(self, key: str, time: float) -> bool:
        """Take a token for a waiting request; return False if it must wait for a token taken in advance."""
        held = self._in_advance.get(key)
        if held is None:
            return self._take_in_advance(key, time)
        place, from_level = held
        self._mutexes.lock(place.mutex)
        try:
            at = self._parameters_of(place)
            due = level_at(self._floats, at, time) - from_level >= self._floats[at + P_NEEDED]
        finally:
            self._mutexes.release(place.mutex)
        if not due:
            return False
        del self._in_advance[key]
        return True

    def leave(self, key: str) -> None:
        """End the waiting for a key, and give back the token that was taken in advance."""
        held = self._in_advance.pop(key, None)
        if held is not None:
            self._give_back(held[0])

    def refund(self, key: str) -> None:
        """Give back the token of a request that was not admitted in the end; a request waiting here gets it."""
        held = self._in_advance.get(key)
        if held is not None:
            self._in_advance[key] = (held[0], held[1] - 1.0)
        place = self._places.get(key) or self._slots.place(self._tag(key), self._owner, 0.0, make=False)
        self._give_back(self._overflow if place is None else place)

    def fill(self, key: str, time: float) -> float:
        """Return the number of tokens in a bucket, without those taken in advance."""
        place = self._slots.place(self._tag(key), self._owner, time, make=False)
        own = -math.inf if place is None else self._floats[place.base + B_LEVEL]
        return fill_of(self._floats, own, self._parameters_of(place), time)

    def wait(self, key: str, time: float) -> float:
        """Return the seconds until there is a token for a waiting request; 0 if there is one."""
        held = self._in_advance.get(key)
        if held is None:
            tokens = self.fill(key, time)
            at = self._words[self._parameters]
        else:
            at = self._parameters_of(held[0])
            tokens = level_at(self._floats, at, time) - held[1]
        return max(0.0, 1.0 - tokens) / max(self._floats[at + P_RATE], _SLOWEST)

    def note_refused(self, key: str) -> None:
        """Count a request that has to wait and did not call `take`, as demand for the limits over replicas."""
        if self._shared:
            place = self._find(key, 0.0)
            self._mutexes.lock(place.mutex)
            try:
                self._slots.note_demand(place.base, place.region, False)
            finally:
                self._mutexes.release(place.mutex)

    def resize(self, qps: float, burst: int, time: float) -> None:
        """Change rate and burst for all processes; every bucket keeps its tokens, cut to the new burst.

        For a limit over replicas the share of this machine applies instead, which its agent sets.
        """
        self.qps, self.burst = qps, burst
        if not self._shared:
            self._directory.resize(self._record, qps, burst, time)

    def _take_in_advance(self, key: str, time: float) -> bool:
        place = self._find(key, time)
        words, floats = self._words, self._floats
        self._mutexes.lock(place.mutex)
        try:
            at = self._parameters_of(place)
            if words[place.base] != place.tag or floats[at + P_BURST] < floats[at + P_NEEDED]:
                return False  # the caller polls again soon
            if words[place.base + B_PARAMETERS] and time >= floats[self._leases_end]:
                at = self._end_share(place.base, at, time)
            level = level_at(floats, at, time)
            own = max(floats[place.base + B_LEVEL], level - floats[at + P_BURST], floats[at + P_FLOOR])
            floats[place.base + B_LEVEL] = own + 1.0
            if self._shared:
                self._slots.note_demand(place.base, place.region, True)
            if level - own >= floats[at + P_NEEDED]:
                return True
            self._in_advance[key] = (place, own)
            return False
        finally:
            self._mutexes.release(place.mutex)

    def _end_share(self, base: int, own: int, time: float) -> int:
        """End the share of a key, which gets the default share; return the offset of its parameters."""
        general = self._words[self._parameters]
        rate, burst = self._floats[general + P_RATE], self._floats[general + P_BURST]
        return set_share(self._words, self._floats, base, own, general, rate, burst, time)

    def _give_back(self, place: SlotPlace) -> None:
        self._mutexes.lock(place.mutex)
        try:
            if self._words[place.base] == place.tag:
                self._floats[place.base + B_LEVEL] -= 1.0
        finally:
            self._mutexes.release(place.mutex)

    def _parameters_of(self, place: SlotPlace | None) -> int:
        """Return the offset of the parameters of a key: its own ones, or the limit's."""
        own = 0 if place is None or self._words[place.base] != place.tag else self._words[place.base + B_PARAMETERS]
        return own or self._words[self._parameters]

    def _tag(self, key: str) -> int:
        return tag_of(hash_after(self._prefix, key), self._owner)

    def _find(self, key: str, time: float) -> SlotPlace:
        place = self._places.get(key)
        if place is None:
            place = self._slots.place(self._tag(key), self._owner, time)
            if place is None:
                return self._overflow
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[key] = place
        return place
