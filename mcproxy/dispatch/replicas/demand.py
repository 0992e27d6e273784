"""What a key wants: the rate that is offered, or the number of requests that would be in flight. Pure."""

from __future__ import annotations

import math

# Seconds in which most of a change is believed; less where a few requests say more of it.
_MEMORY = 0.5
_REQUESTS = 25


class KeyDemand:
    """The demand of one key at one replica, smoothed over about a second. `most`: more than that counts as that."""

    __slots__ = ("in_flight", "want")

    def __init__(self, want: float = 0.0) -> None:
        self.want = want
        self.in_flight = 0

    def add_rate(self, taken: int, refused: int, seconds: float, most: float) -> None:
        """Count what was admitted and refused in the last `seconds`."""
        self._add((taken + refused) / seconds, seconds, most)

    def add_in_flight(self, in_flight: int, refused: int, seconds: float, most: float) -> None:
        """Count what is in flight, and what was refused in the last `seconds`; a rise is believed at once."""
        self.in_flight = in_flight
        self.want = max(self.want, min(in_flight + refused, most))
        self._add(in_flight + refused, seconds, most)

    def _add(self, want: float, seconds: float, most: float) -> None:
        memory = min(_MEMORY, _REQUESTS / max(self.want, want, 1.0))
        self.want += (min(want, most) - self.want) * (1.0 - math.exp(-seconds / memory))
