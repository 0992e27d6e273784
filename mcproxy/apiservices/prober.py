"""When the registrations are probed: each at once, then every 30 s, and after a failure with back-off.

An owner without an endpoint that takes requests is unavailable without being asked; once one is healthy again it is
asked at once. So a connection that a client's request could not open counts as it does for the health of the endpoint,
in every process. The first probes of many registrations are spread, and so are the following ones by their jitter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.apiservices.availability import Availability
from mcproxy.apiservices.condition import MISSING_ENDPOINTS, Condition, Registration, Verdict
from mcproxy.apiservices.probe import TIMEOUT, Begin, Probe, no_endpoint
from mcproxy.observe.metrics.counts import Counts
from mcproxy.observe.metrics.families import AGGREGATOR_UNAVAILABLE, APISERVICE_UNAVAILABLE
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.remedies import TRUST_FRONT_PROXY, remedy, shows_front_proxy_alone
from mcproxy.upstream.upstream_context import CheckPacing

log = Logger(__name__)

INTERVAL = 30.0
"""Seconds between the beginnings of two probes: what kube-aggregator's informer resyncs."""
_JITTER = 0.1
_FIRST_RETRY = 1.0  # seconds; doubles up to INTERVAL
_MIN_GAP = 1.0  # seconds between the beginnings of two probes, whatever asks for them
_STOOD_STILL = 1.0  # seconds by which a probe that ends late is this process's own fault
_AT_ONCE = 64  # probes: as many wait for API servers that hang
_PER_SECOND = 50.0  # that begin


class Prober:
    """Probes all registrations of a process, and sets `Availability`."""

    def __init__(
        self,
        availability: Availability,
        clock: IReactorTime,
        random: Callable[[], float],
        begin: Begin | None = None,
        counts: Counts | None = None,
    ) -> None:
        """`random` returns a float in [0, 1). `counts`: where it is counted that one becomes unavailable."""
        self.availability = availability
        self.clock = clock
        self.random = random
        self.begin = begin or (lambda registration, cluster: Probe(registration, cluster, clock))
        self.counts = counts
        self.places = DeferredSemaphore(_AT_ONCE)
        self._pacing = CheckPacing(_PER_SECOND)
        self._probes: dict[Registration, _Schedule] = {}

    def update(self, clusters: Mapping[Registration, Cluster]) -> None:
        """Probe these from now on, each at its cluster. `Availability.use` has come before."""
        for registration in tuple(self._probes):
            if registration not in clusters:
                self._probes.pop(registration).stop()
        for registration, cluster in clusters.items():
            schedule = self._probes.get(registration)
            if schedule is None:
                wait = self._pacing.reserve(self.clock.seconds())
                self._probes[registration] = _Schedule(self, registration, cluster, wait)
            else:
                schedule.use(cluster)

    def suspected(self, registration: Registration) -> None:
        """Probe soon: clients meet what the condition does not say. At most once in a second, whatever they do."""
        schedule = self._probes.get(registration)
        if schedule is not None:
            schedule.probe_soon()

    def stop(self) -> None:
        """End everything."""
        probes, self._probes = self._probes, {}
        for probe in probes.values():
            probe.stopped = True  # all, before one gives its place to another
        for probe in probes.values():
            probe.stop()


