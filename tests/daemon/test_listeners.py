"""What listeners count is added once, however often it is read, and over their renewal."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from mcproxy.daemon.listeners import ListenerCounts
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.families import CONNECTIONS, CONNECTIONS_REFUSED, FLOODS, HANDSHAKES


class Live(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def live(**counts: int) -> Any:
    config = SimpleNamespace(name="public")
    return Live(
        config=config, socket=SimpleNamespace(counts=Counter(counts)), factory=SimpleNamespace(protection=Counter())
    )


def test_each_count_is_added_once_to_its_metric() -> None:
    counts = MetricCounts()
    added = ListenerCounts(counts)
    first, second = live(accepted=3, ok=2, failed=1), live(accepted=1, proxy=1)
    added.add([first, second])
    added.add([first, second])
    first.socket.counts["accepted"] += 2
    first.socket.counts["connectionsPerClient"] += 2
    first.factory.protection["resets"] += 1
    added.add([first, second])
    assert counts.of(CONNECTIONS) == {("public",): [6]}
    assert counts.of(HANDSHAKES) == {("public", "ok"): [2], ("public", "failed"): [1]}
    assert counts.of(CONNECTIONS_REFUSED) == {("public", "proxy"): [1], ("public", "connectionsPerClient"): [2]}
    assert counts.of(FLOODS) == {("public", "resets"): [1]}
