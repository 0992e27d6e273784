"""Warnings about API services: backend resources that they hide, and how users are conveyed to API servers.

A registration can hide resources of the backend. Operators of kube-aggregator do this on purpose, so it is no error.
Only the backend knows its custom groups, which `check --connect` queries (`cli.connect_services`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mcproxy.config import credential_checks
from mcproxy.config.model import (
    Aggregate,
    AggregateBackendConfig,
    APIService,
    ClusterBackend,
    ClusterConfig,
    Server,
    UpstreamIdentity,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.authentication_section import NONE
from mcproxy.config.sections.entries import Named, Sections

#: Path prefixes of other systems below which an aggregate serves its clusters (`proxy.cluster_path`).
_PATHS_OF_OTHER_SYSTEMS = {
    "aggregated.kubeadmiral.io/v1alpha1": "KubeAdmiral",
    "cluster.karmada.io/v1alpha1": "Karmada",
    "search.karmada.io/v1alpha1": "Karmada",
}


def check_api_services(context: Context, sections: Sections) -> None:
    """Warn of API services that hide resources, and of clusters whose settings do not suit API servers."""
    used = {name: server.name for server in sections.servers.values for name in _backend_clusters(server)}
    aggregates, clusters = sections.aggregates.by_name, sections.clusters.by_name
    for server_place, server in sections.servers.valid:
        found = list(_valid_services(server_place, server))
        _priorities(context, found)
        warned: set[str] = set()  # one warning for each cluster, independent of the number of its group-versions
        for place, service in found:
            _hidden(context, place, service, server_place, server, aggregates)
            cluster = clusters[service.cluster]
            if cluster.value is not None and cluster.name not in warned:
                warned.add(service.cluster)
                _identity(context, place, service, cluster.value, used)
                _anonymous(context, place, cluster.value, server_place)
                _credentials(context, place, service, cluster)


def _valid_services(server: Place, value: Server) -> Iterator[tuple[Place, APIService]]:
    """Yield the valid API services of a server with their places."""
    services = {(service.group, service.version): service for service in value.api_services}
    for place in server.children("apiServices"):
        service = services.pop((place.text("group") or "", place.text("version") or ""), None)
        if service is not None and service.cluster == place.text("cluster"):
            yield place, service


def _backend_clusters(server: Server) -> tuple[str, ...]:
    policies = (policy.backend.cluster for policy in server.dispatch or () if policy.backend is not None)
    return (*server.clusters, *policies)


def _priorities(context: Context, found: Sequence[tuple[Place, APIService]]) -> None:
    """Warn of a groupPriorityMinimum that has no effect: the highest one of all versions of the group applies."""
    highest: dict[str, tuple[Place, APIService]] = {}
    for place, service in found:
        first = highest.get(service.group)
        if first is None or service.group_priority_minimum > first[1].group_priority_minimum:
            highest[service.group] = place, service
    for place, service in found:
        written, (other, higher) = place.get("groupPriorityMinimum"), highest[service.group]
        if written is not None and service.group_priority_minimum < higher.group_priority_minimum:
            what = (
                f"changes nothing: the highest counts, and {higher.group_version} has "
                f"{higher.group_priority_minimum}, at {other.mark}"
            )
            context.warn(written, "no-effect", what, "write the same for every version of a group")


def _hidden(
    context: Context,
    place: Place,
    service: APIService,
    server: Place,
    value: Server,
    aggregates: Mapping[str, Named[Aggregate]],
) -> None:
    """Warn of a group-version that the backend serves itself, according to the file and Kubernetes' own groups."""
    where = place.get("group") or place
    backend = server.get("backend") or server
    if isinstance(value.backend, ClusterBackend) and service.cluster == value.backend.cluster:
        what = f"changes nothing: cluster {service.cluster} is the backend, at {backend.mark}, and serves it anyway"
        context.warn(place.get("cluster") or place, "no-effect", what, "take it out, or name another cluster")
        return
    right = "take it out if the backend's is meant"
    if not isinstance(value.backend, AggregateBackendConfig):
        return
    aggregate = aggregates[value.backend.aggregate]
    cache = aggregate.place.get("cache")
    for entry in cache.children("resources") if cache is not None else ():
        if (entry.text("group"), entry.text("version")) == (service.group, service.version):
            what = (
                f"hides {service.group_version} of aggregate {aggregate.name}: what it caches of it, at {entry.mark}, "
                "is not served here"
            )
            context.warn(where, "hides-backend", what, right)
            break
    system = _PATHS_OF_OTHER_SYSTEMS.get(service.group_version)
    if system is not None:
        what = f"hides the paths of {system} by which aggregate {aggregate.name} serves its clusters, at {backend.mark}"
        context.warn(where, "hides-backend", what, right)


def _identity(
    context: Context, place: Place, service: APIService, cluster: ClusterConfig, used: Mapping[str, str]
) -> None:
    """Warn of an API server that could impersonate its users elsewhere, or has other users with the same names."""
    where = place.get("cluster") or place
    if cluster.identity is UpstreamIdentity.PASSTHROUGH:
        what = (
            f"cluster {cluster.name} has identity: Passthrough: this API server gets its users' tokens, and can use "
            "them wherever they are accepted"
        )
        right = "write identity: RequestHeader with frontProxy there, as kube-aggregator does"
        context.warn(where, "shared-credentials", what, right)
    elif cluster.identity is UpstreamIdentity.REQUEST_HEADER and cluster.name in used:
        what = (
            f"cluster {cluster.name} has accounts of its own, since server {used[cluster.name]} serves it as a "
            f"cluster, and accounts of cluster {service.authority} are named to it as they are"
        )
        right = "write identity: Impersonate there, or give the API server a cluster entry of its own"
        context.warn(where, "shared-accounts", what, right)


def _anonymous(context: Context, place: Place, cluster: ClusterConfig, server: Place) -> None:
    """Warn of an API server that receives user names from a server without authentication."""
    written = server.get("authentication")
    if cluster.identity not in (UpstreamIdentity.IMPERSONATE, UpstreamIdentity.REQUEST_HEADER):
        return
    if (written is None and not server.has("authentication")) or (written is not None and written.string == NONE):
        what = f"the server has no authentication: cluster {cluster.name} gets every user as system:anonymous"
        right = "name a set in the server's authentication, or write identity: Proxy there"
        context.warn(place.get("cluster") or place, "anonymous-users", what, right)


def _credentials(context: Context, place: Place, service: APIService, cluster: Named[ClusterConfig]) -> None:
    """Warn of an API server to which the proxy connects as an anonymous user.

    `Impersonate` without credentials is an error of the cluster, and with `RequestHeader` the front proxy's certificate
    is a credential.
    """
    assert cluster.value is not None
    if cluster.value.identity in (UpstreamIdentity.IMPERSONATE, UpstreamIdentity.REQUEST_HEADER):
        return
    if credential_checks.is_anonymous(cluster.place, cluster.value):
        what = (
            f"cluster {cluster.name} has no credentials: the proxy asks for {service.group_version} and its documents "
            "as an anonymous user"
        )
        right = f"give cluster {cluster.name} credentials that may read its discovery"
        context.warn(place.get("cluster") or place, "no-credentials", what, right)
