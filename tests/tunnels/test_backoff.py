"""The times between attempts to open a tunnel."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.tunnels.backoff import FIRST, MOST, Backoff
from mcproxy.tunnels.control_server import DialRate


def test_delays_double_up_to_a_minute() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.after_failure() for _ in range(10)] == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40))
def test_each_delay_is_anywhere_below_its_bound(values: list[float]) -> None:
    numbers = iter(values)
    backoff = Backoff(lambda: next(numbers))
    for count, value in enumerate(values):
        assert backoff.after_failure() == min(MOST, FIRST * 2 ** min(count, 7)) * value


def test_the_hubs_wish_is_obeyed_within_a_minute() -> None:
    backoff = Backoff(lambda: 0.5)
    assert backoff.after_failure(10) == 10.25
    assert backoff.after_failure(100_000) == 60.5
    assert backoff.after_failure(-5) == 1.0


def test_a_long_life_begins_anew() -> None:
    backoff = Backoff(lambda: 1.0)
    for _ in range(5):
        backoff.after_failure()
    assert backoff.after_loss(4.9) == 16
    assert backoff.after_loss(5.0) == 0.5, "soon"
    assert backoff.after_failure() == 32, "and as before, if that fails"
    assert backoff.after_loss(60.0) == 0.5
    assert backoff.after_failure() == 0.5


def test_what_only_an_operator_can_mend_is_tried_each_minute() -> None:
    backoff = Backoff(random.Random(7).random)
    assert all(45 <= backoff.steady() <= 75 for _ in range(100))


def test_five_hundred_edges_come_back_within_seconds() -> None:
    """After a hub's restart, which refuses connections for a second."""
    generator = random.Random(7)
    arrived = []
    for _ in range(500):
        backoff, now = Backoff(generator.random), 0.0
        while True:
            now += backoff.after_failure()
            if now >= 1.0:
                break
        arrived.append(now)
    assert max(arrived) < 15
    assert max(sum(tenth <= 10 * each < tenth + 1 for each in arrived) for tenth in range(10, 150)) < 75, "in 0.1 s"


@given(st.lists(st.floats(0, 0.2), max_size=200))
def test_dials_are_limited_in_every_second(gaps: list[float]) -> None:
    rate, now, allowed = DialRate(0.0), 0.0, []
    for gap in gaps:
        now += gap
        if rate.allows(now):
            allowed.append(now)
    for start in allowed:
        assert sum(start <= each < start + 1 for each in allowed) <= 41, "those of the bucket, and those of a second"
