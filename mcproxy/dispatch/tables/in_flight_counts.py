"""Counts requests in flight by key over the processes of a daemon.

A slot contains the count of each process and their sum; `reclaim` subtracts the counts of a dead process.

A process with waiting requests sets its bit. A process that releases a place does not free it, but hands it to one of
the waiting processes, in turn. From then on the place counts for the waiting process, which is woken and takes it. So
requests that arrive later at other processes are not admitted before the waiting ones. If a place is not taken within a
short time (its process is stopped or stuck), any process can take it, and the stuck process gets no further place until
it sets its bit again.
"""

from __future__ import annotations

from collections.abc import Callable

from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.directory import Directory, RecordUse, tag_of
from mcproxy.dispatch.tables.layout import (
    ALL_ONES,
    C_COLUMNS,
    C_LAST,
    C_LATE,
    C_LATE_AT,
    C_OWN_MAXIMUM,
    C_RESERVED,
    C_TOTAL,
    C_WAITING,
    D_LEASES_END,
    D_MAXIMUM,
)
from mcproxy.dispatch.tables.limit_shares import LimitId, hash_after, prefix_of
from mcproxy.dispatch.tables.memory import Memory
from mcproxy.dispatch.tables.slot_table import CountSlots, SlotPlace

#: Seconds for which a given place is reserved for its process.
RESERVED_FOR = 0.1
# Maximum of keys without requests in flight whose slots a process remembers.
_REMEMBERED = 16384

#: ``wake(columns)`` wakes the processes whose bits are set, because they were given places.
Wake = Callable[[int], None]


