"""Encodes Tables: a row for each object, in lists and in watch events.

A watch event is a Table of one row; only the first event of a watch has columnDefinitions. If the columns change during
a watch (the columns of an empty cache become known, a definition is changed, or a member returns), the next event
has columnDefinitions again, as clients expect.

Source: Kubernetes API concepts ("Receiving resources as Tables"), and recordings of a kube-apiserver 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from mcproxy.aggregate.encoding.column_definitions import parse_columns
from mcproxy.aggregate.encoding.columns import CELLS, Columns, StoreColumns, columns_of, go_escaped
from mcproxy.aggregate.encoding.objects import (
    METADATA,
    NONE,
    OBJECT,
    ItemWriter,
    ListMeta,
    Representation,
    VersionWriter,
    bookmark_object,
    partial_prefix,
)
from mcproxy.aggregate.selection import scalar_at

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.kube.resource import APIResource

_PODS = ("", "pods")
_NUMBERS = ("integer", "number")
_PHASES = (
    (
        "Succeeded",
        b',"conditions":[{"type":"Completed","status":"True","reason":"Succeeded",'
        b'"message":"The pod has completed successfully."}]',
    ),
    (
        "Failed",
        b',"conditions":[{"type":"Completed","status":"True","reason":"Failed","message":"The pod failed."}]',
    ),
)


class TableEncoder:
    """Encodes Tables (`encoder.Encoder`)."""

    __slots__ = ("_api_version", "_custom", "_gvr", "_include_object", "_now", "_partial_prefix", "_pods", "key")

    def __init__(
        self, wanted: Representation, resource: APIResource, now: Callable[[], float], *, custom: bool
    ) -> None:
        """`now` returns seconds since 1970."""
        self.key: Hashable = ("table", wanted.version, wanted.include_object)
        self._api_version = wanted.api_version
        self._include_object = wanted.include_object
        self._partial_prefix = partial_prefix(wanted)
        self._gvr = resource.gvr
        self._pods = resource.gvr[::2] == _PODS
        self._custom = custom
        self._now = now

    # -- gets and lists ---------------------------------------------------------------------------------------

    def single(self, store: Store, obj: CachedObject, version: bytes) -> bytes:
        columns = Columns([store.columns], self._gvr, custom=store.items_typed)
        head, tail = self.envelope(ListMeta(version.decode()), "", columns)
        cells = columns.printer(store.columns).cells(obj, self._now())
        return b"".join((head, *self._row(b'{"cells":', cells, obj, version, store.type_prefix), tail))

    def columns(self, states: Iterable[Snapshot]) -> Columns | None:
        return Columns(columns_of(states), self._gvr, custom=self._custom)

    def envelope(self, metadata: ListMeta, list_kind: str, columns: Columns | None) -> tuple[bytes, bytes]:
        assert columns is not None
        head = b'{"kind":"Table","apiVersion":"%b","metadata":%b,"columnDefinitions":%b,"rows":['
        return head % (self._api_version, metadata.json(), columns.definitions), b"]}\n"

    def items(self, snapshot: Snapshot, version: VersionWriter, columns: Columns | None) -> ItemWriter:
        assert columns is not None
        prefix, now = snapshot.store.type_prefix, self._now()
        printer, row = columns.printer(snapshot.columns), self._row

        def write(objects: Sequence[CachedObject]) -> list[bytes]:
            pieces: list[bytes] = []
            for obj in objects:
                pieces += row(b',{"cells":', printer.cells(obj, now), obj, version(obj.version), prefix)
            return pieces

        return write

    def _row(
        self, opening: bytes, cells: bytes, obj: CachedObject, version: bytes, type_prefix: bytes
    ) -> tuple[bytes, ...]:
        """Return the pieces of a row."""
        conditions = row_conditions(obj) if self._pods else b""
        if self._include_object == METADATA:
            return (
                opening,
                cells,
                conditions,
                b',"object":{',
                self._partial_prefix,
                b'"metadata":',
                obj.head[obj.metadata_start :],
                version,
                obj.tail[: obj.metadata_end],
                b"}}",
            )
        if self._include_object == OBJECT:
            return opening, cells, conditions, b',"object":{', type_prefix, obj.head, version, obj.tail, b"}"
        return opening, cells, conditions, b',"object":null}'

    # -- watches ----------------------------------------------------------------------------------------------

    def definitions(self, columns: StoreColumns, store: Store | None) -> bytes:
        return columns.of(store).definitions

    def event(
        self,
        kind: EventType,
        columns: StoreColumns,
        store: Store,
        obj: CachedObject,
        version: bytes,
        sent_definitions: bytes | None,
    ) -> bytes:
        found = columns.of(store)
        cells = found.printer(store.columns).cells(obj, self._now())
        row = b"".join(self._row(b'{"cells":', cells, obj, version, store.type_prefix))
        return self._line(kind.value.encode(), version, row, found.definitions, sent_definitions)

    def bookmark(
        self,
        columns: StoreColumns,
        store: Store | None,
        version: bytes,
        sent_definitions: bytes | None,
        *,
        initial_end: bool,
    ) -> bytes:
        found = columns.of(store)
        if self._include_object == NONE:
            obj = b"null"
        else:
            type_prefix = b"" if store is None else store.type_prefix
            prefix = type_prefix if self._include_object == OBJECT else self._partial_prefix
            obj = bookmark_object(prefix, version, initial_end=initial_end)
        row = b'{"cells":%b,"object":%b}' % (self._empty_cells(columns, found), obj)
        return self._line(b"BOOKMARK", version, row, found.definitions, sent_definitions)

    def _empty_cells(self, columns: StoreColumns, found: Columns) -> bytes:
        """Return the cells of an empty object: 0 in columns where other objects have a number.

        The column's type is not enough: the column Data of ConfigMaps is a string by its definition.
        """
        sample = self._sample(columns, found)
        cells: list[object] = []
        for place, column in enumerate(parse_columns(found.definitions) or ()):
            cell = sample[place] if place < len(sample) else 0 if column.type in _NUMBERS else ""
            if isinstance(cell, bool):
                cells.append(False)
            elif isinstance(cell, int | float):
                cells.append(0)
            else:
                cells.append("<unknown>" if column.name == "Age" else "")
        return go_escaped(msgspec.json.encode(cells))

    def _sample(self, columns: StoreColumns, found: Columns) -> list[object]:
        """Return the cells of an arbitrary object of the stores."""
        for store in columns.stores:
            obj = next(iter(store.snapshot()), None)
            if obj is not None:
                cells: list[object] = CELLS.decode(found.printer(store.columns).cells(obj, self._now()))
                return cells
        return []

    def _line(
        self, kind: bytes, version: bytes, row: bytes, definitions: bytes, sent_definitions: bytes | None
    ) -> bytes:
        return (
            b'{"type":"%b","object":{"kind":"Table","apiVersion":"%b","metadata":{"resourceVersion":"%b"},'
            b'"columnDefinitions":%b,"rows":[%b]}}\n'
            % (kind, self._api_version, version, b"null" if sent_definitions == definitions else definitions, row)
        )


def row_conditions(obj: CachedObject) -> bytes:
    """Return the conditions of a pod's row, with a comma before them; b"" for a pod that has not terminated."""
    for phase, conditions in _PHASES:
        if b'"%b"' % phase.encode() in obj.tail and (
            scalar_at(obj.json(b"", b"%d" % obj.version), ("status", "phase")) == phase
        ):
            return conditions
    return b""
