"""Computes the minimal rights that a cluster must grant the proxy for a configuration.

Each right is a separate rule with a sentence about its purpose, for the administrator who grants it.
A feature that needs a right adds a function to `_PARTS`, and its case to the test that removes the rights one by one
(`tests/cli/test_rbac.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from mcproxy.config import model
from mcproxy.identity.constrained_rights import constrained_rights
from mcproxy.identity.right import Right as Right
from mcproxy.identity.service_rights import service_rights
from mcproxy.kube import requestinfo
from mcproxy.kube.builtin_resources import CORE_RESOURCES, SECRETS, UNWATCHABLE
from mcproxy.kube.constrained_impersonation import is_impersonation

_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"
#: The settings with which the proxy names users to a cluster, so that the proxy must authorize impersonation itself.
_NAMES_USERS = (model.UpstreamIdentity.IMPERSONATE, model.UpstreamIdentity.REQUEST_HEADER)


def required_rights(
    config: model.Config, cluster: model.ClusterConfig, *, constrained: bool = False
) -> tuple[Right, ...]:
    """Return the rights that the proxy uses in `cluster`, in a fixed order.

    `constrained`: users are named by constrained impersonation (Kubernetes 1.36) instead of the verb `impersonate`.
    """
    parts = (_constrained if constrained and part is _impersonation else part for part in _PARTS)
    return tuple(right for part in parts for right in part(config, cluster))


def rights_by_cluster(config: model.Config) -> dict[str, tuple[Right, ...]]:
    """Return `required_rights` of all clusters by name.

    Of hundreds of servers and exports, only a few concern one cluster; a check of all of them for each cluster would be
    slow.
    """
    exports: dict[str, list[model.ServiceExport]] = {}
    for export in config.service_exports:
        for name in dict.fromkeys((*export.from_clusters, *export.to)):
            exports.setdefault(name, []).append(export)
    concerned: dict[str, list[model.Server]] = {cluster.name: [] for cluster in config.clusters}
    aggregated: list[model.Server] = []
    authentication = {each.name: each.token_review for each in config.authentication}
    authorization = {each.name: each.subject_access_review for each in config.authorization}
    for server in config.servers:
        if isinstance(server.backend, model.AggregateBackendConfig):
            aggregated.append(server)
            continue
        reviewers = (authentication.get(server.authentication or ""), authorization.get(server.authorization or ""))
        names = {*server.reached_clusters, *server.reviewing_clusters}
        names.update(each.cluster for each in reviewers if each is not None and each.cluster is not None)
        for name in names & concerned.keys():
            concerned[name].append(server)
    found = {}
    for cluster in config.clusters:
        chosen = (*concerned[cluster.name], *aggregated)
        own = tuple(exports.get(cluster.name, ()))
        found[cluster.name] = required_rights(replace(config, servers=chosen, service_exports=own), cluster)
    return found


def _health(_config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    why = "health checks"
    path = cluster.health_check.path
    info = requestinfo.parse(b"GET", path.encode())
    if info.is_resource:
        resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
        yield Right(why, info.verb, resource, info.group)
    else:
        yield Right(why, "get", path=info.path)


def _impersonation(config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    if cluster.identity is not model.UpstreamIdentity.IMPERSONATE or not _servers(config, cluster):
        return
    yield Right("names the user of a request to the cluster", "impersonate", "users")
    yield Right("names the user's groups", "impersonate", "groups")
    yield Right("names service accounts", "impersonate", "serviceaccounts")
    if cluster.impersonate_extras == ("*",):
        # RBAC has no userextras/*, so the smallest rule is a star for the whole group, which includes the uids.
        yield Right("names the user's uid and all extras (impersonateExtras)", "impersonate", "*", _AUTHENTICATION)
        return
    yield Right("names the user's uid", "impersonate", "uids", _AUTHENTICATION)
    for key in cluster.impersonate_extras:
        why = f"names the user's extra {key} (impersonateExtras)"
        yield Right(why, "impersonate", f"userextras/{key}", _AUTHENTICATION)


def _constrained(config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    servers = _servers(config, cluster)
    if cluster.identity is model.UpstreamIdentity.IMPERSONATE and servers:
        yield from constrained_rights(config, cluster, servers)


def _token_reviews(config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    found = {server.authentication or "" for server in config.servers if _reviews(config, server, cluster)}
    # An Admin listener has no cluster, so its set of authenticators and its authorizer name their clusters.
    used = {listener.authentication for listener in config.listeners}
    found |= {each.name for each in config.authentication if each.name in used and _names(each.token_review, cluster)}
    names = sorted(found)
    if names:
        yield Right(f"reviews tokens (authentication {', '.join(names)})", "create", "tokenreviews", _AUTHENTICATION)


def _access_reviews(config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    names = set()
    impersonation = False
    for server in config.servers:
        authorization = _authorization(config, server)
        review = None if authorization is None else authorization.subject_access_review
        asked_here = cluster.name in server.reviewing_clusters
        if review is not None and (asked_here if review.cluster is None else review.cluster == cluster.name):
            names.add(server.authorization or "")
        impersonation |= asked_here and _asks_about_impersonation(server, cluster, authorization)
    used = {listener.authorization for listener in config.listeners}
    reviewed = (each for each in config.authorization if _names(each.subject_access_review, cluster))
    names |= {each.name for each in reviewed if each.name in used}
    purposes = [f"reviews requests (authorization {', '.join(sorted(names))})"] if names else []
    asked = {
        by_members: [
            aggregate.name
            for aggregate in _aggregates(config, cluster)
            if (aggregate.reads.authorize is model.ReadAuthorization.MEMBERS) is by_members
        ]
        for by_members in (True, False)
    }
    discovered = [
        aggregate.name
        for aggregate in _used_aggregates(config)
        if aggregate.primary == cluster.name
        and cluster.name not in aggregate.clusters
        and aggregate.reads.authorize is model.ReadAuthorization.MEMBERS
    ]
    # With identity Proxy, the proxy asks about itself, which every user may do (system:basic-user).
    if cluster.identity is not model.UpstreamIdentity.PROXY:
        if asked[True]:
            purposes.append(f"reviews who may read what is cached (aggregate {', '.join(asked[True])})")
        if asked[False]:
            purposes.append(f"reviews who may write (aggregate {', '.join(asked[False])})")
        if discovered:
            purposes.append(f"reviews who may read its discovery (primary of aggregate {', '.join(discovered)})")
        extended = sorted(
            server.name
            for server in config.servers
            if any(service.authority == cluster.name for service in server.api_services)
        )
        if extended:
            purposes.append(f"reviews who may discover API services (server {', '.join(extended)})")
        if delegating := [server.name for server in config.servers if _answers_reviews(server, cluster)]:
            purposes.append(f"reviews who may ask for reviews (apiServices of server {', '.join(delegating)})")
    if impersonation:
        purposes.append("reviews impersonation requested by clients")
    if purposes:
        yield Right("; ".join(purposes), "create", "subjectaccessreviews", _AUTHORIZATION)


def _answers_reviews(server: model.Server, cluster: model.ClusterConfig) -> bool:
    """Whether API servers can create reviews at `server` as in `cluster` (`identity.review_api`)."""
    if not server.api_services or server.home != cluster.name:
        return False
    if cluster.identity is model.UpstreamIdentity.PASSTHROUGH:
        return server.authentication is not None
    return server.authentication is not None or server.authorization is not None


def _asks_about_impersonation(
    server: model.Server, cluster: model.ClusterConfig, authorization: model.Authorization | None
) -> bool:
    """Whether the proxy lets `cluster` review impersonation by clients of `server`.

    It does not if rules refuse all impersonation, or if only rules decide with `Passthrough`: then the cluster itself
    gets the client's credential and Impersonate-*.
    """
    only_rules = authorization is not None and authorization.subject_access_review is None
    if cluster.identity is model.UpstreamIdentity.PASSTHROUGH:
        return server.authentication is not None and not only_rules
    if cluster.identity not in _NAMES_USERS:
        return False
    if authorization is None or not only_rules:
        return True
    return any(is_impersonation(verb) for rule in authorization.rules or () for verb in rule.verbs)


#: The documents that list a cluster's resources and their schemas. By default every authenticated user has these rights
#: (system:discovery).
_SCHEMAS = ("/openapi/v2", "/openapi/v3", "/openapi/v3/*")
_DISCOVERY = ("/api", "/api/*", "/apis", "/apis/*", *_SCHEMAS, "/version")


def _members(config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    """Yield the rights to discover the resources of an aggregate's cluster, and to fill the cache of a member."""
    known = [one for one in _used_aggregates(config) if cluster.name in (*one.clusters, one.primary)]
    if not known:
        return
    whose = f"(aggregate {', '.join(one.name for one in known)})"
    for path in _DISCOVERY:
        yield Right(f"finds its resources {whose}", "get", path=path)
    # The namespace's uid identifies the cluster, since the same address can lead to another cluster.
    yield Right(f"recognizes the cluster {whose}", "get", "namespaces", name="kube-system")
    aggregates = _aggregates(config, cluster)
    members = f"(aggregate {', '.join(aggregate.name for aggregate in aggregates)})"
    wanted = dict.fromkeys(key for aggregate in aggregates for key in _cached(aggregate, cluster.name))
    everywhere = {(group, resource) for group, resource, namespace in wanted if not namespace}
    for group, resource, namespace in wanted:
        if namespace and not everywhere.isdisjoint({(group, resource), (group, "*")}):
            continue
        if not namespace and resource != "*" and (group, "*") in everywhere:
            continue
        for verb in ("list", "watch"):
            yield Right(f"fills the cache {members}", verb, resource, group, namespace=namespace)


