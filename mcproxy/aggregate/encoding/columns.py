"""The columns of Tables whose rows come from several members, and the cells of their rows.

Source: apimachinery `pkg/apis/meta/v1` (Table, TableColumnDefinition); `pkg/registry/rest/table.go` for the columns of
resources that define none.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from mcproxy.aggregate.encoding.column_definitions import DEFAULT_COLUMNS, TableColumnDefinition, parse_columns
from mcproxy.kube.duration import human_duration
from mcproxy.kube.numbers import json_float

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.cache.store import Snapshot, Store
    from mcproxy.kube.resource import GroupVersionResource

_EVENTS = (("", "events"), ("events.k8s.io", "events"))
CELLS = msgspec.json.Decoder(list[Any], float_hook=json_float)
_encode = msgspec.json.Encoder().encode


class _Age(Enum):
    CREATED = "time since creation"
    SINCE = "time since a timestamp in the object"
    RESTARTS = "number, and time since the last one"
    RUNNING = "time since the start, until the end"


class Columns:
    """The union of the columns of several members, and the mapping of each member's cells to this union.

    `sources` are the members' columnDefinitions in member order, as JSON, or None for a member without Tables. Columns
    with the same name are the same column; its position is that in the first member that has it.
    """

    def __init__(self, sources: Sequence[bytes | None], gvr: GroupVersionResource, *, custom: bool) -> None:
        distinct = list(dict.fromkeys(sources)) or [None]
        self.sources = frozenset(distinct)
        parsed = {source: parse_columns(source) for source in distinct}
        union: list[TableColumnDefinition] = []
        for source in distinct:
            _merge(union, parsed[source] or DEFAULT_COLUMNS)
        only = distinct[0]
        if len(distinct) == 1 and only is not None and parsed[only] is not None:
            self.definitions = only
            """columnDefinitions as JSON."""
        else:
            self.definitions = go_escaped(_encode(union))
        self._printers = {source: CellPrinter(parsed[source], union, gvr, custom=custom) for source in distinct}
        self._unknown = CellPrinter(None, union, gvr, custom=custom)

    def printer(self, source: bytes | None) -> CellPrinter:
        """Return the printer for the cells of a member whose columnDefinitions are `source`.

        If `source` is not in `sources`, the printer prints only name and age, if the union has these columns.
        """
        return self._printers.get(source, self._unknown)


def columns_of(states: Iterable[Snapshot | Store]) -> list[bytes | None]:
    """Return the columnDefinitions for the Table rows of these states of stores; None stands for a member without
    Tables.

    A state without objects and with unknown columns is left out.
    """
    return [state.columns for state in states if state.columns is not None or len(state)]


class StoreColumns:
    """The columns of a watch's Tables, for the present objects of some stores."""

    __slots__ = ("_found", "_gvr", "stores")

    def __init__(self, stores: Sequence[Store], gvr: GroupVersionResource) -> None:
        self.stores = stores
        self._gvr = gvr
        self._found: Columns | None = None

    def of(self, store: Store | None = None) -> Columns:
        """Return the columns, including those of `store`, the store of the next row.

        The columns change when those of a member become known or change.
        """
        found = self._found
        if found is None or (store is not None and store.columns not in found.sources):
            stores = self.stores
            custom = bool(stores) and stores[0].items_typed
            found = self._found = Columns(columns_of(stores), self._gvr, custom=custom)
        return found


def _merge(union: list[TableColumnDefinition], columns: Sequence[TableColumnDefinition]) -> None:
    """Add the columns that are missing in the union, each after its predecessor."""
    places = {column.name: place for place, column in enumerate(union)}
    previous = -1
    for column in columns:
        if column.name in places:
            previous = places[column.name]
            continue
        previous += 1
        union.insert(previous, column)
        places = {column.name: place for place, column in enumerate(union)}


class CellPrinter:
    """Converts the cells of one member's rows to the columns of the union."""

    def __init__(
        self,
        columns: Sequence[TableColumnDefinition] | None,
        union: Sequence[TableColumnDefinition],
        gvr: GroupVersionResource,
        *,
        custom: bool,
    ) -> None:
        places = {column.name: place for place, column in enumerate(union)}
        own = [column for column in DEFAULT_COLUMNS if column.name in places] if columns is None else columns
        self._count = len(own)
        self._width = len(union)
        self._places = [places[column.name] for column in own]
        self._moved = self._places != list(range(len(union)))
        self._name = places.get("Name", -1)
        self._age = places.get("Age", -1)
        self._ages = [(place, kind) for place, column in enumerate(own) if (kind := _age_kind(column, gvr, custom))]
        self._printed = columns is not None

    def cells(self, obj: CachedObject, now: float) -> bytes:
        """Return the cells of an object as a JSON array, with their ages at `now` (seconds since 1970)."""
        if obj.cells is None or not self._printed:
            return self._own_cells(obj, now)
        cells = CELLS.decode(obj.cells)
        if len(cells) != self._count:  # printed for other columns than the member's present ones
            return self._own_cells(obj, now)
        for place, kind in self._ages:
            cell = cells[place]
            if isinstance(cell, str):
                cells[place] = _fresh(cell, kind, obj, now)
        if self._moved:
            moved: list[Any] = [None] * self._width
            for place, cell in zip(self._places, cells, strict=True):
                moved[place] = cell
            cells = moved
        return go_escaped(_encode(cells))

    def _own_cells(self, obj: CachedObject, now: float) -> bytes:
        cells: list[Any] = [None] * self._width
        if self._name >= 0:
            cells[self._name] = obj.name
        if self._age >= 0:
            cells[self._age] = human_duration(max(now - obj.created, 0.0)) if obj.created else "<unknown>"
        return go_escaped(_encode(cells))


