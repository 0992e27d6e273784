"""All counters and histograms by name, with their labels and help. A leaf.

Names and units follow https://prometheus.io/docs/practices/naming/. docs/metrics.md has an entry for each, which a test
keeps complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

DURATION_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of requests' durations (seconds)."""

LAG_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of the turns of the event loop (seconds)."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric; its series differ by the values of `labels`."""

    name: str
    """As in the text format: a counter's ends in ``_total``."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of the buckets of a histogram, without infinity."""

    @property
    def size(self) -> int:
        """Numbers of a series: of a histogram a count for each bucket, not cumulative, and the sum of all values."""
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
    "The rest of a request's duration: what it did not wait for an endpoint; long-running requests are left out.",
    ("server",),
    DURATION_BOUNDS,
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

COUNTED = (
    REQUESTS,
    OUTCOMES,
    REQUEST_DURATION,
    UPSTREAM_DURATION,
    OWN_DURATION,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    POLICY_HITS,
    AGGREGATE_READS,
    LOOP_LAG,
)
"""All that `Metrics` counts, in the order of the text."""
