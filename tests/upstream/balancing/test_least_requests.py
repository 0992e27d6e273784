"""LeastRequests: fewest in flight, ties by turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.requestinfo import parse
from mcproxy.upstream.balancing.least_requests import LeastRequests
from tests.upstream.fakes import names, some_endpoints

PODS = b"/api/v1/namespaces/demo/pods"
WATCH = PODS + b"?watch=1&resourceVersion=7"


def test_the_least_busy_is_picked() -> None:
    made = some_endpoints(3)
    balancer = LeastRequests(made)
    made[0].in_flight, made[1].in_flight, made[2].in_flight = 3, 1, 2
    assert balancer.pick() is made[1]


def test_those_that_have_the_same_take_turns() -> None:
    made = some_endpoints(3)
    balancer = LeastRequests(made)
    assert names([balancer.pick() for _ in range(4)]) == ["e0", "e1", "e2", "e0"]
    made[1].in_flight = 1
    assert names([balancer.pick() for _ in range(3)]) == ["e2", "e0", "e2"]


def test_a_request_that_waits_for_a_connection_counts() -> None:
    made = some_endpoints(2)
    balancer = LeastRequests(made)
    waiting = made[0].open()
    assert names([balancer.pick() for _ in range(2)]) == ["e1", "e1"]
    waiting.addErrback(lambda _: None)
    waiting.cancel()
    assert names([balancer.pick() for _ in range(2)]) == ["e0", "e1"]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(1, 8))
def test_requests_that_stay_spread_by_weight(weights: list[int], rounds: int) -> None:
    balancer = LeastRequests(some_endpoints(len(weights), weights=weights))
    picked: Counter[int] = Counter()
    for _ in range(rounds * sum(weights)):
        endpoint = balancer.pick()
        assert endpoint is not None
        endpoint.in_flight += 1
        picked[balancer.endpoints.index(endpoint)] += 1
    assert all(abs(picked[index] - rounds * weight) <= 1 for index, weight in enumerate(weights))


def test_a_watch_goes_where_its_list_was_answered_if_that_is_none_of_the_busier() -> None:
    made = some_endpoints(3)
    balancer = LeastRequests(made)
    info, watch = parse(b"GET", PODS), parse(b"GET", WATCH)
    assert balancer.pick((), "ann", info, PODS) is made[0]
    assert balancer.pick((), "ann", watch, WATCH) is made[0]
    assert balancer.pick() is made[1]  # the watch took no turn
    made[0].in_flight = 1
    assert balancer.pick((), "ann", watch, WATCH) is made[2]


def test_the_turn_goes_on_after_a_reload() -> None:
    made = some_endpoints(3)
    before = LeastRequests(made)
    before.pick()
    assert names([LeastRequests(made, before).pick()]) == ["e1"]
    assert names([LeastRequests((made[0], made[2]), before).pick()]) == ["e2"]
