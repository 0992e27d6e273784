"""Merges the APIService objects of a server into those of its backend: lists, single objects, and the lines of a watch.

Pure. The backend's objects are passed on unchanged, except that objects with the names of ours are removed. Resource
versions are the backend's: our objects have the version of the list, event or bookmark with which they are sent. So a
client can resume from any version that it has seen, and writes to the backend's objects have versions that it knows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from mcproxy.apiservices.availability import TRUE, Condition
from mcproxy.config import model
from mcproxy.kube.duration import human_duration
from mcproxy.kube.numbers import json_float

# -- APIService objects ---------------------------------------------------------------------------------------
#
# The registrations of a server as APIService objects, in lists, Tables and events. Pure.
#
# Source: kube-aggregator, `pkg/apis/apiregistration/v1/types.go`, and its `pkg/registry/apiservice/etcd` for the Table.


GROUP, VERSION, RESOURCE, KIND = "apiregistration.k8s.io", "v1", "apiservices", "APIService"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGED_BY = "app.kubernetes.io/managed-by"
CLUSTER = "mcproxy.io/cluster"
NAMESPACE = "mcproxy"
"""The namespace of `spec.service`, which exists in no cluster: kubectl shows the owner as ``mcproxy/CLUSTER``."""
LABELS = {MANAGED_BY: "mcproxy"}

_UIDS = uuid.UUID("6f0a1a0e-5c5e-5a52-9d4b-3f0d3f6b8f0e")
_NAME_DESCRIPTION = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may "
    "allow a client to request the generation of an appropriate name automatically. Name is primarily intended for "
    "creation idempotence and configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
_AGE_DESCRIPTION = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not "
    "guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It "
    "is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More "
    "info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)
COLUMNS: tuple[Mapping[str, Any], ...] = tuple(
    {"name": name, "type": "string", "format": form, "description": description, "priority": 0}
    for name, form, description in (
        ("Name", "name", _NAME_DESCRIPTION),
        ("Service", "", "The reference to the service that hosts this API endpoint."),
        ("Available", "", "Whether this service is available."),
        ("Age", "", _AGE_DESCRIPTION),
    )
)
"""The columnDefinitions of kube-aggregator."""


def api_service(server: str, service: model.APIService, condition: Condition, version: str) -> dict[str, Any]:
    """Return the APIService object of a registration of `server`, with this resourceVersion, in Go's order of fields.

    Its uid is the same in every process and replica, and over restarts.
    """
    return {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": {
            "name": service.object_name,
            "uid": str(uuid.uuid5(_UIDS, f"{server}/{service.group_version}")),
            "resourceVersion": version,
            "creationTimestamp": _time(condition.created),
            "labels": dict(LABELS),
            "annotations": {CLUSTER: service.cluster},
        },
        "spec": {
            "service": {"namespace": NAMESPACE, "name": service.cluster, "port": 443},
            "group": service.group,
            "version": service.version,
            "groupPriorityMinimum": service.group_priority_minimum,
            "versionPriority": service.version_priority,
        },
        "status": {
            "conditions": [
                {
                    "type": "Available",
                    "status": condition.status,
                    "lastTransitionTime": _time(condition.since),
                    "reason": condition.reason,
                    "message": condition.message,
                }
            ]
        },
    }


def cells(service: model.APIService, condition: Condition, now: float) -> list[str]:
    """Return the cells of an object's row, as kube-aggregator prints them; `now` is in seconds since 1970."""
    available = condition.status
    if condition.status != TRUE and condition.reason:
        available = f"{available} ({condition.reason})"
    age = human_duration(max(now - condition.created, 0.0))
    return [service.object_name, f"{NAMESPACE}/{service.cluster}", available, age]


