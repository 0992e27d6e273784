"""The time of day, which can jump: by an administrator, NTP, or the suspension of a virtual machine.

A reactor's `seconds()` counts evenly from an arbitrary start (CLOCK_MONOTONIC), so that timeouts, limits and caches do
not depend on the time of day. Times that are exchanged with other systems (the expiry of a token or a certificate, a
Date field, an object's age) use the time of day.

The two clocks cannot be confused. A reactor without `wall_seconds` is an error at once. Code that writes a date takes
`WallSeconds`, which mypy distinguishes from the seconds of a reactor.
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
    """Return the wall clock of a reactor. The daemon's reactor (`net/reactor.py`) has both clocks."""
    return cast("_WallClock", clock).wall_seconds


def wall_seconds(clock: IReactorTime) -> WallSeconds:
    """Return the time of day."""
    return wall_clock(clock)()
