"""The recent events of one store, like a watch cache: watches resume from them, and earlier states follow from them."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from mcproxy.aggregate.cache.cached_object import CachedObject, Event, EventType, LoggedEvent
from mcproxy.aggregate.cache.sequence import ObjectSequence, key_of
from mcproxy.aggregate.resource_version.reader import Expired

NEVER = 2**64
"""A number above every version: the floor of a log from which no watch can resume."""
EVENTS_BUDGET = 128 * 1024 * 1024
"""Maximum bytes that the event logs of all stores of a process hold together (`Reflectors`)."""
_ENTRY = 512  # approximate bytes of an event without its object, for the budget


@dataclass(frozen=True, slots=True)
class EventLogLimits:
    """Bounds of one store's log: the number of events, and the bytes of object states that only events hold.

    When an event or bookmark arrives, events older than `age` seconds are dropped, except the last `min_events`. A
    kube-apiserver forgets events after 5 to 10 minutes (etcd compaction), and keeps the last 100 in its watch cache.
    """

    events: int = 10_000
    size: int = 32 * 1024 * 1024
    gaps: int = 64
    age: float = 600.0
    min_events: int = 100


class EventLog:
    """Events in order of arrival, each with the lowest version at which a client has certainly seen it.

    A relist after a gap in the watch shows which objects were deleted or changed, but not when. So a watch cannot
    resume (410) from a version inside the gap, which a client can have from another replica. It can resume from the
    versions at both ends.
    """

    __slots__ = ("_budget", "_entries", "_floor", "_gaps", "_limits", "_size")

    def __init__(self, limits: EventLogLimits, budget: MemoryBudget | None = None) -> None:
        """Many logs share `budget`."""
        self._limits = limits
        self._budget = budget
        self._entries: deque[LoggedEvent] = deque()
        self._size = 0
        self._floor = 0  # the oldest version that can be resumed from
        self._gaps: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of object states that only the log holds."""
        return self._size

    @property
    def newest(self) -> float | None:
        """When the newest event arrived, seconds; None if the log is empty."""
        return self._entries[-1].at if self._entries else None

    @property
    def floor(self) -> int:
        """The oldest version from which a watch can resume."""
        return self._floor

    def reset(self, version: int) -> None:
        """Forget all events: watches can resume only from `version` or later."""
        self._entries.clear()
        self._size, self._gaps = 0, []
        self._floor = version
        self._account()

    def append(self, event: Event, shown_at: int, now: float) -> None:
        """Add an event; `shown_at` (its version, or that of the relist that found the change) must not decrease."""
        size = _size(event)
        self._entries.append(LoggedEvent(event, shown_at, size, now))
        self._size += size
        while len(self) > self._limits.events or self._size > self._limits.size:
            self._drop_first()
        self.forget_old(now)
        self._account()

    def forget_old(self, now: float) -> None:
        """Drop the events that are too old."""
        oldest = now - self._limits.age
        before = len(self)
        while len(self) > self._limits.min_events and self._entries[0].at < oldest:
            self._drop_first()
        if len(self) < before:
            self._account()

    def add_gap(self, start: int, end: int) -> None:
        """Record that the changes between two versions, both excluded, are unknown."""
        if end > start + 1:
            self._gaps.append((start, end))
            if len(self._gaps) > self._limits.gaps:
                self._forget_to(self._gaps[0][1])
                self._account()

    def check_resumable(self, version: int) -> None:
        """Raise Expired if some of the changes after `version` are unknown."""
        if version < self._floor or any(start < version < end for start, end in self._gaps):
            raise Expired() if self._floor == NEVER else Expired(f"too old resource version: {version} ({self._floor})")

    def after(self, version: int) -> Sequence[Event]:
        """Return every event that a client at `version` may not have seen, in order. Raises Expired."""
        self.check_resumable(version)
        return [entry.event for entry in islice(self._entries, self._index(version), None)]

    def undone(self, objects: ObjectSequence, version: int) -> ObjectSequence:
        """Compute the state at `version` from the present one. Raises Expired."""
        self.check_resumable(version)
        changes: dict[str, CachedObject | None] = {}
        for entry in reversed(self._entries):  # newest first, so the earliest of an object's states remains
            if entry.shown_at <= version:
                break
            event = entry.event
            changes[key_of(event.object)] = None if event.type is EventType.ADDED else event.previous
        return objects.changed(changes) if changes else objects

    def _index(self, version: int) -> int:
        return bisect_right(self._entries, version, key=lambda entry: entry.shown_at)

    def _drop_first(self) -> None:
        entry = self._entries.popleft()
        self._size -= entry.size
        self._floor = max(self._floor, entry.shown_at)
        if self._gaps:
            self._gaps = [gap for gap in self._gaps if gap[1] > self._floor]

    def give_way(self) -> bool:
        """Forget the oldest event to save memory; False if there is none."""
        if not self._entries:
            return False
        self._drop_first()
        self._account()
        return True

    def _account(self) -> None:
        if self._budget is not None:
            self._budget.changed(self, self._size + _ENTRY * len(self._entries))

    def _forget_to(self, version: int) -> None:
        while self._entries and self._entries[0].shown_at <= version:
            self._drop_first()
        self._floor = max(self._floor, version)
        self._gaps = [gap for gap in self._gaps if gap[1] > self._floor]


def _size(event: Event) -> int:
    """Return the bytes of the object states that only this event keeps in memory after the store has dropped them."""
    size = event.previous.size if event.previous is not None else 0
    if event.type is EventType.DELETED and (event.previous is None or event.object.head is not event.previous.head):
        size += event.object.size
    return size


# -- the memory of all logs -----------------------------------------------------------------------------------
# A bound on the total bytes of many holders; each holder has its own bound, too.


_TRIED_HOLDERS = 16  # holders tried in each size class while they cannot forget anything


class Holder(Protocol):
    """Holds bytes that count against the budget: an event log, a queue of changes."""

    def give_way(self) -> bool:
        """Forget the oldest item, and tell the budget the new size; False if nothing can be forgotten."""


class MemoryBudget:
    """Limits the total of all holders to `limit` bytes.

    Above the limit, the largest holder forgets its oldest item. Holders of similar size (within a factor of two) take
    turns. So a busy holder never empties small holders. Holders are grouped by the power of two of their size, so the
    search for the largest holder does not depend on their number.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._sizes: dict[Holder, int] = {}
        self._classes: dict[int, dict[Holder, None]] = {}
        self._busy = False

    def changed(self, holder: Holder, size: int) -> None:
        """Record that a holder now keeps `size` bytes; 0 removes the holder."""
        before = self._sizes.pop(holder, 0)
        if before.bit_length() != size.bit_length():
            if before:
                self._leave(holder, before)
            if size:
                self._classes.setdefault(size.bit_length(), {})[holder] = None
        if size:
            self._sizes[holder] = size
        self.held += size - before
        if self.held > self.limit and not self._busy:
            self._busy = True
            try:
                while self.held > self.limit and self._one_gives_way():
                    pass
            finally:
                self._busy = False

    def _one_gives_way(self) -> bool:
        for number in sorted(self._classes, reverse=True):
            for holder in tuple(islice(self._classes.get(number, ()), _TRIED_HOLDERS)):
                gave = holder.give_way()
                same = self._classes.get(number, {})
                if holder in same:  # next time it is another holder's turn
                    del same[holder]
                    same[holder] = None
                if gave:
                    return True
        return False

    def _leave(self, holder: Holder, size: int) -> None:
        number = size.bit_length()
        found = self._classes[number]
        del found[holder]
        if not found:
            del self._classes[number]
