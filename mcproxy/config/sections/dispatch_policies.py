"""`dispatch` of a server: reads its policies, and checks that they suit the server and its cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcproxy.config.model import (
    AggregateBackendConfig,
    APIService,
    Backend,
    ClusterBackend,
    ClusterConfig,
    EndpointConfig,
    Policy,
    Rule,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import ListSection, reference, unique_names
from mcproxy.config.sections.model_reader import read
from mcproxy.config.sections.request_rules import Where, build_rules
from mcproxy.config.sections.rule_sets import halves_of, warn_of_partial_rejects, warn_of_shadowed
from mcproxy.config.suggestions import suggest
from mcproxy.config.urls import AddressError, parse_endpoint
from mcproxy.kube.user import AUTHENTICATED

# Keys that are allowed only for servers of one cluster.
_FOR_ONE_CLUSTER = ("endpoints", "strategy", "backend")
_EVERYBODY = frozenset(("*", AUTHENTICATED))
_EVERYTHING = halves_of(Rule(verbs=("*",), api_groups=("*",), resources=("*",)))[0]


@dataclass(frozen=True, slots=True)
class _ServerContext:
    """The properties of a policy's server for the checks."""

    names: Sequence[str]  # the names of all clusters in the file
    clusters: Mapping[str, ClusterConfig]  # the clusters without errors, by name
    one: str | None  # the name of the server's only cluster, or None
    several: Sequence[str] | None  # the names of its several clusters; if `one` is also None, the backend is invalid
    access_log: bool
    aggregate: str | None  # the name of the server's aggregate, or None
    api_servers: Sequence[str]  # the clusters of the server's API services


def build_dispatch(
    context: Context,
    server: Place,
    backend: Backend,
    clusters: ListSection[ClusterConfig],
    services: Sequence[APIService],
) -> tuple[Policy, ...] | None:
    """Return the policies of the server at `server`, or None if it has no `dispatch`."""
    places = server.get("dispatch")
    if places is None:
        return None
    server_context = _ServerContext(
        names=clusters.names,
        clusters=clusters.valid_by_name,
        one=backend.cluster if isinstance(backend, ClusterBackend) else None,
        several=(backend.clusters or None) if not isinstance(backend, ClusterBackend) else None,
        access_log=_boolean(server, "accessLog") is not False,
        aggregate=backend.aggregate if isinstance(backend, AggregateBackendConfig) else None,
        api_servers=tuple(dict.fromkeys(service.cluster for service in services)),
    )
    errors = len(context.problems.errors)
    unique_names(context, places.items())
    written = list(places.items())
    policies = tuple(_policy(context, place, server_context) for place in written)
    if len(context.problems.errors) > errors or places.is_broken:
        return policies  # skip the next checks: without their wrong items, rules would have another meaning
    if not policies:
        right = "add a policy, or take dispatch out to let everything pass"
        context.warn(places, "no-policies", "has no policies, so every request is answered by 403", right)
    serving = [rule for policy in policies if policy.reject is None for rule in policy.rules]
    if serving and all(map(_is_for_some, serving)) and not any(map(_rejects_all, policies)):
        right = "add a policy for all others, or keep it if nobody else shall be served"
        context.warn(places, "others-refused", "every policy names users or groups, so all others get 403", right)
    warn_of_shadowed(context, written, policies)
    warn_of_partial_rejects(context, written, policies)
    return policies


def _is_for_some(rule: Rule) -> bool:
    """Whether a rule is limited to named users, groups or service accounts."""
    lists = (rule.users, rule.user_groups)
    return bool(rule.service_accounts) or any(
        names and _EVERYBODY.isdisjoint(names) and not all(name.startswith("-") for name in names) for names in lists
    )


def _rejects_all(policy: Policy) -> bool:
    return policy.reject is not None and any(halves_of(rule)[0].covers(_EVERYTHING) for rule in policy.rules)


