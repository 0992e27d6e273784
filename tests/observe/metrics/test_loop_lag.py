"""The loop's lag: every turn is counted, and the longest of the last minute is known."""

import time
from collections.abc import Callable
from typing import Any

from mcproxy.net.reactor import LeanEpollReactor
from mcproxy.observe.metrics import families
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.metrics import LoopLag, Metrics
from tests.support.clock import Clock


def _ignore(seconds: float) -> None:
    pass


class Turns(Clock):
    def __init__(self) -> None:
        super().__init__()
        self.short_turns = 0
        self.short_turn_seconds = 0.0
        self.long_turn: Callable[[float], None] = _ignore


def test_the_longest_turn_is_forgotten_after_a_minute() -> None:
    turns = Turns()
    lag = LoopLag(MetricCounts(), "mcproxy", turns)
    assert lag.longest() == 0.0
    turns.long_turn(0.2)
    turns.long_turn(0.1)
    assert lag.longest() == 0.2
    turns.advance(31)
    turns.long_turn(0.01)
    assert lag.longest() == 0.2
    turns.advance(30)
    assert lag.longest() == 0.01
    turns.advance(100)
    assert lag.longest() == 0.0


def test_short_turns_are_in_the_first_bucket_and_long_ones_in_theirs() -> None:
    turns, counts = Turns(), MetricCounts()
    lag = LoopLag(counts, "worker-0", turns)
    turns.short_turns, turns.short_turn_seconds = 7, 0.002
    turns.long_turn(0.03)
    lag.flush()
    lag.flush()
    numbers = counts.of(families.LOOP_LAG)["worker-0",]
    assert numbers[0] == 7
    assert numbers[families.LAG_BOUNDS.index(0.05)] == 1
    assert sum(numbers[:-1]) == 8
    assert round(numbers[-1], 6) == 0.032


def measured() -> tuple[int, list[float]]:
    """Return how many turns of a reactor that slept once took long, and all that was measured of it."""
    reactor: Any = LeanEpollReactor()
    metrics = Metrics()
    metrics.measure_loop("mcproxy", reactor)
    reactor.callLater(0, time.sleep, 0.06)
    reactor.callLater(0.01, reactor.callLater, 0, reactor.crash)
    reactor.run(installSignalHandlers=False)
    metrics.flush()
    numbers = metrics.counts.of(families.LOOP_LAG)["mcproxy",]
    longest = metrics.loop_lag()
    assert longest is not None
    assert longest >= 0.06
    return int(sum(numbers[families.LAG_BOUNDS.index(0.05) + 1 : -1])), numbers


def test_a_reactor_measures_what_blocks_it() -> None:
    # A machine that is busy may stop the process in any turn, but hardly ten times.
    over, numbers = next((found for found in (measured() for _ in range(10)) if found[0] == 1), measured())
    assert over == 1
    assert numbers[0] >= 1
