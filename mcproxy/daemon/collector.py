"""How often Python's garbage collector looks for cycles in a process of the daemon."""

from __future__ import annotations

import gc

_THRESHOLDS = (20_000, 10, 10)


def set_thresholds() -> None:
    """Let it look rarely.

    A finished request leaves no cycles, but with Python's own thresholds some hundred requests in flight make it search
    for cycles all the time: a tenth of their processor time.
    """
    gc.set_threshold(*_THRESHOLDS)
