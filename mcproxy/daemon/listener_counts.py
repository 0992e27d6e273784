"""What listeners count is added to the metrics: `net` and `http` know no metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mcproxy.observe.metrics.counts import Counts
from mcproxy.observe.metrics.families import CONNECTIONS, CONNECTIONS_REFUSED, FLOODS, HANDSHAKES, Family

if TYPE_CHECKING:
    from mcproxy.daemon.service import LiveListener

_LABELS: dict[str, tuple[Family, tuple[str, ...]]] = {
    "accepted": (CONNECTIONS, ()),
    **{reason: (CONNECTIONS_REFUSED, (reason,)) for reason in ("connections", "connectionsPerClient", "proxy")},
    **{result: (HANDSHAKES, (result,)) for result in ("ok", "failed", "abandoned")},
}
"""By the names of `net.listen.Listener.counts`."""


class ListenerCounts:
    """Adds what has been counted since the last time."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._before: WeakKeyDictionary[LiveListener, tuple[Counter[str], Counter[str]]] = WeakKeyDictionary()

    def add(self, listeners: Iterable[LiveListener]) -> None:
        """Add the counts of these listeners; of one that is gone, add them before."""
        for live in listeners:
            connections, floods = self._before.get(live, (Counter(), Counter()))
            now: tuple[Counter[str], Counter[str]] = Counter(live.socket.counts), Counter(live.factory.protection)
            self._before[live] = now
            name = live.config.name
            for key, number in (now[0] - connections).items():
                family, labels = _LABELS[key]
                self._counts.increase(family, (name, *labels), number)
            for kind, number in (now[1] - floods).items():
                self._counts.increase(FLOODS, (name, kind), number)
