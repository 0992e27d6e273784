"""All counters and histograms by name, with their labels and help.

Names and units follow https://prometheus.io/docs/practices/naming/. A test checks that docs/metrics.md has an entry for
each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

DURATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of requests' durations (seconds)."""

_MILLISECONDS = (1.0, 1.2, 1.4, 1.7, 2.1, 2.5, 3, 3.5, 4.2, 5, 6, 7, 8.4)
_SECONDS = (10, 12, 14, 17, 21, 25, 30, 35, 42, 50, 60)
FINE_BOUNDS = (
    *(0.00025, 0.0005, 0.00075),
    *(each / 1000 for each in _MILLISECONDS),
    *(each / 100 for each in _MILLISECONDS),
    *(each / 10 for each in _MILLISECONDS),
    *_MILLISECONDS,
    *map(float, _SECONDS),
)
"""Upper bounds of the buckets for quantiles (seconds): a fifth apart, including all `DURATION_BOUNDS`.

Prometheus would need a series for each bucket and verb, so only the status document has these quantiles."""

LAG_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets for iterations of the event loop (seconds)."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric; its series differ by the values of `labels`."""

    name: str
    """The name in the text format; the name of a counter ends in ``_total``."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram, without infinity."""
    internal: bool = False
    """Whether only the status document has it, and not /metrics."""

    @property
    def size(self) -> int:
        """The length of a series.

        A histogram has a non-cumulative count for each bucket, and the sum of all values."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


REQUESTS = Family(
    "mcproxy_requests_total",
    "counter",
    "Requests that have ended, by status code of the response.",
    ("server", "cluster", "verb", "resource", "code"),
)
OUTCOMES = Family(
    "mcproxy_request_outcomes_total",
    "counter",
    "Requests that have ended, by how: the reason of the access log.",
    ("server", "reason"),
)
REFUSALS = Family(
    "mcproxy_requests_refused_total",
    "counter",
    "Requests that ended with a status of 400 to 499, by code, and by who refused: authentication, dispatch (no policy "
    "matches), policy (one rejects), impersonation, authorizer, flow_control, cluster, proxy (for any other reason).",
    ("server", "cluster", "code", "by"),
)
REQUEST_DURATION = Family(
    "mcproxy_request_duration_seconds",
    "histogram",
    "Time from the arrival of a request's head to the end of the response; long-running requests are left out.",
    ("server", "cluster", "verb"),
    DURATION_BOUNDS,
)
UPSTREAM_DURATION = Family(
    "mcproxy_upstream_duration_seconds",
    "histogram",
    "Time from the choice of an endpoint to the end of its response; long-running requests are left out.",
    ("cluster", "endpoint"),
    DURATION_BOUNDS,
)
OWN_DURATION = Family(
    "mcproxy_own_duration_seconds",
    "histogram",
    "Time that a request spent in the proxy, without the wait for endpoints; long-running requests are left out.",
    ("server",),
    DURATION_BOUNDS,
)
FINE_DURATION = Family(
    "mcproxy_fine_request_duration_seconds", "histogram", "", ("server", "cluster"), FINE_BOUNDS, internal=True
)
FINE_UPSTREAM_DURATION = Family(
    "mcproxy_fine_upstream_duration_seconds", "histogram", "", ("cluster", "endpoint"), FINE_BOUNDS, internal=True
)
FINE_INGRESS_DURATION = Family(
    "mcproxy_fine_ingress_duration_seconds", "histogram", "", ("ingress",), FINE_BOUNDS, internal=True
)
REQUEST_BYTES = Family(
    "mcproxy_request_bytes_total",
    "counter",
    "Bytes of requests' bodies, and what clients sent into tunnels; counted when a request ends.",
    ("server", "cluster"),
)
RESPONSE_BYTES = Family(
    "mcproxy_response_bytes_total",
    "counter",
    "Bytes of responses' bodies, and what clients got from tunnels; counted when a request ends.",
    ("server", "cluster"),
)
POLICY_HITS = Family(
    "mcproxy_dispatch_policy_hits_total",
    "counter",
    "Requests to which a dispatch policy applied.",
    ("server", "policy"),
)
AUTHENTICATION = Family(
    "mcproxy_authentication_total",
    "counter",
    "Requests to servers with authentication, by the authenticator that accepted the user; of those refused, or not "
    "decided because an authenticator was unavailable, by the kind of credential (token, clientCertificates, "
    "requestHeader, none).",
    ("server", "authenticator", "result"),
)
REVIEWS = Family(
    "mcproxy_reviews_total",
    "counter",
    "Reviews sent, by kind (TokenReview, SubjectAccessReview, SelfSubjectAccessReview), by the cluster that was asked "
    "(webhook: the webhook), and result (answered, failed).",
    ("kind", "reviewer", "result"),
)
REVIEW_DURATION = Family(
    "mcproxy_review_duration_seconds",
    "histogram",
    "Time from the sending of a review to its result, over all endpoints that were tried.",
    ("kind", "reviewer"),
    DURATION_BOUNDS,
)
CACHE_LOOKUPS = Family(
    "mcproxy_identity_cache_lookups_total",
    "counter",
    "Look-ups of cached results, of tokens and of decisions (SubjectAccessReviews): hit, or miss where a review was "
    "needed or joined.",
    ("cache", "result"),
)
FLOW_CONTROL_REFUSED = Family(
    "mcproxy_flow_control_refused_total",
    "counter",
    "Requests that a flow control refused (429), at once or after waiting.",
    ("flow_control",),
)
FLOW_CONTROL_WAIT = Family(
    "mcproxy_flow_control_wait_seconds",
    "histogram",
    "Time that requests spent in a flow control's queue, by result (admitted, refused, left).",
    ("flow_control", "result"),
    DURATION_BOUNDS,
)
UPSTREAM_RETRIES = Family(
    "mcproxy_upstream_retries_total",
    "counter",
    "Times that a request was sent to an endpoint again, after a first attempt without a response.",
    ("cluster",),
)
UPSTREAM_CONNECTS = Family(
    "mcproxy_upstream_connections_opened_total",
    "counter",
    "Connections opened to endpoints, health checks and other control traffic included, by result (ok, failed).",
    ("cluster", "endpoint", "result"),
)
CONNECT_DURATION = Family(
    "mcproxy_upstream_connect_duration_seconds",
    "histogram",
    "Time that successful connections to endpoints took to open, with their TLS handshake.",
    ("cluster",),
    DURATION_BOUNDS,
)
HEALTH_CHECKS = Family(
    "mcproxy_health_checks_total",
    "counter",
    "Health checks of endpoints, by result (ok, failed); one process checks for all.",
    ("cluster", "endpoint", "result"),
)
APISERVICE_UNAVAILABLE = Family(
    "mcproxy_apiservice_became_unavailable_total",
    "counter",
    "How often an API service (`servers[].apiServices`) became unavailable, by the reason of its condition.",
    ("name", "cluster", "reason"),
)
AGGREGATOR_UNAVAILABLE = Family(
    "aggregator_unavailable_apiservice_total",
    "counter",
    "The same by the name that kube-aggregator has for it, on which rules of others alert.",
    ("name", "reason"),
)
EXPORT_WRITES = Family(
    "mcproxy_export_writes_total",
    "counter",
    "Writes of exported services to clusters, by what was written (create, apply, delete, status) and by result.",
    ("cluster", "verb", "result"),
)
HANDSHAKES = Family(
    "mcproxy_tls_handshakes_total",
    "counter",
    "TLS handshakes of clients, by result: ok, failed, or abandoned (the client closed the connection).",
    ("listener", "result"),
)
CONNECTIONS = Family(
    "mcproxy_connections_total",
    "counter",
    "Connections of clients that were accepted by a listener.",
    ("listener",),
)
CONNECTIONS_REFUSED = Family(
    "mcproxy_connections_refused_total",
    "counter",
    "Connections of clients that were closed at once, by the limit that was reached (connections, "
    "connectionsPerClient), or because their PROXY header was wrong or missing (proxy).",
    ("listener", "reason"),
)
TUNNEL_DIALS = Family(
    "mcproxy_tunnel_dials_total",
    "counter",
    "Connections that edges were asked to dial, by result (ok, failed).",
    ("tunnel", "result"),
)
TUNNEL_DIAL_DURATION = Family(
    "mcproxy_tunnel_dial_seconds",
    "histogram",
    "Time from asking an edge to dial to its connection.",
    ("tunnel",),
    DURATION_BOUNDS,
)
TUNNELS_REFUSED = Family(
    "mcproxy_tunnel_refused_total",
    "counter",
    "Tunnels and connections of tunnels that were refused, by reason: user (not among the users of the tunnel), ticket "
    "(late, used or of another tunnel), name_taken (by another edge), controls (too many control connections), "
    "undecided (another process did not say whether its edge answers), stopping, malformed.",
    ("reason",),
)
FLOODS = Family(
    "mcproxy_protection_total",
    "counter",
    "HTTP/2 connections of clients that were ended because of a flood, by its kind.",
    ("listener", "kind"),
)
ACCESS_LOG_LOST = Family(
    "mcproxy_access_log_lines_lost_total",
    "counter",
    "Lines of the access log that were lost because its file stalls or cannot be written.",
)
AUDIT_EVENTS = Family("mcproxy_audit_events_total", "counter", "Audit events that were written.")
AUDIT_EVENTS_LOST = Family(
    "mcproxy_audit_events_lost_total",
    "counter",
    "Audit events that were lost because the file stalls or cannot be written.",
)
RELOADS = Family(
    "mcproxy_config_reloads_total",
    "counter",
    "Reloads of the configuration, by result (accepted, refused).",
    ("result",),
)
AGGREGATE_READS = Family(
    "mcproxy_aggregate_requests_total",
    "counter",
    "Requests to aggregates, by whether they were answered from the caches (cached) or by members (members).",
    ("server", "answered"),
)
LOOP_LAG = Family(
    "mcproxy_loop_lag_seconds",
    "histogram",
    "Length of the event loop's turns: what became ready during one has waited that long at most.",
    ("process",),
    LAG_BOUNDS,
)

INGRESS_REQUESTS = Family(
    "mcproxy_ingress_requests_total",
    "counter",
    "Requests to ingresses that have ended, by status code of the response; `cluster` is where the pod was.",
    ("ingress", "rule", "service", "cluster", "code"),
)
INGRESS_OUTCOMES = Family(
    "mcproxy_ingress_request_outcomes_total",
    "counter",
    "Requests to ingresses that have ended, by how: the reason of the access log.",
    ("ingress", "reason"),
)
INGRESS_DURATION = Family(
    "mcproxy_ingress_request_duration_seconds",
    "histogram",
    "Time from the arrival of the head of a request to an ingress to the end of the response; without tunnels.",
    ("ingress", "rule"),
    DURATION_BOUNDS,
)
INGRESS_UPSTREAM_DURATION = Family(
    "mcproxy_ingress_upstream_duration_seconds",
    "histogram",
    "Time from the choice of a pod to the end of its response, over all attempts; without tunnels.",
    ("service", "cluster"),
    DURATION_BOUNDS,
)
INGRESS_REQUEST_BYTES = Family(
    "mcproxy_ingress_request_bytes_total",
    "counter",
    "Bytes of the bodies of requests to ingresses, and what clients sent into tunnels; counted when a request ends.",
    ("ingress", "rule"),
)
INGRESS_RESPONSE_BYTES = Family(
    "mcproxy_ingress_response_bytes_total",
    "counter",
    "Bytes of the bodies of responses of ingresses, and what clients got from tunnels; counted when a request ends.",
    ("ingress", "rule"),
)
INGRESS_RETRIES = Family(
    "mcproxy_ingress_retries_total",
    "counter",
    "Times that a request to an ingress was sent to another endpoint, after an attempt without a response.",
    ("ingress", "rule"),
)
INGRESS_EJECTIONS = Family(
    "mcproxy_ingress_endpoint_ejections_total",
    "counter",
    "Times that an endpoint of a service was ejected because it failed (passive health).",
    ("service", "cluster"),
)

COUNTED = (
    REQUESTS,
    OUTCOMES,
    REFUSALS,
    REQUEST_DURATION,
    UPSTREAM_DURATION,
    OWN_DURATION,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    POLICY_HITS,
    AUTHENTICATION,
    REVIEWS,
    REVIEW_DURATION,
    CACHE_LOOKUPS,
    FLOW_CONTROL_REFUSED,
    FLOW_CONTROL_WAIT,
    AGGREGATE_READS,
    UPSTREAM_RETRIES,
    UPSTREAM_CONNECTS,
    CONNECT_DURATION,
    HEALTH_CHECKS,
    APISERVICE_UNAVAILABLE,
    AGGREGATOR_UNAVAILABLE,
    EXPORT_WRITES,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    HANDSHAKES,
    TUNNEL_DIALS,
    TUNNEL_DIAL_DURATION,
    TUNNELS_REFUSED,
    FLOODS,
    ACCESS_LOG_LOST,
    AUDIT_EVENTS,
    AUDIT_EVENTS_LOST,
    RELOADS,
    LOOP_LAG,
    INGRESS_REQUESTS,
    INGRESS_OUTCOMES,
    INGRESS_DURATION,
    INGRESS_UPSTREAM_DURATION,
    INGRESS_REQUEST_BYTES,
    INGRESS_RESPONSE_BYTES,
    INGRESS_RETRIES,
    INGRESS_EJECTIONS,
)
"""All counters and histograms of /metrics, in the order of the text."""

INTERNAL = (FINE_DURATION, FINE_UPSTREAM_DURATION, FINE_INGRESS_DURATION)
"""Counters and histograms of the status document only."""