class InFlightCounts:
    """The counts of one limit, used by one process."""

    def __init__(
        self,
        memory: Memory,
        slots: CountSlots,
        directory: Directory,
        use: RecordUse,
        limit: LimitId,
        maximum: int | None,
        *,
        column: int,
        seconds: Callable[[], float],
        wake: Wake,
    ) -> None:
        """`seconds`: a clock that all processes share."""
        self.in_use = 0  # requests of this process in flight, of all keys
        self._maximum = maximum
        record = use.record
        self._directory, self._record, self._use = directory, record, use
        self._memory = memory
        self._words, self._floats = memory.words, memory.floats
        self._mutexes = memory.mutexes
        self._pointers = memory.mutexes.pointers
        self._try_lock, self._unlock = memory.mutexes.try_lock, memory.mutexes.unlock
        self._slots = slots
        self._owner = memory.words[record + layout.D_OWNER]
        self._shared = directory.is_shared(record)
        self._prefix = prefix_of(limit)
        self._overflow = slots.overflow(record)
        self._column, self._bit = C_COLUMNS + column, 1 << column
        self._seconds, self._wake = seconds, wake
        self._places: dict[str, SlotPlace] = {}
        #: By key with requests of this process in flight: the slot in which they count, which does not change, and
        #: their number.
        self._held: dict[str, tuple[SlotPlace, int]] = {}

    @property
    def max(self) -> int | None:
        """The configured maximum for each key, in all processes.

        For a limit over replicas, the share of this machine applies instead, which its agent sets.
        """
        if self._shared:
            return self._maximum
        maximum = self._words[self._record + D_MAXIMUM]
        return None if maximum == layout.NO_MAXIMUM else maximum

    @max.setter
    def max(self, maximum: int | None) -> None:
        self._maximum = maximum
        if not self._shared:
            self._directory.set_maximum(self._record, maximum)

    def take(self, key: str) -> bool:
        """Count one more request; return False if the maximum is reached."""
        held = self._held.get(key)
        if held is None:
            place, count = self._places.get(key) or self._find(key), 0
        else:
            place, count = held
        base, tag, mutex, region = place
        pointer = self._pointers[mutex]
        words = self._words
        if code := self._try_lock(pointer):
            self._mutexes.lock_slowly(mutex, code)
        try:
            if words[base] == tag:
                total = words[base + C_TOTAL]
                maximum = words[base + C_OWN_MAXIMUM]
                if maximum == ALL_ONES or self._seconds() >= self._floats[self._record + D_LEASES_END]:
                    maximum = words[self._record + D_MAXIMUM]
                admitted = True
                if total < maximum:
                    words[base + self._column] += 1
                    words[base + C_TOTAL] = total + 1
                else:
                    admitted = words[base + C_RESERVED] != 0 and total <= maximum and self._take_over(base, region)
                if self._shared:
                    self._slots.note_demand(base, region, admitted)
                if admitted:
                    self._held[key] = (place, count + 1)
                    self.in_use += 1
                return admitted
        finally:
            self._unlock(pointer)
        self._places.pop(key, None)  # another key has the slot now
        return self.take(key)

    def take_below(self, key: str, maximum: int) -> bool:
        """Count one more request unless the count has reached `maximum`, whatever the limit's own maximum is."""
        place, count = self._held.get(key) or (self._find(key), 0)
        words, base = self._words, place.base
        self._mutexes.lock(place.mutex)
        try:
            if words[base] == place.tag:
                if words[base + C_TOTAL] >= maximum:
                    return False
                words[base + self._column] += 1
                words[base + C_TOTAL] += 1
                self._held[key] = (place, count + 1)
                self.in_use += 1
                return True
        finally:
            self._mutexes.release(place.mutex)
        self._places.pop(key, None)  # another key has the slot now
        return self.take_below(key, maximum)

    def release(self, key: str) -> None:
        """Count one request less. Raises KeyError if no request of this process is in flight."""
        place, count = self._held[key]
        if count == 1:
            del self._held[key]
        else:
            self._held[key] = (place, count - 1)
        self.in_use -= 1
        base, _, mutex, region = place
        pointer = self._pointers[mutex]
        words = self._words
        given = 0
        if code := self._try_lock(pointer):
            self._mutexes.lock_slowly(mutex, code)
        try:
            words[base + self._column] -= 1
            words[base + C_TOTAL] -= 1
            if words[base + C_WAITING]:
                given = hand_over(self._memory, self._record, base, region, self._seconds())
        finally:
            self._unlock(pointer)
        if given & ~self._bit:  # the limiter of this process takes its own place without being woken
            self._wake(given & ~self._bit)

    def count(self, key: str) -> int:
        """Return the number in flight for a key, in all processes."""
        held = self._held.get(key)
        place = self._slots.place(self._tag(key), self._owner, 0.0, make=False) if held is None else held[0]
        return 0 if place is None else self._words[place.base + C_TOTAL]

    def __len__(self) -> int:
        """Return the number of keys with requests of this process in flight."""
        return len(self._held)

    # -- queues ------------------------------------------------------------------------------------------------

    def take_in_turn(self, key: str) -> bool:
        """Take a handed-over or free place for a waiting request; False: the process will be notified of a place."""
        place, count = self._held.get(key) or (self._find(key), 0)
        base = place.base
        words = self._words
        self._mutexes.lock(place.mutex)
        try:
            if words[base] != place.tag:
                self._places.pop(key, None)
                return False  # the caller polls again soon
            words[base + C_WAITING] |= self._bit
            given = hand_over(self._memory, self._record, base, place.region, self._seconds())
            admitted = bool(words[base + C_RESERVED] & self._bit)
            if admitted:
                self._has_taken(base)  # the place counts for this process already
            elif words[base + C_RESERVED]:
                admitted = self._take_over(base, place.region)
            if admitted:
                if self._shared:
                    self._slots.note_demand(base, place.region, True)
                self._held[key] = (place, count + 1)
                self.in_use += 1
        finally:
            self._mutexes.release(place.mutex)
        if given & ~self._bit:
            self._wake(given & ~self._bit)
        return admitted

    def was_given(self, key: str) -> bool:
        """Whether a place was handed over to this process; without locking, so possibly wrong for a moment."""
        place = self._held[key][0] if key in self._held else self._places.get(key)
        return place is None or bool(self._words[place.base + C_RESERVED] & self._bit)

    def leave(self, key: str) -> None:
        """End the waiting of this process for a key: give back the places handed over since."""
        place = self._held[key][0] if key in self._held else self._find(key)
        base = place.base
        words = self._words
        given = 0
        self._mutexes.lock(place.mutex)
        try:
            if words[base] == place.tag:
                words[base + C_WAITING] &= ~self._bit
                if words[base + C_RESERVED] & self._bit:
                    # The bits are cleared first: a process that finds a set bit takes a place from this process, which
                    # must have one in that case, even if it dies between these lines.
                    self._has_taken(base)
                    words[base + self._column] -= 1
                    words[base + C_TOTAL] -= 1
                if words[base + C_WAITING]:
                    given = hand_over(self._memory, self._record, base, place.region, self._seconds())
        finally:
            self._mutexes.release(place.mutex)
        if given:
            self._wake(given)

    def note_refused(self, key: str) -> None:
        """Count a request that has to wait and did not call `take`, as demand for the limits over replicas."""
        if self._shared:
            place = self._held[key][0] if key in self._held else self._find(key)
            self._mutexes.lock(place.mutex)
            try:
                self._slots.note_demand(place.base, place.region, False)
            finally:
                self._mutexes.release(place.mutex)

    # -- parts -------------------------------------------------------------------------------------------------

    def _has_taken(self, base: int) -> None:
        self._words[base + C_LATE] &= ~self._bit
        self._words[base + C_RESERVED] &= ~self._bit

    def _take_over(self, base: int, region: int) -> bool:
        """Take a place from a process that was given one and has not taken it in time."""
        words = self._words
        now = self._seconds()
        if now - self._floats[base + C_LATE_AT] < RESERVED_FOR:
            return False
        late = words[base + C_LATE]
        if not late:
            words[base + C_LATE] = words[base + C_RESERVED]
            self._floats[base + C_LATE_AT] = now
            return False
        bit = late & -late
        theirs = base + C_COLUMNS + bit.bit_length() - 1
        mine = base + self._column
        done = self._memory.undo_log(region, base + C_WAITING, base + C_RESERVED, base + C_LATE, theirs, mine)
        words[base + C_WAITING] &= ~bit  # the process gets no place until it sets its bit again
        words[base + C_RESERVED] &= ~bit
        words[base + C_LATE] = late & ~bit
        words[theirs] -= 1
        words[mine] += 1
        words[done] = 0
        return True

    def _tag(self, key: str) -> int:
        return tag_of(hash_after(self._prefix, key), self._owner)

    def _find(self, key: str) -> SlotPlace:
        place = self._places.get(key)
        if place is None:
            place = self._slots.place(self._tag(key), self._owner, self._seconds())
            if place is None:
                return self._overflow
            if len(self._places) >= _REMEMBERED:
                self._places.clear()
            self._places[key] = place
        return place


def hand_over(memory: Memory, record: int, base: int, region: int, time: float) -> int:
    """Give free places to processes that wait for them, one to each, in turn; return the bits of these processes.

    The mutex of the slot is held.
    """
    words = memory.words
    maximum = words[base + C_OWN_MAXIMUM]
    if maximum == ALL_ONES or time >= memory.floats[record + D_LEASES_END]:
        maximum = words[record + D_MAXIMUM]
    given = 0
    while words[base + C_TOTAL] < maximum:
        reserved = words[base + C_RESERVED]
        wanting = words[base + C_WAITING] & ~reserved
        if not wanting:
            break
        after = wanting >> words[base + C_LAST] + 1 << words[base + C_LAST] + 1  # columns after the last one's
        bit = (after or wanting) & -(after or wanting)
        column = bit.bit_length() - 1
        theirs = base + C_COLUMNS + column
        done = memory.undo_log(region, base + C_RESERVED, base + C_LAST, base + C_TOTAL, theirs)
        words[base + C_RESERVED] = reserved | bit
        words[base + C_LAST] = column
        words[base + C_TOTAL] += 1
        words[theirs] += 1
        words[done] = 0
        given |= bit
    return given
