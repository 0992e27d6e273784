"""Round robin: exact turns over what is ready, and a position that survives a reload."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.upstream.balance import RoundRobin
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from tests.upstream.fakes import cluster_config, endpoint_config, make_shared


def endpoints(count: int, ready: set[int] | None = None) -> tuple[Endpoint, ...]:
    """`count` endpoints; those in `ready` (default all) passed a check, the others failed one."""
    configs = [endpoint_config(name=f"e{n}", host=f"10.0.0.{n + 1}") for n in range(count)]
    made = Cluster(cluster_config(*configs), make_shared()).endpoints
    for index, endpoint in enumerate(made):
        endpoint.record_check(None if ready is None or index in ready else "down")
    return made


def names(picked: list[Endpoint | None]) -> list[str]:
    return ["-" if endpoint is None else endpoint.name for endpoint in picked]


def test_ready_endpoints_take_turns_in_the_listed_order() -> None:
    balance = RoundRobin(endpoints(3))
    assert names([balance.pick() for _ in range(5)]) == ["e0", "e1", "e2", "e0", "e1"]


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_turns_are_exact_whatever_is_out(case: tuple[int, set[int]]) -> None:
    count, ready = case
    balance = RoundRobin(endpoints(count, ready))
    picked = Counter(names([balance.pick() for _ in range(7 * len(ready))]))
    assert picked == {f"e{index}": 7 for index in ready}


def test_an_excluded_endpoint_is_not_picked() -> None:
    made = endpoints(2)
    balance = RoundRobin(made)
    assert names([balance.pick({made[0]}) for _ in range(2)]) == ["e1", "e1"]
    assert balance.pick(made) is None


def test_unchecked_endpoints_are_used_only_if_none_is_ready() -> None:
    made = Cluster(cluster_config(endpoint_config("a"), endpoint_config("b", "10.0.0.2")), make_shared()).endpoints
    balance = RoundRobin(made)
    assert names([balance.pick(), balance.pick()]) == ["a", "b"]
    made[1].record_check(None)
    assert names([balance.pick(), balance.pick()]) == ["b", "b"]
    made[1].record_check("down")
    made[1].record_check("down")
    made[1].record_check("down")
    assert names([balance.pick(), balance.pick()]) == ["a", "a"]
    made[0].record_check("down")
    assert balance.pick() is None


def test_the_position_goes_on_after_a_reload() -> None:
    made = endpoints(3)
    before = RoundRobin(made)
    before.pick()
    after = RoundRobin(made, before)
    assert names([after.pick(), after.pick()]) == ["e1", "e2"]


def test_the_position_is_the_next_endpoint_that_is_still_there() -> None:
    made = endpoints(4)
    before = RoundRobin(made)
    before.pick()
    after = RoundRobin((made[3], made[0], made[2]), before)  # e1 would have been next
    assert names([after.pick(), after.pick()]) == ["e2", "e3"]
