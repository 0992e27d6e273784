"""Probes API services ("registrations"): immediately, then every 30 s, and after a failure with back-off.

A cluster without a usable endpoint makes its API services unavailable without a probe; they are probed when an endpoint
is healthy again. So a failed connection of a client's request affects availability as it affects the endpoint's health,
in every process. The first probes of many registrations are spread over time, and later probes are spread by jitter.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.apiservices.availability import (
    MISSING_ENDPOINTS,
    Availability,
    Condition,
    Registration,
    Verdict,
    failure,
    of_status,
    without_endpoint,
)
from mcproxy.net.connect_errors import ConnectError
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.families import AGGREGATOR_UNAVAILABLE, APISERVICE_UNAVAILABLE
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.control_stream import BodyTooLarge, ControlStream
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.remedies import TRUST_FRONT_PROXY, remedy, shows_front_proxy_alone
from mcproxy.upstream.upstream_context import CheckPacing

log = Logger(__name__)

INTERVAL = 30.0
"""Seconds between the beginnings of two probes: the resync period of kube-aggregator's informer."""
_JITTER = 0.1
_FIRST_RETRY = 1.0  # seconds; doubles up to INTERVAL
_MIN_GAP = 1.0  # minimum seconds between the beginnings of two probes
_STOOD_STILL = 1.0  # seconds; a probe that ends later than this after PROBE_TIMEOUT was delayed by this process
_AT_ONCE = 64  # maximum number of probes in flight, including those that wait for hanging API servers
_PER_SECOND = 50.0  # maximum number of probes that begin per second


class Prober:
    """Probes all registrations of a process, and sets `Availability`."""

    def __init__(
        self,
        availability: Availability,
        clock: IReactorTime,
        random: Callable[[], float],
        begin: Begin | None = None,
        counts: MetricCounts | None = None,
    ) -> None:
        """`random` returns a float in [0, 1). `counts`: the metric of registrations that become unavailable."""
        self.availability = availability
        self.clock = clock
        self.random = random
        self.begin = begin or (lambda registration, cluster: Probe(registration, cluster, clock))
        self.counts = counts
        self.places = DeferredSemaphore(_AT_ONCE)
        self._pacing = CheckPacing(_PER_SECOND)
        self._probes: dict[Registration, _Schedule] = {}

    def update(self, clusters: Mapping[Registration, Cluster]) -> None:
        """Probe these registrations from now on, each at its cluster. Call `Availability.use` before this."""
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
        """Probe soon, since clients' requests contradict the condition; at most once a second."""
        schedule = self._probes.get(registration)
        if schedule is not None:
            schedule.probe_soon()

    def stop(self) -> None:
        """Stop all probes."""
        probes, self._probes = self._probes, {}
        for probe in probes.values():
            probe.stopped = True  # mark all before stopping any: a stopped probe frees its place for another one
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
        self._soon = False  # whether to probe again soon, since a probe was requested during a probe
        self.stopped = False
        self._usable = False  # whether an endpoint accepts requests
        self._unsubscribe: list[Callable[[], None]] = []
        self._running: Deferred[None] | None = None
        self._next: IDelayedCall | None = owner.clock.callLater(wait, self._begin)
        self._follow()

    def use(self, cluster: Cluster) -> None:
        """Apply a reload: if the cluster's configuration has changed, probe soon."""
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
        """Probe immediately, but not within a second after the last probe."""
        if self._next is None:  # a probe is running
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
        if owner.clock.seconds() - began > PROBE_TIMEOUT + _STOOD_STILL or cluster is not self._cluster:
            self._soon = True  # this process delayed the probe, or the configuration has changed: ignore the result
            return
        if not verdict.failed and not self._usable:
            return  # the endpoint that answered was ejected before the probe ended
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
        """Ignore a cancellation; log any other exception, a bug that must not end the probes for good."""
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
    """Return the remedy for an unavailable registration. If no endpoint is ready, it is the remedy for an endpoint."""
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


# -- one probe ------------------------------------------------------------------------------------------------
#
# One probe of a registration: GET /apis/GROUP/VERSION at the owner, as the proxy itself.
#
# As in kube-aggregator, there are up to five attempts, and one success is enough. But they are not simultaneous: when
# an attempt has failed or is slow, the next one begins, at another endpoint if there is one. So 200 available
# registrations cost 200 requests in 30 s.


PROBE_TIMEOUT = 5.0
"""Maximum seconds for all attempts together, as in kube-aggregator's client."""
ATTEMPTS = 5
PATIENCE = 1.0
"""Seconds without a response after which another attempt begins."""
_PAUSE = 0.2  # seconds between two attempts at one endpoint
_MAX_BODY = 256 * 1024  # maximum bytes of a body, which is read and ignored so that the connection can be reused
_HEADERS = (("accept", "application/json"),)


Attempt = Callable[[Cluster, Endpoint, str], Coroutine["Deferred[Any]", Any, ControlStream]]
"""Makes one attempt at an endpoint with a path (`attempt`)."""


