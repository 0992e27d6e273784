"""The merged discovery of one aggregate: made anew when its inputs have changed and it is asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mcproxy.aggregate.discovery.documents import DiscoveryDocuments
from mcproxy.aggregate.discovery.merge import Conflict, MemberDocuments, MergedDiscovery, merge
from mcproxy.aggregate.discovery.source import Source
from mcproxy.config.model.aggregates import Aggregate, CreateRule, Unavailable
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import retry_after

log = Logger()

_MAX_KEPT = 32
"""Merges that are kept: of all members, and of the parts of them that policies let different users touch."""
_RETRY_AFTER = 5  # seconds
_RECENT = 5.0  # seconds for which what members said is served without asking them
_PATIENCE = 1.0  # seconds to wait for members that are asked
_POLL = 0.05  # seconds between two looks at members that are being read for the first time


class CacheScope(Protocol):
    """What is read from cache (`view.scope.Scope`)."""

    def namespaces(self, member: str, resource: APIResource) -> tuple[str, ...]:
        """Return the namespaces of the resource that are read from the member's cache; empty: none."""


class AggregateScope:
    """What an aggregate does with its members' resources (`merge.ServedScope`)."""

    def __init__(self, cached: CacheScope, create: Sequence[CreateRule]) -> None:
        self._cached = cached
        self._create = create

    def covers(self, member: str, resource: APIResource) -> bool:
        """Whether reads of the resource are answered from this member."""
        return bool(self._cached.namespaces(member, resource))

    def creates(self, gvr: GroupVersionResource) -> bool:
        """Whether a rule says where new objects of the resource go."""
        return any(rule.matches(gvr.group, gvr.resource) for rule in self._create)


class Merge:
    """A merge and its documents. `whole`: of all clusters, so the same for everybody who may see them all."""

    __slots__ = ("documents", "merged", "whole")

    def __init__(self, merged: MergedDiscovery, *, whole: bool) -> None:
        self.merged = merged
        self.whole = whole
        self.documents = DiscoveryDocuments(merged.groups)


class AggregateMerges:
    """The merges of one aggregate. `generation` grows with each change of what they are made from."""

    def __init__(self, clock: IReactorTime) -> None:
        self.generation = 0
        self.members: tuple[Source, ...] = ()
        self.primary: Source | None = None
        self._clock = clock
        self._name = ""
        self._scope: AggregateScope | None = None
        self._serves_stale = False
        self._waits_until = 0.0
        self._asked_at: float | None = None
        self._kept: OrderedDict[tuple[str, ...], Merge] = OrderedDict()
        self._unsubscribe: list[Callable[[], None]] = []
        self._logged: frozenset[Conflict] = frozenset()

    def update(self, config: Aggregate, sources: Mapping[str, Source], scope: CacheScope) -> None:
        """Follow the configuration, at the start and after each reload; `sources` has members and primary by name."""
        if not self._name:
            self._waits_until = self._clock.seconds() + config.cache.initial_sync_timeout
        self._name = config.name
        self.members = tuple(sources[name] for name in config.clusters)
        self.primary = None if config.primary is None else sources[config.primary]
        self._scope = AggregateScope(scope, config.create)
        self._serves_stale = config.unavailable is Unavailable.STALE
        self.stop()
        self._unsubscribe = [source.discovery.subscribe(self._changed) for source in self.sources]
        self._changed()

    def stop(self) -> None:
        """Follow the members no more."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []

    @property
    def sources(self) -> tuple[Source, ...]:
        """Members and primary, each once, the primary last unless it is a member."""
        primary = self.primary
        return self.members if primary is None or primary in self.members else (*self.members, primary)

    async def ready(self) -> None:
        """Wait until what is known is recent enough to be served.

        Clusters that are being read for the first time are waited for, at most `initialSyncTimeout` after the start.
        The others are asked anew if that was not done for some seconds, so that a definition which a client has just
        installed is there when it asks for it; those that answer late are not waited for. Raises StatusError 503 if
        none was ever read.
        """
        while self._clock.seconds() < self._waits_until and any(_is_beginning(source) for source in self.sources):
            await deferLater(self._clock, _POLL)
        if self._asked_at is None or self._clock.seconds() - self._asked_at >= _RECENT:
            self._asked_at = self._clock.seconds()
            await self._ask_anew()
        if not any(source.discovery.known for source in self.sources):
            message = f"no cluster of the aggregate {self._name} has been reached yet: what it serves is not known"
            raise retry_after(503, message, _RETRY_AFTER)

    async def _ask_anew(self) -> None:
        waiting = [
            source.discovery.refresh()
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

    def of(self, allowed: Collection[str]) -> Merge:
        """Return the merge of those members that a request may touch, and of the primary unless it is another one."""
        names = tuple(source.name for source in self.sources if self._may_show(source, allowed))
        kept = self._kept.get(names)
        if kept is None:
            kept = self._kept[names] = Merge(self._merge(names), whole=len(names) == len(self.sources))
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(names)
        return kept

    def _may_show(self, source: Source, allowed: Collection[str]) -> bool:
        return source.name in allowed or source not in self.members

    def _merge(self, names: Collection[str]) -> MergedDiscovery:
        assert self._scope is not None, "update comes first"
        primary = None if self.primary is None or self.primary.name not in names else _documents(self.primary)
        members = [_documents(member) for member in self.members if member.name in names]
        merged = merge(primary, members, self._scope, serves_stale=self._serves_stale)
        if len(names) == len(self.sources):
            self._log(merged.conflicts)
        return merged

    def _log(self, conflicts: Sequence[Conflict]) -> None:
        """Write one line for each conflict that is new."""
        for conflict in conflicts:
            if conflict not in self._logged:
                log.warn(
                    "the members of an aggregate disagree on a resource: it is served as in this one",
                    event="members_disagree",
                    aggregate=self._name,
                    resource=f"{conflict.gvr} ({conflict.gvr.api_version})",
                    cluster=conflict.served,
                    cause=f"{conflict.kind} there; {', '.join(f'{what} in {name}' for name, what in conflict.others)}",
                    todo="install the same definition in all clusters, or name the clusters in `cache.resources`",
                )
        self._logged = frozenset(conflicts)

    def _changed(self, _: object = None) -> None:
        self.generation += 1
        self._kept.clear()


def _documents(source: Source) -> MemberDocuments:
    discovery = source.discovery
    return MemberDocuments(source.name, discovery.groups, discovery.resources, discovery.fresh)


def _is_beginning(source: Source) -> bool:
    return not source.discovery.known and source.unavailable_since is None


def _cancel(waiting: Sequence[Deferred[None]]) -> None:
    for deferred in waiting:
        deferred.cancel()
