"""Reports the state of a process: figures for the status document, checks of /readyz, and open requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mcproxy.apiservices.availability import api_service_checks
from mcproxy.config import model
from mcproxy.daemon.lazy_parts import LazyIngresses
from mcproxy.daemon.listeners import Listeners, LiveListener
from mcproxy.daemon.process_parts import AggregatesOfProcess, AvailabilityOwner, ProcessParts, ServicesOfProcess
from mcproxy.daemon.rights_check import RightsCheck, RightsCheckOfLeader
from mcproxy.daemon.runtime import Runtime
from mcproxy.daemon.status import Figures, ingress_status
from mcproxy.daemon.status.cluster_status import by_version, of_api_services, of_clusters
from mcproxy.daemon.status.process_status import of_process
from mcproxy.daemon.status.server_status import of_flow_controls, of_reviews, of_servers, of_shared_limits
from mcproxy.daemon.status.tunnel_status import of_edge, of_hub
from mcproxy.kube.healthz import Check
from mcproxy.net.wall_time import wall_seconds
from mcproxy.proxy.admin.request_list import described
from mcproxy.proxy.api_requests import APIRequestsInFlight
from mcproxy.tunnels.dialer import Dialer

if TYPE_CHECKING:
    from mcproxy.tunnels.hub import TunnelHub
    from mcproxy.upstream.cluster import Cluster


class ServiceReport:
    """Reads the state of the parts of a Service."""

    def __init__(
        self,
        reactor: Any,
        parts: ProcessParts,
        *,
        runtime: Callable[[], Runtime | None],
        listeners: Listeners,
        in_flight: APIRequestsInFlight,
        ingresses: LazyIngresses,
        aggregates: AggregatesOfProcess,
        services: ServicesOfProcess,
        availability: AvailabilityOwner,
        rights_check: RightsCheck | RightsCheckOfLeader,
        tunnels: TunnelHub,
    ) -> None:
        """`runtime` returns the Runtime in force."""
        self._reactor = reactor
        self._parts = parts
        self._runtime = runtime
        self._listeners = listeners
        self._in_flight = in_flight
        self._ingresses = ingresses
        self._aggregates = aggregates
        self._services = services
        self._availability = availability
        self._rights_check = rights_check
        self._tunnels = tunnels

    def figures(self) -> Figures:
        """Return the figures of this process, for JSON (`daemon.status`)."""
        runtime, shared = self._runtime(), self._parts.shared_limits
        wall, now = wall_seconds(self._reactor), self._reactor.seconds()
        found: Figures = {
            "listeners": [of_listener(live) for live in self._listeners.all],
            "clusters": [],
            "tunnels": [
                *of_hub(self._tunnels.states, wall, now),
                *(
                    of_edge(live.config.name, live.socket, live.factory.counts(), wall, now)
                    for live in self._listeners.in_force.values()
                    if isinstance(live.socket, Dialer)
                ),
            ],
            "aggregates": self._aggregates.figures(),
            "apiServices": of_api_services(self._availability.known),
            **self._services.figures(),
            "senders": self._parts.metrics.sender_figures(),
            **of_shared_limits(None if shared is None else shared.figures),
            "process": {
                **of_process(self._parts.metrics.loop_lag()),
                "auditQueuedBytes": self._parts.metrics.audit_queue(),
            },
        }
        if runtime is not None:
            missing = self._rights_check.missing
            found |= {
                "servers": of_servers(runtime.servers, self._in_flight.requests),
                "clusters": of_clusters(runtime.clusters, missing, wall, now),
                "flowControls": of_flow_controls(runtime.flow_controls),
                **of_reviews(runtime.identity.loads()),
                **ingress_status.of_ingresses(runtime.ingresses, self._ingresses.in_flight.requests),
            }
        return found

    def checks(self, *, stopping: bool) -> Sequence[Check]:
        """Return the checks of /readyz that this process makes itself."""
        runtime = self._runtime()
        clusters = {} if runtime is None else runtime.clusters
        optional = frozenset[str]() if runtime is None else only_of_api_services(runtime.config.servers)
        found = checks_of(stopping, self._listeners.in_force.values(), clusters, optional)
        return [*found, *api_service_checks(self._availability.known.all())]

    def cache_checks(self) -> Sequence[Check]:
        """Return the checks of the caches, if this process has them."""
        return [*self._aggregates.checks(), *self._services.checks()]

    def requests(self, process: str) -> dict[str, Any]:
        """Return the number of requests in flight, and the oldest, for JSON; `process` is the name of this process."""
        now = self._reactor.seconds()
        shown = described(self._in_flight.requests, now, process)
        shown += ingress_status.described(self._ingresses.in_flight.requests, now, process)
        total = len(self._in_flight) + len(self._ingresses.in_flight)
        return {"total": total, "requests": shown}


def of_listener(live: LiveListener) -> Figures:
    """Return the figures of a listener. A removed listener has connections until they are drained.

    `address` is the bound address of the socket, which can differ for port 0 and for sockets of systemd. A listener
    that dials has none; `tunnel_status` has its control connections.
    """
    counts = live.factory.counts()
    return {
        "name": live.config.name,
        "bind": live.config.address,
        "address": None if live.bound is None else str(live.bound),
        "serves": str(live.config.serves),
        "accepting": live.socket.accepting,
        "handshakes": live.socket.handshakes,
        **by_version([counts]),
        "protection": dict(live.factory.protection),
        "limits": {"connections": live.config.limits.connections},
    }


def checks_of(
    stopping: bool,
    listeners: Iterable[LiveListener],
    clusters: Mapping[str, Cluster],
    optional: Collection[str] = (),
) -> Sequence[Check]:
    """Return the checks; the first has the name that kube-apiserver uses.

    A listener that dials fails if no hub is connected, and then readiness only if no listener serves clients.
    A cluster without a ready endpoint fails readiness only if no other cluster has a ready endpoint. Otherwise one
    unavailable cluster would make all replicas unready, and so all clusters unreachable. Readiness does not depend on
    the clusters `optional`. Causes contain no addresses.
    """
    found = [Check("shutdown", "process is shutting down" if stopping else "")]
    found += _of_listeners(listeners, stopping)
    causes = {name: cluster.unready_cause for name, cluster in clusters.items()}
    all_away = all(cause for name, cause in causes.items() if name not in optional)
    found += [Check(f"cluster/{name}", cause, all_away and name not in optional) for name, cause in causes.items()]
    return found


def _of_listeners(listeners: Iterable[LiveListener], stopping: bool) -> Sequence[Check]:
    """Return the checks of listeners. A hub that is away must not make the edge unready for its clients nearby."""
    every = list(listeners)
    reached = any(
        live.socket.connected if isinstance(live.socket, Dialer) else live.config.serves is not model.Serves.ADMIN
        for live in every
    )
    found = []
    for live in every:
        cause = "" if live.socket.accepting or stopping else "it does not accept"
        needed = True
        if isinstance(live.socket, Dialer) and not cause and not stopping and not live.socket.connected:
            cause, needed = "no hub is connected", not reached
        found.append(Check(f"listener/{live.config.name}", cause, needed))
    return found


def only_of_api_services(servers: Sequence[model.Server]) -> frozenset[str]:
    """Return the clusters that only own API services. Readiness never depends on them."""
    owners = {service.cluster for server in servers for service in server.api_services}
    others = {name for server in servers for name in server.clusters}
    policies = (policy for server in servers for policy in server.dispatch or ())
    others |= {policy.backend.cluster for policy in policies if policy.backend is not None}
    return frozenset(owners - others)
