"""The sums of request counts for the status document: of all requests, and of each server, cluster and endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mcproxy.observe.metrics.counts import MetricCounts, Series
from mcproxy.observe.metrics.families import (
    FINE_BOUNDS,
    FINE_DURATION,
    FINE_INGRESS_DURATION,
    FINE_UPSTREAM_DURATION,
    INGRESS_REQUESTS,
    INGRESS_RESPONSE_BYTES,
    REFUSALS,
    REQUESTS,
    RESPONSE_BYTES,
    UPSTREAM_DURATION,
)
from mcproxy.observe.senders import REFUSED

_REFUSED = frozenset(map(str, REFUSED))


@dataclass(slots=True)
class Sums:
    """The counts of some requests since the start."""

    requests: int = 0
    errors: int = 0
    """Requests with a status code of 500 or more."""
    refused: int = 0
    """Requests with a status code in `senders.REFUSED`."""
    seconds: float = 0.0
    """The sum of the requests' durations; only for endpoints."""
    durations: list[int] = field(default_factory=lambda: [0] * (len(FINE_BOUNDS) + 1))
    """Non-cumulative counts of requests in the buckets of `FINE_BOUNDS`; the last bucket is infinity.

    Long-running requests are not counted."""

    def add_durations(self, numbers: Series) -> None:
        """Add the counts of a histogram."""
        for index, number in enumerate(numbers[:-1]):
            if number:
                self.durations[index] += int(number)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The sums of each server, cluster and endpoint."""

    servers: dict[str, Sums] = field(default_factory=dict)
    """Sums by server name; "" for requests without a server."""
    clusters: dict[str, Sums] = field(default_factory=dict)
    """Sums by cluster name; "" for requests without a cluster, or answered by an aggregate itself."""
    endpoints: dict[tuple[str, str], Sums] = field(default_factory=dict)
    """Sums by cluster and endpoint name, without long-running requests."""

    @classmethod
    def of(cls, counts: MetricCounts) -> Breakdown:
        """Return the sums of the counts so far."""
        found = cls()
        for (server, cluster, _, _, code), (number,) in counts.of(REQUESTS).items():
            for sums in found._sum_of(server, cluster):
                sums.requests += int(number)
                if code.startswith("5"):
                    sums.errors += int(number)
                elif code in _REFUSED:
                    sums.refused += int(number)
        for (server, cluster), numbers in counts.of(FINE_DURATION).items():
            for sums in found._sum_of(server, cluster):
                sums.add_durations(numbers)
        for key, numbers in counts.of(FINE_UPSTREAM_DURATION).items():
            sums = found.endpoints.setdefault((key[0], key[1]), Sums())
            sums.add_durations(numbers)
        for key, (*buckets, seconds) in counts.of(UPSTREAM_DURATION).items():
            sums = found.endpoints.setdefault((key[0], key[1]), Sums())
            sums.requests, sums.seconds = int(sum(buckets)), seconds
        return found

    def _sum_of(self, server: str, cluster: str) -> tuple[Sums, Sums]:
        return self.servers.setdefault(server, Sums()), self.clusters.setdefault(cluster, Sums())


def totals_of(counts: MetricCounts) -> dict[str, Any]:
    """Return the totals: requests, errors, refused, bytes of responses, and durations as in `Sums`.

    They include requests to ingresses, except `refused`, which counts requests to clusters only. `refusals` has the
    number of requests for each (code, refusing part) of `REFUSALS`.
    """
    sums = Sums()
    for labels, (number,) in counts.of(REQUESTS).items():
        code = labels[-1]
        sums.requests += int(number)
        sums.errors += int(number) if code.startswith("5") else 0
        sums.refused += int(number) if code in _REFUSED else 0
    for labels, (number,) in counts.of(INGRESS_REQUESTS).items():
        sums.requests += int(number)
        sums.errors += int(number) if labels[-1].startswith("5") else 0
    for family in (FINE_DURATION, FINE_INGRESS_DURATION):
        for numbers in counts.of(family).values():
            sums.add_durations(numbers)
    refusals: dict[tuple[str, str], int] = {}
    for (_, _, code, by), (number,) in counts.of(REFUSALS).items():
        refusals[code, by] = refusals.get((code, by), 0) + int(number)
    return {
        "requests": sums.requests,
        "errors": sums.errors,
        "refused": sums.refused,
        "bytes": sum(
            int(numbers[0])
            for family in (RESPONSE_BYTES, INGRESS_RESPONSE_BYTES)
            for numbers in counts.of(family).values()
        ),
        "durations": sums.durations,
        "refusals": refusals,
    }


def quantile(bounds: Sequence[float], counts: Sequence[float], part: float) -> float | None:
    """Return a quantile of a histogram, as Prometheus' `histogram_quantile` does; None if it is empty.

    Values within a bucket are assumed to be evenly distributed. Values in the last bucket, which has no upper bound,
    count as its lower bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank = part * total
    seen = lower = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= rank:
            return lower + (bound - lower) * (rank - seen) / count
        seen += count
        lower = bound
    return lower
