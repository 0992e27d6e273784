"""API services in merged discovery: group-versions that separate API servers serve in addition to the backend. Pure.

- A registered group-version lists only its API server's resources, not the backend's.
- Groups are sorted by the highest groupPriorityMinimum of their versions, then by name (in the legacy document by the
  name of the APIService, `version.group`). Versions are sorted by versionPriority, then in Kubernetes' version order.
- The backend's group-versions have the priorities of its own APIServices if the backend returns these, else those with
  which a kube-apiserver registers them. The versions of the backend keep their order, since the preferred version of an
  aggregate's group is not always the highest (`merge`).
- An unavailable API server's last known resources stay, as `Stale`; a server that never answered has no resources.

Source: kube-aggregator `pkg/apiserver/handler_discovery.go` (syncAPIService) and `pkg/apis/apiregistration/v1/helper`
(SortedByGroupAndVersion).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mcproxy.aggregate.discovery.merge import BUILT_IN_GROUPS, MergedDiscovery, group_priority, legacy_order
from mcproxy.kube.discovery import (
    CURRENT,
    STALE,
    APIGroupDiscovery,
    APIResourceDiscovery,
    APIVersionDiscovery,
    ObjectMeta,
    version_order,
)

if TYPE_CHECKING:
    from mcproxy.aggregate.reflector.member_discovery import Priority

_CUSTOM_VERSION, _BUILT_IN_VERSION = 100, 15
"""versionPriority of custom resources' versions, and of most of a kube-apiserver's own versions."""

GroupVersion = tuple[str, str]


Priorities = Mapping[GroupVersion, "Priority"]
"""The priorities that order the backend's group-versions."""
_NONE: Priorities = {}


class ServedGroupVersion(NamedTuple):
    """A group-version that a separate API server serves (an APIService of kube-aggregator)."""

    group: str
    version: str
    cluster: str
    group_priority: int
    version_priority: int

    @property
    def group_version(self) -> GroupVersion:
        return self.group, self.version


class ServiceDocument(NamedTuple):
    """The resources of an API server in one group-version. `fresh` is False for the last known ones, possibly none."""

    resources: tuple[APIResourceDiscovery, ...] = ()
    fresh: bool = False


NEVER_READ = ServiceDocument()


def with_services(
    backend: MergedDiscovery,
    registered: Sequence[ServedGroupVersion],
    shown: Mapping[GroupVersion, ServiceDocument],
    own: Priorities = _NONE,
) -> MergedDiscovery:
    """Return the merged groups of a server with API services.

    `shown` are the documents of the visible API services, `own` the priorities of the backend's own APIServices.
    """
    services = {each.group_version: each for each in registered}
    versions: dict[str, dict[str, APIVersionDiscovery]] = {}
    for group in backend.groups:
        name = group.metadata.name
        kept = {one.version: one for one in group.versions if (name, one.version) not in services}
        if kept:
            versions[name] = kept

    def priority(group: str, version: str) -> int:
        found = services.get((group, version))
        if found is not None:
            return found.group_priority
        known = own.get((group, version))
        return group_priority(group) if known is None else known.group_priority_minimum

    priorities = {name: max(priority(name, version) for version in found) for name, found in versions.items()}
    for each in registered:
        priorities[each.group] = max(priorities.get(each.group, 0), each.group_priority)
        document = shown.get(each.group_version)
        if document is not None:
            freshness = CURRENT if document.fresh else STALE
            made = APIVersionDiscovery(each.version, document.resources, freshness)
            versions.setdefault(each.group, {})[each.version] = made
    ordered = {name: _ordered(name, found, services, own) for name, found in versions.items()}
    groups = tuple(
        APIGroupDiscovery(ObjectMeta(name), tuple(versions[name][version] for version in ordered[name]))
        for name in sorted(versions, key=lambda name: (-priorities[name], name))
    )
    return MergedDiscovery(
        groups,
        tuple(conflict for conflict in backend.conflicts if conflict.gvr[:2] not in services),
        {key: clusters for key, clusters in backend.owners.items() if key not in services},
        {key: services[key].cluster for key in shown if key in services},
        legacy_order(groups, priority),
    )


def hidden(backend: MergedDiscovery, registered: Sequence[ServedGroupVersion]) -> tuple[ServedGroupVersion, ...]:
    """Return the API services that hide a group-version of the backend."""
    served = {(group.metadata.name, one.version) for group in backend.groups for one in group.versions}
    return tuple(each for each in registered if each.group_version in served)


def _ordered(
    group: str,
    versions: Mapping[str, APIVersionDiscovery],
    services: Mapping[GroupVersion, ServedGroupVersion],
    own: Priorities,
) -> list[str]:
    """Return the versions of a group, the preferred one first; the backend's versions keep their order."""
    usual = _BUILT_IN_VERSION if group in BUILT_IN_GROUPS else _CUSTOM_VERSION
    known = {name: service for name in versions if (service := services.get((group, name))) is not None}
    backends = iter([name for name in versions if name not in known])

    def place(name: str) -> tuple[int, tuple[int, int, int, int, str]]:
        found = known.get(name) or own.get((group, name))
        return -(usual if found is None else found.version_priority), version_order(name)

    return [name if name in known else next(backends) for name in sorted(versions, key=place)]
