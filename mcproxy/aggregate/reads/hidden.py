"""The states that a list is made from, and which of their objects it does not show.

Hidden are the objects of names that several members have, where a rule of `conflicts` shows one alone. They are found
in the states that the list is made from, so all pages of it agree, whatever has changed since; and among all objects,
whether selected or not: a name means one of them, whatever the selectors are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.sequence import key_of
from mcproxy.aggregate.reads.response_body import TURN_SECONDS, next_turn
from mcproxy.aggregate.view.duplicate_names import DuplicateNames

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.view.conflicts import Conflicts
    from mcproxy.aggregate.view.view import MemberView

_BEHIND_SLASH = "0"  # the character after the slash


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of one store, and the member that it is of."""

    member: MemberView
    snapshot: Snapshot

    @property
    def store(self) -> Store:
        return self.snapshot.store


class Hidden:
    """The keys that are hidden in each of the states."""

    __slots__ = ("_keys", "names")

    def __init__(
        self,
        states: Sequence[StoreState],
        conflicts: Conflicts,
        duplicates: DuplicateNames,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        """`states` are those of `duplicates`, in the order of the members; `names` has namespace and name of the
        list, each "" for all."""
        self.names = names
        found: dict[tuple[str, str], list[str]] = {}
        for key, places in duplicates.places.items():
            chosen = conflicts.shown(key.partition("/")[0])
            if chosen is None:
                continue
            shown = next((place for place in places if states[place].member.name == chosen), places[0])
            for place in places:
                if place != shown:
                    found.setdefault(_store_of(states[place]), []).append(key)
        self._keys = {state: sorted(keys) for state, keys in found.items()}

    def shown(self, state: StoreState, objects: Sequence[CachedObject]) -> Sequence[CachedObject]:
        """Return those of a state's objects, which are in the order of their keys, that are shown."""
        keys = self._keys.get(_store_of(state))
        if not keys or not objects:
            return objects
        start, end = bisect_left(keys, key_of(objects[0])), bisect_right(keys, key_of(objects[-1]))
        if start == end:
            return objects
        hidden = frozenset(keys[start:end])
        return [obj for obj in objects if key_of(obj) not in hidden]

    def count(self, state: StoreState, namespace: str, after: str = "") -> int:
        """Return how many keys of a state are hidden, in a namespace ("": all) and after the key `after`."""
        keys = self._keys.get(_store_of(state), ())
        start = max(bisect_right(keys, after), bisect_left(keys, f"{namespace}/") if namespace else 0)
        end = bisect_left(keys, namespace + _BEHIND_SLASH) if namespace else len(keys)
        return max(0, end - start)


def _store_of(state: StoreState) -> tuple[str, str]:
    return state.member.name, state.store.namespace


async def hidden_of(
    clock: IReactorTime, conflicts: Conflicts, states: Sequence[StoreState], namespace: str, name: str
) -> Hidden | None:
    """Return what of these states is not shown; None where no rule hides anything.

    `namespace` is that of the list, "" for all or none; `name` that of the only object, "" if there may be several.
    It takes time in proportion to the number of objects, in short turns of the reactor.
    """
    if not conflicts.shows_one_in(namespace) or len({state.member.name for state in states}) < 2:
        return None
    namespaced = states[0].store.resource.namespaced
    duplicates = DuplicateNames(
        [state.snapshot for state in states], namespace, name if namespace or not namespaced else ""
    )
    began = clock.seconds()
    while duplicates.step():
        if clock.seconds() - began > TURN_SECONDS:
            await next_turn(clock)
            began = clock.seconds()
    return Hidden(states, conflicts, duplicates, (namespace, name))