def _age_kind(column: TableColumnDefinition, gvr: GroupVersionResource, custom: bool) -> _Age | None:
    resource = (gvr.group, gvr.resource)
    if column.type == "date" or (column.name == "Age" and not custom):
        return _Age.CREATED if column.name == "Age" else _Age.SINCE
    if custom:
        return None
    if resource in _EVENTS and column.name in ("Last Seen", "First Seen"):
        return _Age.SINCE
    if resource == ("batch", "cronjobs") and column.name == "Last Schedule":
        return _Age.SINCE
    if resource == ("batch", "jobs") and column.name == "Duration":
        return _Age.RUNNING
    return _Age.RESTARTS if resource == ("", "pods") and column.name == "Restarts" else None


def _fresh(cell: str, kind: _Age, obj: CachedObject, now: float) -> str:
    if kind is _Age.CREATED:
        return aged(cell, obj.printed, now, (obj.created,) if obj.created else ())
    if kind is _Age.RESTARTS:
        return cell if cell.isdigit() else aged_restarts(cell, obj.printed, now, timestamps(obj.tail, obj.head))
    if kind is _Age.RUNNING and any(
        mark in obj.tail for mark in (b'"completionTime"', b'"type":"Complete"', b'"type":"Failed"')
    ):
        return cell
    return aged(cell, obj.printed, now, timestamps(obj.tail, obj.head))


def go_escaped(text: bytes) -> bytes:
    """Return JSON with `<`, `>` and `&`, which occur only in strings, escaped as by Go's encoder."""
    if 0x3C in text or 0x3E in text or 0x26 in text:
        return text.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    return text


# -- ages in cells --------------------------------------------------------------------------------------------
#
# Ages in Table cells are computed for each response, since the member printed them when the object was cached.
#
# A cell shows only an age ("47h"). The age counts from the timestamp in the object that matched the cell when the
# member printed it. If no timestamp matches, the printed age itself is advanced. Source of the printed forms:
# k8s.io/kubernetes `pkg/printers/internalversion`, apimachinery `duration.HumanDuration`.


TOLERANCE = 5.0
"""Tolerance in seconds between the member's clock when it prints a cell and the proxy's clock when it reads it."""
_DURATION = re.compile(
    r"(?=[0-9])(?:(\d{1,4})y)?(?:(\d{1,6})d)?(?:(\d{1,3})h)?(?:(\d{1,4})m)?(?:(\d{1,3})s)?", re.ASCII
)
_SECONDS = (365 * 86400, 86400, 3600, 60, 1)
_TIMESTAMP = re.compile(rb'"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?Z"')
_MAX_TIMESTAMPS = 200
_RESTARTS = re.compile(r"(\d+ \()(\w+)( ago\))", re.ASCII)


def parse_human_duration(text: str) -> int | None:
    """Return the smallest number of seconds that is printed as `text`; None if `text` is not a duration."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return sum(int(number) * seconds for number, seconds in zip(found.groups("0"), _SECONDS, strict=True))


def granularity(seconds: int) -> int:
    """Return by how many seconds a duration can grow before its printed form changes."""
    if seconds < 600:
        return 1
    if seconds < 8 * 3600:
        return 60
    if seconds < 8 * 86400:
        return 3600
    return 86400 if seconds < 8 * 365 * 86400 else 365 * 86400


def timestamps(*documents: bytes) -> Iterator[float]:
    """Yield the first 200 RFC 3339 times in JSON documents, in seconds since 1970."""
    count = 0
    for document in documents:
        for found in _TIMESTAMP.finditer(document):
            count += 1
            if count > _MAX_TIMESTAMPS:
                return
            year, month, day, hour, minute, second = map(int, found.groups())
            if 1 <= month <= 12 and 1 <= day <= 31 and year:
                yield float(timegm((year, month, day, hour, minute, second)))


def aged(text: str, printed: float, now: float, candidates: Iterable[float]) -> str:
    """Return the text that a cell has at `now` if the member printed it as `text` at the time `printed`.

    Text that is not a duration (`<unknown>`, `<none>`, `<invalid>`) stays.
    """
    least = parse_human_duration(text)
    if least is None:
        return text
    most = least + granularity(least) - 1
    best, distance = float(least), TOLERANCE
    for candidate in candidates:
        seconds = printed - candidate
        # The printed age is below `most` + 1 second; if the computed age is not, the two clocks differ.
        fitting = min(max(seconds, least), most + 0.999)
        off = abs(seconds - fitting)
        if off < distance:
            best, distance = fitting, off
            if not off:
                break
    return human_duration(max(best + now - printed, 0.0))


def aged_restarts(text: str, printed: float, now: float, candidates: Iterable[float]) -> str:
    """Return the text at `now` of a pod's Restarts cell such as `3 (5m ago)`."""
    found = _RESTARTS.fullmatch(text)
    if found is None:
        return text
    return found[1] + aged(found[2], printed, now, candidates) + found[3]
