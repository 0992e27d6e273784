"""Bounds of what a peer may make us do for nothing."""

from __future__ import annotations

import pytest

from mcproxy.http.h2.budgets import ControlFrameBudget, ResetCount
from mcproxy.http.h2.frames import PING, WINDOW_UPDATE, Flood
from tests.support.clock import Clock


def test_a_thousand_control_frames_in_ten_seconds() -> None:
    budget = ControlFrameBudget(0.0)
    for _ in range(1000):
        budget.spend(PING, 1, lambda: 9.9)
    with pytest.raises(Flood) as caught:
        budget.spend(PING, 1, lambda: 9.9)
    assert caught.value.kind == "ping_flood"


def test_the_next_ten_seconds_begin_anew() -> None:
    budget = ControlFrameBudget(0.0)
    clock = Clock()
    for _ in range(20_000):
        clock.advance(0.0101)
        budget.spend(PING, 1, clock.seconds)


def test_a_stream_pays_for_two_frames() -> None:
    budget = ControlFrameBudget(0.0)
    for _ in range(1000):
        budget.spend(WINDOW_UPDATE, 1, lambda: 0.0)
    for _ in range(1000):
        budget.stream_begun()
        budget.spend(WINDOW_UPDATE, 1, lambda: 0.0)
        budget.spend(WINDOW_UPDATE, 1, lambda: 0.0)
    with pytest.raises(Flood):
        budget.spend(WINDOW_UPDATE, 1, lambda: 0.0)


def test_many_streams_do_not_save_up_for_a_flood() -> None:
    budget = ControlFrameBudget(0.0)
    for _ in range(100_000):
        budget.stream_begun()
    budget.spend(PING, 1000, lambda: 1.0)
    with pytest.raises(Flood):
        budget.spend(PING, 1, lambda: 1.0)


def test_one_frame_that_costs_more_than_all() -> None:
    with pytest.raises(Flood):
        ControlFrameBudget(0.0).spend(PING, 1001, lambda: 100.0)


def test_half_of_the_streams_may_be_reset() -> None:
    count = ResetCount(0.0)
    for _ in range(10_000):
        count.stream_begun(1.0)
        count.stream_begun(1.0)
        count.stream_reset(1.0)


def test_200_resets_are_no_attack() -> None:
    count = ResetCount(0.0)
    for _ in range(200):
        count.stream_begun(1.0)
        count.stream_reset(1.0)
    count.stream_begun(1.0)
    with pytest.raises(Flood) as caught:
        count.stream_reset(1.0)
    assert caught.value.kind == "rapid_reset"


def test_resets_that_take_their_time() -> None:
    count = ResetCount(0.0)
    now = 0.0
    for _ in range(5000):
        now += 0.16
        count.stream_begun(now)
        count.stream_reset(now)


def test_a_long_honest_past_does_not_count() -> None:
    count = ResetCount(0.0)
    now = 0.0
    for _ in range(100_000):
        now += 0.001
        count.stream_begun(now)
    now += 30
    for _ in range(200):
        count.stream_begun(now)
        count.stream_reset(now)
    with pytest.raises(Flood):
        count.stream_reset(now)
