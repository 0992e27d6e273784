"""A bound on the bytes that many holders keep together; each has a bound for itself, too."""

from __future__ import annotations

from itertools import islice
from typing import Protocol

_TRIED = 16  # of each size, where those that are asked cannot forget anything


class Holder(Protocol):
    """What keeps bytes: an event log, a queue of changes."""

    def give_way(self) -> bool:
        """Forget the oldest, and tell the budget what is held then; False if nothing can be forgotten."""


class MemoryBudget:
    """At most `limit` bytes over all holders.

    Where they have more, the oldest of the largest gives way, and of those that are about as large (to a factor of two)
    one after the other: a busy holder never empties those that keep little. All steps but the search for who gives way
    are O(1), and that looks at 64 classes of size.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._sizes: dict[Holder, int] = {}
        self._classes: dict[int, dict[Holder, None]] = {}
        self._busy = False

    def changed(self, holder: Holder, size: int) -> None:
        """A holder keeps `size` bytes now; 0 forgets it."""
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
            for holder in tuple(islice(self._classes.get(number, ()), _TRIED)):
                gave = holder.give_way()
                same = self._classes.get(number, {})
                if holder in same:  # the next time it is another one's turn
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
