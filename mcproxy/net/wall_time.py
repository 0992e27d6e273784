"""The time of day, which may jump: set by an administrator, by NTP, or after a virtual machine has been suspended.

A reactor's `seconds()` counts evenly from an arbitrary start (CLOCK_MONOTONIC), so that timeouts, limits and caches
last as long as they should, whatever is done to the clock. Times that others understand too (the expiry of a token or
a certificate, a Date field, an object's age) are compared with the time of day.

Neither stands in for the other: a reactor without `wall_seconds` is an error at once, and what writes a date takes
`WallSeconds`, which mypy tells from the seconds of a reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NewType, Protocol, cast

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

WallSeconds = NewType("WallSeconds", float)
"""Seconds since 1970."""


class _WallClock(Protocol):
    def wall_seconds(self) -> WallSeconds: ...


def wall_clock(clock: IReactorTime) -> Callable[[], WallSeconds]:
    """Return what gives the time of day that belongs to a reactor: the daemon's (`net/reactor.py`) has both."""
    return cast("_WallClock", clock).wall_seconds


def wall_seconds(clock: IReactorTime) -> WallSeconds:
    """Return the time of day."""
    return wall_clock(clock)()
