"""For how long sources have not been followed: since when, and for `unreachable: Remove` until when. No I/O.

Times are measured by the reactor's clock, so that a jump of the wall clock removes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.net.wall_time import WallSeconds, wall_seconds

_Source = tuple[str, str]
"""A cluster, and a namespace in it."""


class UnreachableSources:
    """The namespaces of clusters whose endpoints are the last known ones."""

    def __init__(self, clock: IReactorTime, due: Callable[[str, str], None]) -> None:
        """`due` is called with a cluster and namespace when it has been away for a time that was asked for."""
        self._clock = clock
        self._due = due
        self._since: dict[_Source, tuple[float, WallSeconds]] = {}
        self._timers: dict[tuple[str, str, float], IDelayedCall] = {}

    def look(self, cluster: str, namespace: str, *, followed: bool, after: Iterable[float]) -> None:
        """Take whether a source is followed; `after`: the seconds for which it must be away to count as gone."""
        source = (cluster, namespace)
        if followed:
            self.forget(cluster, namespace)
            return
        began, _ = self._since.setdefault(source, (self._clock.seconds(), wall_seconds(self._clock)))
        wanted = {each for each in after if began + each > self._clock.seconds()}
        for seconds in [seconds for name, space, seconds in self._timers if (name, space) == source]:
            if seconds not in wanted:
                self._timers.pop((*source, seconds)).cancel()
        for seconds in wanted:
            if (*source, seconds) not in self._timers:
                wait = began + seconds - self._clock.seconds()
                self._timers[*source, seconds] = self._clock.callLater(wait, self._is_due, cluster, namespace, seconds)

    def forget(self, cluster: str, namespace: str) -> None:
        """It is followed, or not read any more."""
        self._since.pop((cluster, namespace), None)
        for place in [place for place in self._timers if place[:2] == (cluster, namespace)]:
            self._timers.pop(place).cancel()

    def keep(self, sources: Iterable[_Source]) -> None:
        """Forget all but these."""
        for cluster, namespace in self._since.keys() - set(sources):
            self.forget(cluster, namespace)

    def seconds(self, cluster: str, namespace: str) -> float:
        """Return for how long a source has not been followed; 0: it is."""
        found = self._since.get((cluster, namespace))
        return 0.0 if found is None else self._clock.seconds() - found[0]

    def since(self, cluster: str, namespace: str) -> WallSeconds | None:
        """Return the date since which a source has not been followed."""
        found = self._since.get((cluster, namespace))
        return None if found is None else found[1]

    def stop(self) -> None:
        """End everything."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _is_due(self, cluster: str, namespace: str, seconds: float) -> None:
        del self._timers[cluster, namespace, seconds]
        self._due(cluster, namespace)
