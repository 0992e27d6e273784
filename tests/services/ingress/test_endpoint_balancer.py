"""The choice of an endpoint: clusters by weight, strategies, who may be chosen, and that nothing forgets its turn."""

from __future__ import annotations

from collections import Counter
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import HashBy, Strategy
from mcproxy.services.endpoint_table import PodEndpoint
from mcproxy.services.ingress.endpoint_balancer import (
    RING_POINTS,
    EndpointBalancer,
    HashRing,
    client_key,
    points_of,
    ring_place,
)
from mcproxy.services.ingress.endpoint_health import FIRST_OUT, LONGEST_OUT, MAX_FAILURES, BackendEndpoint
from tests.services.ingress.parts import FakeMember, FakeTarget, endpoint
from tests.support.clock import Clock

ROUND_ROBIN, LEAST, HASH = Strategy.ROUND_ROBIN, Strategy.LEAST_REQUESTS, Strategy.CONSISTENT_HASH


def balancer(
    members: dict[str, Any], weights: dict[str, int] | None = None, strategy: Strategy = ROUND_ROBIN, **more: Any
) -> EndpointBalancer:
    return EndpointBalancer(members, weights or dict.fromkeys(members, 1), strategy, lambda: 0.0, **more)


def names(balancer: EndpointBalancer, count: int) -> str:
    """Return the last parts of the addresses that are picked."""
    return "".join(_name(balancer.pick()) for _ in range(count))


def _name(endpoint: Any) -> str:
    return "-" if endpoint is None else str(endpoint.target.name)


def out(endpoint: Any) -> None:
    """Have it fail until it is out."""
    for _ in range(MAX_FAILURES):
        endpoint.failed("refused")


class TestTurns:
    def test_endpoints_take_exact_turns(self) -> None:
        assert names(balancer({"east": FakeMember(*map(endpoint, "123"))}), 7) == "1231231"

    def test_a_hundred_requests_reach_all_of_ten(self) -> None:
        """Ingress conformance: load balancing."""
        found = Counter(names(balancer({"east": FakeMember(*map(endpoint, "0123456789"))}), 100))
        assert set(found.values()) == {10}

    def test_turns_begin_anywhere(self) -> None:
        members = {"east": FakeMember(*map(endpoint, "1234"))}
        assert names(EndpointBalancer(members, {"east": 1}, ROUND_ROBIN, lambda: 0.6), 4) == "3412"

    def test_turns_go_on_when_endpoints_come_and_go(self) -> None:
        one, two, three, four = map(endpoint, "1234")
        member = FakeMember(one, two, three)
        turns = balancer({"east": member})
        assert names(turns, 1) == "1"
        member.endpoints = (one, three, four)  # 2, whose turn it is, is gone
        turns.changed()
        assert names(turns, 4) == "3413"

    def test_turns_go_on_over_a_reload(self) -> None:
        members = {"east": FakeMember(*map(endpoint, "123"))}
        before = balancer(members)
        assert names(before, 2) == "12"
        after = balancer(members, previous=before)
        assert names(after, 2) == "31"

    def test_what_was_tried_is_left_out(self) -> None:
        one, two = endpoint("1"), endpoint("2")
        turns = balancer({"east": FakeMember(one), "west": FakeMember(two)})
        assert turns.pick([one]) is two
        tried: list[Any] = [one, two]
        assert turns.pick(tried) is None


class TestWeights:
    def test_clusters_share_by_weight(self) -> None:
        turns = balancer(
            {"east": FakeMember(endpoint("1"), endpoint("2")), "west": FakeMember(endpoint("3"))},
            {"east": 3, "west": 1},
        )
        assert Counter(names(turns, 400)) == {"1": 150, "2": 150, "3": 100}
        assert names(turns, 4).count("3") == 1

    def test_a_weight_of_zero_is_none_at_all(self) -> None:
        turns = balancer({"east": FakeMember(), "west": FakeMember(endpoint("3"))}, {"east": 1, "west": 0})
        assert turns.pick() is None
        assert not turns.has_endpoints

    def test_a_cluster_without_endpoints_leaves_its_share_to_the_others(self) -> None:
        east = FakeMember()
        turns = balancer({"east": east, "west": FakeMember(endpoint("3"))}, {"east": 9, "west": 1})
        assert names(turns, 3) == "333"
        east.endpoints = (endpoint("1"),)
        turns.changed()
        assert Counter(names(turns, 100))["1"] in (89, 90, 91)

    def test_other_weights_after_a_reload(self) -> None:
        members = {"east": FakeMember(endpoint("1")), "west": FakeMember(endpoint("2"))}
        before = balancer(members, {"east": 1, "west": 1})
        names(before, 3)
        after = balancer(members, {"east": 3, "west": 1}, previous=before)
        assert Counter(names(after, 400)) == {"1": 300, "2": 100}