def _policy(context: Context, place: Place, server_context: _ServerContext) -> Policy:
    rules = place.get("rules")
    if _boolean(place, "accessLog") and not server_context.access_log:
        what = "changes nothing: the accessLog of the server is false, which holds for all of its requests"
        context.warn(
            place.get("accessLog") or place, "no-effect", what, "take it out, or set the server's accessLog to true"
        )
    if server_context.aggregate is not None:
        _refuse_keys_for_one_cluster(context, place, f"aggregate {server_context.aggregate}")
    elif server_context.several is not None:
        _refuse_keys_for_one_cluster(context, place, "several")
    if server_context.one is not None and not server_context.api_servers and rules is not None:
        _refuse_clusters(context, rules, server_context.one)
    backend = _backend(context, place.get("backend"), server_context)
    cluster = server_context.clusters.get((backend.cluster if backend is not None else server_context.one) or "")
    usable = backend is not None or not place.has("backend")  # otherwise the cluster of the endpoints is unknown
    endpoints = _endpoints(context, place, cluster) if cluster is not None and usable else ()
    return read(
        context,
        place,
        Policy,
        name=place.text("name") or f"dispatch[{place.path[-1]}]",
        rules=_rules(context, rules, server_context, rejects=place.has("reject")) if rules is not None else (),
        endpoints=endpoints,
        backend=backend,
    )


def _boolean(place: Place, key: str) -> bool | None:
    written = place.get(key)
    return written.value if written is not None and isinstance(written.value, bool) else None


def _rules(context: Context, place: Place, server_context: _ServerContext, *, rejects: bool) -> tuple[Rule, ...]:
    served = server_context.several
    if server_context.one is not None and server_context.api_servers:
        served = (server_context.one,)
    return build_rules(
        context,
        place,
        where=Where.DISPATCH,
        clusters=server_context.names,
        served=served and tuple(dict.fromkeys((*served, *server_context.api_servers))),
        rejects=rejects,
    )


def _refuse_keys_for_one_cluster(context: Context, place: Place, served: str) -> None:
    for key in _FOR_ONE_CLUSTER:
        written = place.get(key)
        if written is not None:
            right = "take it out, or add a server with backend: {cluster: NAME}"
            context.error(written, f"is for servers of one cluster, and this one has {served}", right)


def _refuse_clusters(context: Context, rules: Place, cluster: str) -> None:
    """Report `clusters` in rules of a server with one cluster, where it would not restrict the rule."""
    for rule in rules.items():
        written = rule.get("clusters")
        if written is not None:
            what = f"is for servers of several clusters, and this one has {cluster} only"
            context.error(written, what, "take it out")


def _backend(context: Context, place: Place | None, server_context: _ServerContext) -> ClusterBackend | None:
    written = place.get("cluster") if place is not None else None
    name = reference(context, written, server_context.names, "cluster")
    if written is None or name is None:
        return None
    if name == server_context.one:
        context.warn(
            written,
            "no-effect",
            f"changes nothing: {server_context.one} is the server's own cluster",
            "take backend out",
        )
    return ClusterBackend(name)


def _endpoints(context: Context, place: Place, cluster: ClusterConfig) -> tuple[str, ...]:
    """Return the names of the endpoints that a policy selects by name or URL."""
    if context.offline and cluster.kubeconfig is not None:
        return tuple(item.string or "" for item in place.children("endpoints"))  # the endpoint is unknown
    found: dict[str, Place] = {}
    chosen: list[EndpointConfig] = []
    for item in place.children("endpoints"):
        text = item.string or ""
        endpoint = _endpoint(text, cluster.endpoints)
        if endpoint is None:
            known = [each.url if "://" in text else each.name for each in cluster.endpoints]
            context.error(item, f"cluster {cluster.name} has no endpoint {item.shown}", suggest(text, known))
        elif endpoint.name in found:
            what = f"{item.shown} is in the list already, at {found[endpoint.name].mark}"
            context.error(item, what, "keep one of the two")
        else:
            found[endpoint.name] = item
            chosen.append(endpoint)
    if chosen and len(chosen) == len(list(place.children("endpoints"))) and all(each.disabled for each in chosen):
        what = "names disabled endpoints only, so every request of this policy gets 503"
        context.warn(place.get("endpoints") or place, "endpoints-disabled", what, "name one that is not disabled")
    return tuple(found)


def _endpoint(text: str, endpoints: Sequence[EndpointConfig]) -> EndpointConfig | None:
    by_name = next((endpoint for endpoint in endpoints if endpoint.name == text), None)
    if by_name is not None or "://" not in text:
        tunnels = (endpoint for endpoint in endpoints if endpoint.tunnel is not None and endpoint.url == text)
        return by_name or next(tunnels, None)
    try:
        url = parse_endpoint(text).url
    except AddressError:
        return None
    return next((endpoint for endpoint in endpoints if endpoint.url.lower() == url.lower()), None)
