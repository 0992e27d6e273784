"""Counts requests: a `Recorder`. What a client chose never makes a series of its own.

Records are counted 64 at a time: in a row one costs a third of what it costs between requests, when the processor's
caches hold something else. There is no timer: who reads the counts flushes before.

The bound of the series: servers, clusters, endpoints and policies are the configuration's; a verb is one of
Kubernetes', or of a path that is no resource's an HTTP method; a resource must have been seen to exist, and 200 of
them are told apart; a status code is a registered one, or its class (5xx). Where these together would make more than
10,000 series of `mcproxy_requests_total`, further ones are told apart by server and cluster alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from http import HTTPStatus
from operator import attrgetter
from typing import Any

from mcproxy.observe.metrics.counts import Counts, Labels, Series
from mcproxy.observe.metrics.families import (
    AGGREGATE_READS,
    DURATION_BOUNDS,
    OUTCOMES,
    OWN_DURATION,
    POLICY_HITS,
    REQUEST_BYTES,
    REQUEST_DURATION,
    REQUESTS,
    RESPONSE_BYTES,
    UPSTREAM_DURATION,
)
from mcproxy.observe.record import AccessRecord

BATCH = 64
"""Records that are counted at once."""
MAX_RESOURCES = 200
"""Resources (with group and subresource) that are told apart in a process."""
MAX_SERIES = 10_000
"""Series of `mcproxy_requests_total` that verb, resource and code tell apart."""

OTHER = "other"
SEVERAL = "*"
"""The cluster of a response that an aggregate has made of several members."""

VERBS = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy"})
"""Of resources."""
METHODS = {method: method.lower() for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
"""Of other paths, by what the client sends: methods are case-sensitive."""
CODES = {
    **{code: f"{code // 100}xx" for code in range(100, 600)},
    **{int(code): str(int(code)) for code in HTTPStatus},
}
"""Labels of status codes: a tenant's own server, below `proxy`, may send any."""

_LONGEST_RESOURCE = 200  # characters; names of resources and groups are far shorter
_KEPT = 4096  # combinations of what many requests have in common

#: What decides which series a record belongs to.
_key: Callable[[AccessRecord], tuple[Any, ...]] = attrgetter(
    "method", "status", "reason", "server", "cluster", "endpoint", "policy", "verb", "resource", "cached"
)


class RequestCounts:
    """Counts the requests of one process."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._records: list[AccessRecord] = []
        self._resources: set[str] = set()
        self._found: dict[tuple[Any, ...], tuple[Series, ...]] = {}

    def finished(self, record: AccessRecord) -> None:
        """Count a request, at once or with those that follow."""
        self._records.append(record)
        if len(self._records) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Count what was not counted yet."""
        records = self._records
        self._records = []
        for record in records:
            key = _key(record)
            found = self._found.get(key) or self._find(record, key)
            total, outcome, policy, received, sent, duration, own, upstream, aggregate = found
            total[0] += 1
            outcome[0] += 1
            policy[0] += 1
            received[0] += record.bytes_in
            sent[0] += record.bytes_out
            aggregate[0] += 1
            if record.long_running:
                continue
            rest = seconds = record.total
            duration[bisect_left(DURATION_BOUNDS, seconds)] += 1
            duration[-1] += seconds
            waited = record.upstream
            if waited is not None:
                upstream[bisect_left(DURATION_BOUNDS, waited)] += 1
                upstream[-1] += waited
                rest = max(0.0, seconds - waited)
            own[bisect_left(DURATION_BOUNDS, rest)] += 1
            own[-1] += rest

    def _find(self, record: AccessRecord, key: tuple[Any, ...]) -> tuple[Series, ...]:
        """Return the series that a record belongs to; where a label does not apply, one that nobody reads."""
        counts = self._counts
        nowhere: Series = [0] * (len(DURATION_BOUNDS) + 2)
        server = record.server
        cluster = SEVERAL if "," in record.cluster else record.cluster
        verb = METHODS.get(record.method, OTHER) if not record.verb else record.verb if record.verb in VERBS else OTHER
        code = CODES.get(record.status, OTHER)
        resource = self._resource(record)
        labels: Labels = (server, cluster, verb, resource, code)
        known = counts.of(REQUESTS)
        if labels not in known and len(known) >= MAX_SERIES:
            labels = (server, cluster, OTHER, OTHER, OTHER)
        found = (
            counts.series(REQUESTS, labels),
            counts.series(OUTCOMES, (server, record.reason)),
            counts.series(POLICY_HITS, (server, record.policy)) if record.policy else nowhere,
            counts.series(REQUEST_BYTES, (server, cluster)),
            counts.series(RESPONSE_BYTES, (server, cluster)),
            counts.series(REQUEST_DURATION, (server, cluster, verb)),
            counts.series(OWN_DURATION, (server,)),
            counts.series(UPSTREAM_DURATION, (cluster, record.endpoint)) if record.endpoint else nowhere,
            counts.series(AGGREGATE_READS, (server, "cached" if record.cached else "members"))
            if record.cached is not None
            else nowhere,
        )
        if resource == record.resource and verb is not OTHER:  # else a client may have chosen it, and more like it
            if len(self._found) >= _KEPT:
                self._found.clear()
            self._found[key] = found
        return found

    def _resource(self, record: AccessRecord) -> str:
        """Return the label: a response that is no refusal has shown that the resource exists."""
        resource = record.resource
        if not resource or resource in self._resources:
            return resource
        exists = 0 < record.status < 400 and len(resource) <= _LONGEST_RESOURCE
        if not exists or len(self._resources) >= MAX_RESOURCES:
            return OTHER
        self._resources.add(resource)
        return resource