class TestWhoMayBeChosen:
    def test_one_that_is_out_is_stepped_over(self) -> None:
        one, two, three = map(endpoint, "123")
        turns = balancer({"east": FakeMember(one, two, three)})
        two.changed = turns.changed
        out(two)
        assert names(turns, 4) == "1313"

    def test_if_all_are_out_all_are_used(self) -> None:
        one, two = endpoint("1"), endpoint("2", "west")
        turns = balancer({"east": FakeMember(one), "west": FakeMember(two)})
        for each in (one, two):
            each.changed = turns.changed
            out(each)
        assert Counter(names(turns, 10)) == {"1": 5, "2": 5}

    def test_another_cluster_comes_before_one_that_is_out(self) -> None:
        one, two = endpoint("1"), endpoint("2", "west")
        turns = balancer({"east": FakeMember(one), "west": FakeMember(two)})
        one.changed = turns.changed
        one.checked(True, "its check failed")
        assert names(turns, 3) == "222"
        one.checked(False)
        assert "1" in names(turns, 2)

    def test_one_that_ends_gets_a_request_only_if_no_cluster_has_a_ready_one(self) -> None:
        ending, ready = endpoint("1", terminating=True), endpoint("2", "west")
        west = FakeMember(ready)
        turns = balancer({"east": FakeMember(ending), "west": west})
        assert names(turns, 2) == "22"
        ready.changed = turns.changed
        out(ready)
        assert names(turns, 2) == "22"  # it is out, but its cluster calls it ready
        west.endpoints = ()
        turns.changed()
        assert names(turns, 2) == "11"

    def test_none(self) -> None:
        assert balancer({"east": FakeMember()}).pick() is None


class TestLeastRequests:
    def test_the_least_busy_is_chosen_and_equals_take_turns(self) -> None:
        one, two, three = map(endpoint, "123")
        turns = balancer({"east": FakeMember(one, two, three)}, strategy=LEAST)
        assert names(turns, 4) == "1231"
        one.target.in_flight, two.target.in_flight, three.target.in_flight = 5, 2, 9
        assert names(turns, 2) == "22"

    def test_a_cluster_is_chosen_by_weight_first(self) -> None:
        one, two = endpoint("1"), endpoint("2", "west")
        turns = balancer({"east": FakeMember(one), "west": FakeMember(two)}, strategy=LEAST)
        one.target.in_flight = 100
        assert Counter(names(turns, 10)) == {"1": 5, "2": 5}

    def test_of_many_those_next_in_turn_are_compared(self) -> None:
        many = [endpoint(str(number)) for number in range(200)]
        for each in many:
            each.target.in_flight = 1
        turns = balancer({"east": FakeMember(*many)}, strategy=LEAST)
        found = {_name(turns.pick()) for _ in range(200)}
        assert len(found) == 200


