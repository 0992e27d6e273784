"""Decodes the responses of a member for one store: pages of a List or Table, and lines of a watch of either form.

A member is not trusted more than a client is. Every item that is not an object of the resource becomes a
`MalformedItem`, and the list or watch continues without that object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.object_splitter import (
    ClusterMarks,
    MalformedObject,
    checked_object,
    object_identity,
    refuse_crowded,
    split_object,
    version_of,
)
from mcproxy.aggregate.cache.wire_types import BookmarkObject, Line, Row, Status, TableColumns, WireKind, WirePage
from mcproxy.kube.nesting import run_to_end, shallow
from mcproxy.kube.resource import APIResource

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the initial events of a WatchList (KEP-3157)."""
_MAX_CONTINUE = 16 * 1024
_MAX_MESSAGE = 1024
_MAX_PAGE_COMMAS = 4_000_000  # about a quarter of the commas in a page of 64 MB with the smallest possible objects
_LIST_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,252}", re.ASCII)
_TABLE_GROUP = "meta.k8s.io/"
_NULL = Raw(b"null")
_PAGE = msgspec.json.Decoder(WirePage[Row])
_PAGE_OF_RAW = msgspec.json.Decoder(WirePage[Raw])
DEEPER = b'"\\u0000nested too deeply to be read"'
"""The replacement of a value that is nested too deeply in an object."""
KEPT_LEVELS = 16
"""Values nested deeper than this level are replaced by `DEEPER`. The parts of an event or page that the proxy decodes
(rows, their objects, lists in the objects' metadata) have a depth of at most ten.
"""


class MalformedResponse(ValueError):
    """A page is not a list of the resource, or a line is not a watch event. The message describes the content found."""


class DeeplyNested(MalformedResponse):
    """A page that is nested too deeply for any decoder; `nesting.shallow` replaces the deep values by `DEEPER`."""


@dataclass(frozen=True, slots=True)
class MalformedItem:
    """An item of a page, or the object of an event, that was left out; `message` is the reason in one short line.

    `columns` is as in ObjectEvent: only the first event of a watch has it, even if its object is malformed. `key`
    (`namespace/name`) and `version` are the object's, or "" and 0 if they cannot be read. `type` is the event type.
    """

    message: str
    columns: bytes | None = None
    key: str = ""
    version: int = 0
    type: EventType | None = None


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """ADDED, MODIFIED or DELETED; `columns` are the columnDefinitions (JSON) if this event brought them."""

    type: EventType
    object: CachedObject
    columns: bytes | None = None


@dataclass(frozen=True, slots=True)
class Bookmark:
    """BOOKMARK: the watch has seen everything up to `version`. `columns` is as in ObjectEvent: in a WatchList without
    objects only the bookmark carries it.
    """

    version: int
    initial_events_end: bool
    columns: bytes | None = None


@dataclass(frozen=True, slots=True)
class WatchError:
    """ERROR: the Status with which the member ended the watch."""

    code: int
    reason: str
    message: str
    retry_after: int


WatchEvent = ObjectEvent | Bookmark | WatchError | MalformedItem


