"""Counts requests: a `Recorder`. A client cannot create a series by the values that it sends.

Records are counted in batches of 64, which costs a third per record of counting between requests, when the processor's
caches hold other data. Durations are sorted in batches before they are counted in histogram buckets. There is no timer,
so readers of the counts flush first.

The number of series is limited. Servers, clusters, endpoints and policies are those of the configuration. Verbs are
those of Kubernetes or, for non-resource paths, HTTP methods. Resources must have proved to exist, at most 200 per
cluster. A status code is a registered code, or its class (5xx). If `mcproxy_requests_total` would exceed 10,000 series,
further requests are counted by server, cluster and class of the code only. So forged responses of a cluster, or of a
tenant's server behind it, only make the counts of other requests less detailed. Errors of those requests still show.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

from mcproxy.observe.metrics.counts import OTHER, Labels, MetricCounts, Series, count_sorted, within_bound
from mcproxy.observe.metrics.families import (
    AGGREGATE_READS,
    AUTHENTICATION,
    DURATION_BOUNDS,
    FINE_BOUNDS,
    FINE_DURATION,
    FINE_UPSTREAM_DURATION,
    OUTCOMES,
    OWN_DURATION,
    POLICY_HITS,
    REFUSALS,
    REQUEST_BYTES,
    REQUEST_DURATION,
    REQUESTS,
    RESPONSE_BYTES,
    UPSTREAM_DURATION,
    UPSTREAM_RETRIES,
)
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.senders import Senders

BATCH = 64
"""Number of records in a batch."""
FLUSHED_AT_ONCE = 1024
"""Number of records whose sums and durations are added to the counters at once."""
MAX_RESOURCES = 200
"""Limit of the distinct resources (with group and subresource) per cluster in a process."""

SEVERAL = "*"
"""The label `cluster` of a response that an aggregate merged from several members."""

VERBS = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy"})
"""Verbs of requests for resources."""
METHODS = {method: method.lower() for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
"""Verbs for non-resource paths, by the client's method, which is case-sensitive."""
CODES = {
    **{code: f"{code // 100}xx" for code in range(100, 600)},
    **{int(code): str(int(code)) for code in HTTPStatus},
}
"""Labels of status codes, because a tenant's own server, below `proxy`, can send any code."""

_RESULTS = {"unauthenticated": "refused", "authenticator_unavailable": "unavailable"}  # by a record's reason
_REFUSED_BY = {
    "unauthenticated": "authentication",
    "no_policy": "dispatch",
    "rejected": "policy",
    "impersonation_refused": "impersonation",
    "foreign_account": "impersonation",
    "forbidden": "authorizer",
    "flow_control": "flow_control",
    "ok": "cluster",
    "client_closed": "cluster",
    "client_stalled": "cluster",
}  # the refusing part by a record's reason; "cluster" if a cluster has answered
_RESOURCE = re.compile(r"[A-Za-z0-9._/-]{1,200}")  # names of resources and groups are far shorter
_KEPT = 4096  # limit of cached combinations of values


def _key(record: AccessRecord) -> tuple[Any, ...]:
    """Return the values that determine the series of a record."""
    return (
        record.method,
        record.status,
        record.reason,
        record.server,
        record.cluster,
        record.endpoint,
        record.policy,
        record.verb,
        record.resource,
        record.cached,
        record.authenticator,
    )


class _SharedCounters:
    """The counters of similar requests, whose sums and durations are added before a read (`flush`)."""

    __slots__ = ("counters", "histograms", "number", "own", "received", "sent", "total", "upstream")

    def __init__(self, counters: tuple[Series, ...], histograms: tuple[Series, Series, Series, Series, Series]) -> None:
        """`counters`: the counters of request and response body bytes, then those that each request increases."""
        self.counters = counters
        self.histograms = histograms
        self.number = self.received = self.sent = 0
        self.total: list[float] = []
        self.own: list[float] = []
        self.upstream: list[float] = []

    def flush(self) -> None:
        received, sent, *others = self.counters
        received[0] += self.received
        sent[0] += self.sent
        for counter in others:
            counter[0] += self.number
        self.number = self.received = self.sent = 0
        duration, own, upstream, fine, fine_upstream = self.histograms
        _observe(self.total, duration, fine)
        _observe(self.upstream, upstream, fine_upstream)
        _observe(self.own, own)


def _observe(values: list[float], series: Series, fine: Series | None = None) -> None:
    """Move durations into a histogram and, if given, into the histogram for quantiles."""
    values.sort()
    count_sorted(series, DURATION_BOUNDS, values)
    series[-1] += sum(values)
    if fine is not None:
        count_sorted(fine, FINE_BOUNDS, values)
    values.clear()


def refused_by(record: AccessRecord) -> str:
    """Return the label `by` of `REFUSALS`: the part that refused a request."""
    by = _REFUSED_BY.get(record.reason, "proxy")
    return "proxy" if by == "cluster" and not record.cluster else by


