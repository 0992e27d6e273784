"""Owns all live state of aggregates: views, version layouts and authorization decisions, over the process's caches.

This state outlives every reload. `prepare` checks a new configuration and changes nothing; `activate` puts it in force.
Clusters that stay configured keep their caches and are not listed again. The state is saved under `daemon.stateDir`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.authorization import MemberAuthorizer
from mcproxy.aggregate.cache.event_log import MemoryBudget
from mcproxy.aggregate.discovery.api_services import ServedGroupVersion
from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.discovery.merge_cache import VisibleClusters
from mcproxy.aggregate.discovery.service_sources import Services, ServiceSources
from mcproxy.aggregate.discovery.service_visibility import ServiceVisibility
from mcproxy.aggregate.last_decisions import StaleReviewers
from mcproxy.aggregate.live_aggregate import LiveAggregate, SharedParts
from mcproxy.aggregate.reflector.member import Member, renew
from mcproxy.aggregate.view.scope import Scope
from mcproxy.aggregate.watch.changes import CHANGES_BUDGET
from mcproxy.aggregate.watch.scheduler import WatchScheduler
from mcproxy.aggregate.writes.held_bodies import BodyBuffers
from mcproxy.config import model
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.requests.coroutines import InThread

if TYPE_CHECKING:
    from mcproxy.aggregate.member_caches import MemberCaches
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.resource_version.layout import LayoutHistory
    from mcproxy.apiservices.availability import Availability
    from mcproxy.identity.authorization.authorizer import ReviewersByCluster
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.upstream_context import UpstreamContext


_READER = "aggregates"

AccessReviewers = Callable[[model.SubjectAccessReview], "ReviewersByCluster"]
"""Returns the function that finds each cluster's reviewer of users' rights; the argument has the cache times."""


class Aggregates:
    """All aggregates that at least one server of the process uses."""

    def __init__(self, shared: UpstreamContext, caches: MemberCaches, in_thread: InThread) -> None:
        """`caches` are owned by the caller; `in_thread` calls a function with arguments in a thread."""
        clock = shared.reactor
        self._caches = caches
        self._state, self._reflectors = caches.saved, caches.reflectors
        caches.layouts = self._histories
        changes = MemoryBudget(CHANGES_BUDGET)
        scheduler, bodies = WatchScheduler(clock), BodyBuffers(clock)
        self._parts = SharedParts(clock, shared.random, self._reflectors, scheduler, changes, in_thread, bodies)
        self._clock = clock
        self._in_thread = in_thread
        self._live: dict[str, LiveAggregate] = {}
        self._document_members = DocumentMembers(shared, in_thread)
        self._documents: dict[DocumentsKey, ServerDocuments] = {}

    def prepare(
        self, config: model.Config, clusters: Mapping[str, Cluster], reviewers: AccessReviewers
    ) -> PreparedLiveAggregates:
        """Prepare a configuration; nothing live changes until it is activated."""
        backends = [server.backend for server in config.servers]
        used = {backend.aggregate for backend in backends if isinstance(backend, model.AggregateBackendConfig)}
        live = {
            aggregate.name: (aggregate, self._live.get(aggregate.name) or LiveAggregate(self._parts))
            for aggregate in config.aggregates
            if aggregate.name in used
        }
        return PreparedLiveAggregates(self, config, clusters, reviewers, live)

    def follow_availability(self, availability: Availability | None) -> None:
        """Mark unavailable API services as stale in discovery documents, according to `availability`."""
        self._document_members.sources.follow(availability)

    def documents(self, key: DocumentsKey) -> ServerDocuments:
        """Return the existing handler of the documents of a server with API services, or a new handler."""
        return self._documents.get(key) or ServerDocuments(self._clock, self._in_thread)

    def stale_reviewers(self, settings: model.ReadsConfig, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers that, while a member is unavailable, return its last decision."""
        return StaleReviewers(reviewers, self._reflectors, self._state.decisions, self._clock, settings)

    def activate(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: AccessReviewers,
        live: Mapping[str, tuple[model.Aggregate, LiveAggregate]],
        documents: Mapping[DocumentsKey, tuple[model.Server, ServerDocuments, ServiceVisibility]],
    ) -> None:
        """Put a configuration in force."""
        aggregates = [aggregate for aggregate, _ in live.values()]
        max_age = max((aggregate.reads.stale_decisions for aggregate in aggregates), default=0.0)
        before = dict(self._live)
        self._live = {name: each for name, (_, each) in live.items()}
        names = dict.fromkeys(
            name for aggregate in aggregates for name in (*aggregate.clusters, aggregate.primary) if name
        )
        # The stores of members that are gone stay until the views have sent their objects as deleted.
        self._caches.use(_READER, names, clusters, config.daemon.state_dir, max_age=max_age)
        for name, (aggregate, each) in live.items():
            reads = aggregate.reads
            times = model.SubjectAccessReview(cache_allowed=reads.cache_allowed, cache_denied=reads.cache_denied)
            history = None if name in before else self._state.history(name)
            each.activate(aggregate, self.stale_reviewers(reads, reviewers(times)), history)
        self._activate_documents(config, clusters, reviewers, live, documents)
        for name, each in before.items():
            if name not in live:
                each.close()
        self._state.save_layouts()

    def _activate_documents(
        self,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: AccessReviewers,
        live: Mapping[str, tuple[model.Aggregate, LiveAggregate]],
        documents: Mapping[DocumentsKey, tuple[model.Server, ServerDocuments, ServiceVisibility]],
    ) -> None:
        """Put the documents of servers with API services in force."""
        before, self._documents = self._documents, {key: each for key, (_, each, _) in documents.items()}
        members = self._document_members
        members.update(config.servers, clusters)
        for key, (server, each, visibility) in documents.items():
            services = Services(registrations(server), members.sources)
            if isinstance(server.backend, model.AggregateBackendConfig):
                aggregate, alive = live[key.backend]
                each.follow_aggregate(alive, aggregate, self._reflectors.members, services, visibility)
            else:
                backend = members.backends[key.backend]
                each.follow_cluster(backend, reviewers(model.SubjectAccessReview()), services, visibility)
        for key, gone in before.items():
            if key not in documents:
                gone.close()

    @property
    def live(self) -> Mapping[str, LiveAggregate]:
        """The aggregates in force, by name."""
        return self._live

    @property
    def now(self) -> float:
        """The time by the clock of the caches, seconds."""
        return self._clock.seconds()

    def stop(self) -> None:
        """Immediately close all aggregates and documents; the caches keep running."""
        documents, self._documents = self._documents, {}
        for one in documents.values():
            one.close()
        self._document_members.stop()
        live, self._live = self._live, {}
        for each in live.values():
            each.close()

    def _histories(self) -> Mapping[str, LayoutHistory]:
        return {name: live.history for name, live in self._live.items() if live.history is not None}


