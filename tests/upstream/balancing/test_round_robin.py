"""Round robin: exact turns over what is ready, by weight if there are weights; the position outlives a reload."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.requestinfo import parse
from mcproxy.upstream.balancing.round_robin import RoundRobin
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from tests.upstream.fakes import cluster_config, endpoint_config, make_upstream_context, names, some_endpoints

PODS = b"/api/v1/namespaces/demo/pods"


def test_ready_endpoints_take_turns_in_the_listed_order() -> None:
    balancer = RoundRobin(some_endpoints(3))
    assert names([balancer.pick() for _ in range(5)]) == ["e0", "e1", "e2", "e0", "e1"]


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_turns_are_exact_whatever_is_out(case: tuple[int, set[int]]) -> None:
    count, ready = case
    balancer = RoundRobin(some_endpoints(count, ready))
    picked = Counter(names([balancer.pick() for _ in range(7 * len(ready))]))
    assert picked == {f"e{index}": 7 for index in ready}


def test_equal_weights_are_no_weights() -> None:
    balancer = RoundRobin(some_endpoints(3, {0, 2}, weights=(4, 4, 4)))
    assert names([balancer.pick() for _ in range(4)]) == ["e0", "e2", "e0", "e2"]


def test_weights_are_shares_spread_over_the_round() -> None:
    balancer = RoundRobin(some_endpoints(3, weights=(10, 2, 2)))  # as 5, 1, 1
    assert names([balancer.pick() for _ in range(7)]) == ["e0", "e0", "e1", "e0", "e2", "e0", "e0"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["up", "down", "reload"]), st.integers(0, 3), st.integers(0, 9)), max_size=12
)


@given(st.lists(st.integers(1, 6), min_size=4, max_size=4), STEPS)
def test_after_any_ups_downs_and_reloads_each_ready_one_has_its_share_within_one(
    weights: list[int], steps: list[tuple[str, int, int]]
) -> None:
    every = some_endpoints(4, weights=weights)
    balancer = RoundRobin(every)
    for step, index, picks in steps:
        if step == "reload":
            balancer = RoundRobin((*every[index:], *every[:index])[: max(1, index)], balancer)
        else:
            for _ in range(3):
                every[index].record_check(None if step == "up" else "down")
        for _ in range(picks):
            balancer.pick()
    ready = [endpoint for endpoint in balancer.endpoints if endpoint.ready]
    divisor = 1 if len(set(weights)) > 1 else weights[0]
    picked = Counter(balancer.pick() for _ in range(sum(endpoint.config.weight for endpoint in ready) // divisor))
    assert all(abs(picked[endpoint] - endpoint.config.weight // divisor) <= 1 for endpoint in ready)
    assert not set(picked) - set(ready)


def test_weights_of_a_reload_apply_once_it_is_done() -> None:
    config = cluster_config(endpoint_config("a"), endpoint_config("b", "10.0.0.2"))
    shared = make_upstream_context()
    old = Cluster.build(config, shared)
    heavier = replace(config, endpoints=(replace(config.endpoints[0], weight=3), config.endpoints[1]))
    new = Cluster.build(heavier, shared, old)
    new.start()
    old.stop(successor=new)
    assert new.endpoints == old.endpoints
    assert Counter(names([new.pick() for _ in range(8)])) == {"a": 6, "b": 2}


def test_the_position_goes_on_after_a_reload() -> None:
    made = some_endpoints(3)
    before = RoundRobin(made)
    before.pick()
    after = RoundRobin(made, before)
    assert names([after.pick(), after.pick()]) == ["e1", "e2"]


def test_the_position_is_the_next_endpoint_that_is_still_there() -> None:
    made = some_endpoints(4)
    before = RoundRobin(made)
    before.pick()
    after = RoundRobin((made[3], made[0], made[2]), before)  # e1 would have been next
    assert names([after.pick(), after.pick()]) == ["e2", "e3"]


def test_a_weighted_round_goes_on_after_a_reload() -> None:
    made = some_endpoints(3, weights=(5, 1, 1))
    before = RoundRobin(made)
    begun = [before.pick() for _ in range(3)]
    after = RoundRobin(made, before)
    assert names([*begun, *(after.pick() for _ in range(4))]) == ["e0", "e0", "e1", "e0", "e2", "e0", "e0"]


def ask(balancer: RoundRobin, target: bytes, user: str = "ann") -> Endpoint | None:
    return balancer.pick((), user, parse(b"GET", target), target)


def test_a_watch_goes_where_the_list_was_answered_and_takes_no_turn() -> None:
    balancer = RoundRobin(some_endpoints(3))
    watch = PODS + b"?watch=1&resourceVersion=7"
    assert names([ask(balancer, PODS), ask(balancer, watch), ask(balancer, watch), balancer.pick()]) == [
        "e0",
        "e0",
        "e0",
        "e1",
    ]


@pytest.mark.parametrize("version", [b"", b"&resourceVersion=", b"&resourceVersion=0", b"&resourceVersionMatch=7"])
def test_a_watch_from_no_version_takes_its_turn_and_is_gone_on_from(version: bytes) -> None:
    balancer = RoundRobin(some_endpoints(3))
    ask(balancer, PODS)
    assert names([ask(balancer, PODS + b"?watch=1" + version)]) == ["e1"]
    assert names([ask(balancer, PODS + b"?watch=1&resourceVersion=9")]) == ["e1"]


def test_a_watch_takes_its_turn_when_the_endpoint_of_its_list_is_out() -> None:
    made = some_endpoints(3)
    balancer = RoundRobin(made)
    ask(balancer, PODS)
    for _ in range(3):
        made[0].record_check("down")
    watch = PODS + b"?watch=1&resourceVersion=7"
    assert names([ask(balancer, watch), ask(balancer, watch), balancer.pick()]) == ["e1", "e1", "e2"]


def test_a_retried_watch_does_not_go_where_it_failed() -> None:
    made = some_endpoints(2)
    balancer = RoundRobin(made)
    ask(balancer, PODS)
    watch = PODS + b"?watch=1&resourceVersion=7"
    assert balancer.pick([made[0]], "ann", parse(b"GET", watch), watch) is made[1]


def test_the_list_is_remembered_over_a_reload() -> None:
    made = some_endpoints(3)
    before = RoundRobin(made)
    ask(before, PODS)
    after = RoundRobin(made, before)
    assert ask(after, PODS + b"?watch=1&resourceVersion=7") is made[0]
    assert ask(RoundRobin(made[1:], before), PODS + b"?watch=1&resourceVersion=7") is made[1]
