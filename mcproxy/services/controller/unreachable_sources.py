"""For how long sources have not been followed: since when, and for `unreachable: Remove` until when. No I/O.

Times are measured by the reactor's clock, so that a jump of the wall clock removes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from mcproxy.net.wall_time import WallSeconds, wall_seconds
from mcproxy.services.exports.export_types import Exports
from mcproxy.services.exports.object_keys import ServiceKey

_Source = tuple[str, str]
"""A cluster, and a namespace in it."""


class UnreachableSources:
    """The namespaces of clusters whose endpoints are the last known ones."""

    def __init__(self, clock: IReactorTime, mark: Callable[[Iterable[ServiceKey]], None]) -> None:
        """`mark` is called with the services of a source that has been away for as long as they allow, or is back."""
        self._clock = clock
        self._mark = mark
        self._services: dict[_Source, list[tuple[ServiceKey, float]]] = {}
        """The exports of each source, and for how long it may be away; 0: for ever."""
        self._since: dict[_Source, tuple[float, WallSeconds]] = {}
        self._timers: dict[tuple[str, str, float], IDelayedCall] = {}

    def update(self, exports: Exports) -> None:
        """Follow a configuration."""
        self._services = {}
        for key in exports:
            for each in exports.of(key):
                for cluster in each.from_clusters:
                    self._services.setdefault((cluster, key.namespace), []).append((key, each.after))
        for source in self._since.keys() - self._services.keys():
            self._forget(source)

    def look(self, cluster: str, is_followed: Callable[[str, str], bool]) -> None:
        """Look whether the sources in a cluster are followed."""
        for source, services in self._services.items():
            if source[0] != cluster:
                continue
            after = {seconds for _, seconds in services if seconds}
            if not is_followed(*source):
                self._is_away(source, after)
            elif source in self._since:
                self._forget(source)
                self._tell(source)

    def _is_away(self, source: _Source, after: Collection[float]) -> None:
        began, _ = self._since.setdefault(source, (self._clock.seconds(), wall_seconds(self._clock)))
        wanted = {each for each in after if began + each > self._clock.seconds()}
        for seconds in [seconds for name, space, seconds in self._timers if (name, space) == source]:
            if seconds not in wanted:
                self._timers.pop((*source, seconds)).cancel()
        for seconds in wanted:
            if (*source, seconds) not in self._timers:
                wait = began + seconds - self._clock.seconds()
                self._timers[*source, seconds] = self._clock.callLater(wait, self._is_due, source, seconds)

    def _forget(self, source: _Source) -> None:
        self._since.pop(source, None)
        for place in [place for place in self._timers if place[:2] == source]:
            self._timers.pop(place).cancel()

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

    def _is_due(self, source: _Source, seconds: float) -> None:
        del self._timers[*source, seconds]
        self._tell(source)

    def _tell(self, source: _Source) -> None:
        self._mark([key for key, after in self._services.get(source, ()) if after])