def partial(obj: Mapping[str, Any], api_version: str) -> dict[str, Any]:
    """Return the PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": obj["metadata"]}


def encode(value: object) -> bytes:
    """Encode JSON as a kube-apiserver does, with a final newline."""
    text = msgspec.json.encode(value)
    for char, escaped in ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026")):
        text = text.replace(char, escaped)
    return text + b"\n"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


TABLE = "Table"
_INITIAL_END = "k8s.io/initial-events-end"
MAX_LINE = 8 * 1024 * 1024
"""Maximum bytes of an event."""


class UnreadableAnswer(Exception):
    """The backend sent no valid list, Table or event; str() is the cause."""


@dataclass(frozen=True, slots=True)
class RequestedForm:
    """The requested form: `kind` is "" (the objects), Table, PartialObjectMetadata or PartialObjectMetadataList."""

    kind: str = ""
    version: str = "v1"
    include_object: str = "Metadata"

    @property
    def api_version(self) -> str:
        """The apiVersion of a Table or PartialObjectMetadata."""
        return f"meta.k8s.io/{self.version or 'v1'}"


class Own(NamedTuple):
    """The present state of an APIService object of this server ("our object")."""

    service: model.APIService
    condition: Condition


class _Meta(msgspec.Struct):
    name: str = ""
    resourceVersion: str = ""
    annotations: dict[str, str] | None = None


class _Plain(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Row(msgspec.Struct):
    cells: list[msgspec.Raw] = msgspec.field(default_factory=list)
    object: _Plain | None = None


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    columnDefinitions: list[dict[str, Any]] | None = None
    rows: list[_Row] | None = None


class _Event(msgspec.Struct):
    type: str
    object: _Object


class _ListMeta(msgspec.Struct, omit_defaults=True):
    """The fields of ListMeta (k8s.io/apimachinery `pkg/apis/meta/v1`); others of a backend are not decoded."""

    resourceVersion: str = ""
    token: str = msgspec.field(name="continue", default="")
    remainingItemCount: int | None = None


class _List(msgspec.Struct):
    kind: str
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None
    rows: list[msgspec.Raw] | None = None
    columnDefinitions: list[dict[str, Any]] | None = None


_LIST = msgspec.json.Decoder(_List, float_hook=json_float)
_EVENT = msgspec.json.Decoder(_Event, float_hook=json_float)
_VALUE = msgspec.json.Decoder(float_hook=json_float)
_ITEM, _ROW = msgspec.json.Decoder(_Plain), msgspec.json.Decoder(_Row)
_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes our objects in the requested form. `wall` returns seconds since 1970."""

    server: str
    form: RequestedForm
    wall: Callable[[], float]

    def single(self, own: Own, version: str) -> bytes:
        """Return the response to a get."""
        obj = api_service(self.server, *own, version)
        return encode(self._shown(obj, own, COLUMNS, version))

    def event(self, kind: str, own: Own, version: str, columns: Sequence[Mapping[str, Any]], *, heading: bool) -> bytes:
        """Return the line of an event. `heading`: a Table has its columnDefinitions."""
        obj = api_service(self.server, *own, version)
        return encode({"type": kind, "object": self._shown(obj, own, columns, version, heading=heading)})

    def bookmark(self, version: str, *, initial_end: bool, heading: bool) -> bytes:
        """Return the line of a bookmark, for a watch of our objects without a watch of a backend."""
        metadata: dict[str, Any] = {"resourceVersion": version, "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {_INITIAL_END: "true"}
        obj: dict[str, Any] = {"kind": KIND, "apiVersion": API_VERSION, "metadata": metadata}
        if self.form.kind:
            obj = {"kind": "PartialObjectMetadata", "apiVersion": self.form.api_version, "metadata": metadata}
        else:
            obj |= {"spec": {"service": None, "groupPriorityMinimum": 0, "versionPriority": 0}, "status": {}}
        if self.form.kind == TABLE:
            row = {"cells": ["", "", "", "<unknown>"], "object": obj}
            obj = self._table(version, COLUMNS if heading else None, [row])
        return encode({"type": "BOOKMARK", "object": obj})

    def item(self, own: Own, version: str, columns: Sequence[Mapping[str, Any]]) -> bytes:
        """Return an object's item in a list: the object without kind and apiVersion, or its Table row."""
        obj = api_service(self.server, *own, version)
        if self.form.kind == TABLE:
            return encode(self._row(obj, own, columns))
        if self.form.kind:
            return encode(partial(obj, self.form.api_version))
        del obj["kind"], obj["apiVersion"]
        return encode(obj)

    def empty_list(self, version: str) -> bytes:
        """Return an empty list, for a backend that does not serve APIServices (404)."""
        kind = self.form.kind or f"{KIND}List"
        head = {"kind": kind, "apiVersion": self.form.api_version if self.form.kind else API_VERSION}
        rows = {"columnDefinitions": COLUMNS, "rows": []} if kind == TABLE else {"items": []}
        return encode({**head, "metadata": {"resourceVersion": version}, **rows})

    def _shown(
        self,
        obj: dict[str, Any],
        own: Own,
        columns: Sequence[Mapping[str, Any]],
        version: str,
        *,
        heading: bool = True,
    ) -> dict[str, Any]:
        if self.form.kind == TABLE:
            return self._table(version, columns if heading else None, [self._row(obj, own, columns)])
        return partial(obj, self.form.api_version) if self.form.kind else obj

    def _table(self, version: str, columns: Sequence[Mapping[str, Any]] | None, rows: list[Any]) -> dict[str, Any]:
        return {
            "kind": TABLE,
            "apiVersion": self.form.api_version,
            "metadata": {"resourceVersion": version},
            "columnDefinitions": columns,
            "rows": rows,
        }

    def _row(self, obj: dict[str, Any], own: Own, columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        printed = dict(zip((each["name"] for each in COLUMNS), cells(*own, self.wall()), strict=True))
        shown: Any = partial(obj, self.form.api_version)
        if self.form.include_object != "Metadata":
            shown = obj if self.form.include_object == "Object" else None
        return {"cells": [printed.get(str(each.get("name"))) for each in columns], "object": shown}


def names_of(body: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the resourceVersion of a list and the names in it. Raises UnreadableAnswer."""
    decoded = _decoded(body)
    rows = decoded.rows is not None
    return decoded.metadata.resourceVersion, tuple(
        _name(each, rows=rows) for each in decoded.rows or decoded.items or ()
    )


def merged_list(body: bytes, maker: Maker, hidden: Collection[str], ours: Sequence[Own]) -> bytes:
    """Merge our objects into a list of the backend, by name. `hidden`: all our names. Raises UnreadableAnswer.

    A later page (`continue`) gets none of our objects, since the first page had all of them.
    """
    decoded = _decoded(body)
    rows = maker.form.kind == TABLE
    if rows != (decoded.rows is not None):
        raise UnreadableAnswer("a list in another form than requested")
    version = decoded.metadata.resourceVersion
    columns = decoded.columnDefinitions or COLUMNS
    found = [(_name(raw, rows=rows), bytes(raw)) for raw in decoded.rows or decoded.items or ()]
    shown = [each for each in found if each[0] not in hidden]
    shown += [(own.service.object_name, maker.item(own, version, columns)) for own in ours]
    shown.sort(key=lambda each: each[0])
    everything: dict[str, Any] = {
        "kind": decoded.kind,
        "apiVersion": maker.form.api_version if maker.form.kind else API_VERSION,
        "metadata": decoded.metadata,
    }
    raws = [msgspec.Raw(text) for _, text in shown]
    if rows:
        everything |= {"columnDefinitions": columns, "rows": raws}
    else:
        everything["items"] = raws
    return msgspec.json.encode(everything) + b"\n"


def _decoded(body: bytes) -> _List:
    try:
        return _LIST.decode(body)
    except _ERRORS:
        raise UnreadableAnswer("something that is not a list of objects") from None


def _name(raw: msgspec.Raw, *, rows: bool) -> str:
    try:
        return _name_of_row(_ROW.decode(raw)) if rows else _ITEM.decode(raw).metadata.name
    except _ERRORS:
        raise UnreadableAnswer("an object without metadata") from None


def _name_of_row(row: _Row) -> str:
    """Return the name of a row's object: from the first cell if the object is omitted."""
    if row.object is not None and row.object.metadata.name:
        return row.object.metadata.name
    return str(_VALUE.decode(row.cells[0])) if row.cells else ""


class WholeLines:
    """Splits a byte stream into whole lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self.size = 0
        """Bytes of the incomplete last line."""

    def of(self, data: bytes) -> list[bytes]:
        """Add bytes; return the non-empty lines that are now complete. Raises UnreadableAnswer for a too long line."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._rest, whole[0]])
            self._rest, self.size = [], 0
        if rest:
            self._rest.append(rest)
            self.size += len(rest)
            if self.size > MAX_LINE:
                raise UnreadableAnswer(f"an event of more than {MAX_LINE} bytes")
        return [line for line in whole if line.strip()]


class WatchMerge:
    """Merges events of our objects into the lines of the backend's watch."""

    def __init__(self, maker: Maker, hidden: Collection[str], version: str) -> None:
        """`version`: the version from which the client watches, or that of an earlier list."""
        self._maker = maker
        self.hidden = frozenset(hidden)
        self._whole = WholeLines()
        self._columns: Sequence[Mapping[str, Any]] = COLUMNS
        self._headed = False
        self.version = version
        """The version for events of our objects: the newest version that the backend has sent."""
        self.initial: Callable[[], list[bytes]] | None = None
        """Makes the lines to insert before the bookmark that ends the initial events."""

    @property
    def clean(self) -> bool:
        """Whether the watch is between two events."""
        return not self._whole.size

    def ours(self, kind: str, own: Own) -> bytes:
        """Return the line of an event of one of our objects."""
        heading, self._headed = not self._headed, True
        return self._maker.event(kind, own, self.version, self._columns, heading=heading)

    def lines(self, data: bytes) -> list[bytes]:
        """Return the client's lines for the next bytes of the backend. Raises UnreadableAnswer."""
        return [told for line in self._whole.of(data) for told in self._line(line)]

    def _line(self, line: bytes) -> list[bytes]:
        try:
            event = _EVENT.decode(line)
        except _ERRORS:
            raise UnreadableAnswer("a line that is not an event") from None
        obj = event.object
        row = obj.rows[0] if obj.rows else None
        metadata = obj.metadata
        name = metadata.name
        if row is not None:
            try:
                name = _name_of_row(row)
            except _ERRORS:
                raise UnreadableAnswer("a row without a name") from None
            if row.object is not None:
                metadata = row.object.metadata
        if obj.columnDefinitions:
            self._columns, self._headed = obj.columnDefinitions, True
        if event.type == "ERROR":
            return [line + b"\n"]
        self.version = metadata.resourceVersion or obj.metadata.resourceVersion or self.version
        if event.type == "BOOKMARK":
            before: list[bytes] = []
            if self.initial is not None and (metadata.annotations or {}).get(_INITIAL_END) == "true":
                before = self.initial()
                self.initial = None
            return [*before, line + b"\n"]
        return [] if name in self.hidden else [line + b"\n"]