class _Schedule:
    """The probes of one registration, one after the other."""

    def __init__(self, owner: Prober, registration: Registration, cluster: Cluster, wait: float) -> None:
        self._owner = owner
        self._registration = registration
        self._cluster = cluster
        self._began = float("-inf")
        self._retry = _FIRST_RETRY
        self._soon = False  # asked for while a probe ran
        self.stopped = False
        self._usable = False  # whether an endpoint takes requests
        self._unsubscribe: list[Callable[[], None]] = []
        self._running: Deferred[None] | None = None
        self._next: IDelayedCall | None = owner.clock.callLater(wait, self._begin)
        self._follow()

    def use(self, cluster: Cluster) -> None:
        """Follow a reload: a cluster whose configuration has changed is probed soon."""
        if cluster is not self._cluster:
            self._cluster = cluster
            self._follow()
            self.probe_soon()

    def stop(self) -> None:
        self.stopped = True
        self._unfollow()
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._running is not None:
            self._running.cancel()

    # -- the endpoints of the owner ---------------------------------------------------------------------------------

    def _follow(self) -> None:
        self._unfollow()
        self._unsubscribe = [endpoint.subscribe(self._endpoint_changed) for endpoint in self._cluster.endpoints]
        self._usable = self._is_usable()

    def _unfollow(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []

    def _is_usable(self) -> bool:
        return any(endpoint.ready or endpoint.unchecked for endpoint in self._cluster.endpoints)

    def _endpoint_changed(self, endpoint: Endpoint) -> None:
        before, self._usable = self._usable, self._is_usable()
        if before and not self._usable:
            self._take(no_endpoint(self._cluster))
        elif self._usable and endpoint.ready and self._condition.unavailable:
            self.probe_soon()

    # -- the probes -------------------------------------------------------------------------------------------------

    @property
    def _condition(self) -> Condition:
        return self._owner.availability.get(self._registration)

    def probe_soon(self) -> None:
        """Probe at once, but not within a second of the last probe."""
        if self._next is None:  # one is running
            self._soon = True
            return
        now = self._owner.clock.seconds()
        at = max(now, self._began + _MIN_GAP)
        if self._next.getTime() > at:
            self._next.reset(at - now)

    def _begin(self) -> None:
        self._next = None
        self._soon = False
        running = self._running = Deferred.fromCoroutine(self._probe())
        running.addErrback(self._crashed)
        running.addCallback(self._schedule)

    async def _probe(self) -> None:
        owner = self._owner
        await owner.places.acquire()
        try:
            if self.stopped:
                return
            self._began = began = owner.clock.seconds()
            cluster = self._cluster
            verdict = await owner.begin(self._registration, cluster).result
        finally:
            owner.places.release()
        if self.stopped or verdict is None:
            return
        if owner.clock.seconds() - began > TIMEOUT + _STOOD_STILL or cluster is not self._cluster:
            self._soon = True  # this process stood still, or another configuration is in force: it says nothing
            return
        if not verdict.failed and not self._usable:
            return  # the endpoint that has answered went out meanwhile
        self._take(verdict)

    def _take(self, verdict: Verdict) -> None:
        before = self._condition
        self._owner.availability.take(self._registration, verdict)
        if not verdict.failed:
            self._retry = _FIRST_RETRY
        elif not before.unavailable and self._owner.counts is not None:
            labels = (self._registration.name, self._registration.cluster, verdict.reason)
            self._owner.counts.increase(APISERVICE_UNAVAILABLE, labels)
            self._owner.counts.increase(AGGREGATOR_UNAVAILABLE, (labels[0], labels[2]))
        _log_change(self._registration, before, verdict, self._cluster)

    def _schedule(self, _: Any) -> None:
        self._running = None
        if self.stopped:
            return
        owner = self._owner
        now = owner.clock.seconds()
        wait = INTERVAL
        if self._condition.unavailable:
            wait = self._retry
            self._retry = min(2 * self._retry, INTERVAL)
        wait *= 1 + _JITTER * (2 * owner.random() - 1)
        if self._soon:
            wait = min(wait, _MIN_GAP)
        at = max(now, self._began + wait, self._began + _MIN_GAP)
        self._next = owner.clock.callLater(at - now, self._begin)

    def _crashed(self, failure: Failure) -> None:
        """Ignore a cancellation; any other exception is a bug, which must not end the probes for good."""
        if not (self.stopped and isinstance(failure.value, CancelledError)):
            log.failure(
                "the probe of an API service failed unexpectedly",
                failure,
                event="internal_error",
                cluster=self._registration.cluster,
            )


def _log_change(registration: Registration, before: Condition, verdict: Verdict, cluster: Cluster) -> None:
    about = {"api_service": registration.name, "cluster": registration.cluster}
    if verdict.failed and not before.unavailable:
        log.warn(
            "an API service is unavailable: its requests get 503",
            event="api_service_unavailable",
            **about,
            reason=verdict.reason,
            cause=verdict.message,
            todo=_todo(verdict, cluster),
        )
    elif verdict.status == "True" and before.unavailable:
        log.info("an API service is available again", event="api_service_available", **about)


def _todo(verdict: Verdict, cluster: Cluster) -> str:
    """Return what an operator does about one that is unavailable: about an endpoint, where no endpoint is ready."""
    if verdict.reason == MISSING_ENDPOINTS:
        for endpoint in cluster.endpoints:
            if endpoint.health.cause and not endpoint.config.disabled:
                return f"{remedy(endpoint.health.cause, endpoint.keys)}; requests pass again as soon as it is ready"
    elif verdict.answered in (401, 403):
        if shows_front_proxy_alone(cluster.config):
            return f"{TRUST_FRONT_PROXY}, or let system:masters get the path in `cause`"
        return "give the cluster credentials that may get the path in `cause` (ClusterRole system:discovery)"
    return (
        "see whether the API server runs, and serves this group-version at the path in `cause`; "
        "requests pass again as soon as it does"
    )
