"""A queue that is fair by user; pure.

First in, first out for each user, and users take turns: whoever has a hundred waiting delays whoever has one by no more
than one turn.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items of users in the order in which they are to be served."""

    __slots__ = ("_count", "_lines")

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()  # by user, in the order of their turns; none is empty
        self._count = 0

    def push(self, user: str, item: T) -> None:
        """Put an item behind the user's others; a user who had none comes last."""
        line = self._lines.get(user)
        if line is None:
            line = self._lines[user] = deque()
        line.append(item)
        self._count += 1

    def pop(self) -> T:
        """Take out whatever is next. Raises KeyError if there is nothing."""
        user, line = next(iter(self._lines.items()), (None, None))
        if user is None or line is None:
            raise KeyError("nothing waits")
        item = line.popleft()
        if line:
            self._lines.move_to_end(user)
        else:
            del self._lines[user]
        self._count -= 1
        return item

    def remove(self, user: str, item: T) -> None:
        """Take out an item wherever it is. Raises KeyError or ValueError if it is not there."""
        line = self._lines[user]
        line.remove(item)
        if not line:
            del self._lines[user]
        self._count -= 1

    def __len__(self) -> int:
        return self._count
