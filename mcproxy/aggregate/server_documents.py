"""Discovery and OpenAPI of one server with API services: the documents of its backend and of the API services.

A backend of one cluster is an aggregate with a primary and no members. Other requests are handled as without API
services.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.authorization import MemberAuthorizer
from mcproxy.aggregate.discovery.api_services import Registration
from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.discovery.merge_cache import Shown
from mcproxy.aggregate.discovery.service_sources import Services, ServiceSources
from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
from mcproxy.aggregate.reflector.member import Member, renew
from mcproxy.aggregate.view.scope import Scope
from mcproxy.config import model
from mcproxy.kube.status import StatusError, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.discovery.openapi import InThread
    from mcproxy.aggregate.live_aggregate import LiveAggregate
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext

_RETRY_AFTER = 1


class DocumentsKey(NamedTuple):
    """The documents of a server for one backend: an aggregate, or a cluster, of which policies may name several."""

    server: str
    backend: str


class DocumentMembers:
    """The clusters whose documents are read for servers with API services, but for the members of aggregates."""

    def __init__(self, shared: UpstreamContext, in_thread: InThread) -> None:
        self._shared = shared
        self._backends: dict[str, Member] = {}
        self._services: dict[str, Member] = {}
        #: the documents of API services, to merge
        self.sources = ServiceSources(shared.reactor, shared.random, in_thread)

    @property
    def backends(self) -> Mapping[str, Member]:
        """Backends of one cluster, by name."""
        return self._backends

    def update(self, servers: tuple[model.Server, ...], clusters: Mapping[str, Cluster]) -> None:
        """Follow a configuration. To be called when the clusters have been started."""
        servers = tuple(server for server in servers if server.api_services)
        alone = {name for server in servers for name in server.document_backends}
        for name in self._follow(self._backends, alone, clusters):
            self._backends[name].start()
        wanted: dict[str, set[tuple[str, str]]] = {}
        for server in servers:
            for service in server.api_services:
                wanted.setdefault(service.cluster, set()).add((service.group, service.version))
        gone = dict(self._services)
        self._follow(self._services, wanted, clusters, stop=False)
        self.sources.update(self._services, wanted)
        for name, member in gone.items():
            if name not in self._services:
                member.stop()

    def stop(self) -> None:
        """End everything."""
        self.sources.stop()
        for members in (self._backends, self._services):
            for member in members.values():
                member.stop()
            members.clear()

    def _follow(
        self, members: dict[str, Member], names: Collection[str], clusters: Mapping[str, Cluster], *, stop: bool = True
    ) -> list[str]:
        """Have members for these clusters and no others; return the names of the new ones."""
        for name in [name for name in members if name not in names]:
            gone = members.pop(name)
            if stop:
                gone.stop()
        new = []
        for name in names:
            known = members.get(name)
            if known is None:
                members[name] = Member(clusters[name], self._shared)
                new.append(name)
            else:
                known.use(clusters[name])
        return new


class ServerDocuments:
    """Answers the requests to a server with API services that need its documents.

    With an aggregate as the backend it gets all requests, and passes the others on; with a cluster it gets only those.
    """

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        self._clock = clock
        self._discovery = AggregateDiscovery(clock, in_thread)
        self._aggregate: LiveAggregate | None = None
        self._alone: Member | None = None
        self._reads: MemberAuthorizer | None = None

    async def handle(self, request: AggregatedRequest) -> None:
        """Answer a request, or begin to. Raises StatusError."""
        if self._aggregate is not None:
            await self._aggregate.handle(request, self._discovery)
            return
        alone, reads = self._alone, self._reads
        if alone is None or reads is None:  # a reload has removed it since the request arrived
            raise retry_after(503, "the server has no API services any more", _RETRY_AFTER)
        clusters, left_out = await reads.discoverable(request, alone.name)
        request.leave_out(left_out)
        await renew((alone,), self._clock)
        if not await self._discovery.serve(request, Shown(clusters)):
            raise StatusError(404, "the server could not find the requested resource", details={})

    def follow_aggregate(
        self,
        aggregate: LiveAggregate,
        config: model.Aggregate,
        members: Mapping[str, Member],
        services: Services,
        visibility: ServiceVisibility,
    ) -> None:
        """Put a configuration in force, of a server with an aggregate that is in force already."""
        assert aggregate.scope is not None
        self._aggregate, self._alone = aggregate, None
        self._discovery.update(config, members, aggregate.scope, services, visibility)

    def follow_cluster(
        self, cluster: Member, reviewers: ReviewersByCluster, services: Services, visibility: ServiceVisibility
    ) -> None:
        """The same of one whose backend is a cluster; `reviewers` say what it would let a user do."""
        self._aggregate, self._alone = None, cluster
        settings = model.Reads()
        if self._reads is None:
            self._reads = MemberAuthorizer(settings, reviewers)
        else:
            self._reads.update(settings, reviewers)
        config = model.Aggregate(name=cluster.name, clusters=(), primary=cluster.name)
        self._discovery.update(config, {cluster.name: cluster}, Scope(()), services, visibility)

    def close(self) -> None:
        """The server is gone, or has no API services any more."""
        self._aggregate = self._alone = None
        self._discovery.stop()


def registrations(server: model.Server) -> tuple[Registration, ...]:
    """Return the API services of a server as merged documents need to know them."""
    return tuple(
        Registration(each.group, each.version, each.cluster, each.group_priority_minimum, each.version_priority)
        for each in server.api_services
    )
