"""The permit of flow control for an admitted request; it is released when the request has ended."""

from __future__ import annotations

from typing import Protocol


class Limit(Protocol):
    """The limit that a permit was taken from."""

    def release(self, key: str) -> None: ...


class Permit:
    """Counts as in flight until it is released; a second release does nothing."""

    __slots__ = ("_key", "_limit", "_next")

    def __init__(self, limit: Limit | None, key: str, next_permit: Permit | None = None) -> None:
        """`next_permit` is released together with this one."""
        self._limit = limit
        self._key = key
        self._next = next_permit

    def joined(self, other: Permit) -> Permit:
        """Return a permit whose release releases both; neither must be used otherwise from now on."""
        if self._limit is None:
            return other
        last = self
        while last._next is not None:
            last = last._next
        last._next = None if other._limit is None else other
        return self

    def release(self) -> None:
        """Stop counting the request, however it ended."""
        limit = self._limit
        if limit is None:
            return
        self._limit = None
        limit.release(self._key)
        if self._next is not None:
            self._next.release()


#: The permit of requests that no limit counts while they are in flight: token buckets, and no limit at all.
EMPTY_PERMIT = Permit(None, "")
