"""Discovery documents as bytes, encoded once and then served: aggregated and legacy (unaggregated) ones. Pure.

Source: Kubernetes API concepts ("Discovery API"); recordings of a kube-apiserver for the order of fields and entries.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence

import msgspec
import yaml

from mcproxy.aggregate.discovery.merge import BUILT_IN_GROUPS
from mcproxy.kube.discovery import (
    STALE,
    APIGroupDiscovery,
    APIGroupDiscoveryList,
    APIResourceDiscovery,
    APIVersionDiscovery,
    GroupVersionKind,
)
from mcproxy.kube.numbers import json_float
from mcproxy.kube.status import StatusError

GZIP_FROM = 128 * 1024
"""The size in bytes from which a kube-apiserver compresses a response."""
_VALUE = msgspec.json.Decoder(float_hook=json_float)
_MAX_YAML = 256  # documents that are kept as YAML, too


class PageNotFound(Exception):
    """The plain-text 404 for a path that is not served."""


class VersionUnavailable(Exception):
    """The resources of a group-version are unknown, since its server cannot be reached: 503 in plain text."""


class _GroupVersion(msgspec.Struct, rename="camel"):
    group_version: str
    version: str


class _Group(msgspec.Struct, rename="camel"):
    name: str
    versions: tuple[_GroupVersion, ...]
    preferred_version: _GroupVersion


class _Resource(msgspec.Struct, rename="camel", omit_defaults=True):
    """`metav1.APIResource`, without storageVersionHash: aggregated documents of members do not have it."""

    name: str
    singular_name: str
    namespaced: bool
    group: str = ""
    version: str = ""
    kind: str | msgspec.UnsetType = msgspec.UNSET  # always encoded, like the verbs
    verbs: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


def not_found() -> StatusError:
    """Return the 404 for an unknown version of a kube-apiserver's own group."""
    return StatusError(404, "the server could not find the requested resource", details={})


class AggregatedDocument:
    """An APIGroupDiscoveryList; `etag` with its quotes."""

    __slots__ = ("_zipped", "body", "etag")

    def __init__(self, groups: tuple[APIGroupDiscovery, ...]) -> None:
        self.body = _line(APIGroupDiscoveryList(items=groups))
        self.etag = b'"%b"' % hashlib.sha512(self.body).hexdigest().upper().encode()
        self._zipped = b""

    def zipped(self) -> bytes | None:
        """Return the body compressed with gzip; None for a small one, which a kube-apiserver does not compress."""
        if len(self.body) <= GZIP_FROM:
            return None
        if not self._zipped:
            self._zipped = gzip.compress(self.body, 1, mtime=0)
        return self._zipped


