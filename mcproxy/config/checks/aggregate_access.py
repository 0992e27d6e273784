"""Checks of aggregates with the servers that use them, and of the proxy's access to their members.

An aggregate serves objects from memory that it read with the proxy's own rights. So requests must be authenticated and
reads authorized. As for all clusters, `config.checks.server_exposure` checks the access through servers to members with
identity Proxy.
"""

from __future__ import annotations

from mcproxy.config import credential_checks
from mcproxy.config.model import (
    Aggregate,
    AggregateBackendConfig,
    ClusterConfig,
    ReadAuthorization,
    Server,
    UpstreamIdentity,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.authentication_section import NONE
from mcproxy.config.sections.entries import Named, Sections


def check_aggregates(context: Context, sections: Sections) -> None:
    """Report every error and warning about aggregates together with clusters and servers."""
    aggregates, members = sections.aggregates.valid_by_name, sections.clusters.by_name
    for place, aggregate in sections.aggregates.valid:
        _credentials(context, place, aggregate, members)
    for place, server in sections.servers.valid:
        if isinstance(server.backend, AggregateBackendConfig) and server.backend.aggregate in aggregates:
            _server(context, place, server, aggregates[server.backend.aggregate], members)
    backends = [server.place.get("backend") for server in sections.servers]
    named = {backend.text("aggregate") for backend in backends if backend is not None}
    for entry in sections.aggregates:
        if entry.name and entry.name not in named:
            right = f"add a server with backend: {{aggregate: {entry.name}}}, or take it out"
            context.warn(entry.place, "unused", "no server uses it, so it serves nothing", right)


def _credentials(
    context: Context, place: Place, aggregate: Aggregate, clusters: dict[str, Named[ClusterConfig]]
) -> None:
    """Warn of clusters that the proxy would read as an anonymous user.

    Identity Impersonate without credentials is an error of the cluster, which the section `clusters` reports.
    """
    written = {item.string: item for item in place.children("clusters")}
    primary = place.get("primary")
    if primary is not None and aggregate.primary is not None:
        written.setdefault(aggregate.primary, primary)
    for name in dict.fromkeys((*aggregate.clusters, *([aggregate.primary] if aggregate.primary is not None else ()))):
        cluster = clusters[name]
        if cluster.value is None or cluster.value.identity is UpstreamIdentity.IMPERSONATE:
            continue
        if credential_checks.is_anonymous(cluster.place, cluster.value):
            where = written.get(name) or place.get("clusterSelector") or place
            if name in aggregate.clusters:
                what = f"member {name} has no credentials: the proxy reads it as an anonymous user"
                right = f"give cluster {name} credentials that may get, list and watch what is cached"
            else:
                what = f"primary {name} has no credentials: the proxy reads its discovery as an anonymous user"
                right = f"give cluster {name} credentials that may read its discovery"
            context.warn(where, "no-credentials", what, right)


def _server(
    context: Context, place: Place, server: Server, aggregate: Aggregate, clusters: dict[str, Named[ClusterConfig]]
) -> None:
    backend = place.get("backend")
    where = (backend.get("aggregate") if backend is not None else None) or place
    by_server = aggregate.reads.authorize is ReadAuthorization.SERVER
    if by_server and not place.has("authorization"):
        what = (
            f"aggregate {aggregate.name} has reads: {{authorize: Server}}, and this server has no authorization: "
            "every user would see every cached object"
        )
        context.error(where, what, "name an authorizer in authorization, or write reads: {authorize: Members}")
    written = place.get("authentication")
    if server.authentication is not None or (
        place.has("authentication") and (written is None or written.string != NONE)
    ):
        return
    for name in dict.fromkeys((*aggregate.clusters, *([aggregate.primary] if aggregate.primary is not None else []))):
        named = clusters.get(name)
        cluster = None if named is None else named.value
        if cluster is not None and cluster.identity is UpstreamIdentity.PASSTHROUGH:
            known = "what it has cached" if name in aggregate.clusters else "what its discovery shows"
            what = (
                f"{'member' if name in aggregate.clusters else 'primary'} {name} has identity: Passthrough, and this "
                f"server has no authentication: the proxy does not know who asks for {known}"
            )
            context.error(where, what, f"name a set in authentication, or give cluster {name} another identity")
            return
    asked = (clusters[name].value for name in aggregate.clusters)
    if not by_server and any(
        cluster is not None and cluster.identity is not UpstreamIdentity.PROXY for cluster in asked
    ):
        what = "the server has no authentication: members are asked what system:anonymous may read"
        context.warn(where, "anonymous-reads", what, "name a set in authentication")
