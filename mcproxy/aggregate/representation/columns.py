"""The columns of Tables whose rows come from several members, and the cells of their rows.

Source: apimachinery `pkg/apis/meta/v1` (Table, TableColumnDefinition); `pkg/registry/rest/table.go` for the columns of
what has none of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from mcproxy.aggregate.representation.ages import aged, aged_restarts, timestamps
from mcproxy.kube.human_duration import human_duration

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.object import CachedObject
    from mcproxy.kube.resource import GroupVersionResource

MAX_COLUMNS = 1000
_EVENTS = (("", "events"), ("events.k8s.io", "events"))


class Column(msgspec.Struct, frozen=True):
    """One column definition, with Go's order of fields."""

    name: str
    type: str
    format: str = ""
    description: str = ""
    priority: int = 0


DEFAULT_COLUMNS = (
    Column(
        "Name",
        "string",
        "name",
        "Name must be unique within a namespace. Is required when creating resources, although some resources may "
        "allow a client to request the generation of an appropriate name automatically. Name is primarily intended for "
        "creation idempotence and configuration definition. Cannot be updated. More info: "
        "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
    ),
    Column(
        "Age",
        "date",
        "",
        "CreationTimestamp is a timestamp representing the server time when this object was created. It is not "
        "guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It "
        "is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More "
        "info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    ),
)
"""For objects of which the member gave no Table."""
_COLUMNS = msgspec.json.Decoder(list[Column])
_CELLS = msgspec.json.Decoder(list[Any])
_encode = msgspec.json.Encoder().encode


class _Age(Enum):
    CREATED = "time since creation"
    SINCE = "time since something that stands in the object"
    RESTARTS = "number, and time since the last one"
    RUNNING = "time since the start, until the end"


def parse_columns(columns: bytes | None) -> tuple[Column, ...] | None:
    """Read a member's columnDefinitions; None if it gave none, or none that can be read."""
    if columns is None:
        return None
    try:
        found = _COLUMNS.decode(columns)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return tuple(found) if 0 < len(found) <= MAX_COLUMNS else None


class Columns:
    """The union of the columns of several members, and how each one's cells fit into it.

    `sources` are the members' columnDefinitions in their order, as JSON, or None. A column is the same in two members
    if it has the same name; it stands where the first one that has it puts it.
    """

    def __init__(self, sources: Sequence[bytes | None], gvr: GroupVersionResource, *, custom: bool) -> None:
        distinct = list(dict.fromkeys(sources)) or [None]
        parsed = {source: parse_columns(source) for source in distinct}
        union: list[Column] = []
        for source in distinct:
            _merge(union, parsed[source] or DEFAULT_COLUMNS)
        only = distinct[0]
        if len(distinct) == 1 and only is not None and parsed[only] is not None:
            self.definitions = only
            """columnDefinitions as JSON."""
        else:
            self.definitions = go_escaped(_encode(union))
        self._union = union
        self._printers = {source: _Printer(parsed[source], union, gvr, custom=custom) for source in distinct}

    def printer(self, source: bytes | None) -> _Printer:
        """Return what makes the cells of a member whose columnDefinitions are `source`, one of `sources`."""
        return self._printers[source]


def _merge(union: list[Column], columns: Sequence[Column]) -> None:
    """Add the columns that are not in the union, each behind the one that it stands behind."""
    places = {column.name: place for place, column in enumerate(union)}
    behind = -1
    for column in columns:
        if column.name in places:
            behind = places[column.name]
            continue
        behind += 1
        union.insert(behind, column)
        places = {column.name: place for place, column in enumerate(union)}


class _Printer:
    """Makes the cells of one member's rows."""

    def __init__(
        self, columns: Sequence[Column] | None, union: Sequence[Column], gvr: GroupVersionResource, *, custom: bool
    ) -> None:
        own = DEFAULT_COLUMNS if columns is None else columns
        places = {column.name: place for place, column in enumerate(union)}
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
        cells = _CELLS.decode(obj.cells)
        if len(cells) != self._count:  # printed with other columns than the member has now
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


def _age_kind(column: Column, gvr: GroupVersionResource, custom: bool) -> _Age | None:
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
    """Return JSON with `<`, `>` and `&` escaped, as Go's encoder writes it; they stand only in strings."""
    if b"<" in text or b">" in text or b"&" in text:
        return text.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    return text