def _api_services(config: model.Config, cluster: model.ClusterConfig) -> Iterator[Right]:
    """Yield the rights to show API services together with a cluster's own documents."""
    owned: dict[str, list[str]] = {}
    beside = []
    for server in config.servers:
        for service in server.api_services:
            if service.cluster == cluster.name:
                owned.setdefault(f"/apis/{service.group_version}", []).append(server.name)
        if server.api_services and isinstance(server.backend, model.ClusterBackend) and cluster.name in server.clusters:
            beside.append(server.name)
    for path, servers in sorted(owned.items()):
        names = ", ".join(sorted(set(servers)))
        yield Right(f"probes the API service, and finds its resources (server {names})", "get", path=path)
    if owned:
        names = ", ".join(sorted({name for servers in owned.values() for name in servers}))
        for path in _SCHEMAS:
            yield Right(f"shows the schemas of API services (server {names})", "get", path=path)
    if beside:
        for path in _DISCOVERY:
            yield Right(
                f"finds its resources, beside API services (server {', '.join(sorted(beside))})", "get", path=path
            )


def has_own_reviews(config: model.Config, cluster: model.ClusterConfig) -> bool:
    """Whether a cluster decides about rights itself; False: it only extends other clusters' APIs, and these decide."""
    extends = [
        service.authority != cluster.name
        for server in config.servers
        for service in server.api_services
        if service.cluster == cluster.name
    ]
    if not extends or not all(extends):
        return True
    policies = (policy.backend for server in config.servers for policy in server.dispatch or ())
    return (
        any(cluster.name in server.clusters for server in config.servers)
        or any(backend is not None and backend.cluster == cluster.name for backend in policies)
        or any(_names(each.token_review, cluster) for each in config.authentication)
        or any(_names(each.subject_access_review, cluster) for each in config.authorization)
    )


