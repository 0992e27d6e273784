"""Counts requests to ingresses.

The number of series is limited: labels are ingresses, rules, services and clusters of the configuration, and registered
status codes or their classes. Pods have no series, because they come and go.
"""

from __future__ import annotations

from bisect import bisect_left

from mcproxy.observe.metrics.counts import OTHER, MetricCounts, Series
from mcproxy.observe.metrics.families import (
    DURATION_BOUNDS,
    FINE_BOUNDS,
    FINE_INGRESS_DURATION,
    INGRESS_DURATION,
    INGRESS_OUTCOMES,
    INGRESS_REQUEST_BYTES,
    INGRESS_REQUESTS,
    INGRESS_RESPONSE_BYTES,
    INGRESS_RETRIES,
    INGRESS_UPSTREAM_DURATION,
)
from mcproxy.observe.metrics.request_counts import CODES

_KEPT = 4096


Route = tuple[str, str, str]
"""Ingress, rule and service."""


class _RouteSeries:
    """The counters shared by requests with the same labels."""

    __slots__ = ("duration", "fine", "outcomes", "received", "requests", "retries", "sent", "upstream")

    def __init__(self, counts: MetricCounts, route: Route, cluster: str, status: int, reason: str) -> None:
        ingress, rule, service = route
        self.requests = counts.series(INGRESS_REQUESTS, (*route, cluster, CODES.get(status, OTHER)))
        self.outcomes = counts.series(INGRESS_OUTCOMES, (ingress, reason))
        self.received = counts.series(INGRESS_REQUEST_BYTES, (ingress, rule))
        self.sent = counts.series(INGRESS_RESPONSE_BYTES, (ingress, rule))
        self.retries = counts.series(INGRESS_RETRIES, (ingress, rule))
        self.duration = counts.series(INGRESS_DURATION, (ingress, rule))
        self.fine = counts.series(FINE_INGRESS_DURATION, (ingress,))
        self.upstream: Series = [0] * INGRESS_UPSTREAM_DURATION.size
        if cluster:
            self.upstream = counts.series(INGRESS_UPSTREAM_DURATION, (service, cluster))


class IngressCounts:
    """Counts the requests to ingresses of one process."""

    def __init__(self, counts: MetricCounts) -> None:
        self._counts = counts
        self._by_labels: dict[tuple[Route, str, int, str], _RouteSeries] = {}

    def count(
        self,
        route: Route,
        cluster: str,
        status: int,
        reason: str,
        received: int,
        sent: int,
        attempts: int,
        seconds: float | None,
        upstream: float | None,
    ) -> None:
        """Count a request. `seconds` is its duration; None for a tunnel.

        `upstream` is the part of the duration spent at the pod."""
        key = route, cluster, status, reason
        counters = self._by_labels.get(key)
        if counters is None:
            if len(self._by_labels) >= _KEPT:
                self._by_labels.clear()
            counters = self._by_labels[key] = _RouteSeries(self._counts, route, cluster, status, reason)
        counters.requests[0] += 1
        counters.outcomes[0] += 1
        counters.received[0] += received
        counters.sent[0] += sent
        if attempts > 1:
            counters.retries[0] += attempts - 1
        if seconds is None:
            return
        series = counters.duration
        series[bisect_left(DURATION_BOUNDS, seconds)] += 1
        series[-1] += seconds
        series = counters.fine
        series[bisect_left(FINE_BOUNDS, seconds)] += 1
        series[-1] += seconds
        if upstream is not None:
            series = counters.upstream
            series[bisect_left(DURATION_BOUNDS, upstream)] += 1
            series[-1] += upstream
