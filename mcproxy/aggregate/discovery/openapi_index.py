"""The index of OpenAPI v3 documents: paths, and the hash of the document at each. Pure.

Source: KEP-2896; k8s.io/kube-openapi `pkg/handler3` for the form of the index.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from mcproxy.kube.discovery import DiscoveryError

Index = Mapping[str, str]
"""Path ("apis/apps/v1") to hash; "" where the server gave none."""

_PATH = re.compile(r"[A-Za-z0-9._-]{1,253}(?:/[A-Za-z0-9._-]{1,253}){0,3}")
_HASH = re.compile(r"\?hash=([A-Za-z0-9]{1,128})")
_MAX_PATHS = 10_000
_OF_THE_SERVER = frozenset({"api", "apis", "version"})


class _Entry(msgspec.Struct, rename={"url": "serverRelativeURL"}):
    url: str


class _Root(msgspec.Struct):
    paths: dict[str, _Entry]


class Part(NamedTuple):
    """A document of one cluster."""

    cluster: str
    hash: str


class Published(NamedTuple):
    """A document that the aggregate publishes: of one cluster, or made of those of several."""

    hash: str
    parts: tuple[Part, ...]


def read_index(body: bytes) -> Index:
    """Read the answer of /openapi/v3; entries that could not stand in a path are left out. Raises DiscoveryError."""
    if body.count(b",") > 2 * _MAX_PATHS:
        raise DiscoveryError(f"more than {_MAX_PATHS} OpenAPI documents")
    try:
        root = msgspec.json.decode(body, type=_Root)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryError(f"not an index of OpenAPI documents: {error}") from None
    if len(root.paths) > _MAX_PATHS:
        raise DiscoveryError(f"more than {_MAX_PATHS} OpenAPI documents")
    found = {}
    for path, entry in root.paths.items():
        if _PATH.fullmatch(path) and not {".", ".."} & set(path.split("/")):
            match = _HASH.search(entry.url)
            found[path] = match[1] if match else ""
    return found


def publish(
    indexes: Mapping[str, Index],
    owners: Mapping[tuple[str, str], tuple[str, ...]],
    primary: str | None,
    order: Sequence[str],
) -> dict[str, Published]:
    """Return the documents of an aggregate, by path.

    `owners`: the clusters that describe each group-version together (`merge.MergedDiscovery`); one that has no document
    for it adds nothing. `order`: all clusters. Paths of no group-version are the primary's; without a primary the first
    cluster's, as far as they are the API's own.
    """
    found: dict[str, Published] = {}
    for (group, version), clusters in owners.items():
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        parts = tuple(Part(name, indexes[name][path]) for name in clusters if path in indexes.get(name, ()))
        if parts:
            found[path] = Published(_hash(parts), parts)
    groups = {group for group, _ in owners}
    for name in (primary,) if primary is not None else order:
        for path, hash_ in indexes.get(name, {}).items():
            if path not in found and _is_plain(path, groups, whole=primary is not None):
                found[path] = Published(hash_, (Part(name, hash_),))
    return dict(sorted(found.items()))


def _hash(parts: Sequence[Part]) -> str:
    """Return the owner's hash, or one of the hashes of all; "" if one of them is not known."""
    if len(parts) == 1 or not all(part.hash for part in parts):
        return parts[0].hash if len(parts) == 1 else ""
    return hashlib.sha512("\n".join(part.hash for part in parts).encode()).hexdigest().upper()


def _is_plain(path: str, groups: set[str], *, whole: bool) -> bool:
    """Whether a path is of no group-version, and of nothing that is not served."""
    segments = path.split("/")
    if segments[0] == "apis" and len(segments) == 2:
        return segments[1] in groups
    if segments[0] in ("api", "apis") and len(segments) > 1:
        return False
    return whole or path in _OF_THE_SERVER


def write_index(published: Mapping[str, Published]) -> bytes:
    """Return the answer of /openapi/v3."""
    paths = {}
    for path, document in published.items():
        query = f"?hash={document.hash}" if document.hash else ""
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}{query}"}
    return msgspec.json.encode({"paths": paths})
