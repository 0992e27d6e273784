"""The minimal rights that a cluster must grant the proxy for a configuration.

Each right is a rule of its own with a sentence about its purpose, for the administrator who grants it.
A feature of the proxy that needs a right adds a function to `_PARTS`, and its case to the test that takes the rights
away one by one (`tests/cli/test_rbac.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mcproxy.config import model
from mcproxy.kube import requestinfo
from mcproxy.kube.core_resources import CORE_RESOURCES, SECRETS, UNWATCHABLE

_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"
#: The ways in which the proxy names users to a cluster, so that it must authorize impersonation itself.
_NAMES_USERS = (model.Identity.IMPERSONATE, model.Identity.REQUEST_HEADER)


@dataclass(frozen=True, slots=True)
class Right:
    """One right in RBAC's terms: a verb on a resource of a group, or (with `path`) on a non-resource path.

    `namespace` "" is all namespaces, `name` "" all objects.
    """

    why: str
    verb: str
    resource: str = ""
    group: str = ""
    path: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def rule(self) -> dict[str, list[str]]:
        """The PolicyRule."""
        if self.path:
            return {"nonResourceURLs": [self.path], "verbs": [self.verb]}
        rule = {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]}
        return {**rule, "resourceNames": [self.name]} if self.name else rule


def required_rights(config: model.Config, cluster: model.Cluster) -> tuple[Right, ...]:
    """Return the rights that the proxy uses in `cluster`, in a fixed order."""
    return tuple(right for part in _PARTS for right in part(config, cluster))


def rights_by_cluster(config: model.Config) -> dict[str, tuple[Right, ...]]:
    """Return `required_rights` of all clusters by name.

    Of hundreds of servers a few concern a cluster; to look at all of them for each cluster would hold up the process.
    """
    concerned: dict[str, list[model.Server]] = {cluster.name: [] for cluster in config.clusters}
    aggregated: list[model.Server] = []
    authentication = {each.name: each.token_review for each in config.authentication}
    authorization = {each.name: each.subject_access_review for each in config.authorization}
    for server in config.servers:
        if isinstance(server.backend, model.AggregateBackend):
            aggregated.append(server)
            continue
        reviewers = (authentication.get(server.authentication or ""), authorization.get(server.authorization or ""))
        names = {*server.clusters, *_diversions(server)}
        names.update(each.cluster for each in reviewers if each is not None and each.cluster is not None)
        for name in names & concerned.keys():
            concerned[name].append(server)
    found = {}
    for cluster in config.clusters:
        chosen = (*concerned[cluster.name], *aggregated)
        found[cluster.name] = required_rights(replace(config, servers=chosen), cluster)
    return found


def _health(_config: model.Config, cluster: model.Cluster) -> Iterator[Right]:
    why = "health checks"
    path = cluster.health_check.path
    info = requestinfo.parse(b"GET", path.encode())
    if info.is_resource:
        resource = f"{info.resource}/{info.subresource}" if info.subresource else info.resource
        yield Right(why, info.verb, resource, info.group)
    else:
        yield Right(why, "get", path=info.path)


def _impersonation(config: model.Config, cluster: model.Cluster) -> Iterator[Right]:
    if cluster.identity is not model.Identity.IMPERSONATE or not _servers(config, cluster):
        return
    yield Right("names the user of a request to the cluster", "impersonate", "users")
    yield Right("names the user's groups", "impersonate", "groups")
    yield Right("names service accounts", "impersonate", "serviceaccounts")
    if cluster.impersonate_extras == ("*",):
        # RBAC has no userextras/*; a star over the whole group is the smallest rule, and includes the uids.
        yield Right("names the user's uid and all extras (impersonateExtras)", "impersonate", "*", _AUTHENTICATION)
        return
    yield Right("names the user's uid", "impersonate", "uids", _AUTHENTICATION)
    for key in cluster.impersonate_extras:
        why = f"names the user's extra {key} (impersonateExtras)"
        yield Right(why, "impersonate", f"userextras/{key}", _AUTHENTICATION)


def _token_reviews(config: model.Config, cluster: model.Cluster) -> Iterator[Right]:
    found = {server.authentication or "" for server in config.servers if _reviews(config, server, cluster)}
    # An Admin listener has no cluster of its own, so its set and its authorizer name theirs.
    used = {listener.authentication for listener in config.listeners}
    found |= {each.name for each in config.authentication if each.name in used and _names(each.token_review, cluster)}
    names = sorted(found)
    if names:
        yield Right(f"reviews tokens (authentication {', '.join(names)})", "create", "tokenreviews", _AUTHENTICATION)


def _access_reviews(config: model.Config, cluster: model.Cluster) -> Iterator[Right]:
    names = set()
    impersonation = False
    reached = _servers(config, cluster)
    for server in config.servers:
        authorization = _authorization(config, server)
        review = None if authorization is None else authorization.subject_access_review
        if review is not None and (server in reached if review.cluster is None else review.cluster == cluster.name):
            names.add(server.authorization or "")
        impersonation |= server in reached and _asks_about_impersonation(server, cluster, authorization)
    used = {listener.authorization for listener in config.listeners}
    reviewed = (each for each in config.authorization if _names(each.subject_access_review, cluster))
    names |= {each.name for each in reviewed if each.name in used}
    purposes = [f"reviews requests (authorization {', '.join(sorted(names))})"] if names else []
    asked = [
        aggregate.name
        for aggregate in _aggregates(config, cluster)
        if aggregate.reads.authorize is model.ReadAuthorization.MEMBERS
    ]
    # With identity Proxy the proxy asks about itself, as every user may (system:basic-user).
    if asked and cluster.identity is not model.Identity.PROXY:
        purposes.append(f"reviews who may read what is cached (aggregate {', '.join(asked)})")
    if impersonation:
        purposes.append("reviews impersonation requested by clients")
    if purposes:
        yield Right("; ".join(purposes), "create", "subjectaccessreviews", _AUTHORIZATION)


def _asks_about_impersonation(
    server: model.Server, cluster: model.Cluster, authorization: model.Authorization | None
) -> bool:
    """Whether the proxy has `cluster` review impersonation requested by clients of `server`.

    Not if rules refuse all of it; nor if rules alone decide with `Passthrough`, since the cluster itself gets the
    client's credential and Impersonate-* then.
    """
    only_rules = authorization is not None and authorization.subject_access_review is None
    if cluster.identity is model.Identity.PASSTHROUGH:
        return server.authentication is not None and not only_rules
    if cluster.identity not in _NAMES_USERS:
        return False
    if authorization is None or not only_rules:
        return True
    return any("impersonate" in rule.verbs for rule in authorization.rules or ())


#: What tells which resources a cluster has, and their schemas. By default every authenticated user has these rights
#: (system:discovery).
_DISCOVERY = ("/api", "/api/*", "/apis", "/apis/*", "/openapi/v2", "/openapi/v3", "/openapi/v3/*", "/version")


def _members(config: model.Config, cluster: model.Cluster) -> Iterator[Right]:
    """Yield what the proxy needs to know a cluster of aggregates, and to read a member into its cache."""
    known = [one for one in _used_aggregates(config) if cluster.name in (*one.clusters, one.primary)]
    if not known:
        return
    whose = f"(aggregate {', '.join(one.name for one in known)})"
    for path in _DISCOVERY:
        yield Right(f"finds its resources {whose}", "get", path=path)
    # Its uid stands for the cluster: behind the same address there may be another one.
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


def _cached(aggregate: model.Aggregate, cluster: str) -> Iterator[tuple[str, str, str]]:
    """Yield group, resource and namespace ("": all) of what is cached of a cluster."""
    for entry in aggregate.cache.resources:
        if entry.clusters and cluster not in entry.clusters:
            continue
        # RBAC's star would take in secrets, which the cache's does not.
        everything = entry.resource == "*" and entry.group == ""
        resources = [name for name in CORE_RESOURCES if name != SECRETS] if everything else [entry.resource]
        cached = [name for name in resources if entry.group or name not in UNWATCHABLE]
        for namespace in entry.namespaces or ("",):
            for resource in cached:
                yield entry.group, resource, namespace


_PARTS: tuple[Callable[[model.Config, model.Cluster], Iterator[Right]], ...] = (
    _health,
    _impersonation,
    _token_reviews,
    _access_reviews,
    _members,
)


def _servers(config: model.Config, cluster: model.Cluster) -> tuple[model.Server, ...]:
    """The servers whose requests may go to `cluster`."""
    return tuple(server for server in config.servers if cluster.name in {*server.clusters, *_diversions(server)})


def _aggregates(config: model.Config, cluster: model.Cluster) -> tuple[model.Aggregate, ...]:
    """The aggregates that have `cluster` as a member, and that a server has."""
    return tuple(each for each in _used_aggregates(config) if cluster.name in each.clusters)


def _used_aggregates(config: model.Config) -> tuple[model.Aggregate, ...]:
    backends = (server.backend for server in config.servers)
    used = {backend.aggregate for backend in backends if isinstance(backend, model.AggregateBackend)}
    return tuple(each for each in config.aggregates if each.name in used)


def _diversions(server: model.Server) -> Iterator[str]:
    for policy in server.dispatch or ():
        if policy.backend is not None:
            yield policy.backend.cluster


def _reviews(config: model.Config, server: model.Server, cluster: model.Cluster) -> bool:
    """Whether `server` has tokens reviewed by `cluster`."""
    used = next((item for item in config.authentication if item.name == server.authentication), None)
    if used is None or used.token_review is None:
        return False
    reviewer = used.token_review.cluster
    return server.clusters == (cluster.name,) if reviewer is None else reviewer == cluster.name


def _names(review: model.TokenReview | model.SubjectAccessReview | None, cluster: model.Cluster) -> bool:
    return review is not None and review.cluster == cluster.name


def _authorization(config: model.Config, server: model.Server) -> model.Authorization | None:
    return next((item for item in config.authorization if item.name == server.authorization), None)