class TestConsistentHash:
    def owners(self, turns: EndpointBalancer, count: int = 400) -> dict[int, str]:
        return {number: _name(turns.pick((), b"%d" % number)) for number in range(count)}

    def test_a_client_has_one_endpoint_whatever_process_it_asks(self) -> None:
        first, second = (balancer({"east": FakeMember(*map(endpoint, "123"))}, strategy=HASH) for _ in range(2))
        found = self.owners(first)
        assert self.owners(first) == self.owners(second) == found
        assert min(Counter(found.values()).values()) > 80

    def test_only_clients_of_what_goes_move_and_they_come_back(self) -> None:
        many = [endpoint(str(number)) for number in range(10)]
        member = FakeMember(*many)
        turns = balancer({"east": member}, strategy=HASH)
        before = self.owners(turns)
        member.endpoints = tuple(many[1:])
        turns.changed()
        now = self.owners(turns)
        assert {number for number in before if before[number] != now[number]} == {
            number for number, owner in before.items() if owner == "0"
        }
        assert len({owner for number, owner in now.items() if before[number] == "0"}) > 3  # not all to one
        member.endpoints = tuple(many)
        turns.changed()
        assert self.owners(turns) == before

    def test_clusters_have_clients_by_weight(self) -> None:
        members = {"east": FakeMember(endpoint("1")), "west": FakeMember(endpoint("2", "west"))}
        found = Counter(self.owners(balancer(members, {"east": 3, "west": 1}, HASH), 2000).values())
        assert 1400 < found["1"] < 1600
        alone = balancer(members, {"east": 3, "west": 0}, HASH)
        assert set(self.owners(alone).values()) == {"1"}

    def test_a_request_that_failed_goes_to_the_next_and_then_to_the_next_cluster(self) -> None:
        east = [endpoint(name) for name in "12"]
        turns = balancer({"east": FakeMember(*east), "west": FakeMember(endpoint("3", "west"))}, strategy=HASH)
        for number in range(20):
            key = b"%d" % number
            tried: list[Any] = []
            for _ in range(3):
                found = turns.pick(tried, key)
                assert found is not None
                assert found not in tried
                tried.append(found)
            assert turns.pick(tried, key) is None

    def test_of_thousands_a_pick_is_one_search(self) -> None:
        many = [BackendEndpoint("east", PodEndpoint(f"10.1.{n >> 8}.{n & 255}", 80), FakeTarget(), Clock())  # type: ignore[arg-type]
                for n in range(5000)]  # fmt: skip
        ring = HashRing(many)
        assert len(ring._places) <= RING_POINTS + len(many) * 8
        found = {ring.pick(ring_place(b"%d" % number)) for number in range(5000)}
        assert len(found) > 2500

    def test_points_stay_when_there_are_more_of_them(self) -> None:
        assert points_of("a", 160)[:8] == points_of("a", 8)

    @pytest.mark.parametrize(
        ("by", "fields", "key"),
        [
            (None, b"X-User: a\r\n", b"10.9.8.7"),
            (HashBy(header="X-User"), b"Accept: b\r\nx-user: a \r\n", b"a"),
            (HashBy(header="X-User"), b"Accept: b\r\n", b"10.9.8.7"),
            (HashBy(header="X-User"), b"X-User:\r\n", b"10.9.8.7"),
            (HashBy(cookie="id"), b"Cookie: a=b; id=one; id=two\r\n", b"one"),
            (HashBy(cookie="id"), b"Cookie: xid=one\r\n", b"10.9.8.7"),
            (HashBy(cookie="i.d"), b"Cookie: ixd=one\r\n", b"10.9.8.7"),
        ],
    )
    def test_what_a_client_is_known_by(self, by: HashBy | None, fields: bytes, key: bytes) -> None:
        assert client_key(by)(fields, "10.9.8.7") == key


class TestSlowStart:
    def test_a_new_endpoint_gets_to_its_share(self) -> None:
        clock, random = Clock(), Random(1)
        old, new = endpoint("1", clock=clock), endpoint("2", clock=clock)
        new.since = clock.seconds()
        turns = EndpointBalancer(
            {"east": FakeMember(old, new)},
            {"east": 1},
            ROUND_ROBIN,
            random.random,
            slow_start=100.0,
            clock=clock.seconds,
        )
        shares = []
        for _ in range(3):
            shares.append(Counter(names(turns, 2000))["2"] / 2000)
            clock.advance(50)
        assert 0.06 < shares[0] < 0.13  # a tenth of its turns
        assert 0.28 < shares[1] < 0.38  # half of them
        assert shares[2] == 0.5
        assert Counter(names(turns, 10)) == {"1": 5, "2": 5}

    def test_where_all_are_new_each_gets_its_part(self) -> None:
        clock, random = Clock(), Random(1)
        both = [endpoint(name, clock=clock) for name in "12"]
        for each in both:
            each.since = clock.seconds()
        turns = EndpointBalancer(
            {"east": FakeMember(*both)}, {"east": 1}, ROUND_ROBIN, random.random, slow_start=100.0, clock=clock.seconds
        )
        assert 800 < Counter(names(turns, 2000))["1"] < 1200

    def test_it_counts_as_busier_where_the_least_busy_is_chosen(self) -> None:
        clock = Clock()
        old, new = endpoint("1", clock=clock), endpoint("2", clock=clock)
        new.since = clock.seconds()
        turns = EndpointBalancer(
            {"east": FakeMember(old, new)}, {"east": 1}, LEAST, lambda: 0.0, slow_start=10.0, clock=clock.seconds
        )
        old.target.in_flight = 5
        assert names(turns, 2) == "11"  # one tenth of the share: as if it had ten
        old.target.in_flight = 20
        assert names(turns, 1) == "2"
        clock.advance(10)
        old.target.in_flight = 1
        assert names(turns, 2) == "22"

    @pytest.mark.parametrize("by_checks", [False, True], ids=["requests", "checks"])
    def test_one_that_was_out_and_is_back_starts_as_slowly(self, by_checks: bool) -> None:
        """As nginx' slow_start: "when unhealthy server becomes healthy, or when the server becomes available after a
        period of time it was considered unavailable".
        """
        clock, random = Clock(), Random(1)
        stayed, back = endpoint("1", clock=clock), endpoint("2", clock=clock)
        turns = EndpointBalancer(
            {"east": FakeMember(stayed, back)},
            {"east": 1},
            ROUND_ROBIN,
            random.random,
            slow_start=100.0,
            clock=clock.seconds,
        )
        stayed.changed = back.changed = turns.changed
        assert Counter(names(turns, 10)) == {"1": 5, "2": 5}
        if by_checks:
            back.checked(True, "no answer")
            assert names(turns, 3) == "111"
            back.checked(False)
        else:
            out(back)
            assert names(turns, 3) == "111"
            clock.advance(FIRST_OUT)
        assert 0.06 < Counter(names(turns, 2000))["2"] / 2000 < 0.13
        clock.advance(100)
        assert Counter(names(turns, 10)) == {"1": 5, "2": 5}

    def test_it_is_back_when_the_last_reason_why_it_was_out_is_gone(self) -> None:
        clock = Clock()
        one = endpoint("1", clock=clock)
        out(one)
        one.checked(True, "no answer")
        clock.advance(FIRST_OUT)
        assert (one.usable, one.since) == (False, -inf)
        clock.advance(5)
        one.checked(False)
        assert (one.usable, one.since) == (True, clock.seconds())

    def test_failures_that_do_not_put_it_out_and_checks_that_say_the_same_slow_nothing(self) -> None:
        one = endpoint("1")
        for _ in range(MAX_FAILURES - 1):
            one.failed("reset")
        one.succeeded()
        one.checked(False)
        assert one.since == -inf