class PreparedLiveAggregates:
    """The aggregates of a configuration that is not in force yet."""

    def __init__(
        self,
        owner: Aggregates,
        config: model.Config,
        clusters: Mapping[str, Cluster],
        reviewers: AccessReviewers,
        live: Mapping[str, tuple[model.Aggregate, LiveAggregate]],
    ) -> None:
        self._owner = owner
        self._config = config
        self._clusters = clusters
        self._reviewers = reviewers
        self._live = live
        self._documents: dict[DocumentsKey, tuple[model.Server, ServerDocuments, ServiceVisibility]] = {}

    def documents(self, server: model.Server, backend: str, visibility: ServiceVisibility) -> ServerDocuments:
        """Return the handler of discovery and OpenAPI requests to a server with API services.

        `backend` is its aggregate, or one of its clusters (`Server.document_backends`).
        """
        key = DocumentsKey(server.name, backend)
        documents = self._owner.documents(key)
        self._documents[key] = server, documents, visibility
        return documents

    @property
    def handlers(self) -> Mapping[str, LiveAggregate]:
        """The request handler of each aggregate, by the aggregate's name."""
        return {name: live for name, (_, live) in self._live.items()}

    def stale_reviewers(self, server: str, aggregate: str, reviewers: ReviewersByCluster) -> ReviewersByCluster:
        """Return reviewers of an aggregate's members that, while a member is unavailable, return its last decision."""
        return self._owner.stale_reviewers(self._live[aggregate][0].reads, reviewers)

    def activate(self) -> None:
        """Put the configuration in force: start and stop reflectors, and update the views."""
        self._owner.activate(self._config, self._clusters, self._reviewers, self._live, self._documents)