class RequestCounts:
    """Counts the requests of one process."""

    def __init__(self, counts: MetricCounts, senders: Senders | None = None) -> None:
        """`senders` also counts the requests."""
        self._counts = counts
        self._senders = senders
        self._records: list[AccessRecord] = []
        self._resources: dict[str, set[str]] = {}  # resources that a response has shown to exist, by cluster
        self._by_labels: dict[tuple[Any, ...], _SharedCounters] = {}
        self._unflushed: list[_SharedCounters] = []  # counters with counts to add
        self._until_flush = FLUSHED_AT_ONCE  # records until the next `_flush_counters`

    def finished(self, record: AccessRecord) -> None:
        """Count a request, now or in a later batch."""
        records = self._records
        records.append(record)
        if len(records) >= BATCH:
            self._count()

    def flush(self) -> None:
        """Bring the counts up to date."""
        self._count()
        self._flush_counters()

    def _flush_counters(self) -> None:
        for shared in self._unflushed:
            shared.flush()
        self._unflushed.clear()
        self._until_flush = FLUSHED_AT_ONCE

    def _count(self) -> None:
        records, self._records = self._records, []
        known, unflushed = self._by_labels, self._unflushed
        if self._senders is not None:
            self._senders.count(records)
        for record in records:
            key = _key(record)
            shared = known.get(key)
            if shared is None:
                shared = self._make_counters(record, key)
            if not shared.number:
                unflushed.append(shared)
            shared.number += 1
            shared.received += record.bytes_in
            shared.sent += record.bytes_out
            if record.attempts > 1:
                self._counts.increase(UPSTREAM_RETRIES, (record.cluster,), record.attempts - 1)
            if record.long_running:
                continue
            total, upstream = record.total, record.upstream
            shared.total.append(total)
            if upstream is None:
                shared.own.append(total)
            else:
                shared.upstream.append(upstream)
                shared.own.append(total - upstream if total > upstream else 0.0)
        self._until_flush -= len(records)
        if self._until_flush <= 0:
            self._flush_counters()

    def _make_counters(self, record: AccessRecord, key: tuple[Any, ...]) -> _SharedCounters:
        """Return the counters of requests like this one."""
        counts = self._counts
        server = record.server
        cluster = SEVERAL if "," in record.cluster else record.cluster
        verb = METHODS.get(record.method, OTHER) if not record.verb else record.verb if record.verb in VERBS else OTHER
        resource = self._resource(record, cluster)
        labels: Labels = (server, cluster, verb, resource, CODES.get(record.status, OTHER))
        counters = [
            counts.series(REQUEST_BYTES, (server, cluster)),
            counts.series(RESPONSE_BYTES, (server, cluster)),
            counts.series(REQUESTS, within_bound(counts.of(REQUESTS), labels)),
            counts.series(OUTCOMES, (server, record.reason)),
        ]
        if record.policy:
            counters.append(counts.series(POLICY_HITS, (server, record.policy)))
        if record.authenticator:
            result = _RESULTS.get(record.reason, "accepted")
            counters.append(counts.series(AUTHENTICATION, (server, record.authenticator, result)))
        if record.cached is not None:
            counters.append(counts.series(AGGREGATE_READS, (server, "cached" if record.cached else "members")))
        if 400 <= record.status < 500:
            by = refused_by(record)
            counters.append(counts.series(REFUSALS, (server, cluster, CODES.get(record.status, OTHER), by)))
        # For a request without an available endpoint:
        nowhere: Series = [0] * UPSTREAM_DURATION.size
        fine_nowhere: Series = [0] * FINE_UPSTREAM_DURATION.size
        shared = _SharedCounters(
            tuple(counters),
            (
                counts.series(REQUEST_DURATION, (server, cluster, verb)),
                counts.series(OWN_DURATION, (server,)),
                counts.series(UPSTREAM_DURATION, (cluster, record.endpoint)) if record.endpoint else nowhere,
                counts.series(FINE_DURATION, (server, cluster)),
                counts.series(FINE_UPSTREAM_DURATION, (cluster, record.endpoint)) if record.endpoint else fine_nowhere,
            ),
        )
        if resource == record.resource and verb is not OTHER:  # else clients could create many series
            if len(self._by_labels) >= _KEPT:
                self._by_labels.clear()
            self._by_labels[key] = shared
        return shared

    def _resource(self, record: AccessRecord, cluster: str) -> str:
        """Return the label `resource`, after a response other than a refusal has shown that the resource exists."""
        resource, known = record.resource, self._resources.get(cluster, ())
        if not resource or resource in known:
            return resource
        exists = 0 < record.status < 400 and _RESOURCE.fullmatch(resource)
        if not exists or len(known) >= MAX_RESOURCES:
            return OTHER
        self._resources.setdefault(cluster, set()).add(resource)
        return resource
