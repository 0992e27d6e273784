"""Decoding of what a member sends for one store: pages of a List or Table, and lines of a watch, in both forms.

A member is no more trusted than a client: every item that is no object of the resource becomes one `MalformedItem`,
which costs the list or watch nothing but that object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from mcproxy.aggregate.cache.labels import ClusterMarks
from mcproxy.aggregate.cache.metadata import MalformedObject, checked, refuse_crowded, split, version_of
from mcproxy.aggregate.cache.object import CachedObject, EventType
from mcproxy.kube.resource import APIResource

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the initial events of a WatchList (KEP-3157)."""
_MAX_CONTINUE = 16 * 1024
_MAX_MESSAGE = 1024
_MAX_PAGE_COMMAS = 4_000_000  # of 64 MB, with objects as small as they can be, a quarter
_LIST_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,252}", re.ASCII)
_TABLE_GROUP = "meta.k8s.io/"


class MalformedResponse(ValueError):
    """A page that is no list of the resource, or a line that is no event. The message says what it is."""


@dataclass(frozen=True, slots=True)
class MalformedItem:
    """An item of a page, or the object of an event, that was left out; `message` says why, in one short line."""

    message: str


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """ADDED, MODIFIED or DELETED; `columns` are the columnDefinitions (JSON) if this event brought them."""

    type: EventType
    object: CachedObject
    columns: bytes | None = None


@dataclass(frozen=True, slots=True)
class Bookmark:
    """BOOKMARK: the watch has seen everything up to `version`."""

    version: int
    initial_events_end: bool


@dataclass(frozen=True, slots=True)
class WatchError:
    """ERROR: the Status with which the member ended the watch."""

    code: int
    reason: str
    message: str
    retry_after: int


WatchEvent = ObjectEvent | Bookmark | WatchError | MalformedItem


class _ListMeta(msgspec.Struct):
    resourceVersion: Raw = Raw(b'""')
    continue_: str = msgspec.field(name="continue", default="")
    remainingItemCount: int | None = None


class _Page(msgspec.Struct):
    kind: str = ""
    apiVersion: str = ""
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[Raw] | None = None
    rows: list[Raw] | None = None
    columnDefinitions: Raw = Raw(b"null")
    message: str = ""


class _Row(msgspec.Struct, gc=False):
    cells: Raw
    object: Raw


class _Line(msgspec.Struct, gc=False):
    type: str
    object: Raw


class _BookmarkMeta(msgspec.Struct):
    resourceVersion: Raw
    annotations: dict[str, str] | None = None


class _BookmarkObject(msgspec.Struct):
    metadata: _BookmarkMeta
    kind: str = ""
    rows: list[Raw] | None = None


class _StatusDetails(msgspec.Struct):
    retryAfterSeconds: int = 0


class _Status(msgspec.Struct):
    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None


class _Kind(msgspec.Struct, gc=False):
    kind: str = ""
    apiVersion: str = ""


