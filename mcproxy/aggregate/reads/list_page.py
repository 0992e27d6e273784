"""One page of a list: which objects of the states it has, and where the next page begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.sequence import CHUNK
from mcproxy.aggregate.reads.response_body import TURN_SECONDS, next_turn

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.reads.hidden import Hidden, StoreState
    from mcproxy.aggregate.selection import Selection

BATCH = 512
"""Objects that are matched at once, at most."""
BATCH_COST = 16_384
"""`Selection.cost` of one batch: about two milliseconds."""
Batch = tuple["StoreState", "Sequence[CachedObject]"]
"""Objects of one store, in their order."""


@dataclass(frozen=True, slots=True)
class Start:
    """The place after which a page begins: an object of the member with that place in the layout."""

    member: int
    namespace: str
    name: str


@dataclass(slots=True)
class Page:
    """The objects of one page, by state; `last` is the one that it ends with, if others follow."""

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
        start: Start | None = None,
        hidden: Hidden | None = None,
    ) -> None:
        """`namespace` is that of the request, "" for all or none; `hidden` what of the states is not shown."""
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
        """Yield the selected objects in batches that are quickly made; one may be empty."""
        hidden = self._hidden
        return self._selected() if hidden is None else self._shown(hidden)

    def _shown(self, hidden: Hidden) -> Iterator[Batch]:
        for state, objects in self._selected():
            yield state, hidden.shown(state, objects)

    def _selected(self) -> Iterator[Batch]:
        selection = self._selection
        for state in self._states:
            if selection.by_label and self._batch >= CHUNK and self._is_whole(state):
                objects = state.snapshot.objects
                for index, chunk in enumerate(objects.chunks):
                    yield state, selection.filter_chunk(chunk, objects.label_runs(index))
                continue
            for batch in self._slices(state):
                yield state, selection.filter(batch) if selection else batch

    def _is_whole(self, state: StoreState) -> bool:
        """Whether all objects of a state are looked at."""
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
        """Return how many objects there are, selected or not."""
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

    async def page(self, limit: int) -> Page:
        """Return the first `limit` objects."""
        page = Page([])
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