class ListPage:
    """One page of a list. Iteration decodes one object after the other, so a caller can decode in slices.

    A ListPage keeps the page's bytes in memory as long as it exists.
    """

    def __init__(
        self, decoder: ObjectDecoder, page: WirePage[Row] | WirePage[Raw], printed: float, *, cut: bool
    ) -> None:
        self._decoder = decoder
        self._printed = printed
        self._table = page.kind == "Table"
        self._cut = cut
        self._items: Sequence[Any] = (page.rows if self._table else page.items) or []
        self.version = version_of(bytes(page.metadata.resourceVersion))
        """The list's resourceVersion."""
        self.continue_token = page.metadata.continue_
        """The continue token for the next page; "" on the last page."""
        self.columns = _columns(page.columnDefinitions) if self._table else None
        """columnDefinitions of a Table, JSON; None for a List."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[CachedObject | MalformedItem]:
        decoder, printed, cut = self._decoder, self._printed, self._cut
        for item in self._items:
            if self._table:
                yield decoder.decode_row(item, printed, cut=cut)
            else:
                yield decoder.decode_item(item, printed, cut=cut)


class ObjectDecoder:
    """Decodes the objects of one store: of one member, resource and namespace (`namespace` "": all namespaces).

    `type_prefix` and `items_typed` are guesses until the first object or list shows the form that the member writes.
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
        #: Built-in resources have their fields in the order of Go's structs, custom resources in alphabetical order.
        self._struct_prefix, self._sorted_prefix = kind + api_version, api_version + kind
        # Custom resources have a domain name as their group. Groups below k8s.io can be built-in or custom.
        custom = "." in resource.gvr.group and not resource.gvr.group.endswith(".k8s.io")
        self.type_prefix = self._sorted_prefix if custom else self._struct_prefix
        self.items_typed = custom
        self.list_kind = resource.list_kind
        self._seen = False

    def restore(self, list_kind: str, items_typed: bool) -> None:
        """Restore the form of the member's lists and objects that was known before a restart."""
        if not self._seen:
            self.list_kind = list_kind
            self._order_seen(items_typed)

    def decode_page(self, data: bytes, now: float, *, cut: bool = False) -> ListPage:
        """Read one page: a List, or a Table with includeObject=Object. `now` is seconds since 1970.

        `cut`: whether `DEEPER` has replaced values. Raises MalformedResponse for any other body, and its subclass
        DeeplyNested for a page too deep for the decoder.
        """
        try:
            refuse_crowded(data, _MAX_PAGE_COMMAS)
            page = _page(data)
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
            found = ListPage(self, page, now, cut=cut)
        except MalformedResponse:
            raise
        except RecursionError:
            raise DeeplyNested("no list: it is nested too deeply") from None
        except ValueError as error:
            raise MalformedResponse(f"no list: {str(error)[:_MAX_MESSAGE]}") from None
        if page.kind != "Table":
            self.list_kind = page.kind
            if not self._seen and not len(found):
                self._order_seen(data.startswith(b'{"apiVersion"'))
        return found

    def decode_event(self, line: bytes, now: float) -> WatchEvent:
        """Read one line of a watch; `now` is seconds since 1970. Raises MalformedResponse if the line is no event."""
        try:
            return self._decode_event(line, now)
        except RecursionError:
            pass
        try:
            return self._decode_event(run_to_end(shallow(line, KEPT_LEVELS, DEEPER)), now, cut=True)
        except RecursionError:
            raise MalformedResponse("no event: it is nested too deeply") from None

    def _decode_event(self, line: bytes, now: float, *, cut: bool = False) -> WatchEvent:
        try:
            refuse_crowded(line)
            event = msgspec.json.decode(line, type=Line)
            if event.type == "BOOKMARK":
                return self._bookmark(event.object)
            if event.type == "ERROR":
                return _error(event.object)
            if event.type not in EventType.__members__:
                raise MalformedResponse(f"an event of type {event.type[:64]!r}")
        except MalformedResponse:
            raise
        except ValueError as error:
            raise MalformedResponse(f"no event: {str(error)[:_MAX_MESSAGE]}") from None
        event_type = EventType[event.type]
        try:
            return self._object_event(event_type, event.object, now, cut)
        except (ValueError, RecursionError) as error:
            columns, item = _columns_of(event.object), _only_object(event.object)
            return MalformedItem(str(error)[:_MAX_MESSAGE], columns, *self._key(item), event_type)

    def decode_item(self, item: Raw | bytes, now: float, *, cut: bool = False) -> CachedObject | MalformedItem:
        """Read one item of a List; `cut` as in `decode_page`."""
        try:
            return self._object(bytes(item), None, now, cut)
        except MalformedObject as error:
            return MalformedItem(str(error)[:_MAX_MESSAGE], None, *self._key(item))

    def decode_row(self, row: Row | Raw | bytes, now: float, *, cut: bool = False) -> CachedObject | MalformedItem:
        """Read one row of a Table; `cut` as in `decode_page`."""
        try:
            return self._row(row, now, cut)
        except (ValueError, RecursionError) as error:
            return MalformedItem(str(error)[:_MAX_MESSAGE], None, *self._key(_object_of(row)))

    def _key(self, item: Raw | bytes) -> tuple[str, int]:
        """Return key and version of an object that cannot be decoded; "" and 0 if it does not belong to this store."""
        try:
            namespace, name, version = object_identity(item)
        except (ValueError, RecursionError):
            return "", 0
        if bool(namespace) != self.resource.namespaced or (self.namespace and namespace != self.namespace):
            return "", 0
        return f"{namespace}/{name}", version

    def _object_event(self, event_type: EventType, raw: Raw, now: float, cut: bool) -> ObjectEvent:
        if not _is_table(raw):
            return ObjectEvent(event_type, self._object(bytes(raw), None, now, cut))
        table = _page(raw)
        if not table.rows or len(table.rows) != 1:
            raise MalformedObject("a Table without exactly one row")
        return ObjectEvent(event_type, self._row(table.rows[0], now, cut), _columns(table.columnDefinitions))

    def _row(self, wire: Any, now: float, cut: bool) -> CachedObject:
        row = _row_of(wire)
        cells = checked_object(bytes(row.cells))
        if cells[:1] != b"[":
            raise MalformedObject("its cells are no list")
        return self._object(bytes(row.object), cells, now, cut)

    def _object(self, item: bytes, cells: bytes | None, now: float, cut: bool) -> CachedObject:
        if cut and DEEPER in item:
            raise MalformedObject("it is nested too deeply")
        found = split_object(
            item,
            (self._struct_prefix, self._sorted_prefix),
            self.marks,
            cells,
            now,
            drop_managed_fields=self.drop_managed_fields,
        )
        if bool(found.namespace) != self.resource.namespaced:
            raise MalformedObject("it has a namespace" if found.namespace else "it has no namespace")
        if self.namespace and found.namespace != self.namespace:
            raise MalformedObject("it is of another namespace than was asked for")
        if not self._seen:
            # A field of a custom resource may sort before apiVersion; a built-in object begins with kind or metadata.
            self._order_seen(not item.startswith((b'{"kind"', b'{"metadata"')))
        return found

    def _order_seen(self, alphabetical: bool) -> None:
        self._seen = True
        self.items_typed = alphabetical
        self.type_prefix = self._sorted_prefix if alphabetical else self._struct_prefix

    def _bookmark(self, raw: Raw) -> Bookmark:
        found = msgspec.json.decode(raw, type=BookmarkObject)
        annotations = found.metadata.annotations
        if found.rows:  # a Table: the annotation is in the object of its only row
            row = msgspec.json.decode(found.rows[0], type=Row)
            annotations = msgspec.json.decode(row.object, type=BookmarkObject).metadata.annotations
        return Bookmark(
            version_of(bytes(found.metadata.resourceVersion)),
            (annotations or {}).get(INITIAL_EVENTS_END) == "true",
            _columns(found.columnDefinitions) if _is_table(raw) else None,
        )


