"""metadata.managedFields, updated for creates and updates as in a real apiserver.

Server-side apply uses the same entries. Times have whole seconds, as in the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import ResourceInfo
from kubesim.patch import field_sets
from kubesim.patch.field_sets import FieldSet, Path

JSONDict = dict[str, Any]


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
        out["fieldsV1"] = field_sets.to_fields_v1(self.fields)
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
            field_sets.from_fields_v1(entry.get("fieldsV1") or {}),
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
    difference = field_sets.compare(schemas.of(resource), before, after)
    mine = frozenset(path for path in difference.changed if not is_reset_field(resource, subresource, path))
    key = Entry(manager, "Update", resource.group_version, subresource, None if subresource == "scale" else now, mine)
    previous = next((entry for entry in entries if entry.identity == key.identity), None)
    entries = without_fields(entries, mine | difference.removed)
    if mine:
        kept = (previous.fields - difference.removed) if previous else field_sets.EMPTY
        entries = with_entry(entries, replace(key, fields=kept | mine))
    write(new, entries)
