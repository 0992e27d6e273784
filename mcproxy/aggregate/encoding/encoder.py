"""The interface of the encoders of all representations, for gets, lists and watches.

Source: Kubernetes API concepts ("Efficient detection of changes", "Receiving resources as Tables"), and recordings of a
kube-apiserver 1.36 for the order of the fields. Custom resources have sorted keys, and kind and apiVersion in every
list item. Built-in resources have Go's order of fields, and list items without kind and apiVersion.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Protocol

from mcproxy.aggregate.encoding.objects import (
    TABLE,
    ItemWriter,
    ListMeta,
    ObjectEncoder,
    PartialEncoder,
    Representation,
    VersionWriter,
)
from mcproxy.aggregate.encoding.table import TableEncoder

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.aggregate.encoding.columns import Columns, StoreColumns
    from mcproxy.kube.resource import APIResource


class Encoder(Protocol):
    """Encodes one resource in one representation. The `columns` arguments matter only for Tables."""

    @property
    def key(self) -> Hashable:
        """The key of the encoder. Encoders of one resource with equal keys produce the same bytes."""

    # -- gets and lists ---------------------------------------------------------------------------------------

    def single(self, store: Store, obj: CachedObject, version: bytes) -> bytes:
        """Return the body of a get."""

    def columns(self, states: Iterable[Snapshot]) -> Columns | None:
        """Return the columns of a list of these states of stores; None if the representation is not Table."""

    def envelope(self, metadata: ListMeta, list_kind: str, columns: Columns | None) -> tuple[bytes, bytes]:
        """Return the bytes before and after the items of a list."""

    def items(self, snapshot: Snapshot, version: VersionWriter, columns: Columns | None) -> ItemWriter:
        """Return the writer for the items of one store in a list."""

    # -- watches ----------------------------------------------------------------------------------------------

    def definitions(self, columns: StoreColumns, store: Store | None) -> bytes:
        """Return the columnDefinitions that a client needs to read an event of `store`; b"" if it needs none."""

    def event(
        self,
        kind: EventType,
        columns: StoreColumns,
        store: Store,
        obj: CachedObject,
        version: bytes,
        sent_definitions: bytes | None,
    ) -> bytes:
        """Return the line of a change. `sent_definitions` were sent to the client before; None before any line."""

    def bookmark(
        self,
        columns: StoreColumns,
        store: Store | None,
        version: bytes,
        sent_definitions: bytes | None,
        *,
        initial_end: bool,
    ) -> bytes:
        """Return the line of a bookmark; `store` is any store of the view, None if the view has none."""


def encoder_for(wanted: Representation, resource: APIResource, now: Callable[[], float], *, custom: bool) -> Encoder:
    """Return the encoder of a representation. `now` returns seconds since 1970; `custom`: of a custom resource."""
    if wanted.kind == TABLE:
        return TableEncoder(wanted, resource, now, custom=custom)
    if wanted.kind:
        return PartialEncoder(wanted)
    return ObjectEncoder(resource, custom=custom)
