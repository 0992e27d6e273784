"""The time of day, which may jump: set by an administrator, by NTP, or after a virtual machine has been suspended.

A reactor's `seconds()` counts evenly from an arbitrary start (CLOCK_MONOTONIC), so that timeouts, limits and caches
last as long as they should, whatever is done to the clock. Times that others understand too (the expiry of a token or
a certificate, a Date field, an object's age) are compared with the time of day.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast


class Clock(Protocol):
    """The part of IReactorTime that is used here."""

    def seconds(self) -> float: ...


def wall_clock(clock: Clock) -> Callable[[], float]:
    """Return what gives the time of day (seconds since 1970) that belongs to a reactor.

    The daemon's reactor has both (`net/reactor.py`). Others, and the clocks of tests, have one time for both purposes.
    """
    return cast("Callable[[], float]", getattr(clock, "wall_seconds", clock.seconds))


def wall_seconds(clock: Clock) -> float:
    """Return the time of day in seconds since 1970."""
    return wall_clock(clock)()