async def attempt(cluster: Cluster, endpoint: Endpoint, path: str) -> ControlStream:
    """Send the request; return its response. Raises ConnectError, ControlError, CredentialError."""
    return await cluster.control.stream(endpoint, path, headers=_HEADERS, head_timeout=PROBE_TIMEOUT)


def no_endpoint(cluster: Cluster) -> Verdict:
    """Return the verdict on a cluster without a usable endpoint; it contains no times, which would change it."""
    return without_endpoint(
        cluster.name,
        {
            each.name: "disabled" if each.config.disabled else each.health.cause or "not ready"
            for each in cluster.endpoints
        },
    )


class Probe:
    """One probe. `result` fires with the verdict, or None without a verdict. Its cancellation stops the probe."""

    def __init__(
        self, registration: Registration, cluster: Cluster, clock: IReactorTime, send: Attempt = attempt
    ) -> None:
        self.result: Deferred[Verdict | None] = Deferred(lambda _: self._stop())
        self._registration = registration
        self._cluster = cluster
        self._clock = clock
        self._send = send
        self._tried: list[Endpoint] = []
        self._running: list[Deferred[None]] = []
        self._attempts_left = ATTEMPTS
        self._last: Verdict | None = None
        self._decided = False
        self._next = clock.callLater(0, self._begin)
        self._end = clock.callLater(PROBE_TIMEOUT, self._late)

    def _begin(self) -> None:
        endpoint = self._cluster.balancer.pick(self._tried)
        if endpoint is None and self._tried:
            endpoint = self._cluster.balancer.pick()
            if endpoint is not None:
                self._tried.clear()
        if endpoint is None:
            self._attempts_left = 0
            if not self._running:
                self._decide(self._last or no_endpoint(self._cluster))
            return
        self._tried.append(endpoint)
        self._attempts_left -= 1
        if self._attempts_left:
            self._next = self._clock.callLater(PATIENCE, self._begin)
        running = Deferred.fromCoroutine(self._ask(endpoint))
        self._running.append(running)
        running.addBoth(self._ended, running)

    async def _ask(self, endpoint: Endpoint) -> None:
        path = self._registration.path
        where = f"{self._registration.cluster}/{endpoint.name} on {path}"
        try:
            stream = await self._send(self._cluster, endpoint, path)
        except ConnectError as error:
            endpoint.request_check()
            self._failed(failure(where, error.cause))
            return
        except (ControlError, CredentialError) as error:
            self._failed(failure(where, error.cause))
            return
        try:
            verdict = of_status(stream.status, where)
            if verdict.failed:
                self._failed(verdict)
            else:
                self._decide(verdict)
            await stream.read_all(_MAX_BODY)
        except (ControlError, BodyTooLarge):
            pass  # the body does not matter: the status has already decided
        finally:
            stream.close()

    def _failed(self, verdict: Verdict) -> None:
        if not self._decided:
            self._last = verdict
            if self._attempts_left and self._next.active():
                self._next.reset(0 if self._cluster.balancer.pick(self._tried) is not None else _PAUSE)

    def _ended(self, result: Failure | None, running: Deferred[None]) -> Failure | None:
        if running in self._running:
            self._running.remove(running)
        if isinstance(result, Failure):
            if not result.check(CancelledError):  # type: ignore[no-untyped-call]
                self._give_up(result)
            return None
        if self._running:
            return None
        if self._decided:
            self._stop()
        elif not self._next.active() and self._last is not None:
            self._decide(self._last)
        return None

    def _late(self) -> None:
        """Handle PROBE_TIMEOUT. If an attempt is still running, the verdict is the timeout, not an earlier failure."""
        path = self._registration.path
        if self._decided:  # only the body of the response is incomplete
            self._stop()
        elif self._running:
            where = f"{self._registration.cluster}/{self._tried[-1].name} on {path}"
            self._decide(failure(where, f"no answer within {PROBE_TIMEOUT:g} s"), stop=True)
        else:
            self._decide(self._last, stop=True)

    def _decide(self, verdict: Verdict | None, *, stop: bool = False) -> None:
        """Fire `result` with the verdict. The deciding response is read to its end, within the probe's time."""
        if self._decided:
            return
        self._decided = True
        self._stop_beginning()
        if stop or not self._running:
            self._stop()
        self.result.callback(verdict)

    def _give_up(self, bug: Failure) -> None:
        if not self._decided:
            self._decided = True
            self._stop()
            self.result.errback(bug)

    def _stop_beginning(self) -> None:
        if self._next.active():
            self._next.cancel()

    def _stop(self) -> None:
        self._decided = True
        self._stop_beginning()
        if self._end.active():
            self._end.cancel()
        running, self._running = self._running, []
        for each in running:
            each.cancel()


Begin = Callable[[Registration, Cluster], Probe]
"""Starts a probe of a registration in a cluster."""
