"""Requests under way are counted by key, against a maximum that may change."""

from __future__ import annotations

import pytest

from mcproxy.dispatch.limiter import InFlightCounts


def test_no_more_than_the_maximum_at_a_time_for_each_key() -> None:
    requests = InFlightCounts(2)
    assert [requests.take(key) for key in "aaab"] == [True, True, False, True]
    requests.release("a")
    assert requests.take("a")
    assert (requests.in_use, requests.count("a"), requests.count("b")) == (3, 2, 1)


def test_nothing_is_allowed_by_zero_and_everything_without_a_maximum() -> None:
    assert not InFlightCounts(0).take("a")
    unlimited = InFlightCounts(None)
    assert all(unlimited.take("a") for _ in range(1000))
    assert unlimited.in_use == 1000


def test_a_smaller_maximum_waits_for_those_under_way() -> None:
    requests = InFlightCounts(None)
    for _ in range(5):
        requests.take("a")
    requests.max = 2
    admitted = []
    for _ in range(5):
        admitted.append(requests.take("a"))
        requests.release("a")
    assert admitted == [False, False, False, False, True]


def test_only_keys_with_something_under_way_are_kept() -> None:
    requests = InFlightCounts(5)
    for n in range(1000):
        requests.take(f"user-{n}")
        requests.release(f"user-{n}")
    assert (len(requests), requests.in_use) == (0, 0)


def test_giving_back_what_was_not_taken_is_an_error() -> None:
    with pytest.raises(KeyError):
        InFlightCounts(5).release("a")
