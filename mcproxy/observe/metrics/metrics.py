"""What one process counts, or, in the supervisor, what all processes have counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcproxy.observe.metrics.counts import Changes, Counts, Labels
from mcproxy.observe.metrics.families import (
    DURATION_BOUNDS,
    REQUEST_DURATION,
    REQUESTS,
    RESPONSE_BYTES,
    UPSTREAM_DURATION,
    Family,
)
from mcproxy.observe.metrics.loop_lag import LoopLag, Turns
from mcproxy.observe.metrics.request_counts import RequestCounts


class Metrics:
    """The counts of a process: made with its parts, handed down to whoever counts, and kept over reloads.

    A `Recorder`: every request is counted.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        for family in self.counts.families:
            if not family.labels:
                self.counts.series(family, ())  # zero from the start: increase() of Prometheus misses a first value
        self._requests = RequestCounts(self.counts)
        self._readers: list[Callable[[], None]] = []
        self._loop_lag: LoopLag | None = None
        self.audit_queue: Callable[[], int] = lambda: 0  # returns the bytes of audit events that wait
        self.finished = self._requests.finished  # a Recorder's; called for every request

    def measure_loop(self, process: str, reactor: Turns) -> None:
        """Count the turns of the reactor of this process; `process` is its name (worker-0)."""
        self._loop_lag = LoopLag(self.counts, process, reactor)
        self._readers.append(self._loop_lag.flush)

    def loop_lag(self) -> float | None:
        """Return the longest turn of the reactor in the last 30 to 60 seconds; None if it is not measured."""
        return None if self._loop_lag is None else self._loop_lag.longest()

    def read_at_flush(self, reader: Callable[[], None]) -> None:
        """Call `reader` before the counts are read: it adds what is counted elsewhere since its last call."""
        self._readers.append(reader)

    def follow(self, family: Family, labels: Labels, read: Callable[[], int]) -> None:
        """Count what a number grows by that is counted elsewhere; `read` returns it."""
        before = [0]

        def add() -> None:
            now = read()
            if now != before[0]:
                self.counts.increase(family, labels, now - before[0])
                before[0] = now

        self._readers.append(add)

    def flush(self) -> None:
        """Bring the counts up to date."""
        for reader in self._readers:
            reader()
        self._requests.flush()

    def take(self) -> Changes:
        """Return what was counted since the last call (`Counts.take`), which this object then counts no more."""
        self.flush()
        return self.counts.take()

    def add(self, changes: Mapping[str, list[Any]]) -> None:
        """Add what another process has taken out."""
        self.counts.add(changes)

    def totals(self) -> dict[str, Any]:
        """Return sums over everything: requests, errors (code 500 and more), bytes of responses, durations.

        `durations` are the counts of requests in each bucket of `DURATION_BOUNDS`, not cumulative, infinity last.
        """
        self.flush()
        requests = errors = 0
        for labels, (number,) in self.counts.of(REQUESTS).items():
            requests += int(number)
            errors += int(number) if labels[-1].startswith("5") else 0
        durations = [0] * (len(DURATION_BOUNDS) + 1)
        for numbers in self.counts.of(REQUEST_DURATION).values():
            durations = [total + int(number) for total, number in zip(durations, numbers[:-1], strict=True)]
        sent = sum(int(numbers[0]) for numbers in self.counts.of(RESPONSE_BYTES).values())
        return {"requests": requests, "errors": errors, "bytes": sent, "durations": durations}

    def by_server(self) -> dict[str, dict[str, int]]:
        """Return requests and errors (code 500 and more) of each server; "" is no server."""
        return self._by(0)

    def by_cluster(self) -> dict[str, dict[str, int]]:
        """Return requests and errors (code 500 and more) of each cluster; "" is none, or an aggregate's own answer."""
        return self._by(1)

    def by_endpoint(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Return how many requests each (cluster, endpoint) has answered, and the seconds that they took together.

        Without long-running ones.
        """
        self.flush()
        return {
            (cluster, endpoint): (int(sum(buckets)), seconds)
            for (cluster, endpoint), (*buckets, seconds) in self.counts.of(UPSTREAM_DURATION).items()
        }

    def _by(self, label: int) -> dict[str, dict[str, int]]:
        self.flush()
        found: dict[str, dict[str, int]] = {}
        for labels, (number,) in self.counts.of(REQUESTS).items():
            entry = found.setdefault(labels[label], {"requests": 0, "errors": 0})
            entry["requests"] += int(number)
            if labels[-1].startswith("5"):
                entry["errors"] += int(number)
        return found
