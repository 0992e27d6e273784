"""What the daemon is now, read from the status document (`mcproxy status -o json`). Pure.

Each metric is a place in the document: nothing is counted here, and what the document does not have makes no series.
Some of it has been counted elsewhere since the start, by one object for all processes, and is a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mcproxy.observe.metrics.counts import Labels
from mcproxy.observe.metrics.families import Family, Kind

Document = Mapping[str, Any]
Sample = tuple[Labels, tuple[float]]
Found = Iterable[tuple[tuple[Any, ...], Any]]
"""The values of the labels, and the value; one that is None, or no number, makes no series."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric, and where the document has it."""

    family: Family
    read: Callable[[Document], Found]
    combine: Callable[[float, float], float] | None = None
    """Of two values with the same labels, where there may be (a process and its successor); None: there are none."""


def gauges_of(status: Document) -> Iterator[tuple[Family, Iterator[Sample]]]:
    """Yield each family with the series that the document has, found as they are asked for."""
    for gauge in GAUGES:
        samples = _samples(gauge.read(status))
        yield gauge.family, samples if gauge.combine is None else _combined(samples, gauge.combine)


def _samples(found: Found) -> Iterator[Sample]:
    for labels, value in found:
        if isinstance(value, int | float):  # a truth value too
            yield tuple(map(str, labels)), (value + 0,)


def _combined(samples: Iterator[Sample], combine: Callable[[float, float], float]) -> Iterator[Sample]:
    values: dict[Labels, float] = {}
    for labels, (value,) in samples:
        values[labels] = combine(values[labels], value) if labels in values else value
    return ((labels, (value,)) for labels, value in values.items())


# -- where the document has what ------------------------------------------------------------------------------------


def _list(entry: Document, key: str) -> Iterable[Document]:
    return entry.get(key) or ()


def _mapping(entry: Document, key: str) -> Document:
    return entry.get(key) or {}


def _entries(key: str, value: str, labels: tuple[str, ...] = ("name",)) -> Callable[[Document], Found]:
    """A number of each object of a list."""
    return lambda status: (
        (tuple(entry.get(label) for label in labels), entry.get(value)) for entry in _list(status, key)
    )


def _inner(outer: str, inner: str, value: str, labels: tuple[str, ...]) -> Callable[[Document], Found]:
    """A number of each object of a list in each object of a list, with the name of the outer one as first label."""
    return lambda status: (
        ((one.get("name"), *(other.get(label) for label in labels)), other.get(value))
        for one in _list(status, outer)
        for other in _list(one, inner)
    )


def _by_key(key: str, value: str) -> Callable[[Document], Found]:
    """The numbers of an object in each object of a list; its keys are the second label."""
    return lambda status: (
        ((entry.get("name"), name), number)
        for entry in _list(status, key)
        for name, number in _mapping(entry, value).items()
    )


def _timestamp(text: Any) -> float | None:
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None


def _last_reload(status: Document, key: str) -> Any:
    """A value of the last reload; the start counts as one that was accepted."""
    reload = status.get("lastReload")
    return {"ok": True, "at": status.get("startedAt")}[key] if reload is None else reload.get(key)


def _limit(entry: Document) -> Found:
    limit = _mapping(entry, "limit")
    for kind, key in (("short", "max"), ("long_running", "maxLongRunning"), ("tokens", "burst"), ("queue", "queue")):
        yield (entry.get("name"), kind), limit.get(key)


def _endpoints_up(status: Document) -> Found:
    for cluster in _list(status, "clusters"):
        for endpoint in _list(cluster, "endpoints"):
            if endpoint.get("state") != "disabled":
                yield (cluster.get("name"), endpoint.get("name")), endpoint.get("ready")


def _reflectors_up(status: Document) -> Found:
    for aggregate in _list(status, "aggregates"):
        for entry in _list(aggregate, "reflectors"):
            labels = tuple(entry.get(label) for label in _REFLECTOR[1:])
            yield (aggregate.get("name"), *labels), entry.get("state") == "synced"


_REFLECTOR = ("aggregate", "cluster", "resource", "version", "namespace")


def _gauge(
    name: str,
    help_text: str,
    labels: tuple[str, ...],
    read: Callable[[Document], Found],
    combine: Callable[[float, float], float] | None = None,
    kind: Kind = "gauge",
) -> Gauge:
    return Gauge(Family(name, kind, help_text, labels), read, combine)


def _add(one: float, other: float) -> float:
    return one + other


def _of_process(name: str, help_text: str, key: str, kind: Kind = "gauge", *, summed: bool = True) -> Gauge:
    """A figure of each process; while one with the same name retires, of both together, or the greater one."""
    return _gauge(name, help_text, ("process",), _entries("processes", key), _add if summed else max, kind)


def _of_endpoint(name: str, help_text: str, key: str) -> Gauge:
    return _gauge(name, help_text, ("cluster", "endpoint"), _inner("clusters", "endpoints", key, ("name",)))


