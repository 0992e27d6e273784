"""Smooth weighted round robin, nginx's: turns in proportion to weights, spread instead of in runs. No endpoints here.

Everybody is owed its weight with each turn; whoever is owed most gets it and pays the sum of all weights. From an even
start each has exactly its weight of turns after one round, and everything begins again.

nginx keeps the debts as they are when somebody goes out or comes back. A debt of a large round is then paid in a small
one: with weights 100, 1, 1 the heavy one goes out and one of the light ones gets fifty turns in a row. Here debts are
counted in turns, so they are scaled to the new round, and none outlasts a change by more than half a turn.
"""

from __future__ import annotations

from collections.abc import Sequence


class Smooth:
    """The debts of `count` participants, known by their index."""

    __slots__ = ("_among", "_owed", "_round", "_weights")

    def __init__(self, count: int) -> None:
        self._weights: tuple[int, ...] = (1,) * count
        self._owed = [0] * count
        self._among: tuple[int, ...] = ()
        self._round = 1  # the sum of the weights in `_among`, which is the unit of `_owed`

    def weighing(self, weights: tuple[int, ...]) -> Smooth:
        """Go on with these weights; return itself."""
        self._weights = weights
        self._among = ()
        return self

    def reordered(self, indices: Sequence[int | None]) -> Smooth:
        """Return a copy for other participants: for each, the index that it had here, or None if it is new."""
        copy = Smooth(len(indices))
        copy._owed = [0 if index is None else self._owed[index] for index in indices]
        copy._round = self._round
        return copy

    def turn(self, among: tuple[int, ...], allowed: Sequence[int]) -> int:
        """Return whose turn it is: one of `allowed`, which is not empty, while all of `among` are owed their share."""
        if among != self._among:
            self._settle(among)
        owed, weights = self._owed, self._weights
        for index in among:
            owed[index] += weights[index]
        chosen = max(allowed, key=owed.__getitem__)  # the first of those that are owed the same
        owed[chosen] -= self._round
        return chosen

    def _settle(self, among: tuple[int, ...]) -> None:
        """Take debts over into the round of those who now take part; who does not is owed nothing."""
        before, total = self._round, sum([self._weights[index] for index in among])
        half = total // 2
        owed = [0] * len(self._owed)
        for index in among:
            owed[index] = min(half, max(-half, self._owed[index] * total // before))
        self._owed, self._among, self._round = owed, among, total
