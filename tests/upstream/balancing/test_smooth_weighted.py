"""Smooth weighted turns: nginx's sequence, exact rounds, and no debt that outlasts a change."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.upstream.balancing.round_robin import SmoothWeightedRoundRobin

WEIGHTS = st.lists(st.one_of(st.integers(1, 5), st.integers(1, 100)), min_size=2, max_size=6)


def smooth(*weights: int) -> SmoothWeightedRoundRobin:
    return SmoothWeightedRoundRobin(len(weights)).with_weights(weights)


def turns(of: SmoothWeightedRoundRobin, count: int, among: tuple[int, ...]) -> list[int]:
    return [of.select(among, among) for _ in range(count)]


@pytest.mark.parametrize(
    ("weights", "sequence"),
    [  # the first is the example of nginx's own commit
        ((5, 1, 1), [0, 0, 1, 0, 2, 0, 0]),
        ((1, 1, 1), [0, 1, 2]),
        ((4, 3, 2), [0, 1, 2, 0, 1, 0, 2, 1, 0]),
    ],
)
def test_turns_are_spread_as_nginx_spreads_them(weights: tuple[int, ...], sequence: list[int]) -> None:
    among = tuple(range(len(weights)))
    assert turns(smooth(*weights), 2 * sum(weights), among) == 2 * sequence


@given(WEIGHTS)
def test_each_round_is_exact(weights: list[int]) -> None:
    state, among = smooth(*weights), tuple(range(len(weights)))
    for _ in range(3):
        assert Counter(turns(state, sum(weights), among)) == dict(enumerate(weights))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[tuple[int, ...], int]]]:
    weights = draw(WEIGHTS)
    everybody = range(len(weights))
    some = st.sets(st.sampled_from(everybody), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
    return weights, draw(st.lists(st.tuples(some, st.integers(1, 60)), min_size=1, max_size=12))


@given(histories())
@settings(max_examples=60)
def test_whoever_takes_part_gets_its_share_within_one_of_exact_after_any_change(
    case: tuple[list[int], list[tuple[tuple[int, ...], int]]],
) -> None:
    weights, history = case
    state = smooth(*weights)
    for among, some in history:
        round_ = sum(weights[index] for index in among)
        got = Counter(turns(state, round_, among))
        assert set(got) <= set(among)
        assert all(abs(got[index] - weights[index]) <= 1 for index in among)
        turns(state, some, among)


def test_a_heavy_one_that_goes_leaves_no_debt_of_many_turns() -> None:
    state = smooth(100, 1, 1)
    turns(state, 51, (0, 1, 2))
    assert Counter(turns(state, 10, (1, 2))) == {1: 5, 2: 5}


def test_who_is_not_allowed_now_is_owed_its_turn() -> None:
    state = smooth(1, 2)
    assert state.select((0, 1), (0,)) == 0
    assert turns(state, 2, (0, 1)) == [1, 1]


def test_debts_go_along_into_another_order() -> None:
    before = smooth(3, 1)
    turns(before, 2, (0, 1))
    after = before.reordered([1, None, 0]).with_weights((1, 2, 3))
    assert after.select((0, 1, 2), (0, 1, 2)) == 0  # without debts it would be the heaviest
    assert before.select((0, 1), (0, 1)) == 1  # undisturbed
