"""Discovery documents: the groups, versions and resources of an API server.

The types are those of k8s.io/api `apidiscovery/v2`, with the same names, fields and order of fields. A legacy
`APIResourceList` is read into the same types. Documents come from clusters and are not trusted: entries that would be
invalid in a path or as an object's `kind` are left out. The caller limits the size of documents.

Source: KEP-3352 (aggregated discovery), Kubernetes API concepts ("Discovery API").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from mcproxy.kube.resource import APIResource, APISubresource, GroupVersionResource

AGGREGATED_MEDIA_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
AGGREGATED_ACCEPT = f"{AGGREGATED_MEDIA_TYPE},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
AGGREGATED_ACCEPT += ",application/json"
"""The Accept header of client-go: servers before 1.27 respond with legacy documents, before 1.30 with v2beta1."""
CURRENT, STALE = "Current", "Stale"
"""Values of a group-version's `freshness`: current, or the last known state of an unreachable server."""

_MAX_COMMAS = 1_000_000
"""Maximum of elements of a document. Each can take a hundred bytes during decoding; a resource has about thirty."""
_VERSION = re.compile(r"v([0-9]{1,9})(?:(alpha|beta)([0-9]{1,9}))?")
_STAGES = {None: 0, "beta": 1, "alpha": 2}
_GROUP = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,252}")
_SUBRESOURCE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,62}(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,62}){0,3}")
_WORD = re.compile(r"[A-Za-z0-9*._-]{1,253}")


class DiscoveryError(ValueError):
    """A document is not of the requested kind; the message is a sentence for operators."""


class GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    """`metav1.GroupVersionKind`; an empty group and version mean those of the containing document."""

    group: str = ""
    version: str = ""
    kind: str = ""


