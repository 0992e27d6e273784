"""A queue that is fair to users (round robin). Pure.

The items of a user are first in, first out, and users take turns: a user with a hundred items delays a user with a
single item by at most one turn. A full queue makes room by dropping the newest item of the user with the most items, so
a user who fills the queue cannot keep others out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of users in the order in which they are to be served."""

    __slots__ = ("_by_length", "_count", "_items", "_longest")

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[T]] = OrderedDict()  # by user, in the order of turns; no deque is empty
        self._by_length: dict[int, dict[str, None]] = {}  # number of items -> users with so many; no value is empty
        self._longest = 0  # maximum of items of a user
        self._count = 0

    def push(self, user: str, item: T) -> None:
        """Add an item after the user's other items; a user without items gets the last turn."""
        items = self._items.get(user)
        if items is None:
            items = self._items[user] = deque()
        items.append(item)
        self._count += 1
        self._length_changed(user, len(items) - 1, len(items))

    def pop(self) -> T:
        """Remove and return the next item. Raises KeyError if the queue is empty."""
        user, items = next(iter(self._items.items()), (None, None))
        if user is None or items is None:
            raise KeyError("the queue is empty")
        item = items.popleft()
        self._removed(user, items)
        if items:
            self._items.move_to_end(user)
        return item

    def pop_eligible(self, eligible: Callable[[str], bool]) -> tuple[str, T] | None:
        """Remove and return the next eligible user and its item; None if no user is eligible.

        Other users keep their position in the order of turns.
        """
        for user, items in self._items.items():
            if eligible(user):
                item = items.popleft()
                self._removed(user, items)
                if items:
                    self._items.move_to_end(user)
                return user, item
        return None

    def remove(self, user: str, item: T) -> None:
        """Remove an item at any position. Raises KeyError or ValueError if the queue does not contain it."""
        items = self._items[user]
        items.remove(item)
        self._removed(user, items)

    def can_make_room_for(self, user: str) -> bool:
        """Return whether another user would still have the most items after one more of `user` is added.

        Returns False for a tie: otherwise two users would drop each other's items for ever.
        """
        return self._longest > len(self._items.get(user, ())) + 1

    def pop_newest_of_fullest(self) -> T:
        """Remove and return the newest item of the user with the most items. Raises KeyError if the queue is empty."""
        user = next(reversed(self._by_length[self._longest]))
        items = self._items[user]
        item = items.pop()
        self._removed(user, items)
        return item

    def __len__(self) -> int:
        return self._count

    def _removed(self, user: str, items: deque[T]) -> None:
        if not items:
            del self._items[user]
        self._count -= 1
        self._length_changed(user, len(items) + 1, len(items))

    def _length_changed(self, user: str, before: int, after: int) -> None:
        if before:
            users = self._by_length[before]
            del users[user]
            if not users:
                del self._by_length[before]
        if after:
            self._by_length.setdefault(after, {})[user] = None
        if after > self._longest or (before == self._longest and before not in self._by_length):
            self._longest = after  # the user who had the most items still has the most without one
