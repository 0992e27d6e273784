"""The rates of the last minute, of each server, cluster and endpoint, and the refused clients.

The counts are sampled every quarter of a minute, and compared with the present ones on request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mcproxy.daemon.status import Figures
from mcproxy.observe.metrics.breakdown import Breakdown, Sums
from mcproxy.observe.metrics.families import FINE_BOUNDS
from mcproxy.observe.metrics.quantile import quantile

STEP = 15.0
"""Seconds between two samples."""
LENGTH = 5
"""Samples that are kept: rates are those of a minute, and of up to a step more."""

_NOTHING = Sums()


class Noted(NamedTuple):
    """The counts at a time (monotonic seconds)."""

    at: float
    totals: Mapping[str, Any]
    breakdown: Breakdown


class Recent:
    """The samples of one daemon. `start` takes the first one."""

    def __init__(
        self,
        clock: IReactorTime,
        totals: Callable[[], Mapping[str, Any]],
        breakdown: Callable[[], Breakdown],
        *,
        step: float = STEP,
        length: int = LENGTH,
    ) -> None:
        self._clock = clock
        self._totals = totals
        self._breakdown = breakdown
        self._step = step
        self._notes: deque[Noted] = deque(maxlen=length)
        self._call = LoopingCall(self._note)
        self._call.clock = clock

    def start(self) -> None:
        """Note from now on."""
        self._call.start(self._step)

    def stop(self) -> None:
        """Note no more."""
        if self._call.running:
            self._call.stop()

    def now(self) -> Change:
        """Return what has changed since the oldest note."""
        now = Noted(self._clock.seconds(), self._totals(), self._breakdown())
        return Change(self._notes[0] if self._notes else now, now)

    def _note(self) -> None:
        self._notes.append(Noted(self._clock.seconds(), self._totals(), self._breakdown()))


class Change:
    """The difference of two samples."""

    def __init__(self, before: Noted, now: Noted) -> None:
        self.now = now.breakdown
        self.seconds = now.at - before.at
        self._before = before
        self._totals = now.totals

    def of_server(self, name: str) -> Figures:
        """Return the figures of a server: rates a second, and quantiles of durations (seconds)."""
        return self._rates(self.now.servers, self._before.breakdown.servers, name)

    def of_cluster(self, name: str) -> Figures:
        """Return the figures of a cluster, as `of_server`."""
        return self._rates(self.now.clusters, self._before.breakdown.clusters, name)

    def of_endpoint(self, cluster: str, name: str) -> Figures:
        """Return the figures of an endpoint; it has no errors, which may be those of several attempts."""
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
        """Return who was refused, and by whom, most first; `requests` are those that ended meanwhile."""
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
