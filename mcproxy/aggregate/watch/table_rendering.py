"""Watch events as Tables: one row each, and columnDefinitions in the first event of a client only. Pure.

Source: Kubernetes API concepts ("Receiving resources as Tables"), and recordings of a kube-apiserver 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import msgspec

from mcproxy.aggregate.representation.columns import Columns, go_escaped, parse_columns
from mcproxy.aggregate.representation.objects import NONE, OBJECT, Representation, row_conditions, row_object, table_row
from mcproxy.aggregate.watch.rendering import bookmark_object

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.object import CachedObject, EventType
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.kube.resource import APIResource

_PODS = ("", "pods")
_NUMBERS = ("integer", "number")


class TableRendering:
    """Tables. `stores` returns those of the view, whose columns may still change; `now` seconds since 1970."""

    __slots__ = ("_columns", "_now", "_resource", "_sources", "_stores", "_wanted", "key")

    def __init__(
        self,
        wanted: Representation,
        resource: APIResource,
        stores: Callable[[], Sequence[Store]],
        now: Callable[[], float],
    ) -> None:
        self.key: Hashable = ("table", wanted.version, wanted.include_object)
        self._wanted = wanted
        self._resource = resource
        self._stores = stores
        self._now = now
        self._sources: tuple[bytes | None, ...] = ()
        self._columns = self._union()

    def _union(self) -> Columns:
        stores = self._stores()
        self._sources = tuple(dict.fromkeys(store.columns for store in stores if store.synced)) or (None,)
        custom = bool(stores) and stores[0].items_typed
        return Columns(self._sources, self._resource.gvr, custom=custom)

    def event(self, kind: EventType, store: Store, obj: CachedObject, version: bytes, *, first: bool) -> bytes:
        if store.columns not in self._sources:
            self._columns = self._union()
        source = store.columns if store.columns in self._sources else self._sources[0]
        cells = self._columns.printer(source).cells(obj, self._now())
        conditions = row_conditions(obj) if self._resource.gvr[::2] == _PODS else b""
        row = table_row(cells, row_object(obj, version, store.type_prefix, self._wanted), conditions)
        return self._line(kind.value.encode(), version, row, first=first)

    def bookmark(self, store: Store | None, version: bytes, *, initial_end: bool, first: bool) -> bytes:
        if self._wanted.include_object == NONE:
            obj = b"null"
        elif self._wanted.include_object == OBJECT:
            prefix = b"" if store is None else store.type_prefix
            obj = bookmark_object(prefix, version, initial_end=initial_end)
        else:
            prefix = b'"kind":"PartialObjectMetadata","apiVersion":"%b",' % self._wanted.api_version
            obj = bookmark_object(prefix, version, initial_end=initial_end)
        return self._line(b"BOOKMARK", version, table_row(self._empty_cells(), obj), first=first)

    def _empty_cells(self) -> bytes:
        """Return the cells of an object in which nothing is set: 0 where others have a number.

        The type of a column does not say that: the column Data of config maps is a string by its definition.
        """
        sample = self._sample()
        cells: list[object] = []
        for place, column in enumerate(parse_columns(self._columns.definitions) or ()):
            cell = sample[place] if place < len(sample) else 0 if column.type in _NUMBERS else ""
            if isinstance(cell, bool):
                cells.append(False)
            elif isinstance(cell, int | float):
                cells.append(0)
            else:
                cells.append("<unknown>" if column.name == "Age" else "")
        return go_escaped(msgspec.json.encode(cells))

    def _sample(self) -> list[object]:
        """Return the cells of some object."""
        for store in self._stores():
            obj = next(iter(store.snapshot()), None)
            if obj is not None and store.columns in self._sources:
                cells: list[object] = msgspec.json.decode(self._columns.printer(store.columns).cells(obj, self._now()))
                return cells
        return []

    def _line(self, kind: bytes, version: bytes, row: bytes, *, first: bool) -> bytes:
        return (
            b'{"type":"%b","object":{"kind":"Table","apiVersion":"%b","metadata":{"resourceVersion":"%b"},'
            b'"columnDefinitions":%b,"rows":[%b]}}\n'
            % (kind, self._wanted.api_version, version, self._columns.definitions if first else b"null", row)
        )
