"""Counts requests: a `Recorder`. What a client chose never makes a series of its own.

Records are counted 64 at a time: in a row one costs a third of what it costs between requests, when the processor's
caches hold something else. There is no timer: who reads the counts flushes before.

The bound of the series: servers, clusters, endpoints and policies are the configuration's; a verb is one of
Kubernetes', or of a path that is no resource's an HTTP method; a resource must have been seen to exist, and 200 of
a cluster are told apart; a status code is a registered one, or its class (5xx). Where these together would make more
than 10,000 series of `mcproxy_requests_total`, further ones are told apart by server, cluster and class of the code
alone. So a cluster whose answers are false, or a tenant's server behind it, takes nothing from what is counted of
others but detail: their errors still show.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from http import HTTPStatus
from operator import attrgetter
from typing import Any

from mcproxy.observe.metrics.counts import OTHER, Counts, Labels, Series, within_bound
from mcproxy.observe.metrics.families import (
    AGGREGATE_READS,
    AUTHENTICATION,
    DURATION_BOUNDS,
    OUTCOMES,
    OWN_DURATION,
    POLICY_HITS,
    REQUEST_BYTES,
    REQUEST_DURATION,
    REQUESTS,
    RESPONSE_BYTES,
    UPSTREAM_DURATION,
    UPSTREAM_RETRIES,
)
from mcproxy.observe.record import AccessRecord

BATCH = 64
"""Records that are counted at once."""
MAX_RESOURCES = 200
"""Resources (with group and subresource) of a cluster that are told apart in a process."""

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

_RESULTS = {"unauthenticated": "refused", "authenticator_unavailable": "unavailable"}  # by a record's reason
_RESOURCE = re.compile(r"[A-Za-z0-9._/-]{1,200}")  # names of resources and groups are far shorter
_KEPT = 4096  # combinations of what many requests have in common

#: What decides which series a record belongs to.
_key: Callable[[AccessRecord], tuple[Any, ...]] = attrgetter(
    "method",
    "status",
    "reason",
    "server",
    "cluster",
    "endpoint",
    "policy",
    "verb",
    "resource",
    "cached",
    "authenticator",
)


class _Alike:
    """Requests whose counters are the same; what they add up to is put there when somebody reads (`settle`)."""

    __slots__ = ("counters", "duration", "number", "own", "received", "sent", "upstream")

    def __init__(self, counters: tuple[Series, ...], histograms: tuple[Series, Series, Series]) -> None:
        """`counters`: of request bodies' bytes, of responses', and those that each request increases."""
        self.counters = counters
        self.duration, self.own, self.upstream = histograms
        self.number = self.received = self.sent = 0

    def settle(self) -> None:
        received, sent, *others = self.counters
        received[0] += self.received
        sent[0] += self.sent
        for counter in others:
            counter[0] += self.number
        self.number = self.received = self.sent = 0


class RequestCounts:
    """Counts the requests of one process."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._records: list[AccessRecord] = []
        self._resources: dict[str, set[str]] = {}  # by cluster
        self._known: dict[tuple[Any, ...], _Alike] = {}
        self._unknown: list[_Alike] = []  # of the records that are being counted

    def finished(self, record: AccessRecord) -> None:
        """Count a request, at once or with those that follow."""
        records = self._records
        records.append(record)
        if len(records) >= BATCH:
            self._count()

    def flush(self) -> None:
        """Bring the counts up to date."""
        self._count()
        self._settle()

    def _settle(self) -> None:
        for alike in self._known.values():
            if alike.number:
                alike.settle()

    def _count(self) -> None:
        records, self._records = self._records, []
        known, bounds = self._known, DURATION_BOUNDS
        for record in records:
            key = _key(record)
            alike = known.get(key)
            if alike is None:
                alike = self._alike(record, key)
            alike.number += 1
            alike.received += record.bytes_in
            alike.sent += record.bytes_out
            if record.attempts > 1:
                self._counts.increase(UPSTREAM_RETRIES, (record.cluster,), record.attempts - 1)
            if record.long_running:
                continue
            rest = seconds = record.total
            series = alike.duration
            series[bisect_left(bounds, seconds)] += 1
            series[-1] += seconds
            waited = record.upstream
            if waited is not None:
                series = alike.upstream
                series[bisect_left(bounds, waited)] += 1
                series[-1] += waited
                rest = max(0.0, seconds - waited)
            series = alike.own
            series[bisect_left(bounds, rest)] += 1
            series[-1] += rest
        for alike in self._unknown:
            alike.settle()
        self._unknown.clear()

    def _alike(self, record: AccessRecord, key: tuple[Any, ...]) -> _Alike:
        """Return what requests like this one are counted in."""
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
        nowhere: Series = [0] * UPSTREAM_DURATION.size  # of a request for which no endpoint was found
        alike = _Alike(
            tuple(counters),
            (
                counts.series(REQUEST_DURATION, (server, cluster, verb)),
                counts.series(OWN_DURATION, (server,)),
                counts.series(UPSTREAM_DURATION, (cluster, record.endpoint)) if record.endpoint else nowhere,
            ),
        )
        if resource != record.resource or verb is OTHER:
            self._unknown.append(alike)  # a client may have chosen it, and more like it
        else:
            if len(self._known) >= _KEPT:
                self._settle()
                self._known.clear()
            self._known[key] = alike
        return alike

    def _resource(self, record: AccessRecord, cluster: str) -> str:
        """Return the label: a response that is no refusal has shown that the resource exists."""
        resource, known = record.resource, self._resources.get(cluster, ())
        if not resource or resource in known:
            return resource
        exists = 0 < record.status < 400 and _RESOURCE.fullmatch(resource)
        if not exists or len(known) >= MAX_RESOURCES:
            return OTHER
        self._resources.setdefault(cluster, set()).add(resource)
        return resource
