"""What all strategies agree on: who may be picked, and what a reload keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import Strategy
from mcproxy.kube.requestinfo import parse
from mcproxy.upstream.balancing.balancer import make_balancer
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from tests.upstream.fakes import cluster_config, endpoint_config, make_upstream_context, names, some_endpoints

STRATEGIES = st.sampled_from(list(Strategy))
each_strategy = pytest.mark.parametrize("strategy", list(Strategy))
STATES = st.lists(st.sampled_from(["ready", "failed", "unchecked", "disabled", "removed"]), min_size=1, max_size=5)
TARGET = st.sampled_from([b"/version", b"/api/v1/pods", b"/api/v1/pods?watch=1&resourceVersion=5"])


def endpoints_in(states: list[str], weights: list[int]) -> tuple[Endpoint, ...]:
    configs = [
        endpoint_config(f"e{n}", f"10.0.0.{n + 1}", disabled=state == "disabled", weight=weights[n % len(weights)])
        for n, state in enumerate(states)
    ]
    made = Cluster(cluster_config(*configs), make_upstream_context()).endpoints
    for endpoint, state in zip(made, states, strict=True):
        if state != "unchecked":
            endpoint.record_check("down" if state == "failed" else None)
        if state == "removed":
            endpoint.remove()
    return made


@given(STRATEGIES, STATES, st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data())
def test_none_but_a_ready_one_is_picked_or_else_one_that_was_never_checked(
    strategy: Strategy, states: list[str], weights: list[int], data: st.DataObject
) -> None:
    made = endpoints_in(states, weights)
    balancer = make_balancer(strategy, made)
    for _ in range(6):
        exclude = data.draw(st.sets(st.sampled_from(made)))
        target = data.draw(TARGET)
        left = [state for state, endpoint in zip(states, made, strict=True) if endpoint not in exclude]
        picked = balancer.pick(exclude, data.draw(st.sampled_from(["", "ann"])), parse(b"GET", target), target)
        wanted = "ready" if "ready" in left else "unchecked" if "unchecked" in left else None
        if wanted is None:
            assert picked is None
        else:
            assert picked is not None
            assert picked not in exclude
            assert states[made.index(picked)] == wanted


@each_strategy
def test_an_excluded_endpoint_is_not_picked(strategy: Strategy) -> None:
    made = some_endpoints(2)
    balancer = make_balancer(strategy, made)
    assert names([balancer.pick({made[0]}) for _ in range(2)]) == ["e1", "e1"]
    assert balancer.pick(made) is None


@each_strategy
def test_without_endpoints_there_is_none_to_pick(strategy: Strategy) -> None:
    assert make_balancer(strategy, ()).pick() is None


def test_unchecked_endpoints_are_used_only_if_none_is_ready() -> None:
    made = Cluster(
        cluster_config(endpoint_config("a"), endpoint_config("b", "10.0.0.2")), make_upstream_context()
    ).endpoints
    balancer = make_balancer(Strategy.ROUND_ROBIN, made)
    assert names([balancer.pick(), balancer.pick()]) == ["a", "b"]
    made[1].record_check(None)
    assert names([balancer.pick(), balancer.pick()]) == ["b", "b"]
    made[1].record_check("down")
    made[1].record_check("down")
    made[1].record_check("down")
    assert names([balancer.pick(), balancer.pick()]) == ["a", "a"]
    made[0].record_check("down")
    assert balancer.pick() is None


@each_strategy
def test_another_strategy_begins_anew(strategy: Strategy) -> None:
    made = some_endpoints(3)
    for before in Strategy:
        previous = make_balancer(before, made)
        previous.pick()
        balancer = make_balancer(strategy, made, previous)
        assert balancer.endpoints == made
        assert balancer.pick((), "ann") in made
