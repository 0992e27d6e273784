"""What a key wants: the rate that is offered, or the number of requests that would be in flight. Pure."""

from __future__ import annotations

import math

# Seconds in which most of a change of a rate is believed: of one that may be chance, since requests come at random
# moments, and of one that cannot. A want that follows every chance makes leases smaller and larger all the time, and
# what one gives back is unused until others have asked for it.
_STEADY = 4.0
_CHANGED = 0.1
_WINDOW = 1.0  # seconds in which most of what came counts for the difference
_DEVIATIONS = 3.5  # standard deviations of a number of requests at random moments, beyond which it is no chance
# The same for numbers in flight; less where a few requests say more of it.
_MEMORY = 0.5
_REQUESTS = 25


class KeyDemand:
    """The demand of one key at one replica, smoothed. `most`: more than that counts as that."""

    __slots__ = ("_more", "_variance", "in_flight", "want")

    def __init__(self, want: float = 0.0) -> None:
        self.want = want
        self.in_flight = 0
        # Of the last second or so: how many more came than were expected, and the variance that this has by chance.
        self._more = self._variance = 0.0

    def add_rate(self, taken: int, refused: int, seconds: float, most: float) -> None:
        """Count what was admitted and refused in the last `seconds`."""
        came = min(taken + refused, most * seconds)
        expected = self.want * seconds
        kept = math.exp(-seconds / _WINDOW)
        self._more = self._more * kept + came - expected
        self._variance = self._variance * kept + max(expected, came / 4)
        if abs(self._more) > _DEVIATIONS * math.sqrt(self._variance + 1.0):
            self._more = self._variance = 0.0
            self._move(came / seconds, seconds, _CHANGED)
        else:
            self._move(came / seconds, seconds, _STEADY)

    def add_in_flight(self, in_flight: int, refused: int, seconds: float, most: float) -> None:
        """Count what is in flight, and what was refused in the last `seconds`; a rise is believed at once."""
        self.in_flight = in_flight
        want = min(in_flight + refused, most)
        self.want = max(self.want, want)
        self._move(want, seconds, min(_MEMORY, _REQUESTS / max(self.want, 1.0)))

    def _move(self, want: float, seconds: float, memory: float) -> None:
        self.want += (want - self.want) * (1.0 - math.exp(-seconds / memory))
