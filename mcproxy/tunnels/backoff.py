"""The times between attempts to open a tunnel: full jitter, so that many edges do not come back at the same time. Pure.

Source of "full jitter": M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST: Final = 0.5
"""Upper bound of the first delay in seconds; it doubles with each attempt."""
MOST: Final = 60.0
"""Greatest upper bound of a delay (seconds)."""
LIVED: Final = 60.0
"""Seconds of life after which a connection's loss is a first failure again."""
OF_USE: Final = 5.0
"""Seconds of life after which the next attempt comes soon, whatever was before."""
_DOUBLINGS = 7  # 0.5 s * 2**7 exceeds MOST


class Backoff:
    """The delays of one hub. `random` returns a float in [0, 1)."""

    __slots__ = ("_failures", "_random")

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._failures = 0

    def after_failure(self, retry_after: float = 0.0) -> float:
        """Return the seconds until the next attempt, after a failed one.

        `retry_after`: the seconds that the hub asked for (Retry-After, RFC 9110 10.2.3), to which the delay is added.
        """
        bound = min(MOST, FIRST * (1 << min(self._failures, _DOUBLINGS)))
        self._failures += 1
        return min(max(retry_after, 0.0), MOST) + bound * self._random()

    def after_loss(self, lived: float) -> float:
        """Return the seconds until the next attempt, after a connection that has lived for `lived` seconds.

        The first attempt after a connection that was of use comes soon. If it fails, the delays are those of before.
        """
        if lived >= LIVED:
            self._failures = 0
        return FIRST * self._random() if lived >= OF_USE else self.after_failure()

    def steady(self) -> float:
        """Return the seconds until the next attempt after a failure that only an operator can mend: about a minute."""
        self._failures += 1
        return MOST * (0.75 + 0.5 * self._random())
