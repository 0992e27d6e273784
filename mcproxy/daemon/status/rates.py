"""The rates of the last quarter of an hour, for charts, and of the last minute, of each server, cluster and endpoint.

A sample costs some microseconds. So samples for both periods are always taken, at even intervals of the monotonic
clock, and a chart is available after an incident. Rates of the last minute, and the refused clients, are computed on
request: they are the current counts minus a sample from before that minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mcproxy.daemon.status import Figures
from mcproxy.observe.metrics.breakdown import Breakdown, Sums, quantile
from mcproxy.observe.metrics.families import FINE_BOUNDS

CHART_STEP = 5.0
"""Seconds between two samples of a chart."""
CHART_LENGTH = 180
"""Number of kept samples: a quarter of an hour."""
QUANTILE = 0.99
Totals = Mapping[str, Any]
"""The counts since the start: `requests`, `errors`, `refused`, `bytes` and `durations`.

`durations` are the non-cumulative counts of a histogram's buckets; the last has no upper bound."""
_RATES = {
    "requestsPerSecond": "requests",
    "errorsPerSecond": "errors",
    "refusedPerSecond": "refused",
    "bytesPerSecond": "bytes",
}
_QUANTILE = "p99Seconds"
SAMPLE_STEP = 15.0
"""Seconds between two samples for the rates of the last minute."""
SAMPLES = 5
"""Number of these samples: rates cover a minute plus at most one interval."""
_NOTHING = Sums()


class History:
    """The ring of samples for charts. `start` takes the first counts, from which the first rates are computed."""

    def __init__(
        self,
        clock: IReactorTime,
        totals: Callable[[], Totals],
        bounds: Sequence[float],
        *,
        step: float = CHART_STEP,
        length: int = CHART_LENGTH,
    ) -> None:
        """`bounds` are the upper bounds (seconds) of all buckets of durations except the last."""
        self._clock = clock
        self._totals = totals
        self._bounds = tuple(bounds)
        self._step = step
        self._samples: deque[tuple[float | None, ...]] = deque(maxlen=length)
        self._last: Totals = {}
        self._at = 0.0
        self._call = LoopingCall.withCount(self._sample)
        self._call.clock = clock

    def start(self) -> None:
        """Start sampling."""
        self._last, self._at = self._totals(), self._clock.seconds()
        self._call.start(self._step, now=False)

    def stop(self) -> None:
        """Stop sampling."""
        if self._call.running:
            self._call.stop()

    def figures(self) -> Figures:
        """Return the samples, the oldest first; a quantile is None if no request has ended."""
        columns = list(zip(*self._samples, strict=True)) or [()] * (len(_RATES) + 1)
        names = (*_RATES, _QUANTILE)
        return {"stepSeconds": self._step, **{name: list(column) for name, column in zip(names, columns, strict=True)}}

    def _sample(self, count: int) -> None:
        """Add `count` samples of the average rates since the last call; more than one if this process was stopped."""
        totals, now = self._totals(), self._clock.seconds()
        seconds = now - self._at
        if seconds <= 0:
            return
        rates = [max(0, totals[name] - self._last[name]) / seconds for name in _RATES.values()]
        ended = [max(0, new - old) for new, old in zip(totals["durations"], self._last["durations"], strict=True)]
        slow = quantile(self._bounds, ended, QUANTILE)
        sample = (*(round(rate, 3) for rate in rates), None if slow is None else round(slow, 6))
        for _ in range(min(max(count, 1), self._samples.maxlen or 1)):
            self._samples.append(sample)
        self._last, self._at = totals, now


class CountsAt(NamedTuple):
    """The counts at a time (monotonic seconds)."""

    at: float
    totals: Mapping[str, Any]
    breakdown: Breakdown


class RecentSamples:
    """The samples of one daemon. `start` takes the first one."""

    def __init__(
        self,
        clock: IReactorTime,
        totals: Callable[[], Mapping[str, Any]],
        breakdown: Callable[[], Breakdown],
        *,
        step: float = SAMPLE_STEP,
        length: int = SAMPLES,
    ) -> None:
        self._clock = clock
        self._totals = totals
        self._breakdown = breakdown
        self._step = step
        self._minute_samples: deque[CountsAt] = deque(maxlen=length)
        self._call = LoopingCall(self._take_sample)
        self._call.clock = clock

    def start(self) -> None:
        """Start sampling."""
        self._call.start(self._step)

    def stop(self) -> None:
        """Stop sampling."""
        if self._call.running:
            self._call.stop()

    def now(self) -> SampleDifference:
        """Return the change since the oldest sample."""
        now = CountsAt(self._clock.seconds(), self._totals(), self._breakdown())
        return SampleDifference(self._minute_samples[0] if self._minute_samples else now, now)

    def _take_sample(self) -> None:
        self._minute_samples.append(CountsAt(self._clock.seconds(), self._totals(), self._breakdown()))


class SampleDifference:
    """The difference of two samples."""

    def __init__(self, before: CountsAt, now: CountsAt) -> None:
        self.now = now.breakdown
        self.seconds = now.at - before.at
        self._before = before
        self._totals = now.totals

    def of_server(self, name: str) -> Figures:
        """Return the figures of a server: rates per second, and quantiles of durations (seconds)."""
        return self._rates(self.now.servers, self._before.breakdown.servers, name)

    def of_cluster(self, name: str) -> Figures:
        """Return the figures of a cluster, with the keys of `of_server`."""
        return self._rates(self.now.clusters, self._before.breakdown.clusters, name)

    def of_endpoint(self, cluster: str, name: str) -> Figures:
        """Return the figures of an endpoint.

        The figures have no error rate, because a request can fail after attempts at several endpoints."""
        found = self._rates(self.now.endpoints, self._before.breakdown.endpoints, (cluster, name))
        return {key: found[key] for key in ("requestsPerSecond", "p50Seconds", "p99Seconds")}

    def _rates(self, now: Mapping[Any, Sums], before: Mapping[Any, Sums], key: Hashable) -> Figures:
        new, old = now.get(key, _NOTHING), before.get(key, _NOTHING)
        ended = [max(0, one - other) for one, other in zip(new.durations, old.durations, strict=True)]
        return {
            "requestsPerSecond": self._rate(new.requests - old.requests),
            "errorsPerSecond": self._rate(new.errors - old.errors),
            "refusedPerSecond": self._rate(new.refused - old.refused),
            "p50Seconds": _quantile(ended, 0.5),
            "p99Seconds": _quantile(ended, 0.99),
        }

    def _rate(self, number: int) -> float | None:
        return round(max(0, number) / self.seconds, 4) if self.seconds > 0 else None

    def refusals(self) -> Figures:
        """Return the refusals of clients by status code and refusing part, the most frequent first.

        `requests` is the number of requests that ended in the same time."""
        old, new = self._before.totals, self._totals
        before = old["refusals"]
        kinds = [
            {"code": code, "by": by, "requests": number - before.get((code, by), 0), "requestsTotal": number}
            for (code, by), number in new["refusals"].items()
        ]
        kinds.sort(key=lambda each: (-each["requests"], -each["requestsTotal"], each["code"], each["by"]))
        return {
            "seconds": round(self.seconds, 1),
            "requests": max(0, new["requests"] - old["requests"]),
            "refused": max(0, new["refused"] - old["refused"]),
            "kinds": kinds,
        }


def _quantile(counts: list[int], part: float) -> float | None:
    found = quantile(FINE_BOUNDS, counts, part)
    return None if found is None else round(found, 6)
