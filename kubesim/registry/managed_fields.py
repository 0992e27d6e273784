"""metadata.managedFields, updated for creates and updates as in a real apiserver.

Server-side apply uses the same entries. Times have whole seconds, as in the API.

Sets of fields have the form of fieldsV1. A path is a tuple of its strings: `f:name` a field, `k:{"name":"web"}` an
element of a list by its keys, `v:"x"` an element of a set by its value. The rules are those of
sigs.k8s.io/structured-merge-diff v6: `of_object` is its ToFieldSet, `compare` its Compare.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import JSONDict, ResourceInfo, names
from kubesim.apimachinery.schemas import Schema

Path = tuple[str, ...]
FieldSet = frozenset[Path]
EMPTY: FieldSet = frozenset()
MISSING: Any = object()

_META = names("name namespace creationTimestamp selfLink uid clusterName generation managedFields resourceVersion")
STRIPPED: FieldSet = frozenset(
    [("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _META)]
)
"""Fields without owners (stripMeta in apimachinery's managedfields)."""


def to_fields_v1(fields: Iterable[Path]) -> JSONDict:
    """Return the trie of fieldsV1, with keys in its order."""
    root: JSONDict = {}
    members = set(fields)
    prefixes = {path[:depth] for path in members for depth in range(1, len(path))}
    for path in sorted(members | prefixes):
        node = root
        for part in path[:-1]:
            node = node[part]
        own = node[path[-1]] = {}
        if path in members and path in prefixes:
            own["."] = {}
    return root


def from_fields_v1(trie: Mapping[str, Any]) -> FieldSet:
    """Return the paths of a fieldsV1 trie."""
    out: set[Path] = set()

    def walk(node: Mapping[str, Any], path: Path) -> None:
        for key, below in node.items():
            if key == ".":
                out.add(path)
            elif not below:
                out.add((*path, key))
            else:
                walk(below, (*path, key))

    walk(trie, ())
    return frozenset(out)


def strip(fields: Iterable[Path]) -> FieldSet:
    """Return the paths without the fields that are never owned."""
    return frozenset(path for path in fields if path not in STRIPPED and path[:2] != ("f:metadata", "f:managedFields"))


def scalar(value: Any) -> str:
    """Return a value in the form of a path element."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def element_key(schema: Schema, keys: tuple[str, ...], item: Any) -> str | None:
    """Return the path element of a list's item; None when the item lacks its keys (the list is then atomic)."""
    if not keys:
        return f"v:{scalar(item)}"
    if not isinstance(item, Mapping):
        return None
    found: JSONDict = {}
    for key in keys:
        value = item.get(key, MISSING)
        if value is MISSING:
            value = schemas.child(schemas.element(schema), key).get("default", MISSING)
        if value is not MISSING:
            found[key] = value
    return f"k:{scalar(found)}" if found else None


def index(schema: Schema, value: Any) -> dict[str, Any] | None:
    """Return a list's items by path element; None for an atomic list."""
    keys = schemas.list_keys(schema)
    if keys is None or not isinstance(value, list):
        return None
    out: dict[str, Any] = {}
    for item in value:
        key = element_key(schema, keys, item)
        if key is None:
            return None
        out.setdefault(key, item)
    return out


def children(schema: Schema, value: Any) -> dict[str, tuple[Any, Schema]] | None:
    """Return the children of a value by path element, with schemas; None for scalars and atomic values."""
    if isinstance(value, Mapping):
        if schemas.is_atomic_map(schema):
            return None
        return {f"f:{key}": (item, schemas.child(schema, key)) for key, item in value.items()}
    items = index(schema, value)
    if items is None:
        return None
    below = schemas.element(schema)
    return {key: (item, below) for key, item in items.items()}


def of_object(schema: Schema, obj: Mapping[str, Any]) -> FieldSet:
    """Return the fields of an applied configuration."""
    out: set[Path] = set()

    def walk(node: Schema, value: Any, path: Path) -> None:
        below = children(node, value)
        if below is None:
            out.add(path)
            return
        for key, (item, sub) in below.items():
            here = (*path, key)
            declared = key.startswith("f:") and schemas.named_field(node, key[2:]) is not None
            if not declared or item is None or item == {}:
                out.add(here)
            if item is not None and item != {}:
                walk(sub, item, here)

    walk(schema, obj, ())
    return strip(out)


@dataclass
class Comparison:
    """The differences of two objects, as paths."""

    added: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)

    @property
    def changed(self) -> FieldSet:
        """Added or modified paths, without those that are never owned."""
        return strip(self.added | self.modified)


def compare(schema: Schema, old: Mapping[str, Any], new: Mapping[str, Any]) -> Comparison:
    """Return the differences of two objects of one type."""
    result = Comparison()
    _compare(schema, old, new, (), result)
    return result


