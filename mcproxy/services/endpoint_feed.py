"""Fills the table of endpoints from the caches: when an EndpointSlice changes, its Service's backends are recomputed.

The work is done in short turns of the reactor. A Service whose endpoints take long to compute is computed less often,
however often it changes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.config.model.keys import IPNetwork
from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.endpoint_slices import AllowedAddresses, Service, Slice, read_service, read_slice
from mcproxy.services.endpoint_table import (
    UNKNOWN,
    BackendKey,
    ClusterServiceKey,
    EndpointTable,
    PortEndpoints,
    after_loss,
    by_service,
    port_endpoints,
)
from mcproxy.services.service_caches import CacheState, ServiceCaches, object_json

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

log = Logger(__name__)

MAX_SLICES = 1_000
"""Maximum of EndpointSlices read for one Service; further ones are ignored."""
MAX_READ = 20_000
"""Maximum of endpoints read for one Service, usable or not; the EndpointSlice that exceeds it and all later ones (by
name) are ignored."""
MAX_CLUSTER_ENDPOINTS = 200_000
"""Maximum of endpoints of all backends of one cluster; further ones are ignored, so that no cluster can fill the memory
of every process, or the channels between them."""
TURN = 0.005
"""Seconds of work in one turn."""
_REST = 10
"""The pause before a Service is computed again, as a multiple of the time that its last computation took."""
_WORTH_RESTING = 0.001  # seconds; a Service that takes less time is not throttled
_MAX_REST = 2.0  # maximum of seconds of that pause
_LONG = 0.02  # seconds; a recomputation that takes longer throttles all Services of its cluster


class EndpointFeed:
    """Keeps an `EndpointTable` up to date, in the process that has the caches."""

    def __init__(self, caches: ServiceCaches, table: EndpointTable, clock: IReactorTime) -> None:
        self._caches = caches
        self._table = table
        self._clock = clock
        self._backends: Mapping[ClusterServiceKey, tuple[BackendKey, ...]] = {}
        self._by_cluster: dict[str, list[ClusterServiceKey]] = {}
        self._allowed: dict[tuple[IPNetwork, ...], AllowedAddresses] = {}
        self._due: dict[ClusterServiceKey, None] = {}
        self._resting: dict[ClusterServiceKey, float] = {}  # end of the throttling
        self._clusters_resting: dict[str, float] = {}
        self._read: dict[ClusterServiceKey, dict[str, tuple[CachedObject, Slice | None]]] = {}
        self._inputs: dict[ClusterServiceKey, _Inputs] = {}  # the values in the table were computed from these
        self._endpoints: Counter[str] = Counter()  # number of endpoints in the table, by cluster
        self._call: IDelayedCall | None = None
        self._idles = False  # whether all due Services are throttled until `_call`
        self._unsubscribe = caches.subscribe(self)

    def update(self, keys: Iterable[BackendKey]) -> None:
        """Keep exactly these backends in the table. The caller must update the caches first."""
        keys = tuple(dict.fromkeys(keys))
        self._backends = by_service(keys)
        self._by_cluster = {}
        for service in self._backends:
            self._by_cluster.setdefault(service.cluster, []).append(service)
        self._allowed = {allowed: AllowedAddresses(allowed) for allowed in {key.allowed for key in keys}}
        maps: tuple[dict[ClusterServiceKey, Any], ...] = (self._read, self._inputs, self._resting)
        for kept in maps:
            for service in [service for service in kept if service not in self._backends]:
                del kept[service]
        self._clusters_resting = {
            name: until for name, until in self._clusters_resting.items() if name in self._by_cluster
        }
        self._table.keep(keys)
        self._endpoints.clear()
        for key, value in self._table.items():
            self._endpoints[key.cluster] += len(value.endpoints)
        self._schedule(self._backends)

    def stop(self) -> None:
        """Stop; the table stays as it is."""
        self._unsubscribe()
        self._due.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    # -- service_caches.ServiceListener ---------------------------------------------------------------------------

    def services_changed(self, keys: Collection[ClusterServiceKey]) -> None:
        self._schedule(keys)

    def cluster_changed(self, cluster: str) -> None:
        self._schedule(self._by_cluster.get(cluster, ()))

    # -- work -----------------------------------------------------------------------------------------------------

    def _schedule(self, services: Iterable[ClusterServiceKey]) -> None:
        found = [service for service in services if service in self._backends]
        self._due.update(dict.fromkeys(found))
        if self._due and self._call is None:
            self._call = self._clock.callLater(0, self._turn)
        elif self._call is not None and self._idles:
            now = self._clock.seconds()
            if any(self._rests_until(service) <= now for service in found):
                self._idles = False
                self._call.reset(0)  # otherwise the turn would wait for the throttled Services

    def _turn(self) -> None:
        self._call = None
        began = now = self._clock.seconds()
        waiting: dict[ClusterServiceKey, None] = {}
        while self._due and now - began < TURN:
            service = next(iter(self._due))
            del self._due[service]
            if self._rests_until(service) > now:
                waiting[service] = None
                continue
            again = service in self._inputs
            try:
                self._compute(service)
            except Exception:
                log.failure("computing endpoints failed", event="internal_error", service=str(service))
            before, now = now, self._clock.seconds()
            self._resting.pop(service, None)
            if now - before > _WORTH_RESTING:
                self._resting[service] = until = now + min(_MAX_REST, _REST * (now - before))
                if again and now - before > _LONG:  # many such Services together would take all CPU time
                    self._clusters_resting[service.cluster] = until
        wait = 0.0
        if not self._due and waiting:
            wait = max(0.0, min(map(self._rests_until, waiting)) - now)
        self._due.update(waiting)
        if self._due:
            self._idles = wait > 0
            self._call = self._clock.callLater(wait, self._turn)

    def _rests_until(self, service: ClusterServiceKey) -> float:
        return max(self._resting.get(service, 0.0), self._clusters_resting.get(service.cluster, 0.0))

    def _compute(self, service: ClusterServiceKey) -> None:
        backends = self._backends.get(service, ())
        slices = self._caches.state(service.cluster, FollowedKind.SLICES, service.namespace)
        services = self._caches.state(service.cluster, FollowedKind.SERVICES, service.namespace)
        if slices.synced and services.synced:
            stale = not (slices.followed and services.followed)
            inputs = _Inputs(
                backends, self._caches.get(FollowedKind.SERVICES, service), tuple(self._caches.slices(service).values())
            )
            if inputs.are(self._inputs.get(service)):
                for key in backends:
                    before = self._table.get(key)
                    if before.stale != stale:
                        self._put(key, replace(before, stale=stale))
                return
            self._inputs[service] = inputs
            described, found, problem = self._objects(service)
            for key in backends:
                value = (
                    PortEndpoints(known=True, problem=problem)
                    if described is None and problem
                    else port_endpoints(key, described, found, self._allowed[key.allowed])
                )
                self._put(key, replace(value, stale=stale, problem=value.problem or problem))
            return
        self._read.pop(service, None)
        self._inputs.pop(service, None)
        problem = _problem(service.cluster, slices, "endpointslices.discovery.k8s.io") or _problem(
            service.cluster, services, "services"
        )
        for key in backends:
            if slices.replaced or services.replaced:
                self._put(key, replace(UNKNOWN, problem=problem))
            else:
                self._put(key, replace(after_loss(self._table.get(key)), problem=problem))

    def _objects(self, service: ClusterServiceKey) -> tuple[Service | None, list[Slice], str]:
        """Return the decoded Service and EndpointSlices, and why some of the objects cannot be used ("": all can)."""
        item = self._caches.get(FollowedKind.SERVICES, service)
        described: Service | None = None
        problem = ""
        if item is not None:
            try:
                described = read_service(object_json(item))
            except UnreadableObject as error:
                problem = f"service {service.namespace}/{service.service} of cluster {service.cluster}: {error}"
        cached = self._caches.slices(service)
        before = self._read.get(service, {})
        read: dict[str, tuple[CachedObject, Slice | None]] = {}
        names = sorted(cached)
        left = MAX_READ
        for name in names[:MAX_SLICES]:
            known = before.get(name)
            each = read[name] = known if known is not None and known[0] is cached[name] else _read(cached[name])
            if each[1] is not None:
                left -= len(each[1].endpoints) + each[1].unusable
                if left < 0:
                    del read[name]
                    break
        if len(read) > 1:
            self._read[service] = read
        else:
            self._read.pop(service, None)
        found = [one for _, one in read.values() if one is not None]
        if len(found) < len(names):
            where = f"service {service.namespace}/{service.service} of cluster {service.cluster}"
            problem = problem or f"{where}: {len(names) - len(found)} of its EndpointSlices cannot be used"
        return described, found, problem

    def _put(self, key: BackendKey, value: PortEndpoints) -> None:
        before = self._table.get(key)
        room = max(0, MAX_CLUSTER_ENDPOINTS - self._endpoints[key.cluster] + len(before.endpoints))
        if len(value.endpoints) > room:
            problem = f"the backends in cluster {key.cluster} have more than {MAX_CLUSTER_ENDPOINTS} endpoints"
            value = replace(value, endpoints=value.endpoints[:room], problem=problem)
        self._endpoints[key.cluster] += len(value.endpoints) - len(before.endpoints)
        if self._table.set(key, value) and value.known and value.problem and not (before.known and before.problem):
            log.warn(
                "an ingress backend has no endpoints, or fewer than its cluster reports",
                event="backend_endpoints",
                cluster=key.cluster,
                service=f"{key.namespace}/{key.service}",
                port=key.port,
                cause=value.problem,
                todo="see the Service and its EndpointSlices in that cluster, and the backend in the configuration",
            )


class _Inputs(NamedTuple):
    """The inputs from which the endpoints of a Service were computed."""

    backends: tuple[BackendKey, ...]
    service: CachedObject | None
    slices: tuple[CachedObject, ...]

    def are(self, others: _Inputs | None) -> bool:
        """Whether both hold the identical objects."""
        return (
            others is not None
            and self.backends == others.backends
            and self.service is others.service
            and len(self.slices) == len(others.slices)
            and all(map(operator.is_, self.slices, others.slices))
        )


def _read(item: CachedObject) -> tuple[CachedObject, Slice | None]:
    try:
        return item, read_slice(object_json(item))
    except UnreadableObject:
        return item, None


def _problem(cluster: str, state: CacheState, resource: str) -> str:
    if state.served is False:
        return f"cluster {cluster} does not serve {resource}"
    if state.synced:
        return ""
    return state.cause or f"{resource} of cluster {cluster} are not known yet"
