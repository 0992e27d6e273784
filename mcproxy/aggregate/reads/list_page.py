"""What one response to a list holds: which objects of a state, and where the next page begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.sequence import CHUNK
from mcproxy.aggregate.reads.response_body import TURN_SECONDS, next_turn

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.object import CachedObject
    from mcproxy.aggregate.reads.snapshot import Part
    from mcproxy.aggregate.selection import Selection

BATCH = 512
"""Objects that are matched at once, at most."""
BATCH_COST = 16_384
"""`Selection.cost` of one batch: about two milliseconds."""
Batch = tuple["Part", "Sequence[CachedObject]"]
"""Objects of one store, in their order."""


@dataclass(frozen=True, slots=True)
class Start:
    """The place behind which a page begins: an object of the member with that place in the layout."""

    member: int
    namespace: str
    name: str


@dataclass(slots=True)
class Page:
    """The objects of one page, by part; `last` is the one that it ends with, if others follow."""

    items: list[Batch]
    last: tuple[Part, CachedObject] | None = None


class Lister:
    """Selects the objects of one list, in the order of members, namespaces and names, in short turns of the reactor."""

    def __init__(
        self,
        clock: IReactorTime,
        parts: Sequence[Part],
        namespace: str,
        selection: Selection,
        start: Start | None = None,
    ) -> None:
        """`namespace` is that of the request, "" for all or none."""
        self._clock = clock
        self._parts = [part for part in parts if start is None or part.member.index >= start.member]
        self._selection = selection
        self._start = start
        self._batch = max(1, min(BATCH, BATCH_COST // selection.cost))
        self._namespace = namespace or selection.namespace or ""
        if selection.impossible or (namespace and selection.namespace not in (None, namespace)):
            self._parts = []

    def batches(self) -> Iterator[Batch]:
        """Yield the selected objects in batches that are quickly made; one may be empty."""
        selection = self._selection
        for part in self._parts:
            if selection.by_label and self._batch >= CHUNK and self._is_whole(part):
                objects = part.snapshot.objects
                for index, chunk in enumerate(objects.chunks):
                    yield part, selection.filter_chunk(chunk, objects.label_runs(index))
                continue
            for batch in self._slices(part):
                yield part, selection.filter(batch) if selection else batch

    def _is_whole(self, part: Part) -> bool:
        """Whether all objects of a part are looked at."""
        continued = self._start is not None and self._start.member == part.member.index
        return not (continued or self._namespace or self._selection.name)

    def _slices(self, part: Part) -> Iterator[Sequence[CachedObject]]:
        start, name, namespace = self._start, self._selection.name, self._namespace
        snapshot = part.snapshot
        if start is not None and start.member == part.member.index:
            objects = snapshot.after(start.namespace, start.name, namespace)
        elif name is not None and (namespace or not part.store.resource.namespaced):
            found = snapshot.get(namespace, name)
            objects = iter((found,) if found is not None else ())
        elif namespace:
            objects = snapshot.range(namespace)
        else:
            for chunk in snapshot.objects.chunks:
                if len(chunk) <= self._batch:
                    yield chunk
                else:
                    yield from (chunk[place : place + self._batch] for place in range(0, len(chunk), self._batch))
            return
        while batch := list(islice(objects, self._batch)):
            yield batch

    def count(self) -> int:
        """Return how many objects there are, selected or not."""
        start, total = self._start, 0
        for part in self._parts:
            if start is not None and start.member == part.member.index:
                total += part.snapshot.count_after(start.namespace, start.name, self._namespace)
            else:
                total += part.snapshot.count(self._namespace)
        return total

    async def page(self, limit: int) -> Page:
        """Return the first `limit` objects."""
        page = Page([])
        room = limit
        began = self._clock.seconds()
        for part, found in self.batches():
            if len(found) > room:
                if room:
                    page.items.append((part, found[:room]))
                part, objects = page.items[-1]
                page.last = part, objects[-1]
                return page
            if found:
                page.items.append((part, found))
                room -= len(found)
            if self._clock.seconds() - began > TURN_SECONDS:
                await next_turn(self._clock)
                began = self._clock.seconds()
        return page