class DiscoveryDocuments:
    """All documents of some merged groups, each made on the first request for it."""

    def __init__(self, groups: Sequence[APIGroupDiscovery], legacy: Sequence[str] = ()) -> None:
        """`legacy` are the group names in the order of the legacy document, if that order differs."""
        self._core = tuple(group for group in groups if not group.metadata.name)
        self._named = {group.metadata.name: group for group in groups if group.metadata.name}
        self._order = legacy or tuple(self._named)
        self._aggregated: dict[bool, AggregatedDocument] = {}
        self._legacy: dict[tuple[str, ...], bytes] = {}
        self._yaml: dict[bytes, bytes] = {}

    def aggregated(self, *, core: bool) -> AggregatedDocument:
        """Return the aggregated document of /api (`core`) or /apis."""
        document = self._aggregated.get(core)
        if document is None:
            document = AggregatedDocument(self._core if core else tuple(self._named.values()))
            self._aggregated[core] = document
        return document

    def prepare(self) -> None:
        """Make the documents of /apis. It may run in a thread: existing documents do not change."""
        self.aggregated(core=False).zipped()
        self.group_list()

    def core_versions(self, address: str) -> bytes:
        """Return the APIVersions of /api; `address` is the "host:port" to which the client sent the request."""
        versions = [version.version for group in self._core for version in group.versions]
        cidrs = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
        return _line({"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": cidrs})

    def group_list(self) -> bytes:
        """Return the APIGroupList of /apis."""
        body = self._legacy.get(())
        if body is None:
            groups = [_group(self._named[name]) for name in self._order if name in self._named]
            body = self._legacy[()] = _line({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        return body

    def group(self, name: str) -> bytes:
        """Return the APIGroup of /apis/<name>. Raises PageNotFound."""
        body = self._legacy.get((name,))
        if body is None:
            if name not in self._named:
                raise PageNotFound
            entry = msgspec.to_builtins(_group(self._named[name]))
            body = self._legacy[name,] = _line({"kind": "APIGroup", "apiVersion": "v1", **entry})
        return body

    def resource_list(self, group: str, version: str) -> bytes:
        """Return the APIResourceList of a group-version.

        Raises PageNotFound, StatusError (404) where the group is a kube-apiserver's own, VersionUnavailable.
        """
        body = self._legacy.get((group, version))
        if body is None:
            found = self._version(group, version)
            if found is None:
                raise not_found() if not group or (group in self._named and group in BUILT_IN_GROUPS) else PageNotFound
            if found.freshness == STALE and not found.resources:
                raise VersionUnavailable
            body = self._legacy[group, version] = _resource_list(group, found)
        return body

    def paths(self) -> list[str]:
        """Return the paths of all groups and group-versions."""
        found = ["/api", *(f"/api/{version.version}" for group in self._core for version in group.versions)]
        if self._named:
            found += ["/apis", "/apis/"]
        for name, group in self._named.items():
            found.append(f"/apis/{name}")
            found += [f"/apis/{name}/{version.version}" for version in group.versions]
        return found

    def as_yaml(self, body: bytes) -> bytes:
        """Return a legacy document as YAML."""
        found = self._yaml.get(body)
        if found is None:
            dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
            found = yaml.dump(_VALUE.decode(body), Dumper=dumper, encoding="utf-8", allow_unicode=True)
            if len(self._yaml) < _MAX_YAML:
                self._yaml[body] = found
        return found

    def _version(self, group: str, version: str) -> APIVersionDiscovery | None:
        groups = self._core if not group else tuple(one for one in (self._named.get(group),) if one)
        return next((one for found in groups for one in found.versions if one.version == version), None)


def _line(document: object) -> bytes:
    return msgspec.json.encode(document) + b"\n"


def _group(group: APIGroupDiscovery) -> _Group:
    """Return a group's legacy entry. As in a kube-apiserver, the first version is the preferred one, even if its server
    is unavailable.
    """
    name = group.metadata.name
    versions = tuple(_GroupVersion(f"{name}/{version.version}", version.version) for version in group.versions)
    return _Group(name, versions, versions[0])


def _resource_list(group: str, version: APIVersionDiscovery) -> bytes:
    entries = [entry for resource in version.resources for entry in _entries(group, version.version, resource)]
    head = {"kind": "APIResourceList", "apiVersion": "v1"} if group else {"kind": "APIResourceList"}
    group_version = f"{group}/{version.version}" if group else version.version
    return _line({**head, "groupVersion": group_version, "resources": entries})


def _entries(group: str, version: str, resource: APIResourceDiscovery) -> list[_Resource]:
    namespaced = resource.scope == "Namespaced"
    main = _Resource(
        resource.resource,
        resource.singular_resource,
        namespaced,
        *_kind(group, version, resource.response_kind),
        resource.verbs,
        resource.short_names,
        resource.categories,
    )
    below = [
        _Resource(f"{resource.resource}/{one.subresource}", "", namespaced, *kind, one.verbs)
        for one in resource.subresources
        for kind in (_kind(group, version, one.response_kind),)
    ]
    return [main, *below]


def _kind(group: str, version: str, kind: GroupVersionKind | None) -> tuple[str, str, str]:
    """Return group, version and kind for a legacy entry; each is "" if it equals that of the document."""
    if kind is None:
        return "", "", ""
    if not kind.version or (kind.group, kind.version) == (group, version):
        return "", "", kind.kind
    return kind.group, kind.version, kind.kind
