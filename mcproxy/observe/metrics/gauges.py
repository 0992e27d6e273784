"""The gauges: all metrics that are read from the status document (`mcproxy status -o json`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from mcproxy.observe.metrics.families import Family, Kind
from mcproxy.observe.metrics.gauge import (
    Document,
    Found,
    Gauge,
    Sample,
    add,
    by_key,
    entries,
    gauge,
    inner,
    mapping,
    objects,
)


def gauges_of(status: Document) -> Iterator[tuple[Family, Iterator[Sample]]]:
    """Yield each family with its series in the document."""
    for each in GAUGES:
        yield each.family, each.samples(status)


def _timestamp(text: Any) -> float | None:
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None


def _last_reload(status: Document, key: str) -> Any:
    """Return a value of the last reload; the start counts as a successful reload."""
    reload = status.get("lastReload")
    return {"ok": True, "at": status.get("startedAt")}[key] if reload is None else reload.get(key)


def _limit(entry: Document) -> Found:
    limit = mapping(entry, "limit")
    for kind, key in (("short", "max"), ("long_running", "maxLongRunning"), ("tokens", "burst"), ("queue", "queue")):
        yield (entry.get("name"), kind), limit.get(key)


def _endpoints_up(status: Document) -> Found:
    for cluster in objects(status, "clusters"):
        for endpoint in objects(cluster, "endpoints"):
            if endpoint.get("state") != "disabled":
                yield (cluster.get("name"), endpoint.get("name")), endpoint.get("ready")


def _unavailable_apiservices(status: Document) -> Found:
    for entry in objects(status, "apiServices"):
        yield (entry.get("name"), entry.get("cluster")), entry.get("available") == "False"


def _unavailable_by_name(status: Document) -> Found:
    """Yield the series of `_unavailable_apiservices`, but only one per name, for all API servers with this name."""
    found: dict[Any, bool] = {}
    for (name, _), unavailable in _unavailable_apiservices(status):
        found[name] = found.get(name, False) or bool(unavailable)
    for name, unavailable in found.items():
        yield (name,), unavailable


def _ingress_endpoints(status: Document) -> Found:
    for entry in objects(status, "ingressServices"):
        labels = f"{entry.get('service')}:{entry.get('port')}", entry.get("cluster")
        yield (*labels, "ready"), entry.get("ready")
        yield (*labels, "terminating"), entry.get("terminating")
        yield (*labels, "out"), len(entry.get("outEndpoints") or ())


def _of_targets(key: str) -> Callable[[Document], Found]:
    def found(status: Document) -> Found:
        for entry in objects(status, "exportTargets"):
            yield (entry.get("cluster"),), entry.get(key)

    return found


def _tunnels_connected(status: Document) -> Found:
    """Yield 1 for each edge of a tunnel at the hub, 0 with an empty peer if there is none; each hub at the edge."""
    for tunnel in objects(status, "tunnels"):
        name = tunnel.get("name")
        if tunnel.get("role") == "hub":
            if not tunnel.get("connected"):
                yield (name, ""), False
            for peer in objects(tunnel, "peers"):
                yield (name, peer.get("peer")), True
        for hub in objects(tunnel, "hubs"):
            yield (name, hub.get("url")), hub.get("connected")


def _tunnel_round_trips(status: Document) -> Found:
    for tunnel in objects(status, "tunnels"):
        for peer in objects(tunnel, "peers"):
            yield (tunnel.get("name"), peer.get("peer")), peer.get("rttSeconds")
        for hub in objects(tunnel, "hubs"):
            yield (tunnel.get("name"), hub.get("url")), hub.get("rttSeconds")


def _stale_exports(status: Document) -> Found:
    counts: dict[str, int] = {}
    for entry in objects(status, "exports"):
        for name in entry.get("sources") or ():
            counts.setdefault(name, 0)
        for name in entry.get("stale") or ():
            counts[name] = counts.get(name, 0) + 1
    for name, count in counts.items():
        yield (name,), count


def _export_problems(status: Document) -> Found:
    counts: dict[tuple[Any, Any], int] = {}
    for entry in objects(status, "exportProblems"):
        labels = (entry.get("cluster"), entry.get("reason"))
        counts[labels] = counts.get(labels, 0) + 1
    yield from counts.items()


def _reflectors_up(status: Document) -> Found:
    for aggregate in objects(status, "aggregates"):
        for entry in objects(aggregate, "reflectors"):
            labels = tuple(entry.get(label) for label in _REFLECTOR[1:])
            yield (aggregate.get("name"), *labels), entry.get("state") == "synced"


def _of_backends(status: Document, **keys: str) -> Found:
    for entry in objects(status, "serviceEndpoints"):
        for state, key in keys.items():
            yield (entry.get("cluster"), state), entry.get(key)


_REFLECTOR = ("aggregate", "cluster", "resource", "version", "namespace")


def _of_process(name: str, help_text: str, key: str, kind: Kind = "gauge", *, summed: bool = True) -> Gauge:
    """Return a gauge per process; while a process of the same name retires, it is the sum or maximum of both."""
    return gauge(name, help_text, ("process",), entries("processes", key), add if summed else max, kind)


def _of_reviewer(name: str, help_text: str, key: str) -> Gauge:
    """Return a gauge per reviewer of tokens or access; values with the same name are added up."""

    def read(status: Document) -> Found:
        for entry in objects(mapping(status, "reviews"), "reviewers"):
            yield (entry.get("kind"), entry.get("name")), entry.get(key)

    return gauge(name, help_text, ("kind", "reviewer"), read, add)


def _of_endpoint(name: str, help_text: str, key: str) -> Gauge:
    return gauge(name, help_text, ("cluster", "endpoint"), inner("clusters", "endpoints", key, ("name",)))


def _of_reflector(name: str, help_text: str, key: str, kind: Kind = "gauge") -> Gauge:
    return gauge(name, help_text, _REFLECTOR, inner("aggregates", "reflectors", key, _REFLECTOR[1:]), kind=kind)


GAUGES: tuple[Gauge, ...] = (
    # the daemon and its configuration
    gauge(
        "mcproxy_build_info",
        "1, with the version of the program, and whether it is compiled or pure.",
        ("version", "build"),
        lambda s: [((s.get("version"), s.get("build")), 1)],
    ),
    gauge(
        "mcproxy_start_time_seconds",
        "When the daemon was started, in seconds since 1970.",
        (),
        lambda s: [((), _timestamp(s.get("startedAt")))],
    ),
    gauge(
        "mcproxy_config_info",
        "1, with the hash of the configuration in force.",
        ("hash",),
        lambda s: [((s.get("configHash"),), 1)] if s.get("configHash") else [],
    ),
    gauge(
        "mcproxy_config_last_reload_successful",
        "Whether the last reload, or the start, was accepted.",
        (),
        lambda s: [((), _last_reload(s, "ok"))],
    ),
    gauge(
        "mcproxy_config_last_reload_timestamp_seconds",
        "When the last reload, or the start, was accepted or refused, in seconds since 1970.",
        (),
        lambda s: [((), _timestamp(_last_reload(s, "at")))],
    ),
    # clients
    gauge(
        "mcproxy_requests_in_flight",
        "Open requests, watches and tunnels.",
        ("server",),
        entries("servers", "inFlight"),
        add,
    ),
    gauge(
        "mcproxy_listener_accepting",
        "Whether a listener accepts connections.",
        ("listener",),
        entries("listeners", "accepting"),
        max,
    ),
    gauge(
        "mcproxy_listener_connections",
        "Connections of clients, by version of HTTP.",
        ("listener", "protocol"),
        by_key("listeners", "connections"),
        add,
    ),
    gauge(
        "mcproxy_listener_requests_in_flight",
        "Open requests, by version of HTTP.",
        ("listener", "protocol"),
        by_key("listeners", "requests"),
        add,
    ),
    gauge(
        "mcproxy_listener_handshakes",
        "Connections whose TLS handshake, or PROXY header, is not complete.",
        ("listener",),
        entries("listeners", "handshakes"),
        add,
    ),
    gauge(
        "mcproxy_listener_connections_limit",
        "limits.connections of a listener; 0 is no limit.",
        ("listener",),
        lambda s: (((e.get("name"),), mapping(e, "limits").get("connections")) for e in objects(s, "listeners")),
        max,
    ),
    # clusters
    gauge(
        "mcproxy_upstream_connections",
        "Connections to a cluster, those of the proxy's own traffic included, by version of HTTP; "
        "those that take no more requests count until theirs have ended.",
        ("cluster", "protocol"),
        by_key("clusters", "connections"),
    ),
    gauge(
        "mcproxy_upstream_requests_in_flight",
        "Requests open at a cluster, the proxy's own included, by version of HTTP.",
        ("cluster", "protocol"),
        by_key("clusters", "requests"),
    ),
    gauge(
        "mcproxy_endpoint_up",
        "Whether an endpoint gets requests; not of one that is disabled.",
        ("cluster", "endpoint"),
        _endpoints_up,
    ),
    gauge(
        "mcproxy_ingress_endpoints",
        "Endpoints of a service of ingresses, by state: ready, terminating (and still serving), out (ready, but not "
        "used in one process at least, since it failed).",
        ("service", "cluster", "state"),
        _ingress_endpoints,
    ),
    gauge(
        "mcproxy_export_leader",
        "Whether this daemon has the Lease of a cluster, and writes exported services to it.",
        ("cluster",),
        _of_targets("leads"),
    ),
    gauge(
        "mcproxy_export_pending_writes",
        "Writes of exported services to a cluster that wait for their turn or their answer.",
        ("cluster",),
        _of_targets("pending"),
    ),
    gauge(
        "mcproxy_export_refused_objects",
        "Objects of exported services that a cluster refuses, or that are not ours.",
        ("cluster",),
        _of_targets("refusedObjects"),
    ),
    gauge(
        "mcproxy_export_stale_services",
        "Services of a cluster that are exported by its last known state, since it cannot be reached.",
        ("cluster",),
        _stale_exports,
    ),
    gauge(
        "mcproxy_export_problems",
        "What is wrong with exported services, by cluster and reason.",
        ("cluster", "reason"),
        _export_problems,
    ),
    gauge(
        "mcproxy_unavailable_apiservice",
        "Whether the probes of an API service fail, so that its requests get 503.",
        ("name", "cluster"),
        _unavailable_apiservices,
    ),
    gauge(
        "aggregator_unavailable_apiservice",
        "The same by the name that kube-aggregator has for it, on which rules of others alert.",
        ("name",),
        _unavailable_by_name,
    ),
    _of_endpoint(
        "mcproxy_endpoint_requests_in_flight", "Requests sent to an endpoint that have not ended.", "inFlight"
    ),
    _of_endpoint("mcproxy_endpoint_requests_waiting", "Requests that wait for a connection to an endpoint.", "waiting"),
    _of_endpoint(
        "mcproxy_endpoint_connections",
        "Connections to an endpoint, those of the proxy's own traffic included, without tunnels.",
        "connections",
    ),
    _of_endpoint("mcproxy_endpoint_connections_idle", "Connections to an endpoint without a request.", "idle"),
    _of_endpoint(
        "mcproxy_endpoint_health_check_duration_seconds",
        "What the newest answered health check took.",
        "latencySeconds",
    ),
    gauge(
        "mcproxy_cluster_credential_ready",
        "Whether the proxy has a credential for a cluster at hand.",
        ("cluster",),
        lambda s: (((c.get("name"),), mapping(c, "credentials").get("ready")) for c in objects(s, "clusters")),
    ),
    gauge(
        "mcproxy_cluster_rights_missing",
        "Rights that the proxy needs and that a cluster does not grant.",
        ("cluster",),
        lambda s: (
            ((c.get("name"),), None if c.get("rightsMissing") is None else len(c["rightsMissing"]))
            for c in objects(s, "clusters")
        ),
    ),
    # tunnels
    gauge(
        "mcproxy_tunnel_connected",
        "Whether a tunnel is connected; `peer` is the address of the edge, or the URL of a hub. At the hub a tunnel "
        "without an edge is 0 with an empty peer.",
        ("tunnel", "peer"),
        _tunnels_connected,
        max,
    ),
    gauge(
        "mcproxy_tunnel_connections",
        "Connections of a tunnel for requests, by version of HTTP.",
        ("tunnel", "protocol"),
        by_key("tunnels", "connections"),
        add,
    ),
    gauge(
        "mcproxy_tunnel_rtt_seconds",
        "The newest round trip of a PING on a tunnel's control connection; the longest, if a peer has several.",
        ("tunnel", "peer"),
        _tunnel_round_trips,
        max,
    ),
    # aggregates
    gauge(
        "mcproxy_aggregate_objects",
        "Objects in the caches of an aggregate.",
        ("aggregate",),
        entries("aggregates", "objects"),
    ),
    gauge(
        "mcproxy_aggregate_bytes",
        "Bytes of the objects in the caches of an aggregate.",
        ("aggregate",),
        entries("aggregates", "bytes"),
    ),
    gauge(
        "mcproxy_aggregate_reflectors",
        "Caches of an aggregate, by state: synced, stale, syncing, unavailable.",
        ("aggregate", "state"),
        by_key("aggregates", "reflectorCounts"),
    ),
    gauge(
        "mcproxy_aggregate_watchers",
        "Watches served from the caches of an aggregate.",
        ("aggregate",),
        entries("aggregates", "watchers"),
    ),
    gauge(
        "mcproxy_aggregate_watch_queue_bytes",
        "Bytes of changes that are kept for the watches of an aggregate.",
        ("aggregate",),
        entries("aggregates", "queuedBytes"),
    ),
    # services
    gauge(
        "mcproxy_service_caches",
        "Caches of services, by state: synced, stale, syncing, unavailable.",
        ("state",),
        lambda s: (
            ((state,), count) for state, count in mapping(mapping(s, "serviceCaches"), "reflectorCounts").items()
        ),
    ),
    gauge(
        "mcproxy_service_backends",
        "Backends of ingresses in a cluster, by state: total, stale (their last known endpoints), unknown, problem.",
        ("cluster", "state"),
        lambda s: _of_backends(s, total="backends", stale="stale", unknown="unknown", problem="problems"),
    ),
    gauge(
        "mcproxy_service_endpoints",
        "Endpoints of the backends of ingresses in a cluster, by state: ready, terminating.",
        ("cluster", "state"),
        lambda s: _of_backends(s, ready="ready", terminating="terminating"),
    ),
    gauge("mcproxy_reflector_synced", "Whether a cache is complete and followed now.", _REFLECTOR, _reflectors_up),
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
    gauge(
        "mcproxy_flow_control_in_use",
        "Requests in flight that a flow control counts (short, long_running).",
        ("flow_control", "kind"),
        lambda s: (
            ((e.get("name"), kind), e.get(key))
            for e in objects(s, "flowControls")
            for kind, key in (("short", "inUse"), ("long_running", "inUseLongRunning"))
        ),
    ),
    gauge(
        "mcproxy_flow_control_limit",
        "What a flow control allows: short, long_running, tokens (burst), queue.",
        ("flow_control", "kind"),
        lambda s: (found for e in objects(s, "flowControls") for found in _limit(e)),
    ),
    gauge(
        "mcproxy_flow_control_waiting",
        "Requests in the queues of a flow control.",
        ("flow_control",),
        entries("flowControls", "waiting"),
    ),
    gauge(
        "mcproxy_flow_control_use_ratio",
        "The part of a flow control's limit that is in use, 0 to 1.",
        ("flow_control",),
        entries("flowControls", "use"),
    ),
    _of_reviewer("mcproxy_reviews_waiting", "Reviews that wait for their turn, by kind (tokens, access).", "waiting"),
    _of_reviewer("mcproxy_reviews_running", "Reviews that are under way.", "running"),
    _of_reviewer("mcproxy_reviews_places", "How many reviews may be under way at the same time.", "places"),
    _of_reviewer(
        "mcproxy_reviews_largest_share", "Reviews under way for the client, or user, with the most.", "largestShare"
    ),
    _of_reviewer("mcproxy_review_cache_entries", "Results of reviews that are cached.", "cached"),
    # certificates
    gauge(
        "mcproxy_certificate_expiry_timestamp_seconds",
        "When a certificate of the configuration expires, in seconds since 1970; kind: server, client, ca, cluster.",
        ("kind", "name"),
        lambda s: (((e.get("kind"), e.get("name")), _timestamp(e.get("notAfter"))) for e in objects(s, "certificates")),
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
"""All gauges, in the order of the text."""
