"""The merged discovery of one aggregate, kept until its inputs change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mcproxy.aggregate.discovery.api_services import GroupVersion, hidden, with_services
from mcproxy.aggregate.discovery.documents import DiscoveryDocuments
from mcproxy.aggregate.discovery.merge import (
    AggregateScope,
    MemberDocuments,
    MergedDiscovery,
    ResourceConflict,
    merge,
    served,
)
from mcproxy.aggregate.discovery.service_sources import Services
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.view.scope import Scope
from mcproxy.config.model.aggregates import Aggregate, UnavailableMembers
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import retry_after
from mcproxy.log_once import LogOnce
from mcproxy.requests.coroutines import InThread

log = Logger(__name__)


_MAX_KEPT = 32
"""Maximum number of cached merges: one for all members, and one for each subset that policies allow a user."""
_RETRY_AFTER = 5  # seconds
_RECENT = 5.0  # seconds for which members' documents are served without a request to them
_AGE = 1.0  # maximum age of such documents in seconds: a request for newer documents waits a second
_PATIENCE = 1.0  # seconds to wait for members' answers
_POLL = 0.05  # seconds between two polls of members that are being read for the first time


@dataclass(frozen=True, slots=True)
class VisibleClusters:
    """The clusters (members and primary) whose documents a user may see at a discovery path. `undecided`: another
    cluster, which may have more resources, could not be asked. `services` are the API services that the user may
    discover; `undecided_services` are API services for which the authorization is unknown.
    """

    clusters: Collection[str]
    undecided: bool = False
    services: frozenset[GroupVersion] = frozenset()
    undecided_services: frozenset[GroupVersion] = frozenset()

    def may_have(self, group: str) -> bool:
        """Whether a group may exist in an undecided cluster or API service although no shown cluster has it."""
        return self.undecided or any(each == group for each, _ in self.undecided_services)


NOTHING = VisibleClusters(())


class Merge:
    """A merge and its documents. `whole`: the merge contains all clusters, so all users who may see all clusters share
    it. `complete`: the documents of all its clusters are known, so a resource that is missing in it does not exist.
    """

    __slots__ = ("_prepared", "_waiting", "complete", "documents", "merged", "whole")

    def __init__(self, merged: MergedDiscovery, *, whole: bool, complete: bool = True) -> None:
        self.merged = merged
        self.whole = whole
        self.complete = complete
        self.documents = DiscoveryDocuments(merged.groups, merged.legacy)
        self._prepared = False
        self._waiting: list[Deferred[None]] = []

    async def prepare(self, in_thread: InThread) -> None:
        """Make the large documents in a thread, once for all callers."""
        if self._prepared:
            return
        waiter: Deferred[None] = Deferred()
        self._waiting.append(waiter)
        if len(self._waiting) == 1:
            in_thread(self.documents.prepare).addBoth(self._made)
        await waiter

    def _made(self, result: Any) -> None:
        self._prepared = True
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.called:  # calling one waiter can cancel another
                waiter.callback(result)  # a Failure given to `callback` fails it


class AggregateMerges:
    """The merges of one aggregate. `generation` grows when its clusters change, but not when API services change."""

    def __init__(self, clock: IReactorTime) -> None:
        self.generation = 0
        self.members: tuple[Member, ...] = ()
        self.primary: Member | None = None
        self._clock = clock
        self._name = ""
        self._scope: AggregateScope | None = None
        self._serves_stale = False
        self._waits_until = 0.0
        self._asked_at: float | None = None
        self._services: Services | None = None
        self._kept: OrderedDict[tuple[tuple[str, ...], frozenset[GroupVersion]], Merge] = OrderedDict()
        self._backends: OrderedDict[tuple[str, ...], MergedDiscovery] = OrderedDict()
        self._winners: dict[GroupVersionResource, APIResource] | None = None
        self._unsubscribe: list[Callable[[], None]] = []
        self._once = LogOnce(inf)
        self._once_hidden = LogOnce(inf)

    def update(
        self,
        config: Aggregate,
        sources: Mapping[str, Member],
        scope: Scope,
        services: Services | None = None,
    ) -> None:
        """Apply a configuration, at the start and after each reload; `sources` are members and primary by name.

        `services` are the API services of the server that the merge is for.
        """
        if not self._name:
            self._waits_until = self._clock.seconds() + config.cache.initial_sync_timeout
        self._name = config.name
        self.members = tuple(sources[name] for name in config.clusters)
        self.primary = None if config.primary is None else sources[config.primary]
        self._scope = AggregateScope(scope, config.create, config.primary)
        self._serves_stale = config.unavailable is UnavailableMembers.STALE
        self.stop()
        self._services = services
        self._unsubscribe = [source.discovery.subscribe(self._changed) for source in self.sources]
        if services is not None:
            self._unsubscribe.append(services.subscribe(self._services_changed))
            if self.primary is not None:
                self.primary.discovery.want_priorities()
        self._changed()

    def stop(self) -> None:
        """Stop following the members."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []

    @property
    def sources(self) -> tuple[Member, ...]:
        """The members, then the primary unless it is also a member."""
        primary = self.primary
        return self.members if primary is None or primary in self.members else (*self.members, primary)

    @property
    def services(self) -> Services | None:
        """The API services of the server."""
        return self._services

    async def ready(self) -> None:
        """Wait until the known documents are recent enough to be served.

        The wait includes clusters whose first read is running, but ends `initialSyncTimeout` after the start. The other
        clusters are read again if their last read was some seconds ago, so that a client finds a definition that it has
        just installed. Late answers are not awaited. Raises StatusError 503 if no cluster was ever read.
        """
        while self._clock.seconds() < self._waits_until and any(_is_beginning(source) for source in self.sources):
            await deferLater(self._clock, _POLL)
        if self._asked_at is None or self._clock.seconds() - self._asked_at >= _RECENT:
            self._asked_at = self._clock.seconds()
            await self._ask_anew()
        if not any(source.discovery.known for source in self.sources):
            message = f"no cluster of the aggregate {self._name} has been reached yet: what it serves is not known"
            if not self.members:
                message = f"cluster {self._name} has not been reached yet: what it serves is not known"
            raise retry_after(503, message, _RETRY_AFTER)
        if self._services is not None:
            await self._services.renew()

    async def _ask_anew(self) -> None:
        waiting = [
            source.discovery.renew(_AGE)
            for source in self.sources
            if source.discovery.known and source.unavailable_since is None
        ]
        whole = DeferredList(waiting, consumeErrors=True)
        timer = self._clock.callLater(_PATIENCE, _cancel, waiting)
        try:
            await whole
        finally:
            if timer.active():
                timer.cancel()

    def of(self, shown: VisibleClusters) -> Merge:
        """Return the merge of the clusters and API services that a request's user may discover."""
        sources = [source for source in self.sources if source.name in shown.clusters]
        names = tuple(source.name for source in sources)
        kept = self._kept.get((names, shown.services))
        if kept is None:
            complete = all(source.discovery.known for source in sources)
            merged, whole = self._merge(names), len(names) == len(self.sources)
            if self._services is not None:
                documents = self._services.documents(shown.services)
                own = {} if self.primary is None else self.primary.discovery.priorities
                merged = with_services(merged, self._services.registered, documents, own)
                whole = whole and len(documents) == len(self._services.registered)
            kept = Merge(merged, whole=whole, complete=complete)
            self._kept[names, shown.services] = kept
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end((names, shown.services))
        return kept

    def _merge(self, names: tuple[str, ...]) -> MergedDiscovery:
        """Return the merge of the backend's clusters."""
        assert self._scope is not None, "update comes first"
        merged = self._backends.get(names)
        if merged is None:
            primary = None if self.primary is None or self.primary.name not in names else _documents(self.primary)
            members = [_documents(member) for member in self.members if member.name in names]
            if self._winners is None:
                self._winners = served([_documents(member) for member in self.members], self._scope)
            merged = merge(
                primary,
                members,
                self._scope,
                serves_stale=self._serves_stale,
                winners=self._winners,
                own_order=not self.members,
            )
            if len(names) == len(self.sources):
                self._log(merged.conflicts)
                self._log_hidden(merged)
            self._backends[names] = merged
            if len(self._backends) > _MAX_KEPT:
                self._backends.popitem(last=False)
        return merged

    def _log(self, conflicts: Sequence[ResourceConflict]) -> None:
        """Log each new conflict once."""
        for conflict in conflicts:
            if self._once.allows(conflict):
                log.warn(
                    "members of an aggregate define a resource differently: it is served as in this one",
                    event="members_disagree",
                    aggregate=self._name,
                    resource=f"{conflict.gvr} ({conflict.gvr.api_version})",
                    cluster=conflict.served,
                    cause=f"{conflict.kind} there; {', '.join(f'{what} in {name}' for name, what in conflict.others)}",
                )
        self._once.keep(set(conflicts))

    def _log_hidden(self, backend: MergedDiscovery) -> None:
        """Log each API service that begins to hide a group-version of the backend, once."""
        found = () if self._services is None else hidden(backend, self._services.registered)
        for each in found:
            if self._once_hidden.allows(each):
                log.warn(
                    "an API service hides a group-version of the backend",
                    event="api_service_hides_backend",
                    group_version="/".join(each.group_version),
                    cluster=each.cluster,
                    backend=self._name,
                    todo="none if intended; else remove it from apiServices: it hides the backend's objects",
                )
        self._once_hidden.keep(set(found))

    def _changed(self, _: object = None) -> None:
        self.generation += 1
        self._kept.clear()
        self._backends.clear()
        self._winners = None

    def _services_changed(self) -> None:
        self._kept.clear()


def _documents(source: Member) -> MemberDocuments:
    discovery = source.discovery
    return MemberDocuments(source.name, discovery.groups, discovery.resources, discovery.fresh)


def _is_beginning(source: Member) -> bool:
    return not source.discovery.known and source.unavailable_since is None


def _cancel(waiting: Sequence[Deferred[None]]) -> None:
    for deferred in waiting:
        deferred.cancel()