def _compare(schema: Schema, old: Any, new: Any, path: Path, result: Comparison) -> None:
    if old is not MISSING and new is not MISSING and old == new:
        return
    before = _below(schema, old)
    after = _below(schema, new)
    leaf = before is None or after is None or (not before and not after)
    if old is MISSING:
        result.added.add(path)
    elif new is MISSING:
        result.removed.add(path)
    elif leaf and not (before == {} and after == {} and (old or new) is None):
        result.modified.add(path)
    if before is None or after is None:
        return
    for key in {**before, **after}:
        old_item, sub = before.get(key, (MISSING, None))
        new_item, sub = after.get(key, (MISSING, sub))
        _compare(sub or schemas.UNKNOWN, old_item, new_item, (*path, key), result)


def _below(schema: Schema, value: Any) -> dict[str, tuple[Any, Schema]] | None:
    """Return `children`, where an absent or null value has none and is compatible with any other."""
    return {} if value is MISSING or value is None else children(schema, value)


@dataclass(frozen=True)
class Entry:
    """One manager's fields."""

    manager: str
    operation: str
    api_version: str
    subresource: str
    time: str | None
    fields: FieldSet

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """The identity of an entry; that of an applier does not depend on the version it applies."""
        return (self.manager, self.operation, "" if self.operation == "Apply" else self.api_version, self.subresource)

    def as_dict(self) -> JSONDict:
        out: JSONDict = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version}
        if self.time:
            out["time"] = self.time
        out["fieldsType"] = "FieldsV1"
        out["fieldsV1"] = to_fields_v1(self.fields)
        if self.subresource:
            out["subresource"] = self.subresource
        return out


def read(obj: Mapping[str, Any] | None) -> list[Entry]:
    """Return the entries of an object."""
    if obj is None:
        return []
    return [
        Entry(
            entry.get("manager", ""),
            entry.get("operation", "Update"),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
            entry.get("time"),
            from_fields_v1(entry.get("fieldsV1") or {}),
        )
        for entry in (obj.get("metadata") or {}).get("managedFields") or ()
    ]


def write(obj: JSONDict, entries: Iterable[Entry]) -> None:
    """Set the entries, in Kubernetes' order (Apply before Update, then by time and name), without empty ones."""
    ordered = sorted(
        (entry for entry in entries if entry.fields),
        key=lambda entry: (entry.operation, entry.time or "", entry.manager, entry.api_version, entry.subresource),
    )
    metadata = obj.setdefault("metadata", {})
    metadata.pop("managedFields", None)
    if ordered:
        metadata["managedFields"] = [entry.as_dict() for entry in ordered]


def without_fields(entries: Iterable[Entry], taken: Iterable[Path]) -> list[Entry]:
    """Return the entries without some fields."""
    gone = frozenset(taken)
    return [replace(entry, fields=entry.fields - gone) for entry in entries]


def with_entry(entries: Iterable[Entry], mine: Entry) -> list[Entry]:
    """Return the entries with `mine` in place of the one of the same identity."""
    return [*(entry for entry in entries if entry.identity != mine.identity), mine]


def is_reset_field(resource: ResourceInfo, subresource: str, path: Path) -> bool:
    """Return whether a write to this (sub)resource resets the field, so that the writer does not own it."""
    if subresource == "status":
        return path[0] == "f:spec" or path[:2] in (("f:metadata", "f:labels"), ("f:metadata", "f:annotations"))
    has_status = resource.subresource("status") is not None
    return path[:2] in (("f:metadata", "f:deletionTimestamp"), ("f:metadata", "f:deletionGracePeriodSeconds")) or (
        has_status and path[0] == "f:status"
    )


def without_entries(obj: Mapping[str, Any]) -> JSONDict:
    """Return a shallow copy of an object without managedFields."""
    metadata = {key: value for key, value in (obj.get("metadata") or {}).items() if key != "managedFields"}
    return {**obj, "metadata": metadata}


def update(
    old: Mapping[str, Any] | None,
    new: JSONDict,
    *,
    manager: str,
    operation: str,
    subresource: str,
    now: str,
    resource: ResourceInfo,
) -> None:
    """Set `new`'s managedFields after a create (`old` None), update or non-apply patch by `manager` at `now`.

    Called after defaulting, before the server sets its own fields (clusterIP, status). A client may send
    managedFields (kubectl does when it migrates to server-side apply); without them the old ones are kept, `[{}]`
    clears them. With operation "Apply" nothing is done: `patches.apply_patch` has already set them.
    """
    if operation == "Apply":
        return
    sent = (new.get("metadata") or {}).get("managedFields")
    entries = [] if sent == [{}] else (read(new) or read(old))
    before = schemas.completed(resource, {} if old is None else without_entries(old))
    after = schemas.completed(resource, without_entries(new))
    difference = compare(schemas.of(resource), before, after)
    mine = frozenset(path for path in difference.changed if not is_reset_field(resource, subresource, path))
    key = Entry(manager, "Update", resource.group_version, subresource, None if subresource == "scale" else now, mine)
    previous = next((entry for entry in entries if entry.identity == key.identity), None)
    entries = without_fields(entries, mine | difference.removed)
    if mine:
        kept = (previous.fields - difference.removed) if previous else EMPTY
        entries = with_entry(entries, replace(key, fields=kept | mine))
    write(new, entries)
