"""Computes the kinds and namespaces of each cluster that the caches follow for a configuration. Pure.

`mcproxy rbac` prints the rights for exactly these kinds and namespaces (`identity.service_rights`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

from mcproxy.config.model.config import Config
from mcproxy.config.model.ingresses import IngressBackend
from mcproxy.config.model.services import MAX_SERVICE_NAMESPACES
from mcproxy.services import api_types
from mcproxy.services.endpoint_table import BackendKey, backend_keys

ALL = ""
"""The scope of all namespaces."""


class FollowedKind(enum.Enum):
    """A kind of object that the caches follow: its group, the versions that mcproxy understands, and its plural."""

    SLICES = (api_types.DISCOVERY_GROUP, ("v1",), api_types.SLICES)
    SERVICES = ("", ("v1",), api_types.SERVICES)
    EXPORTS = (api_types.MCS_GROUP, api_types.MCS_VERSIONS, api_types.EXPORTS)
    IMPORTS = (api_types.MCS_GROUP, api_types.MCS_VERSIONS, api_types.IMPORTS)
    NAMESPACES = ("", ("v1",), "namespaces", False)
    PROPERTIES = (api_types.ABOUT_GROUP, api_types.ABOUT_VERSIONS, api_types.PROPERTIES, False)

    def __init__(self, group: str, versions: tuple[str, ...], resource: str, namespaced: bool = True) -> None:
        self.group = group
        self.versions = versions
        """The known versions by preference; mcproxy reads and writes the first one that a cluster serves."""
        self.resource = resource
        self.namespaced = namespaced


_BOTH = (FollowedKind.SLICES, FollowedKind.SERVICES)
MULTICLUSTER = (*_BOTH, FollowedKind.EXPORTS, FollowedKind.IMPORTS)
"""The kinds of objects that make up the services of a clusterset."""
Scopes = Mapping[str, Mapping[FollowedKind, frozenset[str]]]
"""The namespaces that are read or written, by cluster and kind. `ALL` alone stands for every namespace."""


def uses_services(config: Config) -> bool:
    """Whether a configuration needs caches of services."""
    return bool(config.service_exports or config.ingresses or config.service_discovery.enabled)


def endpoint_backends(config: Config) -> Iterator[IngressBackend]:
    """Yield the backends whose endpoints are needed: all backends, including those with `via: APIServer`."""
    for ingress in config.ingresses:
        yield from ingress.backends


def backend_keys_of(config: Config) -> tuple[BackendKey, ...]:
    """Return the keys of all backends whose endpoints are needed, each once."""
    return tuple(dict.fromkeys(key for backend in endpoint_backends(config) for key in backend_keys(backend)))


def scopes_of(config: Config) -> Scopes:
    """Return the kinds and namespaces of each cluster from which a configuration needs objects."""
    found: dict[str, dict[FollowedKind, set[str]]] = {}

    def need(clusters: tuple[str, ...], kinds: tuple[FollowedKind, ...], namespace: str) -> None:
        for cluster in clusters:
            for kind in kinds:
                found.setdefault(cluster, {}).setdefault(kind, set()).add(namespace if kind.namespaced else ALL)

    for export in config.service_exports:
        need(export.from_clusters, _BOTH, export.namespace)
        need(export.to, (*_BOTH, FollowedKind.NAMESPACES), export.namespace)
    for backend in endpoint_backends(config):
        need(backend.clusters, _BOTH, backend.namespace)
    if config.service_discovery.enabled:
        need(config.service_discovery.clusters, tuple(FollowedKind), ALL)
    return {
        cluster: {kind: _bounded(namespaces) for kind, namespaces in kinds.items()} for cluster, kinds in found.items()
    }


def written_scopes(config: Config) -> Scopes:
    """Return the kinds and namespaces of each cluster to which a configuration writes objects."""
    found: dict[str, dict[FollowedKind, set[str]]] = {}
    for export in config.service_exports:
        for cluster in export.to:
            for kind in _BOTH:
                found.setdefault(cluster, {}).setdefault(kind, set()).add(export.namespace)
    if config.service_discovery.enabled:
        for cluster in config.service_discovery.clusters:
            found[cluster] = {kind: {ALL} for kind in MULTICLUSTER}
    return {
        cluster: {kind: _bounded(namespaces) for kind, namespaces in kinds.items()} for cluster, kinds in found.items()
    }


def merged(one: Scopes, other: Scopes) -> Scopes:
    """Return the union of two sets of scopes."""
    if not other:
        return one
    found: dict[str, Mapping[FollowedKind, frozenset[str]]] = {}
    for cluster in dict.fromkeys((*one, *other)):
        kinds = [each.get(cluster, {}) for each in (one, other)]
        found[cluster] = {
            kind: _bounded({*kinds[0].get(kind, ()), *kinds[1].get(kind, ())})
            for kind in dict.fromkeys((*kinds[0], *kinds[1]))
        }
    return found


def _bounded(namespaces: set[str]) -> frozenset[str]:
    if ALL in namespaces or len(namespaces) > MAX_SERVICE_NAMESPACES:
        return frozenset((ALL,))
    return frozenset(namespaces)
