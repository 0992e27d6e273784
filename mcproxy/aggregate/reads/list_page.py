"""One page of a list: its objects, and where the next page begins."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.sequence import CHUNK, key_of
from mcproxy.aggregate.cache.store import Snapshot
from mcproxy.aggregate.reads.response_body import TURN_SECONDS, next_turn
from mcproxy.aggregate.view.conflicts import DuplicateNames
from mcproxy.aggregate.view.view import MemberView

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.selection import Selection
    from mcproxy.aggregate.view.conflicts import Conflicts

BATCH = 512
"""Maximum number of objects that are matched at a time."""
BATCH_COST = 16_384
"""Maximum `Selection.cost` of one batch: about two milliseconds."""
Batch = tuple["StoreState", "Sequence[CachedObject]"]
"""Objects of one store, in key order."""


@dataclass(frozen=True, slots=True)
class PageStart:
    """The object after which a page begins; `member` is the index of its member in the layout."""

    member: int
    namespace: str
    name: str


@dataclass(slots=True)
class SelectedPage:
    """The objects of one page, in batches of one store each; `last` is its last object if more objects follow."""

    items: list[Batch]
    last: tuple[StoreState, CachedObject] | None = None


class Lister:
    """Selects the objects of one list, in the order of members, namespaces and names, in short turns of the reactor."""

    def __init__(
        self,
        clock: IReactorTime,
        states: Sequence[StoreState],
        namespace: str,
        selection: Selection,
        start: PageStart | None = None,
        hidden: Hidden | None = None,
    ) -> None:
        """`namespace` is that of the request, "" for all or none; `hidden` are the objects to leave out."""
        self._clock = clock
        self._states = [state for state in states if start is None or state.member.index >= start.member]
        self._selection = selection
        self._start = start
        self._hidden = hidden
        self._batch = max(1, min(BATCH, BATCH_COST // selection.cost))
        self._namespace = namespace or selection.namespace or ""
        if selection.impossible or (namespace and selection.namespace not in (None, namespace)):
            self._states = []

    def batches(self) -> Iterator[Batch]:
        """Yield the selected objects in batches that each take little time to make; a batch can be empty."""
        hidden = self._hidden
        return self._selected() if hidden is None else self._shown(hidden)

    def _shown(self, hidden: Hidden) -> Iterator[Batch]:
        for state, objects in self._selected():
            yield state, hidden.shown(state, objects)

    def _selected(self) -> Iterator[Batch]:
        selection = self._selection
        for state in self._states:
            if selection.by_chunk and self._batch >= CHUNK and self._is_whole(state):
                objects = state.snapshot.objects
                for index in range(len(objects.chunks)):
                    yield state, selection.filter_chunk(objects, index)
                continue
            for batch in self._slices(state):
                yield state, selection.filter(batch) if selection else batch

    def _is_whole(self, state: StoreState) -> bool:
        """Whether the list covers all objects of a state (before selectors): it has no start, namespace or name."""
        continued = self._start is not None and self._start.member == state.member.index
        return not (continued or self._namespace or self._selection.name)

    def _slices(self, state: StoreState) -> Iterator[Sequence[CachedObject]]:
        start, name, namespace = self._start, self._selection.name, self._namespace
        snapshot = state.snapshot
        if start is not None and start.member == state.member.index:
            objects = snapshot.after(start.namespace, start.name, namespace)
        elif name is not None and (namespace or not state.store.resource.namespaced):
            found = snapshot.get(namespace, name)
            objects = iter((found,) if found is not None else ())
        elif namespace:
            objects = snapshot.range(namespace)
        else:
            for chunk in snapshot.objects.chunks:
                if len(chunk) <= self._batch:
                    yield chunk
                else:
                    for place in range(0, len(chunk), self._batch):
                        yield chunk[place : place + self._batch]
            return
        while batch := list(islice(objects, self._batch)):
            yield batch

    def count(self) -> int:
        """Return the number of objects in the list, whether selected or not."""
        start, total = self._start, 0
        for state in self._states:
            if start is not None and start.member == state.member.index:
                total += state.snapshot.count_after(start.namespace, start.name, self._namespace)
                total -= self._hidden_in(state, f"{start.namespace}/{start.name}")
            else:
                total += state.snapshot.count(self._namespace) - self._hidden_in(state)
        return total

    def _hidden_in(self, state: StoreState, after: str = "") -> int:
        return self._hidden.count(state, self._namespace, after) if self._hidden is not None else 0

    async def page(self, limit: int) -> SelectedPage:
        """Return the first `limit` objects."""
        page = SelectedPage([])
        room = limit
        began = self._clock.seconds()
        for state, found in self.batches():
            if len(found) > room:
                if room:
                    page.items.append((state, found[:room]))
                state, objects = page.items[-1]
                page.last = state, objects[-1]
                return page
            if found:
                page.items.append((state, found))
                room -= len(found)
            if self._clock.seconds() - began > TURN_SECONDS:
                await next_turn(self._clock)
                began = self._clock.seconds()
        return page


# -- hidden objects -------------------------------------------------------------------------------------------
#
# The states from which a list is made, and the objects in them that the list hides.
#
# If several members have an object of the same name, a rule of `conflicts` can show only one; the others are hidden.
# The hidden objects are determined from the states of the list, so all its pages agree, even if objects change. They
# are determined among all objects, whether selected or not, so that a name refers to the same object with any
# selectors.


_BEHIND_SLASH = "0"  # the character after the slash


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state of one store, and its member."""

    member: MemberView
    snapshot: Snapshot

    @property
    def store(self) -> Store:
        return self.snapshot.store


class Hidden:
    """The keys of hidden objects in each of the states."""

    __slots__ = ("_keys", "names")

    def __init__(
        self,
        states: Sequence[StoreState],
        conflicts: Conflicts,
        duplicates: DuplicateNames,
        names: tuple[str, str] = ("", ""),
    ) -> None:
        """`states` are the states of `duplicates`, in member order; `names` has namespace and name of the list, each ""
        for all."""
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
        """Return the objects that are not hidden; `objects` are of one state, in key order."""
        keys = self._keys.get(_store_of(state))
        if not keys or not objects:
            return objects
        start, end = bisect_left(keys, key_of(objects[0])), bisect_right(keys, key_of(objects[-1]))
        if start == end:
            return objects
        hidden = frozenset(keys[start:end])
        return [obj for obj in objects if key_of(obj) not in hidden]

    def count(self, state: StoreState, namespace: str, after: str = "") -> int:
        """Return the number of hidden keys of a state, in a namespace ("": all) and after the key `after`."""
        keys = self._keys.get(_store_of(state), ())
        start = max(bisect_right(keys, after), bisect_left(keys, f"{namespace}/") if namespace else 0)
        end = bisect_left(keys, namespace + _BEHIND_SLASH) if namespace else len(keys)
        return max(0, end - start)


def _store_of(state: StoreState) -> tuple[str, str]:
    return state.member.name, state.store.namespace


async def hidden_of(
    clock: IReactorTime, conflicts: Conflicts, states: Sequence[StoreState], namespace: str, name: str
) -> Hidden | None:
    """Return the hidden objects of these states; None if no rule hides objects.

    `namespace` is that of the list, "" for all or none; `name` is that of the only object, "" if there can be several.
    The search takes linear time, in short turns of the reactor.
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
