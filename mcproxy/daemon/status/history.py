"""The rates of the last minutes, for charts: a ring that is filled at even intervals by the clock of durations.

A sample costs some microseconds, whatever the daemon does, so it is taken all the time: a chart is available after an
incident.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mcproxy.daemon.status import Figures
from mcproxy.observe.metrics.quantile import quantile

STEP = 5.0
"""Seconds between two samples."""
LENGTH = 180
"""Samples that are kept: a quarter of an hour."""
QUANTILE = 0.99

Totals = Mapping[str, Any]
"""The counts since the start: `requests`, `errors`, `refused`, `bytes`, and `durations`: the counts of the
buckets of a histogram, each by itself, the last one without an upper bound."""

_RATES = {
    "requestsPerSecond": "requests",
    "errorsPerSecond": "errors",
    "refusedPerSecond": "refused",
    "bytesPerSecond": "bytes",
}
_QUANTILE = "p99Seconds"


class History:
    """The ring. `start` takes the first sample, from which the rates are counted."""

    def __init__(
        self,
        clock: IReactorTime,
        totals: Callable[[], Totals],
        bounds: Sequence[float],
        *,
        step: float = STEP,
        length: int = LENGTH,
    ) -> None:
        """`bounds` are the upper bounds of the buckets of durations, in seconds, but for the last one's."""
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
        """Sample from now on."""
        self._last, self._at = self._totals(), self._clock.seconds()
        self._call.start(self._step, now=False)

    def stop(self) -> None:
        """Sample no more."""
        if self._call.running:
            self._call.stop()

    def figures(self) -> Figures:
        """Return the samples, the oldest first; a quantile is None where no request has ended."""
        columns = list(zip(*self._samples, strict=True)) or [()] * (len(_RATES) + 1)
        names = (*_RATES, _QUANTILE)
        return {"stepSeconds": self._step, **{name: list(column) for name, column in zip(names, columns, strict=True)}}

    def _sample(self, count: int) -> None:
        """Take a sample; `count` is more than 1 if this process stood still: the rate is that of all that time."""
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