class ListPage:
    """One page of a list. Iterating decodes one object after the other, so a caller can do it in slices.

    It holds the page's bytes as long as it lives.
    """

    def __init__(self, decoder: ObjectDecoder, page: _Page, printed: float) -> None:
        self._decoder = decoder
        self._printed = printed
        self._table = page.kind == "Table"
        self._items = (page.rows if self._table else page.items) or []
        self.version = version_of(bytes(page.metadata.resourceVersion))
        """The list's resourceVersion."""
        self.continue_token = page.metadata.continue_
        """What the next page is asked for with; "" for the last one."""
        columns = bytes(page.columnDefinitions)
        self.columns = checked(columns) if self._table and columns[:1] == b"[" else None
        """columnDefinitions of a Table, JSON; None for a List."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[CachedObject | MalformedItem]:
        decode = self._decoder.decode_row if self._table else self._decoder.decode_item
        for item in self._items:
            yield decode(item, self._printed)


class ObjectDecoder:
    """Makes the objects of one store: of one member, resource and namespace (`namespace` "" is all).

    `type_prefix` and `items_typed` are guesses until the first object or list has shown how the member writes them.
    """

    def __init__(
        self, member: str, resource: APIResource, *, namespace: str = "", drop_managed_fields: bool = False
    ) -> None:
        self.resource = resource
        self.namespace = namespace
        self.marks = ClusterMarks(member)
        self.drop_managed_fields = drop_managed_fields
        kind = b'"kind":' + msgspec.json.encode(resource.kind) + b","
        api_version = b'"apiVersion":' + msgspec.json.encode(resource.gvr.api_version) + b","
        #: Built-in resources are written in the order of Go's structs, custom ones in that of the alphabet.
        self._struct_prefix, self._sorted_prefix = kind + api_version, api_version + kind
        # Custom resources have a domain as their group; those below k8s.io can be either.
        custom = "." in resource.gvr.group and not resource.gvr.group.endswith(".k8s.io")
        self.type_prefix = self._sorted_prefix if custom else self._struct_prefix
        self.items_typed = custom
        self.list_kind = resource.list_kind
        self._seen = False

    def restore(self, list_kind: str, items_typed: bool) -> None:
        """Take over how the member wrote lists and objects before a restart."""
        if not self._seen:
            self.list_kind = list_kind
            self._order_seen(items_typed)

    def decode_page(self, data: bytes, now: float) -> ListPage:
        """Read one page: a List, or a Table with includeObject=Object. `now` is seconds since 1970.

        Raises MalformedResponse for anything else.
        """
        try:
            refuse_crowded(data, _MAX_PAGE_COMMAS)
            page = msgspec.json.decode(data, type=_Page)
            if page.kind == "Status":
                raise MalformedResponse(f"a Status instead of a list: {page.message[:_MAX_MESSAGE]}")
            if page.kind == "Table":
                if not page.apiVersion.startswith(_TABLE_GROUP):
                    raise MalformedResponse(f"a Table of {page.apiVersion[:64]!r}")
            elif not (page.kind.endswith("List") and _LIST_KIND.fullmatch(page.kind)):
                raise MalformedResponse(f"a {page.kind[:64]!r} instead of a list")
            elif page.apiVersion != self.resource.gvr.api_version:
                raise MalformedResponse(f"a list of {page.apiVersion[:64]!r}")
            if len(page.metadata.continue_) > _MAX_CONTINUE:
                raise MalformedResponse("its continue token is too long")
            found = ListPage(self, page, now)
        except MalformedResponse:
            raise
        except (ValueError, RecursionError) as error:
            raise MalformedResponse(f"no list: {str(error)[:_MAX_MESSAGE]}") from None
        if page.kind != "Table":
            self.list_kind = page.kind
            if not self._seen and not len(found):
                self._order_seen(data.startswith(b'{"apiVersion"'))
        return found

    def decode_event(self, line: bytes, now: float) -> WatchEvent:
        """Read one line of a watch; `now` is seconds since 1970. Raises MalformedResponse for what is no event."""
        try:
            refuse_crowded(line)
            event = msgspec.json.decode(line, type=_Line)
            if event.type == "BOOKMARK":
                return self._bookmark(event.object)
            if event.type == "ERROR":
                return _error(event.object)
            if event.type not in EventType.__members__:
                raise MalformedResponse(f"an event of type {event.type[:64]!r}")
        except MalformedResponse:
            raise
        except (ValueError, RecursionError) as error:
            raise MalformedResponse(f"no event: {str(error)[:_MAX_MESSAGE]}") from None
        try:
            return self._object_event(EventType[event.type], event.object, now)
        except (ValueError, RecursionError) as error:
            return MalformedItem(str(error)[:_MAX_MESSAGE])

    def decode_item(self, item: Raw | bytes, now: float) -> CachedObject | MalformedItem:
        """Read one item of a List."""
        try:
            return self._object(bytes(item), None, now)
        except MalformedObject as error:
            return MalformedItem(str(error)[:_MAX_MESSAGE])

    def decode_row(self, row: Raw | bytes, now: float) -> CachedObject | MalformedItem:
        """Read one row of a Table."""
        try:
            return self._row(row, now)
        except (ValueError, RecursionError) as error:
            return MalformedItem(str(error)[:_MAX_MESSAGE])

    def _object_event(self, event_type: EventType, raw: Raw, now: float) -> ObjectEvent:
        if not _is_table(raw):
            return ObjectEvent(event_type, self._object(bytes(raw), None, now))
        table = msgspec.json.decode(raw, type=_Page)
        if not table.rows or len(table.rows) != 1:
            raise MalformedObject("a Table without exactly one row")
        columns = bytes(table.columnDefinitions)
        return ObjectEvent(event_type, self._row(table.rows[0], now), checked(columns) if columns[:1] == b"[" else None)

    def _row(self, raw: Raw | bytes, now: float) -> CachedObject:
        row = msgspec.json.decode(raw, type=_Row)
        cells = checked(bytes(row.cells))
        if cells[:1] != b"[":
            raise MalformedObject("its cells are no list")
        return self._object(bytes(row.object), cells, now)

    def _object(self, item: bytes, cells: bytes | None, now: float) -> CachedObject:
        found = split(
            item,
            (self._struct_prefix, self._sorted_prefix),
            self.marks,
            drop_managed_fields=self.drop_managed_fields,
        )
        if bool(found.namespace) != self.resource.namespaced:
            raise MalformedObject("it has a namespace" if found.namespace else "it has no namespace")
        if self.namespace and found.namespace != self.namespace:
            raise MalformedObject("it is of another namespace than was asked for")
        if not self._seen:
            # A field of a custom resource may sort before apiVersion; a built-in object begins with kind or metadata.
            self._order_seen(not item.startswith((b'{"kind"', b'{"metadata"')))
        return CachedObject(*found, cells, now)

    def _order_seen(self, alphabetical: bool) -> None:
        self._seen = True
        self.items_typed = alphabetical
        self.type_prefix = self._sorted_prefix if alphabetical else self._struct_prefix

    def _bookmark(self, raw: Raw) -> Bookmark:
        found = msgspec.json.decode(raw, type=_BookmarkObject)
        annotations = found.metadata.annotations
        if found.rows:  # of a Table: the annotation is in the object of its only row
            row = msgspec.json.decode(found.rows[0], type=_Row)
            annotations = msgspec.json.decode(row.object, type=_BookmarkObject).metadata.annotations
        return Bookmark(
            version_of(bytes(found.metadata.resourceVersion)), (annotations or {}).get(INITIAL_EVENTS_END) == "true"
        )


def _is_table(raw: Raw) -> bool:
    start = bytes(memoryview(raw)[:64])
    if start.startswith(b'{"kind":"Table","apiVersion":"meta.k8s.io/'):
        return True
    if b"Table" not in start:
        return False
    found = msgspec.json.decode(raw, type=_Kind)
    return found.kind == "Table" and found.apiVersion.startswith(_TABLE_GROUP)


def _error(raw: Raw) -> WatchError:
    found = msgspec.json.decode(raw, type=_Status)
    if found.kind != "Status":
        raise MalformedResponse("an ERROR event without a Status")
    seconds = found.details.retryAfterSeconds if found.details else 0
    return WatchError(found.code, found.reason[:64], found.message[:_MAX_MESSAGE], max(0, min(seconds, 3600)))
