"""The ring of rates: what a sample is, when it is taken, what it holds at most."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.daemon.status.rates import History
from mcproxy.observe.metrics.breakdown import quantile
from tests.support.clock import Clock

BOUNDS = (0.1, 1.0)


class Counted:
    """What is counted, to be changed by a test."""

    def __init__(self) -> None:
        self.requests = self.errors = self.refused = self.sent = 0
        self.durations = [0, 0, 0]

    def __call__(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "errors": self.errors,
            "refused": self.refused,
            "bytes": self.sent,
            "durations": list(self.durations),
        }


def test_a_sample_is_the_rate_since_the_one_before() -> None:
    clock, counted = Clock(), Counted()
    counted.requests = 1000  # before the start
    history = History(clock, counted, BOUNDS, step=5.0, length=3)
    history.start()
    assert history.figures() == {
        "stepSeconds": 5.0,
        "requestsPerSecond": [],
        "errorsPerSecond": [],
        "refusedPerSecond": [],
        "bytesPerSecond": [],
        "p99Seconds": [],
    }
    counted.requests, counted.errors, counted.sent, counted.durations = 1050, 5, 5000, [50, 0, 0]
    clock.advance(5)
    clock.advance(5)
    found = history.figures()
    assert found["requestsPerSecond"] == [10.0, 0.0]
    assert found["errorsPerSecond"] == [1.0, 0.0]
    assert found["bytesPerSecond"] == [1000.0, 0.0]
    assert found["p99Seconds"] == [pytest.approx(0.099), None]
    history.stop()
    assert not clock.getDelayedCalls()


def test_the_oldest_go_and_a_process_that_stood_still_leaves_no_gap_and_no_peak() -> None:
    clock, counted = Clock(), Counted()
    history = History(clock, counted, BOUNDS, step=5.0, length=4)
    history.start()
    for requests in (5, 15):
        counted.requests = requests
        clock.advance(5)
    counted.requests = 75
    clock.advance(15)
    assert history.figures()["requestsPerSecond"] == [2.0, 4.0, 4.0, 4.0]
    clock.advance(5000)
    assert history.figures()["requestsPerSecond"] == [0.0] * 4


def test_what_falls_is_no_negative_rate() -> None:
    clock, counted = Clock(), Counted()
    counted.requests, counted.durations = 10, [10, 0, 0]
    history = History(clock, counted, BOUNDS, step=5.0)
    history.start()
    counted.requests, counted.durations = 3, [2, 1, 0]
    clock.advance(5)
    found = history.figures()
    assert (found["requestsPerSecond"], found["p99Seconds"]) == ([0.0], [pytest.approx(0.991)])


@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.floats(0.01, 1.0))
def test_a_quantile_is_within_the_bucket_that_has_it(counts: list[int], part: float) -> None:
    found = quantile(BOUNDS, counts, part)
    if not sum(counts):
        assert found is None
        return
    rank = part * sum(counts)
    below = counts[0], counts[0] + counts[1]
    assert found is not None
    if rank <= below[0]:
        assert 0 <= found <= 0.1
    elif rank <= below[1]:
        assert 0.1 <= found <= 1.0
    else:
        assert found == 1.0