class TestPassiveHealth:
    def test_the_figures_are_those_of_the_page(self) -> None:
        assert (MAX_FAILURES, FIRST_OUT, LONGEST_OUT) == (3, 10.0, 60.0)

    def test_it_takes_three_failures_in_a_row(self) -> None:
        one = endpoint("1")
        told = []
        one.went_out = lambda endpoint, seconds: told.append(seconds)
        for _ in range(MAX_FAILURES - 1):
            one.failed("reset")
        one.succeeded()
        for _ in range(MAX_FAILURES - 1):
            one.failed("reset")
        assert one.usable
        one.failed("reset")
        assert not one.usable
        one.failed("reset")  # of a request that was there before
        assert told == [FIRST_OUT]

    def test_one_failure_of_its_trial_puts_it_out_for_twice_as_long(self) -> None:
        clock = Clock()
        one = endpoint("1", clock=clock)
        out(one)
        expected = FIRST_OUT
        for _ in range(8):
            clock.advance(expected - 0.01)
            assert not one.usable
            clock.advance(0.02)
            assert one.usable
            expected = min(LONGEST_OUT, expected * 2)
            one.failed("reset")
        clock.advance(LONGEST_OUT)
        one.succeeded()
        out(one)
        clock.advance(FIRST_OUT)
        assert one.usable

    def test_one_that_is_gone_leaves_no_timer(self) -> None:
        clock = Clock()
        one = endpoint("1", clock=clock)
        out(one)
        one.stop()
        assert not clock.getDelayedCalls()
        two = endpoint("2", clock=clock)
        two.stop()
        out(two)  # by requests that were there when it went
        assert not clock.getDelayedCalls()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=8),
    st.lists(st.integers(0, 4), min_size=3, max_size=3),
    st.booleans(),
)
def test_the_choice_is_always_of_the_best_that_there_is(
    pods: list[tuple[int, bool, bool]], weights: list[int], least: bool
) -> None:
    """Usable ready ones, else ready ones, else ending ones; never of a cluster without weight."""
    clusters: list[list[Any]] = [[], [], []]
    for number, (cluster, terminating, out) in enumerate(pods):
        each = endpoint(str(number), str(cluster), terminating=terminating)
        each.out_by_requests = out
        clusters[cluster].append(each)
    turns = balancer(
        {str(index): FakeMember(*each) for index, each in enumerate(clusters)},
        {str(index): weight for index, weight in enumerate(weights)},
        LEAST if least else ROUND_ROBIN,
    )
    all_ = [each for index, found in enumerate(clusters) for each in found if weights[index]]
    best = [each for each in all_ if each.ready and each.usable] or [each for each in all_ if each.ready] or all_
    picked = [turns.pick() for _ in range(sum(weights) * max(1, len(best)))]
    if best:
        assert set(picked) == set(best)
    else:
        assert turns.pick() is None
