"""Schedules the computation of exported services and their comparison with the clusters. No I/O.

All changed services are computed before any is compared. The work is done in turns of a few milliseconds, with other
work of the process in between. A service that takes long and changes often is throttled, because anyone who can write
to a source cluster can create such a service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from mcproxy.services.exports.object_keys import ServiceKey
from mcproxy.services.writer.differences import CACHE_PATIENCE

log = Logger(__name__)

_TURN = 0.005  # seconds of work in one turn of the reactor
_LONG = 0.02  # seconds; longer work is throttled, and is followed by a pause
_REST = 10
"""The pause before a throttled service is computed or compared again, as a multiple of the time that it last took."""
_MAX_REST = 2.0  # maximum of seconds of that pause
_BREATHER = 2
"""After work longer than `_LONG`, all work on exports pauses for this multiple of its duration."""
_RECHECK = CACHE_PATIENCE + 0.5


class ExportWorkQueue:
    """The queue of services to compute and to compare."""

    def __init__(
        self,
        clock: IReactorTime,
        compute: Callable[[ServiceKey], None],
        compare: Callable[[ServiceKey, set[str] | None], None],
    ) -> None:
        """`compare` is called with a service and the clusters to compare it with; None means all."""
        self._clock = clock
        self._compute = compute
        self._compare_with = compare
        self._dirty: dict[ServiceKey, None] = {}
        self._compare: dict[ServiceKey, set[str] | None] = {}
        self._recheck: deque[tuple[float, ServiceKey]] = deque()
        #: the end of the throttling; the key is a service, and whether its computation (else its comparison) waits
        self._resting: dict[tuple[bool, ServiceKey], float] = {}
        self._pause_until = 0.0
        self._working: IDelayedCall | None = None
        self._rechecking: IDelayedCall | None = None
        self._stopped = False

    def mark(self, keys: Iterable[ServiceKey]) -> None:
        """Schedule the computation of these services."""
        self._dirty.update(dict.fromkeys(keys))
        if self._dirty:
            self._soon()

    def compare(self, key: ServiceKey, cluster: str | None = None) -> None:
        """Schedule the comparison of a service with a cluster; None: with all clusters."""
        self._add(key, None if cluster is None else (cluster,))
        self._soon()

    def recheck(self, key: ServiceKey) -> None:
        """Schedule the comparison of a service for the time by which the caches have to show its last write."""
        self._recheck.append((self._clock.seconds() + _RECHECK, key))
        if self._rechecking is None:
            self._rechecking = self._clock.callLater(_RECHECK, self._recheck_due)

    def stop(self) -> None:
        """Cancel all scheduled work at once."""
        self._stopped = True
        for timer in (self._working, self._rechecking):
            if timer is not None and timer.active():
                timer.cancel()
        self._working = self._rechecking = None

    def _add(self, key: ServiceKey, clusters: Iterable[str] | None) -> None:
        known = self._compare.setdefault(key, set())
        if clusters is None or known is None:
            self._compare[key] = None
        else:
            known.update(clusters)

    def _recheck_due(self) -> None:
        self._rechecking = None
        now = self._clock.seconds()
        while self._recheck and self._recheck[0][0] <= now:
            self._compare[self._recheck.popleft()[1]] = None
        if self._recheck:
            self._rechecking = self._clock.callLater(max(0.1, self._recheck[0][0] - now), self._recheck_due)
        self._soon()

    def _soon(self) -> None:
        if not self._stopped:
            self._work_at(self._clock.seconds())

    def _work_at(self, at: float) -> None:
        """Schedule work for this time, unless it is scheduled earlier."""
        now = self._clock.seconds()
        wait = max(0.0, at - now, self._pause_until - now)
        if self._working is None:
            self._working = self._clock.callLater(wait, self._work)
        elif self._working.getTime() > now + wait:
            self._working.reset(wait)

    def _work(self) -> None:
        """Compute and compare services for one turn (`_TURN`); schedule the next turn if work is left."""
        self._working = None
        began = now = self._clock.seconds()
        self._resting = {each: until for each, until in self._resting.items() if until > now}
        waiting: dict[ServiceKey, None] = {}
        to_compare: dict[ServiceKey, set[str] | None] = {}
        while (self._dirty or self._compare) and now - began <= _TURN:
            key = next(iter(self._dirty or self._compare))
            what = (bool(self._dirty), key)
            rests = what in self._resting
            try:
                if self._dirty:
                    del self._dirty[key]
                    if rests:
                        waiting[key] = None
                    else:
                        self._compute(key)
                else:
                    clusters = self._compare.pop(key)
                    if rests:
                        to_compare[key] = clusters
                    else:
                        self._compare_with(key, clusters)
            except Exception:
                log.failure(
                    "computing an exported service failed unexpectedly", event="internal_error", service=str(key)
                )
            before, now = now, self._clock.seconds()
            if now - before > _LONG:
                self._pause_until = now + _BREATHER * (now - before)
                self._resting[what] = now + min(_MAX_REST, _REST * (now - before))
        idle = not self._dirty and not self._compare
        self._dirty.update(waiting)
        for key, clusters in to_compare.items():
            self._add(key, clusters)
        if self._dirty or self._compare:
            resting = [(True, key) for key in waiting] + [(False, key) for key in to_compare]
            self._work_at(min(self._resting[each] for each in resting) if idle else now)
