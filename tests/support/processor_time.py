"""How much processor time code takes, in seconds of the machine for which the bounds in tests were chosen.

A bound in seconds fails on a slower machine, and on any while another process uses the other half of the core. So a
piece of work that is always the same is measured with it. Collections of garbage look at what the code has made alone,
and not at all that the tests before it have left. That stays frozen.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

_USUAL = 0.004
"""Seconds that the work of `_measure` takes on that machine (Python 3.11, 2.1 GHz, one process a core)."""


class Taken:
    """Processor time of this thread; `seconds` is known when the `with` has ended."""

    seconds: float = -1.0


@contextmanager
def processor_time() -> Iterator[Taken]:
    """Measure what the `with` contains."""
    gc.collect()
    gc.freeze()
    taken = Taken()
    slowness = speed()
    begun = time.thread_time()
    try:
        yield taken
    finally:
        spent = time.thread_time() - begun
        taken.seconds = spent / max(slowness, speed())


def speed() -> float:
    """Return how many times longer than usual code takes now; never less than 1."""
    return max(1.0, min(_measure() for _ in range(3)) / _USUAL)


def _measure() -> float:
    begun = time.thread_time()
    found: dict[str, list[bytes]] = {}
    for number in range(8000):
        found.setdefault(f"key-{number % 500}", []).append(b"%d" % number)
    b"".join(b"".join(values) for values in found.values()).decode().split("7")
    return time.thread_time() - begun
