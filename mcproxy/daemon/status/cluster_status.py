"""Clusters and API services in the status document: connections, requests, health, credentials, conditions.

HTTP versions have the same names as in the access log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from mcproxy.apiservices.availability import Availability, Registration
from mcproxy.config import model
from mcproxy.daemon.status import Figures, rfc3339
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_state import Health

_STATES = {Health.UNCHECKED: "unchecked", Health.READY: "ready", Health.FAILED: "out"}


def by_version(counts: Iterable[Mapping[str, tuple[int, int]]]) -> Figures:
    """Return the sums of ``{version: (connections, requests)}``, as two objects."""
    connections: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for each in counts:
        for version, (number, open_requests) in each.items():
            connections[version] += number
            requests[version] += open_requests
    return {"connections": dict(connections), "requests": dict(requests)}


def of_clusters(
    clusters: Mapping[str, Cluster],
    missing: Callable[[str], Sequence[str] | None],
    wall: float,
    now: float,
) -> list[Figures]:
    """Return the figures of each cluster.

    `missing` returns the rights that a cluster does not grant the proxy; None if this process has not checked them.
    `wall` is the time of day, `now` the reactor's time.
    """
    return [
        {
            "name": name,
            **by_version(pool.counts() for endpoint in cluster.endpoints for pool in endpoint.pools),
            "endpoints": [of_endpoint(endpoint, wall) for endpoint in cluster.endpoints],
            "credentials": _of_credentials(cluster, now),
            "rightsMissing": _listed(missing(name)),
        }
        for name, cluster in clusters.items()
    ]


def of_endpoint(endpoint: Endpoint, wall: float) -> Figures:
    """Return the figures of an endpoint.

    `state` is the result of the health checks, or "disabled". `cause` is the newest failure, or "" after a successful
    check. `latencySeconds` is the latency of the newest answered health check, or null if the endpoint is out.
    """
    disabled = endpoint.config.disabled
    return {
        "name": endpoint.name,
        "url": endpoint.config.url,
        "ready": endpoint.ready,
        "state": "disabled" if disabled else _STATES[endpoint.health.status],
        "since": rfc3339(wall - endpoint.shown_seconds),
        "cause": endpoint.health.cause,
        "inFlight": endpoint.in_flight,
        "waiting": endpoint.load - endpoint.in_flight,
        "connections": sum(pool.connections for pool in endpoint.pools),
        "idle": sum(pool.idle for pool in endpoint.pools),
        "latencySeconds": None if endpoint.health.status is Health.FAILED else endpoint.check_seconds,
    }


def _of_credentials(cluster: Cluster, now: float) -> Figures:
    """Return the state of the proxy's own credential; `expiresAt` is the expiry of an exec plugin's credential.

    `refused`: the cluster has answered 401 to the credential within the last minute.
    """
    expires_at = cluster.credentials.expires_at
    return {
        "kind": credential_kind(cluster.config.credentials),
        "identity": str(cluster.config.identity),
        "ready": cluster.credentials.is_ready,
        "refused": cluster.credentials.is_refused(now),
        "expiresAt": None if expires_at is None else rfc3339(expires_at),
    }


def credential_kind(credentials: model.Credentials) -> str:
    """Return the key of `credentials` that sets the proxy's credential for a cluster; "none" if no key does."""
    kinds = {
        "exec": credentials.exec,
        "tokenFile": credentials.token_file,
        "token": credentials.token,
        "basic": credentials.basic,
        "certificate": credentials.certificate,
    }
    return next((kind for kind, value in kinds.items() if value is not None), "none")


def _listed(rights: Sequence[str] | None) -> list[str] | None:
    return None if rights is None else list(rights)


def of_api_services(known: Availability) -> list[Figures]:
    """Return the figures of each API service, in the order of the configuration. `usedBy` lists servers."""
    return [
        {
            "name": registration.name,
            "group": registration.group,
            "version": registration.version,
            "cluster": registration.cluster,
            "usedBy": [
                name
                for name, services in known.servers.items()
                if any(Registration.of(each) == registration for each in services)
            ],
            "available": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "since": rfc3339(condition.since),
        }
        for registration, condition in known.all()
    ]
