"""Paired ratios: what a comparison of the benchmarks is made of."""

from __future__ import annotations

import random

import pytest

from bench.stats import Spread, paired_ratios, shuffled_rounds, spread


def test_a_ratio_is_taken_within_its_round_so_that_a_slow_machine_cancels_out() -> None:
    rounds = [{"mcproxy": 70.0, "nginx": 100.0}, {"mcproxy": 7.0, "nginx": 10.0}, {"mcproxy": 40.0, "nginx": 50.0}]
    assert paired_ratios(rounds, "mcproxy", "nginx") == [0.7, 0.7, 0.8]


def test_a_round_that_lacks_a_subject_or_divides_by_zero_gives_no_ratio() -> None:
    rounds = [{"mcproxy": 70.0}, {"nginx": 100.0}, {"mcproxy": 1.0, "nginx": 0.0}, {"mcproxy": 1.0, "nginx": 2.0}]
    assert paired_ratios(rounds, "mcproxy", "nginx") == [0.5]


def test_a_spread_keeps_the_extremes_beside_the_median() -> None:
    assert spread([3.0, 1.0, 2.0, 9.0]) == Spread(2.5, 1.0, 9.0, 4)


def test_no_values_are_an_error_and_not_a_number() -> None:
    with pytest.raises(ValueError, match="every round failed"):
        spread([])


def test_a_spread_is_shown_in_the_unit_asked_for() -> None:
    assert spread([0.001, 0.002, 0.0035]).show(1, 1e-3) == "2.0 [1.0 to 3.5]"


def test_each_round_has_every_subject_once_and_their_order_varies() -> None:
    orders = shuffled_rounds(["a", "b", "c"], 50, random.Random(1))
    assert len(orders) == 50
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len({tuple(order) for order in orders}) == 6