def _cached(aggregate: model.Aggregate, cluster: str) -> Iterator[tuple[str, str, str]]:
    """Yield group, resource and namespace ("": all) of the cached resources of a cluster."""
    for entry in aggregate.cache.resources:
        if entry.clusters and cluster not in entry.clusters:
            continue
        # RBAC's star would include secrets, but the star in `cache` does not.
        everything = entry.resource == "*" and entry.group == ""
        resources = [name for name in CORE_RESOURCES if name != SECRETS] if everything else [entry.resource]
        cached = [name for name in resources if entry.group or name not in UNWATCHABLE]
        for namespace in entry.namespaces or ("",):
            for resource in cached:
                yield entry.group, resource, namespace


_PARTS: tuple[Callable[[model.Config, model.ClusterConfig], Iterator[Right]], ...] = (
    _health,
    _impersonation,
    _token_reviews,
    _access_reviews,
    _members,
    _api_services,
    service_rights,
)


def _servers(config: model.Config, cluster: model.ClusterConfig) -> tuple[model.Server, ...]:
    """Return the servers that can send requests to `cluster`."""
    return tuple(server for server in config.servers if cluster.name in server.reached_clusters)


def _aggregates(config: model.Config, cluster: model.ClusterConfig) -> tuple[model.Aggregate, ...]:
    """Return the aggregates that have `cluster` as a member and are the backend of a server."""
    return tuple(each for each in _used_aggregates(config) if cluster.name in each.clusters)


def _used_aggregates(config: model.Config) -> tuple[model.Aggregate, ...]:
    backends = (server.backend for server in config.servers)
    used = {backend.aggregate for backend in backends if isinstance(backend, model.AggregateBackendConfig)}
    return tuple(each for each in config.aggregates if each.name in used)


def _reviews(config: model.Config, server: model.Server, cluster: model.ClusterConfig) -> bool:
    """Whether `cluster` reviews tokens for `server`."""
    used = next((item for item in config.authentication if item.name == server.authentication), None)
    if used is None or used.token_review is None:
        return False
    reviewer = used.token_review.cluster
    return server.clusters == (cluster.name,) if reviewer is None else reviewer == cluster.name


def _names(review: model.TokenReview | model.SubjectAccessReview | None, cluster: model.ClusterConfig) -> bool:
    return review is not None and review.cluster == cluster.name


def _authorization(config: model.Config, server: model.Server) -> model.Authorization | None:
    return next((item for item in config.authorization if item.name == server.authorization), None)