def _of_reflector(name: str, help_text: str, key: str, kind: Kind = "gauge") -> Gauge:
    return _gauge(name, help_text, _REFLECTOR, _inner("aggregates", "reflectors", key, _REFLECTOR[1:]), kind=kind)


GAUGES: tuple[Gauge, ...] = (
    # the daemon and its configuration
    _gauge(
        "mcproxy_build_info", "1, with the version of the program.", ("version",), lambda s: [((s.get("version"),), 1)]
    ),
    _gauge(
        "mcproxy_start_time_seconds",
        "When the daemon was started, in seconds since 1970.",
        (),
        lambda s: [((), _timestamp(s.get("startedAt")))],
    ),
    _gauge(
        "mcproxy_config_info",
        "1, with the hash of the configuration in force.",
        ("hash",),
        lambda s: [((s.get("configHash"),), 1)] if s.get("configHash") else [],
    ),
    _gauge(
        "mcproxy_config_last_reload_successful",
        "Whether the last reload, or the start, was accepted.",
        (),
        lambda s: [((), _last_reload(s, "ok"))],
    ),
    _gauge(
        "mcproxy_config_last_reload_timestamp_seconds",
        "When the last reload, or the start, was accepted or refused, in seconds since 1970.",
        (),
        lambda s: [((), _timestamp(_last_reload(s, "at")))],
    ),
    # clients
    _gauge(
        "mcproxy_requests_in_flight",
        "Open requests, watches and tunnels.",
        ("server",),
        _entries("servers", "inFlight"),
        _add,
    ),
    _gauge(
        "mcproxy_listener_accepting",
        "Whether a listener accepts connections.",
        ("listener",),
        _entries("listeners", "accepting"),
        max,
    ),
    _gauge(
        "mcproxy_listener_connections",
        "Connections of clients, by version of HTTP.",
        ("listener", "protocol"),
        _by_key("listeners", "connections"),
        _add,
    ),
    _gauge(
        "mcproxy_listener_requests_in_flight",
        "Open requests, by version of HTTP.",
        ("listener", "protocol"),
        _by_key("listeners", "requests"),
        _add,
    ),
    _gauge(
        "mcproxy_listener_handshakes",
        "Connections whose TLS handshake, or PROXY header, is not complete.",
        ("listener",),
        _entries("listeners", "handshakes"),
        _add,
    ),
    _gauge(
        "mcproxy_listener_connections_limit",
        "limits.connections of a listener; 0 is no limit.",
        ("listener",),
        lambda s: (((e.get("name"),), _mapping(e, "limits").get("connections")) for e in _list(s, "listeners")),
        max,
    ),
    # clusters
    _gauge(
        "mcproxy_upstream_connections",
        "Connections to a cluster, by version of HTTP.",
        ("cluster", "protocol"),
        _by_key("clusters", "connections"),
    ),
    _gauge(
        "mcproxy_upstream_requests_in_flight",
        "Requests open at a cluster, by version of HTTP.",
        ("cluster", "protocol"),
        _by_key("clusters", "requests"),
    ),
    _gauge(
        "mcproxy_endpoint_up",
        "Whether an endpoint gets requests; not of one that is disabled.",
        ("cluster", "endpoint"),
        _endpoints_up,
    ),
    _of_endpoint(
        "mcproxy_endpoint_requests_in_flight", "Requests sent to an endpoint that have not ended.", "inFlight"
    ),
    _of_endpoint("mcproxy_endpoint_requests_waiting", "Requests that wait for a connection to an endpoint.", "waiting"),
    _of_endpoint("mcproxy_endpoint_connections", "Connections to an endpoint, without tunnels.", "connections"),
    _of_endpoint("mcproxy_endpoint_connections_idle", "Connections to an endpoint without a request.", "idle"),
    _of_endpoint(
        "mcproxy_endpoint_health_check_duration_seconds",
        "What the newest answered health check took.",
        "latencySeconds",
    ),
    _gauge(
        "mcproxy_cluster_credential_ready",
        "Whether the proxy has a credential for a cluster at hand.",
        ("cluster",),
        lambda s: (((c.get("name"),), _mapping(c, "credentials").get("ready")) for c in _list(s, "clusters")),
    ),
    _gauge(
        "mcproxy_cluster_rights_missing",
        "Rights that a cluster does not grant the proxy and that it needs.",
        ("cluster",),
        lambda s: (
            ((c.get("name"),), None if c.get("rightsMissing") is None else len(c["rightsMissing"]))
            for c in _list(s, "clusters")
        ),
    ),
    # aggregates
    _gauge(
        "mcproxy_aggregate_objects",
        "Objects in the caches of an aggregate.",
        ("aggregate",),
        _entries("aggregates", "objects"),
    ),
    _gauge(
        "mcproxy_aggregate_bytes",
        "Bytes of the objects in the caches of an aggregate.",
        ("aggregate",),
        _entries("aggregates", "bytes"),
    ),
    _gauge(
        "mcproxy_aggregate_reflectors",
        "Caches of an aggregate, by state: synced, stale, syncing, unavailable.",
        ("aggregate", "state"),
        _by_key("aggregates", "reflectorCounts"),
    ),
    _gauge(
        "mcproxy_aggregate_watchers",
        "Watches served from the caches of an aggregate.",
        ("aggregate",),
        _entries("aggregates", "watchers"),
    ),
    _gauge(
        "mcproxy_aggregate_watch_queue_bytes",
        "Bytes of changes that are kept for the watches of an aggregate.",
        ("aggregate",),
        _entries("aggregates", "queuedBytes"),
    ),
    _gauge("mcproxy_reflector_synced", "Whether a cache is complete and followed now.", _REFLECTOR, _reflectors_up),
    _of_reflector("mcproxy_reflector_objects", "Objects in a cache.", "objects"),
    _of_reflector("mcproxy_reflector_bytes", "Bytes of the objects in a cache.", "bytes"),
    _of_reflector("mcproxy_reflector_lag_seconds", "Time since a cache's last event, bookmark or list.", "lagSeconds"),
    _of_reflector(
        "mcproxy_reflector_last_event_age_seconds",
        "Time since the last event that changed a cache.",
        "lastEventSeconds",
    ),
    _of_reflector(
        "mcproxy_reflector_lists_total",
        "Times that a cache was listed anew, the first one included.",
        "lists",
        "counter",
    ),
    # limits
    _gauge(
        "mcproxy_flow_control_in_use",
        "Requests in flight that a flow control counts (short, long_running).",
        ("flow_control", "kind"),
        lambda s: (
            ((e.get("name"), kind), e.get(key))
            for e in _list(s, "flowControls")
            for kind, key in (("short", "inUse"), ("long_running", "inUseLongRunning"))
        ),
    ),
    _gauge(
        "mcproxy_flow_control_limit",
        "What a flow control allows: short, long_running, tokens (burst), queue.",
        ("flow_control", "kind"),
        lambda s: (found for e in _list(s, "flowControls") for found in _limit(e)),
    ),
    _gauge(
        "mcproxy_flow_control_waiting",
        "Requests in the queues of a flow control.",
        ("flow_control",),
        _entries("flowControls", "waiting"),
    ),
    _gauge(
        "mcproxy_flow_control_use_ratio",
        "The part of a flow control's limit that is in use, 0 to 1.",
        ("flow_control",),
        _entries("flowControls", "use"),
    ),
    _gauge(
        "mcproxy_reviews_waiting",
        "Reviews that wait for their turn, by kind (tokens, access) and reviewer.",
        ("kind", "reviewer"),
        lambda s: (((e.get("kind"), e.get("name")), e.get("waiting")) for e in _reviewers(s)),
        _add,
    ),
    _gauge(
        "mcproxy_reviews_running",
        "Reviews that are under way.",
        ("kind", "reviewer"),
        lambda s: (((e.get("kind"), e.get("name")), e.get("running")) for e in _reviewers(s)),
        _add,
    ),
    _gauge(
        "mcproxy_review_cache_entries",
        "Results of reviews that are cached.",
        ("kind", "reviewer"),
        lambda s: (((e.get("kind"), e.get("name")), e.get("cached")) for e in _reviewers(s)),
        _add,
    ),
    # certificates
    _gauge(
        "mcproxy_certificate_expiry_timestamp_seconds",
        "When a certificate of the configuration expires, in seconds since 1970; kind: server, client, ca, cluster.",
        ("kind", "name"),
        lambda s: (((e.get("kind"), e.get("name")), _timestamp(e.get("notAfter"))) for e in _list(s, "certificates")),
        min,
    ),
    # processes
    _of_process("process_cpu_seconds_total", "Processor time of a process.", "cpuSeconds", "counter"),
    _of_process("process_resident_memory_bytes", "Resident memory of a process, with what it shares.", "residentBytes"),
    _of_process("process_virtual_memory_bytes", "Address space of a process.", "virtualBytes"),
    _of_process("process_open_fds", "Open descriptors of a process.", "descriptors"),
    _of_process("process_max_fds", "Limit of a process's open descriptors.", "maxDescriptors", summed=False),
    _of_process(
        "process_start_time_seconds", "When a process was started, in seconds since 1970.", "startedAt", summed=False
    ),
    _of_process("mcproxy_process_requests_in_flight", "Open requests of a process.", "open"),
    _of_process(
        "mcproxy_process_restarts_total",
        "How often a process was replaced because it had died.",
        "restarts",
        "counter",
        summed=False,
    ),
    _of_process("mcproxy_audit_queue_bytes", "Bytes of audit events that wait for the file.", "auditQueuedBytes"),
    _of_process(
        "mcproxy_loop_lag_max_seconds",
        "The longest turn of a process's event loop in the last minute.",
        "loopLagSeconds",
        summed=False,
    ),
)
"""All of them, in the order of the text."""


def _reviewers(status: Document) -> Iterable[Document]:
    return _list(_mapping(status, "reviews"), "reviewers")