def _page(data: Raw | bytes) -> WirePage[Row] | WirePage[Raw]:
    try:
        return _PAGE.decode(data)
    except msgspec.ValidationError:  # of a row, or of the page, which then fails again
        return _PAGE_OF_RAW.decode(data)


def _is_table(raw: Raw) -> bool:
    start = bytes(memoryview(raw)[:64])
    if start.startswith(b'{"kind":"Table","apiVersion":"meta.k8s.io/'):
        return True
    if start.find(b"Table") < 0:
        return False
    found = msgspec.json.decode(raw, type=WireKind)
    return found.kind == "Table" and found.apiVersion.startswith(_TABLE_GROUP)


def _columns(raw: Raw) -> bytes | None:
    """Return the columnDefinitions, or None without any, as in all events of a watch after the first."""
    columns = bytes(raw)
    return checked_object(columns) if columns[:1] == b"[" else None


def _row_of(row: Any) -> Row:
    """Return a row of a Table: a Row, Raw or bytes (of which mypy takes Raw for bytes, which it is not)."""
    return row if isinstance(row, Row) else msgspec.json.decode(row, type=Row)


def _object_of(row: Any) -> Raw:
    """Return the object of a Table's row that could not be decoded; `_NULL` if there is none."""
    try:
        return _row_of(row).object
    except (ValueError, RecursionError):
        return _NULL


def _only_object(raw: Raw) -> Raw:
    """Return the object of an event, which may be in a Table of one row; `_NULL` if there is none."""
    try:
        if not _is_table(raw):
            return raw
        rows = _PAGE_OF_RAW.decode(raw).rows or []
    except (ValueError, RecursionError):
        return _NULL
    return _object_of(rows[0]) if len(rows) == 1 else _NULL


def _columns_of(raw: Raw) -> bytes | None:
    """Return the columnDefinitions of an event whose object could not be decoded."""
    try:
        return _columns(msgspec.json.decode(raw, type=TableColumns).columnDefinitions) if _is_table(raw) else None
    except (ValueError, RecursionError):
        return None


def _error(raw: Raw) -> WatchError:
    found = msgspec.json.decode(raw, type=Status)
    if found.kind != "Status":
        raise MalformedResponse("an ERROR event without a Status")
    seconds = found.details.retryAfterSeconds if found.details else 0
    return WatchError(found.code, found.reason[:64], found.message[:_MAX_MESSAGE], max(0, min(seconds, 3600)))
