"""The counters and histograms of one process or, in the supervisor, their sums over all processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from mcproxy.observe.metrics.breakdown import Breakdown, totals_of
from mcproxy.observe.metrics.counts import Changes, Labels, MetricCounts
from mcproxy.observe.metrics.families import LOOP_LAG, Family
from mcproxy.observe.metrics.ingress_counts import IngressCounts
from mcproxy.observe.metrics.request_counts import RequestCounts
from mcproxy.observe.senders import Senders

LAG_WINDOW = 30.0
"""Length of a window in seconds. The longest iteration is that of the previous and the current window together."""


class Turns(Protocol):
    """The figures of the reactor's iterations (`net.reactor.LeanEpollReactor`)."""

    short_turns: int
    short_turn_seconds: float
    long_turn: Callable[[float], None]

    def seconds(self) -> float:
        """Return the time."""


class LoopLag:
    """Counts the iterations of a reactor. The reactor itself sums up short ones, which are in the first bucket."""

    def __init__(self, counts: MetricCounts, process: str, turns: Turns) -> None:
        self._turns = turns
        self._counts = counts
        self._labels = (process,)
        self._longest = self._longest_before = 0.0
        self._begun_at = turns.seconds()
        turns.long_turn = self._long
        turns.short_turns, turns.short_turn_seconds = 0, 0.0

    def flush(self) -> None:
        """Bring the counts up to date."""
        turns = self._turns
        series = self._counts.series(LOOP_LAG, self._labels)
        series[0] += turns.short_turns
        series[-1] += turns.short_turn_seconds
        turns.short_turns, turns.short_turn_seconds = 0, 0.0

    def longest(self) -> float:
        """Return the longest iteration of the last 30 to 60 seconds; 0.0 if none took more than a millisecond."""
        self._advance()
        return max(self._longest, self._longest_before)

    def _long(self, seconds: float) -> None:
        self._counts.observe(LOOP_LAG, self._labels, seconds)
        self._advance()
        self._longest = max(self._longest, seconds)

    def _advance(self) -> None:
        passed = self._turns.seconds() - self._begun_at
        if passed >= LAG_WINDOW:
            self._longest_before = self._longest if passed < 2 * LAG_WINDOW else 0.0
            self._longest = 0.0
            self._begun_at += passed - passed % LAG_WINDOW


class Metrics:
    """The counts of a process: created at its start, passed to the code that counts, and kept over reloads.

    It is a `Recorder` that counts every request.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, processor: Callable[[], float] = time.process_time
    ) -> None:
        """`clock` returns monotonic seconds, `processor` the processor time that this process has used."""
        self.counts = MetricCounts()
        self.senders = Senders(clock, processor)
        for family in self.counts.families:
            if not family.labels:
                self.counts.series(family, ())  # initially zero, because increase() of Prometheus misses a first value
        self._requests = RequestCounts(self.counts, self.senders)
        self._readers: list[Callable[[], None]] = []
        self._loop_lag: LoopLag | None = None
        self.audit_queue: Callable[[], int] = lambda: 0  # returns the bytes of queued audit events
        self.finished = self._requests.finished  # method of `Recorder`, called for every request
        self.of_ingresses = IngressCounts(self.counts)
        """Counts the requests to ingresses; `IngressCounts.count` is called for every such request."""

    def measure_loop(self, process: str, reactor: Turns) -> None:
        """Count the iterations of this process's reactor; `process` is the process name (worker-0)."""
        self._loop_lag = LoopLag(self.counts, process, reactor)
        self._readers.append(self._loop_lag.flush)

    def loop_lag(self) -> float | None:
        """Return the longest iteration of the reactor in the last 30 to 60 seconds; None if not measured."""
        return None if self._loop_lag is None else self._loop_lag.longest()

    def read_at_flush(self, reader: Callable[[], None]) -> None:
        """Call `reader` before the counts are read. It adds other code's counts since its last call."""
        self._readers.append(reader)

    def follow(self, family: Family, labels: Labels, read: Callable[[], int]) -> None:
        """Add the increase of a number that other code counts; `read` returns the number."""
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
        self.senders.flush()

    def take(self) -> Changes:
        """Return the counts since the last call (`MetricCounts.take`), and remove them from this object."""
        self.flush()
        return self.counts.take()

    def add(self, changes: Mapping[str, list[Any]]) -> None:
        """Add the counts taken from another process."""
        self.counts.add(changes)

    def totals(self) -> dict[str, Any]:
        """Return the totals of `breakdown.totals_of`."""
        self.flush()
        return totals_of(self.counts)

    def sender_figures(self) -> dict[str, Any]:
        """Return the top senders (`Senders.figures`) of all ended requests."""
        self.flush()
        return self.senders.figures()

    def breakdown(self) -> Breakdown:
        """Return the sums of each server, cluster and endpoint."""
        self.flush()
        return Breakdown.of(self.counts)