class APISubresourceDiscovery(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A subresource; `response_kind` is None if the server omits it."""

    subresource: str
    response_kind: GroupVersionKind | None = None
    accepted_types: tuple[GroupVersionKind, ...] = ()
    verbs: tuple[str, ...] = ()


class APIResourceDiscovery(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A resource; `scope` is "Namespaced" or "Cluster"."""

    resource: str
    response_kind: GroupVersionKind | None
    scope: str
    singular_resource: str
    verbs: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[APISubresourceDiscovery, ...] = ()


class APIVersionDiscovery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version of a group; `freshness` is `CURRENT` or `STALE`."""

    version: str
    resources: tuple[APIResourceDiscovery, ...] = ()
    freshness: str = ""


class ObjectMeta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The name of a group; "" for the core group."""

    name: str = ""


class APIGroupDiscovery(msgspec.Struct, frozen=True):
    """A group with its versions, the preferred one first."""

    metadata: ObjectMeta = ObjectMeta()
    versions: tuple[APIVersionDiscovery, ...] = ()


class APIGroupDiscoveryList(msgspec.Struct, frozen=True, rename="camel"):
    """The response of /api and /apis, always in the form of v2."""

    kind: str = "APIGroupDiscoveryList"
    api_version: str = "apidiscovery.k8s.io/v2"
    metadata: ObjectMeta = ObjectMeta()
    items: tuple[APIGroupDiscovery, ...] = ()


class _WireSubresource(msgspec.Struct, rename="camel"):
    subresource: str
    response_kind: GroupVersionKind | None = None
    accepted_types: tuple[GroupVersionKind, ...] | None = None
    verbs: tuple[str, ...] | None = None


class _WireResource(msgspec.Struct, rename="camel"):
    resource: str
    scope: str
    response_kind: GroupVersionKind | None = None
    singular_resource: str = ""
    verbs: tuple[str, ...] | None = None
    short_names: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None
    subresources: tuple[_WireSubresource, ...] | None = None


class _WireVersion(msgspec.Struct):
    version: str
    resources: tuple[_WireResource, ...] | None = None
    freshness: str = CURRENT


class _WireMeta(msgspec.Struct):
    name: str = ""


class _WireGroup(msgspec.Struct):
    metadata: _WireMeta = msgspec.field(default_factory=_WireMeta)
    versions: tuple[_WireVersion, ...] | None = None


class _WireGroupList(msgspec.Struct, rename="camel"):
    kind: str
    api_version: str
    items: tuple[_WireGroup, ...] | None = None


class _LegacyResource(msgspec.Struct, rename="camel"):
    name: str
    kind: str
    namespaced: bool
    singular_name: str = ""
    group: str = ""
    version: str = ""
    verbs: tuple[str, ...] | None = None
    short_names: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None


class _LegacyResourceList(msgspec.Struct, rename="camel"):
    kind: str
    group_version: str
    resources: tuple[_LegacyResource, ...] | None = None


class _LegacyVersion(msgspec.Struct):
    version: str


class _LegacyGroup(msgspec.Struct, rename="camel"):
    name: str
    versions: tuple[_LegacyVersion, ...] | None = None
    preferred_version: _LegacyVersion | None = None


class _LegacyGroupList(msgspec.Struct):
    kind: str
    groups: tuple[_LegacyGroup, ...] | None = None


class _LegacyVersions(msgspec.Struct):
    kind: str
    versions: tuple[str, ...] | None = None


T = TypeVar("T")


def version_order(version: str) -> tuple[int, int, int, int, str]:
    """Return the sort key of a version in Kubernetes' order: v2, v1, v1beta2, v1beta1, v1alpha1, then others by name.

    Source: k8s.io/apimachinery `pkg/version` (CompareKubeAwareVersionStrings).
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        return (1, 0, 0, 0, version)
    major, stage, minor = match.groups()
    return (0, _STAGES[stage], -int(major), -int(minor or 0), "")


def read_aggregated(body: bytes) -> tuple[APIGroupDiscovery, ...]:
    """Read an APIGroupDiscoveryList (v2 or v2beta1, which have the same fields). Raises DiscoveryError."""
    document = _decode(body, _WireGroupList)
    if document.kind != "APIGroupDiscoveryList" or not document.api_version.startswith("apidiscovery.k8s.io/v2"):
        raise DiscoveryError(f"expected an APIGroupDiscoveryList, got {_named(document.kind)}")
    groups: dict[str, APIGroupDiscovery] = {}
    for item in document.items or ():
        name = item.metadata.name
        if name not in groups and (not name or _GROUP.fullmatch(name)):
            versions = {one.version: _version(one) for one in reversed(item.versions or ()) if _is_label(one.version)}
            groups[name] = APIGroupDiscovery(ObjectMeta(name), tuple(reversed(versions.values())))
    return tuple(groups.values())


def read_core_versions(body: bytes) -> tuple[str, ...]:
    """Read the `APIVersions` of a legacy /api. Raises DiscoveryError."""
    document = _decode(body, _LegacyVersions)
    if document.kind != "APIVersions":
        raise DiscoveryError(f"expected APIVersions, got {_named(document.kind)}")
    return tuple(dict.fromkeys(version for version in document.versions or () if _is_label(version)))


def read_groups(body: bytes) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Read the `APIGroupList` of a legacy /apis: each group with its versions, the preferred one first.

    Raises DiscoveryError.
    """
    document = _decode(body, _LegacyGroupList)
    if document.kind != "APIGroupList":
        raise DiscoveryError(f"expected an APIGroupList, got {_named(document.kind)}")
    found: dict[str, tuple[str, ...]] = {}
    for group in document.groups or ():
        first = [] if group.preferred_version is None else [group.preferred_version]
        versions = dict.fromkeys(one.version for one in (*first, *(group.versions or ())) if _is_label(one.version))
        if _GROUP.fullmatch(group.name):
            found.setdefault(group.name, tuple(versions))
    return tuple(found.items())


def read_resources(body: bytes, group: str, version: str) -> APIVersionDiscovery:
    """Read the `APIResourceList` of a legacy group-version. Raises DiscoveryError."""
    document = _decode(body, _LegacyResourceList)
    expected = f"{group}/{version}" if group else version
    if document.kind != "APIResourceList" or document.group_version != expected:
        raise DiscoveryError(f"expected the APIResourceList of {expected}, got {_named(document.kind)}")
    main: dict[str, _WireResource] = {}
    below: dict[str, list[_WireSubresource]] = {}
    for entry in document.resources or ():
        kind = GroupVersionKind(entry.group, entry.version, entry.kind)
        name, slash, subresource = entry.name.partition("/")
        if slash:
            below.setdefault(name, []).append(_WireSubresource(subresource, kind, None, entry.verbs))
            continue
        scope = "Namespaced" if entry.namespaced else "Cluster"
        more = (entry.verbs, entry.short_names, entry.categories)
        main.setdefault(name, _WireResource(name, scope, kind, entry.singular_name, *more))
    for name, resource in main.items():
        resource.subresources = tuple(below.get(name, ()))
    return _version(_WireVersion(version, tuple(main.values())))


def api_resources(groups: Iterable[APIGroupDiscovery]) -> dict[GroupVersionResource, APIResource]:
    """Return the resources of some groups by name, in the documents' order."""
    found: dict[GroupVersionResource, APIResource] = {}
    for group in groups:
        for version in group.versions:
            for resource in _resources(group.metadata.name, version):
                found.setdefault(resource.gvr, resource)
    return found


def _resources(group: str, version: APIVersionDiscovery) -> Iterator[APIResource]:
    for entry in version.resources:
        yield APIResource(
            gvr=GroupVersionResource(group, version.version, entry.resource),
            kind=entry.response_kind.kind if entry.response_kind else "",
            singular=entry.singular_resource,
            namespaced=entry.scope == "Namespaced",
            verbs=frozenset(entry.verbs),
            short_names=entry.short_names,
            categories=entry.categories,
            subresources=tuple(_subresource(group, version.version, one) for one in entry.subresources),
        )


def _subresource(group: str, version: str, entry: APISubresourceDiscovery) -> APISubresource:
    kind = entry.response_kind or GroupVersionKind()
    if not kind.version:
        kind = GroupVersionKind(group, version, kind.kind)
    return APISubresource(entry.subresource, kind.kind, kind.group, kind.version, frozenset(entry.verbs))


def _decode(body: bytes, expected: type[T]) -> T:
    if body.count(b",") > _MAX_COMMAS:
        raise DiscoveryError(f"it has more than {_MAX_COMMAS} elements")
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(f"not a discovery document: {error}") from None


def _named(kind: str) -> str:
    return kind if _KIND.fullmatch(kind) else "something else"


def _is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def _version(wire: _WireVersion) -> APIVersionDiscovery:
    """Return a version with its well-formed resources, the first one of each name."""
    found: dict[str, APIResourceDiscovery] = {}
    for entry in wire.resources or ():
        if entry.resource not in found and _is_resource(entry):
            found[entry.resource] = _resource(entry)
    return APIVersionDiscovery(wire.version, tuple(found.values()), STALE if wire.freshness == STALE else CURRENT)


def _is_resource(entry: _WireResource) -> bool:
    """Return whether name, kind and scope of an entry are valid in paths and objects."""
    kind = entry.response_kind
    return (
        entry.scope in ("Namespaced", "Cluster")
        and kind is not None
        and bool(kind.kind)
        and _is_kind(kind)
        and _RESOURCE.fullmatch(entry.resource) is not None
    )


def _is_kind(kind: GroupVersionKind) -> bool:
    return (
        (not kind.group or _GROUP.fullmatch(kind.group) is not None)
        and (not kind.version or _is_label(kind.version))
        and (not kind.kind or _KIND.fullmatch(kind.kind) is not None)
    )


def _resource(entry: _WireResource) -> APIResourceDiscovery:
    below = {one.subresource: one for one in reversed(entry.subresources or ()) if _is_subresource(one)}
    singular = entry.singular_resource
    return APIResourceDiscovery(
        resource=entry.resource,
        response_kind=entry.response_kind,
        scope=entry.scope,
        singular_resource=singular if _RESOURCE.fullmatch(singular) else "",
        verbs=_words(entry.verbs),
        short_names=_words(entry.short_names),
        categories=_words(entry.categories),
        subresources=tuple(
            APISubresourceDiscovery(
                one.subresource,
                one.response_kind,
                tuple(kind for kind in one.accepted_types or () if _is_kind(kind)),
                _words(one.verbs),
            )
            for one in reversed(below.values())
        ),
    )


def _is_subresource(entry: _WireSubresource) -> bool:
    """Return whether an entry is valid: it has a name and a verb."""
    kind = entry.response_kind
    named = _SUBRESOURCE.fullmatch(entry.subresource) is not None
    return named and bool(_words(entry.verbs)) and (kind is None or _is_kind(kind))


def _words(words: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(word for word in words or () if _WORD.fullmatch(word))
