"""The leave that a request has to go on, and that it gives back when it has ended."""

from __future__ import annotations

from typing import Protocol


class Holder(Protocol):
    """What a permit was taken from."""

    def give_back(self, key: str) -> None: ...


class Permit:
    """Counts as under way until it is released; a second release does nothing."""

    __slots__ = ("_beside", "_holder", "_key")

    def __init__(self, holder: Holder | None, key: str, beside: Permit | None = None) -> None:
        """`beside` is released together with this one."""
        self._holder = holder
        self._key = key
        self._beside = beside

    def release(self) -> None:
        """Say that the request has ended, however it did."""
        holder = self._holder
        if holder is None:
            return
        self._holder = None
        holder.give_back(self._key)
        if self._beside is not None:
            self._beside.release()


#: The permit of requests that nothing counts while they are under way: those of token buckets, and those without limit.
NOTHING = Permit(None, "")
