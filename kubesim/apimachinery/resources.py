"""The resources that a simulated cluster serves: the built-in ones of a recorded discovery, and those of CRDs.

Discovery, routing, storage and OpenAPI all read the `Registry`. CRDs are added and removed while the cluster runs, so
it counts generations, by which caches are invalidated.

All versions of a resource share one stored form (`from_storage`, `to_storage`). Most versions differ in apiVersion
alone (CRDs with conversion strategy None, and almost all built-in resources); Events and HorizontalPodAutoscalers
differ in their fields.
"""

from __future__ import annotations

import functools
import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources as package_files
from typing import Any

JSONDict = dict[str, Any]
StorageKey = tuple[str, str]

SHARED_STORAGE: dict[StorageKey, StorageKey] = {("events.k8s.io", "events"): ("", "events")}
"""Resources that are another version of the same stored objects."""


def names(text: str) -> tuple[str, ...]:
    """Return the words of a text: a list of names on few lines."""
    return tuple(text.split())


@dataclass(frozen=True)
class Subresource:
    """One subresource; `group`, `version` are those of its kind, empty if the same as the resource's."""

    name: str
    kind: str
    group: str
    version: str
    verbs: tuple[str, ...]


@dataclass(frozen=True)
class ResourceInfo:
    """A resource in one version."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    verbs: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[Subresource, ...] = ()
    builtin: bool = True
    list_kind: str = ""
    storage_version: str = ""
    crd_version: JSONDict | None = field(default=None, compare=False, repr=False)
    """The entry of a CRD's spec.versions (schema, additionalPrinterColumns, selectableFields, deprecated …)."""

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The resource as messages name it, such as `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> StorageKey:
        """The key of the stored objects, which all versions of a resource share."""
        key = (self.group, self.plural)
        return SHARED_STORAGE.get(key, key)

    @property
    def printer_columns(self) -> list[JSONDict] | None:
        """A CRD's additionalPrinterColumns; None for a built-in resource."""
        return None if self.crd_version is None else list(self.crd_version.get("additionalPrinterColumns") or ())

    def subresource(self, name: str) -> Subresource | None:
        return next((item for item in self.subresources if item.name == name), None)


class Registry:
    """The resources that are served.

    Owned by the cluster; only `registry/crd.py` and the code that fills it change it.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._groups: dict[str, dict[str, dict[str, ResourceInfo]]] = {}
        self._sort: dict[str, int] = {}
        for info in _builtin():
            self._put(info)

    def _put(self, info: ResourceInfo) -> None:
        self._groups.setdefault(info.group, {}).setdefault(info.version, {})[info.plural] = info

    def add(self, infos: Iterable[ResourceInfo]) -> None:
        """Serve the versions of a CRD, in the order given (most preferred first)."""
        for info in infos:
            self._put(info)
        self.generation += 1

    def serve_only(self, infos: Iterable[ResourceInfo]) -> None:
        """Serve only these resources, as an extension API server."""
        self._groups.clear()
        self.add(infos)

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a CRD's resource in all versions, and groups and versions that are then empty."""
        versions = self._groups.get(group, {})
        for version in list(versions):
            versions[version].pop(plural, None)
            if not versions[version]:
                del versions[version]
        if group in self._groups and not versions:
            del self._groups[group]
        self.generation += 1

    def groups(self) -> list[str]:
        """Return the group names, the core group ("") first."""
        return list(self._groups)

    def versions(self, group: str) -> list[str]:
        """Return the versions of a group, the preferred one first; empty for an unknown group."""
        return list(self._groups.get(group, ()))

    def resources(self, group: str, version: str) -> list[ResourceInfo]:
        """Return the resources of a group-version; empty for an unknown one."""
        return list(self._groups.get(group, {}).get(version, {}).values())

    def get(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        return self._groups.get(group, {}).get(version, {}).get(plural)

    def by_kind(self, group: str, version: str, kind: str) -> ResourceInfo | None:
        """Return the resource of a kind in one group-version."""
        return next((info for info in self.resources(group, version) if info.kind == kind), None)

    def preferred(self, group: str, plural: str) -> ResourceInfo | None:
        """Return the resource in the first version that has it."""
        for version in self.versions(group):
            if found := self.get(group, version, plural):
                return found
        return None

    def is_builtin_group(self, group: str) -> bool:
        """Return whether a built-in API server refuses unknown resources of the group (its message differs)."""
        return any(info.builtin for version in self.versions(group) for info in self.resources(group, version))

    def __iter__(self) -> Iterator[ResourceInfo]:
        for versions in self._groups.values():
            for items in versions.values():
                yield from items.values()


@functools.cache
def _builtin() -> tuple[ResourceInfo, ...]:
    raw = (package_files.files("kubesim") / "data" / "discovery.json.gz").read_bytes()
    document = json.loads(gzip.decompress(raw))
    return tuple(
        _from_discovery(group["name"], version["version"], entry)
        for group in document["groups"]
        for version in group["versions"]
        for entry in version["resources"]
    )


def _from_discovery(group: str, version: str, entry: JSONDict) -> ResourceInfo:
    kind = entry["responseKind"]["kind"]
    return ResourceInfo(
        group=group,
        version=version,
        kind=kind,
        plural=entry["resource"],
        singular=entry["singularResource"],
        namespaced=entry["scope"] == "Namespaced",
        verbs=tuple(entry["verbs"]),
        short_names=tuple(entry.get("shortNames", ())),
        categories=tuple(entry.get("categories", ())),
        subresources=tuple(
            Subresource(
                sub["subresource"],
                sub["responseKind"]["kind"],
                sub["responseKind"]["group"],
                sub["responseKind"]["version"],
                tuple(sub["verbs"]),
            )
            for sub in entry.get("subresources", ())
        ),
        list_kind=f"{kind}List",
        storage_version=version,
    )


EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
"""Field names in core/v1 (as stored) and in events.k8s.io/v1."""

OMITTED_WHEN_EMPTY = ("reportingController", "reportingInstance")
"""Fields that core/v1 writes even if empty, and events.k8s.io/v1 leaves out."""


def from_storage(resource: ResourceInfo, stored: JSONDict) -> JSONDict:
    """Return a stored object in the version of `resource`."""
    if stored.get("apiVersion") == resource.group_version:
        return stored
    obj = {**stored, "kind": resource.kind, "apiVersion": resource.group_version}
    if resource.group == "events.k8s.io":
        renamed = {EVENT_FIELDS.get(key, key): value for key, value in obj.items()}
        return {key: value for key, value in renamed.items() if value != "" or key not in OMITTED_WHEN_EMPTY}
    if resource.group == "autoscaling" and resource.version == "v1":
        return _autoscaler_v1(obj)
    return obj


def to_storage(resource: ResourceInfo, obj: JSONDict) -> JSONDict:
    """Return the stored form of an object in the version of `resource`."""
    if resource.group == "events.k8s.io":
        back = {new: old for old, new in EVENT_FIELDS.items()}
        return {**{back.get(key, key): value for key, value in obj.items()}, "apiVersion": "v1"}
    if not resource.builtin and resource.storage_version != resource.version:
        return {**obj, "apiVersion": f"{resource.group}/{resource.storage_version}"}
    return obj


def _autoscaler_v1(obj: JSONDict) -> JSONDict:
    spec = {key: value for key, value in (obj.get("spec") or {}).items() if key not in ("metrics", "behavior")}
    for metric in (obj.get("spec") or {}).get("metrics") or ():
        target = (metric.get("resource") or {}).get("target") or {}
        if (metric.get("resource") or {}).get("name") == "cpu" and "averageUtilization" in target:
            spec["targetCPUUtilizationPercentage"] = target["averageUtilization"]
    status = obj.get("status") or {}
    kept = ("observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas")
    narrowed = {"currentReplicas": 0, **{key: status[key] for key in kept if key in status}}
    return {**obj, "spec": spec, "status": narrowed}
