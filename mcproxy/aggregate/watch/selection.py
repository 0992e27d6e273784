"""Which changes a watch sends, and as what: namespace, name and selectors, with their transitions. Pure.

Source: Kubernetes API concepts ("Efficient detection of changes"); k8s.io/apiserver `storage/cacher` (cacheWatcher):
an object that comes into the selection is ADDED, one that leaves it is DELETED with its last matching state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from mcproxy.aggregate.cache.object import CachedObject, Event, EventType

_STEP_COST = 16_384
Predicate = Callable[[CachedObject], bool]


class Outcome(NamedTuple):
    """What a watch sends for a change; `object` has another state than the change where it left the selection."""

    type: EventType
    object: CachedObject


@dataclass(frozen=True, slots=True, eq=False)
class WatchSelection:
    """`namespace` "" is all; `name` is the only object that can match ("" for any); `matches` has label and field
    selectors (None: they select everything). Watches whose `key` is equal select the same. `cost` is
    `aggregate.selection.Selection.cost`."""

    key: Hashable = ()
    namespace: str = ""
    name: str = ""
    matches: Predicate | None = None
    cost: int = 1

    def at_once(self, most: int) -> int:
        """Return how many objects may be matched in one step: at most `most`, and for about two milliseconds."""
        return max(1, min(most, _STEP_COST // self.cost))

    def selects(self, obj: CachedObject) -> bool:
        """Whether the object, in this state, is in the selection."""
        if self.namespace and obj.namespace != self.namespace:
            return False
        if self.name and obj.name != self.name:
            return False
        return self.matches is None or self.matches(obj)

    def outcome(self, event: Event) -> Outcome | None:
        """Return what is sent for a change; None if nothing is."""
        obj = event.object
        if (self.namespace and obj.namespace != self.namespace) or (self.name and obj.name != self.name):
            return None
        kind, matches, previous = event.type, self.matches, event.previous
        if matches is None:
            return Outcome(kind, obj)
        if kind is EventType.DELETED:
            # The client knows the state before, so that decides; it is sent as it was deleted.
            return Outcome(kind, obj) if matches(previous or obj) else None
        was = previous is not None and kind is EventType.MODIFIED and matches(previous)
        if matches(obj):
            return Outcome(EventType.MODIFIED if was else EventType.ADDED, obj)
        if was and previous is not None:
            return Outcome(EventType.DELETED, previous)
        return None
