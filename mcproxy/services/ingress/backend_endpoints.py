"""Keeps the live endpoints of a backend in one cluster in step with the endpoint table.

An endpoint with the same address and port keeps its health, its connections and its count of requests, whatever else
changes. With `via: APIServer` the cluster's API server is the only endpoint, as long as the service has endpoints. With
`via: PortForward` only endpoints that name a pod are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mcproxy.config.model import BackendHealthCheck, BackendProtocol, BackendTLS, IngressBackend, Via
from mcproxy.services.endpoint_table import (
    BackendKey,
    EndpointState,
    EndpointTable,
    PodEndpoint,
    PortEndpoints,
    backend_keys,
)
from mcproxy.services.ingress.endpoint_health import BackendEndpoint, HealthChecks
from mcproxy.services.ingress.forward_target import Target

log = Logger(__name__)

_LONG = 0.05
"""Seconds; after a longer change (only thousands of endpoints take so long), the next change is delayed."""
_REST = 10
"""The delay, as a multiple of the duration of the last change."""
_MAX_REST = 2.0
"""Maximum of the delay, in seconds."""
API_SERVER = PodEndpoint("API server", 0)
"""The only endpoint of a service with `via: APIServer`."""


class MemberKey(NamedTuple):
    """The settings on which the endpoints of a backend in a cluster, their connections and their health depend."""

    key: BackendKey
    via: Via
    protocol: BackendProtocol
    tls: BackendTLS | None
    health_check: BackendHealthCheck | None
    connect_timeout: float


def member_keys(backend: IngressBackend) -> dict[str, MemberKey]:
    """Return the keys of a backend by cluster, in the order of the configuration."""
    return {
        key.cluster: MemberKey(
            key, backend.via, backend.protocol, backend.tls, backend.health_check, backend.connect_timeout
        )
        for key in backend_keys(backend)
    }


Ejected = Callable[[str, str], None]
"""Called with ``(service, cluster)`` when failed requests have ejected an endpoint."""


class Targets(Protocol):
    """Makes and releases the targets of endpoints (`pod_pools`)."""

    def acquire(self, key: MemberKey, pod: PodEndpoint, app_protocol: str | None) -> Target: ...

    def release(self, target: Target) -> None:
        """Send no new requests to a target; its requests in flight continue to their end."""


def _ignored(service: str, cluster: str) -> None:
    """Do nothing."""


class BackendMember:
    """The current endpoints of one backend in one cluster."""

    def __init__(
        self,
        key: MemberKey,
        table: EndpointTable,
        targets: Targets,
        clock: IReactorTime,
        random: Callable[[], float],
        ejected: Ejected = _ignored,
    ) -> None:
        """`random` returns a float in [0, 1)."""
        self.key = key
        self.cluster = key.key.cluster
        self.service = f"{key.key.namespace}/{key.key.service}"
        self._ejected = ejected
        self._checks: HealthChecks | None = None
        if key.health_check is not None:
            self._checks = HealthChecks(key.health_check, self.service, self.cluster, clock, random)
        self.endpoints: tuple[BackendEndpoint, ...] = ()
        self.known = PortEndpoints()
        self._targets = targets
        self._clock = clock
        self._table = table
        self._app_protocol: str | None = None
        self._started = False
        self._was_known = False
        self._unnamed = False  # whether there are endpoints, but none names a pod
        self._listeners: dict[int, Callable[[], None]] = {}
        self._number = 0
        self._rests_until = 0.0
        self._later: IDelayedCall | None = None
        self._unsubscribe = table.subscribe((key.key,), lambda _: self._table_changed())
        self._refresh()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after possible changes of the usable endpoints, until the returned function is called."""
        self._number += 1
        number = self._number
        self._listeners[number] = changed

        def unsubscribe() -> None:
            self._listeners.pop(number, None)

        return unsubscribe

    def start(self) -> None:
        """Start the active checks, unless they run already; called when the configuration comes into force."""
        if self._checks is not None and not self._started:
            self._started = True
            self._checks.start()

    def stop(self) -> None:
        """Stop: no backend has this member any more."""
        if self._checks is not None:
            self._checks.stop()
        self._unsubscribe()
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._listeners.clear()
        endpoints, self.endpoints = self.endpoints, ()
        for endpoint in endpoints:
            self._end(endpoint)

    def _end(self, endpoint: BackendEndpoint) -> None:
        endpoint.stop()
        self._targets.release(endpoint.target)

    def _table_changed(self) -> None:
        """Apply a change, later if the last change took long: a cluster can change thousands of endpoints at once."""
        if self._later is not None:
            return
        began = self._clock.seconds()
        if began < self._rests_until:
            self._later = self._clock.callLater(self._rests_until - began, self._rested)
            return
        self._refresh()
        now = self._clock.seconds()
        if now - began > _LONG:
            self._rests_until = now + min(_MAX_REST, _REST * (now - began))

    def _rested(self) -> None:
        self._later = None
        self._table_changed()

    def _refresh(self) -> None:
        self.known = known = self._table.get(self.key.key)
        pods = known.endpoints
        if self.key.via is Via.API_SERVER:
            ready = [each for each in pods if each.state is EndpointState.READY]
            state = EndpointState.READY if ready else EndpointState.TERMINATING
            pods = (API_SERVER._replace(state=state),) if pods else ()
        elif self.key.via is Via.PORT_FORWARD:
            pods = self._named(pods)
        before = {self._identity(each.pod): each for each in self.endpoints}
        if known.app_protocol != self._app_protocol:  # the new protocol needs other connections
            self._app_protocol = known.app_protocol
            stays: dict[PodEndpoint, BackendEndpoint] = {}
        else:
            stays = before
        # The first known endpoints are not new: they have no slow start.
        since = self._clock.seconds() if self._was_known else -math.inf
        self._was_known = known.known
        found = []
        for pod in pods:
            endpoint = stays.get(self._identity(pod))
            if endpoint is None:
                target = self._targets.acquire(self.key, pod, known.app_protocol)
                endpoint = BackendEndpoint(self.cluster, pod, target, self._clock, since)
                endpoint.changed, endpoint.went_out = self._changed, self._went_out
            else:
                endpoint.pod = pod
            found.append(endpoint)
        self.endpoints = tuple(found)
        kept = set(found)
        for endpoint in before.values():
            if endpoint not in kept:
                self._end(endpoint)
        if self._checks is not None:
            self._checks.follow(self.endpoints)
        self._changed()

    def _named(self, pods: tuple[PodEndpoint, ...]) -> tuple[PodEndpoint, ...]:
        """Return the endpoints that name a pod; log a warning if none does."""
        named = tuple(each for each in pods if each.pod is not None)
        if pods and not named:
            problem = "no endpoint names its pod (targetRef), and via: PortForward reaches pods by name"
            if not self._unnamed:
                log.warn(
                    "an ingress backend has no endpoint that can be forwarded to",
                    event="backend_endpoints",
                    cluster=self.cluster,
                    service=self.service,
                    port=self.key.key.port,
                    cause=problem,
                    todo="write via: Endpoints for a Service without a selector, whose EndpointSlices are not pods",
                )
            self.known = replace(self.known, problem=problem)
        self._unnamed = bool(pods) and not named
        return named

    def _identity(self, pod: PodEndpoint) -> PodEndpoint:
        """Return the identity of an endpoint: address and port, and the pod's name if `via` connects by name."""
        return PodEndpoint(pod.address, pod.port, pod=pod.pod if self.key.via is Via.PORT_FORWARD else None)

    def _went_out(self, endpoint: BackendEndpoint, seconds: float) -> None:
        self._ejected(self.service, self.cluster)
        log.warn(
            "an endpoint of an ingress is out: its requests failed",
            event="ingress_endpoint_out",
            service=self.service,
            cluster=self.cluster,
            endpoint=endpoint.name,
            seconds=seconds,
            cause=endpoint.problem,
            todo="nothing if the pod is just ending; else see `cause`, that pod, and whether it can be reached from"
            " here",
            log_subject=("ingress endpoint", self.service, self.cluster, endpoint.name),
        )

    def _changed(self) -> None:
        for listener in list(self._listeners.values()):
            listener()
