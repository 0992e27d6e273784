"""The documents of all API services of the process: one source for each cluster entry, shared by all servers.

A discovery request starts reads of documents older than 1.25 s, and waits only for fast answers. So a slow API server
delays no request. Each API server is read about once a second, independent of the number of requests. Only a few reads
begin at once, so that many API services do not block the reactor: the reads of 200 begin within half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.discovery.api_services import GroupVersion, ServedGroupVersion, ServiceDocument
from mcproxy.aggregate.discovery.service_source import ServiceSource
from mcproxy.aggregate.reflector.member import Member
from mcproxy.apiservices.availability import Registration
from mcproxy.requests.coroutines import InThread

if TYPE_CHECKING:
    from mcproxy.apiservices.availability import Availability

AGE = 1.25  # seconds for which documents are served without a read
_PATIENCE = 0.25  # seconds to wait for the answers of a few API servers …
_PATIENCE_OF_MANY = 0.04  # … and of many, which cannot all answer in that time
_MANY = 16
_A_TURN, _TURN = 4, 0.01  # requests that begin together, and seconds until the next group begins


class ServiceSources:
    """The sources of all API servers, by the name of the cluster entry."""

    def __init__(self, clock: IReactorTime, random: Callable[[], float], in_thread: InThread) -> None:
        self._clock = clock
        self._random = random
        self._in_thread = in_thread
        self._sources: dict[str, ServiceSource] = {}
        self._availability: Availability | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._late: set[ServiceSource] = (
            set()
        )  # servers that did not answer a waiting request in time, and have not answered since

    def follow(self, availability: Availability | None) -> None:
        """Use `availability` from now on: unavailable group-versions count as stale."""
        if availability is not self._availability:
            self._unsubscribe()
            self._availability = availability
            if availability is not None:
                self._unsubscribe = availability.subscribe(self._availability_changed)

    def _availability_changed(self, registration: Registration, _: object) -> None:
        source = self._sources.get(registration.cluster)
        if source is not None:
            source.availability_changed()

    def _refuses(self, cluster: str, group_version: GroupVersion) -> bool:
        known = self._availability
        return known is not None and known.refuses(Registration(*group_version, cluster)) is not None

    def update(self, members: Mapping[str, Member], wanted: Mapping[str, Collection[GroupVersion]]) -> None:
        """Apply a configuration: the cluster entries that are API servers, and their registered group-versions."""
        for name in [name for name in self._sources if name not in wanted]:
            gone = self._sources.pop(name)
            self._late.discard(gone)
            gone.stop()
        for name, group_versions in wanted.items():
            known = self._sources.get(name)
            if known is not None and known.member is not members[name]:
                known.stop()
                known = None
            if known is not None and known.origin != members[name].source:
                known.moved()
            if known is None:
                known = self._sources[name] = ServiceSource(
                    members[name], self._clock, self._random, self._in_thread, partial(self._refuses, name)
                )
            known.want(group_versions)

    def source(self, cluster: str) -> ServiceSource:
        """Return the source of a cluster entry. Raises KeyError."""
        return self._sources[cluster]

    def stop(self) -> None:
        """Stop all sources."""
        self._unsubscribe()
        sources, self._sources = self._sources, {}
        for source in sources.values():
            source.stop()

    async def renew(self, sources: Sequence[ServiceSource]) -> None:
        """Read the out-of-date documents of these sources again; wait only briefly for fast answers."""
        old = [source for source in sources if not source.is_recent(AGE) and not source.is_waited_for(_PATIENCE)]
        if not old:
            return
        waiting = [source for source in old if source not in self._late]
        done: Deferred[None] = Deferred()
        left = set(waiting)

        def answered(source: ServiceSource) -> None:
            if source.fresh:
                self._late.discard(source)
            left.discard(source)
            if not left and not done.called:
                done.callback(None)

        def too_late() -> None:
            if len(waiting) <= _MANY:
                self._late |= left
            if not done.called:
                done.callback(None)

        self._begin(old, answered)
        if not left:
            return
        timer = self._clock.callLater(_PATIENCE if len(waiting) <= _MANY else _PATIENCE_OF_MANY, too_late)
        try:
            await done
        finally:
            if timer.active():
                timer.cancel()

    def _begin(self, sources: Sequence[ServiceSource], answered: Callable[[ServiceSource], None]) -> None:
        now, later = sources[:_A_TURN], sources[_A_TURN:]
        for source in now:
            source.renew(AGE).addBoth(_then, answered, source)
        if later:
            self._clock.callLater(_TURN, self._begin, later, answered)


def _then(_: object, answered: Callable[[ServiceSource], None], source: ServiceSource) -> None:
    answered(source)


class Services:
    """The API services of one server."""

    def __init__(self, registered: Sequence[ServedGroupVersion], sources: ServiceSources) -> None:
        self.registered = tuple(registered)
        self.clusters = tuple(dict.fromkeys(each.cluster for each in self.registered))
        self._owner = sources
        self._sources = {name: sources.source(name) for name in self.clusters}
        self._by_group_version = {each.group_version: each for each in self.registered}

    def documents(self, shown: Collection[GroupVersion]) -> dict[GroupVersion, ServiceDocument]:
        """Return the known documents of the API services that may be shown."""
        return {
            key: self._sources[self._by_group_version[key].cluster].document(key)
            for key in shown
            if key in self._by_group_version
        }

    def owns(self, path: str) -> bool:
        """Whether the OpenAPI v3 document at a path ("apis/metrics.k8s.io/v1beta1") belongs to an API service."""
        first, _, group_version = path.partition("/")
        return first == "apis" and tuple(group_version.split("/")) in self._by_group_version

    def source(self, cluster: str) -> Member:
        """Return the cluster entry of an API server. Raises KeyError."""
        return self._sources[cluster].member

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Subscribe to changes of documents; the result unsubscribes."""
        ends = [source.subscribe(notify) for source in self._sources.values()]

        def unsubscribe() -> None:
            for end in ends:
                end()

        return unsubscribe

    async def renew(self) -> None:
        """Read out-of-date documents again; wait only briefly for fast answers."""
        await self._owner.renew(tuple(self._sources.values()))