# -- servers with API services --------------------------------------------------------------------------------
#
# Discovery and OpenAPI of one server with API services: the documents of its backend and of the API services.
#
# A backend that is a single cluster is treated as an aggregate with a primary and no members. API services do not
# change how other requests are handled.


_RETRY_AFTER = 1


class DocumentsKey(NamedTuple):
    """Identifies the documents of a server for one backend: an aggregate or a cluster. A server has several backends if
    its policies name several clusters.
    """

    server: str
    backend: str


class DocumentMembers:
    """The clusters, other than aggregates' members, whose documents are read for servers with API services."""

    def __init__(self, shared: UpstreamContext, in_thread: InThread) -> None:
        self._shared = shared
        self._backends: dict[str, Member] = {}
        self._services: dict[str, Member] = {}
        #: the documents of API services, to merge
        self.sources = ServiceSources(shared.reactor, shared.random, in_thread)

    @property
    def backends(self) -> Mapping[str, Member]:
        """The backends that are a single cluster, by name."""
        return self._backends

    def update(self, servers: tuple[model.Server, ...], clusters: Mapping[str, Cluster]) -> None:
        """Apply a configuration. Call this only after the clusters have started."""
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
        """Stop reading documents of all these clusters."""
        self.sources.stop()
        for members in (self._backends, self._services):
            for member in members.values():
                member.stop()
            members.clear()

    def _follow(
        self, members: dict[str, Member], names: Collection[str], clusters: Mapping[str, Cluster], *, stop: bool = True
    ) -> list[str]:
        """Create and drop members so that exactly these clusters have one; return the names of the new members."""
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
    """Answers discovery and OpenAPI requests to a server with API services.

    If the backend is an aggregate, `handle` gets all requests and passes those for other paths on to the aggregate. If
    the backend is a cluster, `handle` gets only discovery and OpenAPI requests.
    """

    def __init__(self, clock: IReactorTime, in_thread: InThread) -> None:
        self._clock = clock
        self._discovery = AggregateDiscovery(clock, in_thread)
        self._aggregate: LiveAggregate | None = None
        self._alone: Member | None = None
        self._reads: MemberAuthorizer | None = None

    async def handle(self, request: AggregatedRequest) -> None:
        """Answer a request, or start its answer (a watch). Raises StatusError."""
        if self._aggregate is not None:
            await self._aggregate.handle(request, self._discovery)
            return
        alone, reads = self._alone, self._reads
        if alone is None or reads is None:  # since the request arrived, a reload removed the API services
            raise retry_after(503, "the server has no API services any more", _RETRY_AFTER)
        clusters, left_out = await reads.discoverable(request, alone.name)
        request.leave_out(left_out)
        await renew((alone,), self._clock)
        if not await self._discovery.serve(request, VisibleClusters(clusters)):
            raise StatusError(404, "the server could not find the requested resource", details={})

    def follow_aggregate(
        self,
        aggregate: LiveAggregate,
        config: model.Aggregate,
        members: Mapping[str, Member],
        services: Services,
        visibility: ServiceVisibility,
    ) -> None:
        """Put a server's configuration in force. Its backend is `aggregate`, which is in force already."""
        assert aggregate.scope is not None
        self._aggregate, self._alone = aggregate, None
        self._discovery.update(config, members, aggregate.scope, services, visibility)

    def follow_cluster(
        self, cluster: Member, reviewers: ReviewersByCluster, services: Services, visibility: ServiceVisibility
    ) -> None:
        """Put a server's configuration in force. Its backend is `cluster`; `reviewers` review users' rights in it."""
        self._aggregate, self._alone = None, cluster
        settings = model.ReadsConfig()
        if self._reads is None:
            self._reads = MemberAuthorizer(settings, reviewers)
        else:
            self._reads.update(settings, reviewers)
        config = model.Aggregate(name=cluster.name, clusters=(), primary=cluster.name)
        self._discovery.update(config, {cluster.name: cluster}, Scope(()), services, visibility)

    def close(self) -> None:
        """Stop: the server was removed, or it has no API services any more."""
        self._aggregate = self._alone = None
        self._discovery.stop()


def registrations(server: model.Server) -> tuple[ServedGroupVersion, ...]:
    """Return the API services of a server in the form that the merge of documents needs."""
    return tuple(
        ServedGroupVersion(each.group, each.version, each.cluster, each.group_priority_minimum, each.version_priority)
        for each in server.api_services
    )
