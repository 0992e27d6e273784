"""The object names that more than one of some store states have: of one list, or of a watch that begins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.sequence import key_of

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.store import Snapshot

_BEHIND_SLASH = "0"  # the character after the slash
_BEHIND_KEY = "\0"  # nothing stands between a key and the key with this behind it


class DuplicateNames:
    """Found out in steps, each of which looks at one range of keys in all states.

    `places` has, for each key (`namespace/name`) of which several states have an object, their places in the order
    of the states; complete when `step` has returned False.
    """

    __slots__ = ("_ranges", "_snapshots", "places")

    def __init__(self, snapshots: Sequence[Snapshot], namespace: str = "", name: str = "") -> None:
        """`namespace` and `name`: only those; "" is all. A name needs its namespace, if the resource has them."""
        self.places: dict[str, list[int]] = {}
        self._snapshots = tuple(snapshots)
        self._ranges = self._all_ranges(namespace, name) if len(self._snapshots) > 1 else iter(())

    def step(self) -> bool:
        """Look at one more range; return whether there may be another."""
        found = next(self._ranges, None)
        if found is None:
            return False
        start, end = found
        first: dict[str, int] = {}
        for place, snapshot in enumerate(self._snapshots):
            for item in snapshot.objects.between(start, end):
                key = key_of(item)
                before = first.setdefault(key, place)
                if before != place:
                    self.places.setdefault(key, [before]).append(place)
        return True

    def _all_ranges(self, namespace: str, name: str) -> Iterator[tuple[str, str | None]]:
        """Yield ranges of keys, so narrow that none has more than about one chunk of each state."""
        if name:
            key = f"{namespace}/{name}"
            yield key, key + _BEHIND_KEY
            return
        start, end = (f"{namespace}/", namespace + _BEHIND_SLASH) if namespace else ("", None)
        firsts = {key_of(chunk[0]) for snapshot in self._snapshots for chunk in snapshot.objects.chunks[1:]}
        edges = sorted(key for key in firsts if start < key and (end is None or key < end))
        for edge in edges:
            yield start, edge
            start = edge
        yield start, end
