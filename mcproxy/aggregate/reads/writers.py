"""Writing the items of a list from cached bytes, each with a comma before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from mcproxy.aggregate.representation.objects import (
    METADATA,
    TABLE,
    Representation,
    row_conditions,
    row_object,
)

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.object import CachedObject
    from mcproxy.aggregate.cache.store import Store

VersionWriter = Callable[[int], bytes]
"""`VersionFormat.object_template`: what an item has as its resourceVersion."""
ItemWriter = Callable[[Sequence["CachedObject"]], list[bytes]]
"""Returns the pieces of items; joined they are their JSON, with a comma before each."""


class CellPrinter(Protocol):
    """Makes the cells of one member's rows (`columns.Columns.printer`)."""

    def cells(self, obj: CachedObject, now: float) -> bytes: ...


def item_writers(
    wanted: Representation,
    version: VersionWriter,
    store: Store,
    *,
    always_typed: bool = False,
    printer: CellPrinter | None = None,
    now: float = 0.0,
) -> ItemWriter:
    """Return what writes the objects of one store.

    `always_typed`: with kind and apiVersion also where items of a list have none, as a single object is written.
    `printer` and `now` (seconds since 1970) are for a Table.
    """
    if wanted.kind == TABLE:
        assert printer is not None
        return _table_writer(wanted, version, store, printer, now)
    if wanted.kind:
        begin = b',{"kind":"PartialObjectMetadata","apiVersion":"' + wanted.api_version + b'","metadata":'
        return lambda objects: [
            piece
            for obj in objects
            for piece in (
                begin,
                obj.head[obj.metadata_start :],
                version(obj.version),
                obj.tail[: obj.metadata_end],
                b"}",
            )
        ]
    opening = b",{" + (store.type_prefix if store.items_typed or always_typed else b"")
    return lambda objects: [piece for obj in objects for piece in (opening, obj.head, version(obj.version), obj.tail)]


def _table_writer(
    wanted: Representation, version: VersionWriter, store: Store, printer: CellPrinter, now: float
) -> ItemWriter:
    prefix = store.type_prefix
    pods = (store.resource.gvr.group, store.resource.gvr.resource) == ("", "pods")
    metadata_only = wanted.include_object == METADATA
    begin = b'{"kind":"PartialObjectMetadata","apiVersion":"' + wanted.api_version + b'","metadata":'

    def write(objects: Sequence[CachedObject]) -> list[bytes]:
        pieces: list[bytes] = []
        for obj in objects:
            pieces += (b',{"cells":', printer.cells(obj, now))
            if pods:
                pieces.append(row_conditions(obj))
            if metadata_only:
                pieces += (
                    b',"object":',
                    begin,
                    obj.head[obj.metadata_start :],
                    version(obj.version),
                    obj.tail[: obj.metadata_end],
                    b"}}",
                )
            else:
                pieces += (b',"object":', row_object(obj, version(obj.version), prefix, wanted), b"}")
        return pieces

    return write
