"""Limits over replicas on one machine: what was asked for, and the shares that the agent sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config.model import Per
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables import slot_table as slots_module
from mcproxy.dispatch.tables.limit_shares import Demand, LimitId, Share, key_hash, overflow_hash
from tests.dispatch.flow_controls import QUEUE, Waiting, bucket, held, inflight
from tests.dispatch.permits import at_once
from tests.dispatch.tables.machine import machine
from tests.dispatch.tables.test_limiters import flows

BULK = LimitId("bulk", "bucket", Per.USER)
SHORT = LimitId("interactive", "short", Per.USER)
ALICE, BOB = key_hash(BULK, "alice"), key_hash(BULK, "bob")


def test_hashes_are_the_same_on_all_replicas_and_other_for_each_limit() -> None:
    assert key_hash(BULK, "alice") == 0x78111E7D50D08A0B
    hashes = {
        key_hash(LimitId(name, kind, per), key)
        for name in ("a", "b")
        for kind in ("bucket", "short", "long")
        for per in Per
        for key in ("", "alice", "\udc80")
    }
    assert len(hashes) == 2 * 3 * 3 * 3
    assert all(0 <= each < 1 << 64 for each in hashes)


# -- buckets ---------------------------------------------------------------------------------------------------


def test_what_was_asked_of_a_limit_that_is_forgotten_is_not_kept() -> None:
    with machine() as processes:
        other = BULK._replace(name="other")
        bulk = processes.tables(0).buckets(BULK, 10.0, 10, shared=True)
        processes.memory.default_share(BULK, Share(10.0, 10.0))
        processes.memory.default_share(other, Share(10.0, 10.0))
        bulk.take("alice", processes.clock.seconds())
        processes.memory.demands(other)  # finds what is asked of both
        processes.memory.forget(BULK)
        assert processes.memory.demands(BULK) == []


def test_a_limit_without_an_agent_admits_its_burst_and_a_small_share_of_its_rate() -> None:
    with machine() as processes:
        now = processes.clock.seconds()
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        assert buckets.burst == 200  # of the refusal's text
        assert buckets.fill("alice", now) == pytest.approx(200.0)
        assert sum(buckets.take("alice", now) for _ in range(300)) == 200
        assert sum(buckets.take("alice", now + 1.0) for _ in range(100)) == 5
        few = processes.tables(0).counts(SHORT, 3, shared=True)
        assert [few.take("alice"), few.take("alice")] == [True, False]


def test_demands_are_what_was_asked_since_the_last_question() -> None:
    with machine() as processes:
        now = processes.clock.seconds()
        processes.memory.default_share(BULK, Share(1.0, 2.0))
        one, two = (processes.tables(column).buckets(BULK, 20.0, 40, shared=True) for column in range(2))
        plain = processes.tables(0).buckets(BULK, 20.0, 40)
        assert plain.take("alice", now)
        assert [one.take("alice", now), two.take("alice", now), one.take("alice", now)] == [True, True, False]
        assert two.take("bob", now)
        assert sorted(processes.memory.demands(BULK), key=lambda demand: demand.refused) == [
            Demand(BOB, 1, 0, 0),
            Demand(ALICE, 2, 1, 0),
        ]
        assert processes.memory.demands(BULK) == []
        assert not two.take("alice", now)
        assert processes.memory.demands(BULK) == [Demand(ALICE, 0, 1, 0)]
        assert processes.memory.demands(LimitId("unknown", "bucket", Per.ALL)) == []


def test_demands_of_two_limits_do_not_mix() -> None:
    with machine() as processes:
        now = processes.clock.seconds()
        other = LimitId("other", "bucket", Per.USER)
        tables = processes.tables(0)
        assert tables.buckets(BULK, 20.0, 40, shared=True).take("alice", now)
        second = tables.buckets(other, 20.0, 40, shared=True)
        assert second.take("alice", now)
        assert processes.memory.demands(BULK) == [Demand(ALICE, 1, 0, 0)]
        assert second.take("alice", now)
        assert processes.memory.demands(other) == [Demand(key_hash(other, "alice"), 2, 0, 0)]


def test_requests_that_wait_are_refused_once_each() -> None:
    with machine() as processes:
        processes.memory.default_share(BULK, Share(1.0, 1.0))
        runtime = flows(processes, 0, bucket(qps=20, burst=20, queue=QUEUE, per=Per.USER, shared=True))
        limits = runtime.limits_for(["bulk"], "east")
        assert at_once(limits.acquire("alice", False)) is not None
        assert at_once(limits.acquire("alice", False)) is None
        waiting = [Waiting(limits)]
        assert at_once(limits.acquire("alice", False)) is None
        [demand] = processes.memory.demands(BULK)
        assert demand.refused >= 2
        for each in waiting:
            each.cancel()


def test_the_default_share_may_be_set_before_there_is_a_table() -> None:
    with machine() as processes:
        processes.memory.default_share(BULK, Share(2.0, 3.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        now = processes.clock.seconds()
        assert sum(buckets.take("alice", now) for _ in range(10)) == 3
        buckets.resize(100.0, 500, now)  # a reload sets nothing: the agent does
        assert not buckets.take("alice", now)
        processes.clock.advance(1.0)
        assert sum(buckets.take("alice", now + 1.0) for _ in range(10)) == 2


def test_a_greater_share_brings_no_tokens_but_the_rate() -> None:
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(1.0, 2.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        assert sum(buckets.take("alice", clock.seconds()) for _ in range(10)) == 2
        memory.grant(BULK, ALICE, Share(10.0, 20.0))
        memory.grant(BULK, BOB, Share(10.0, 20.0))  # of whom nothing is known yet
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(0.0)
        assert buckets.fill("bob", clock.seconds()) == pytest.approx(2.0)
        clock.advance(1.0)
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(10.0)
        assert buckets.fill("bob", clock.seconds()) == pytest.approx(12.0)
        assert buckets.fill("carol", clock.seconds()) == pytest.approx(2.0)
        memory.grant(BULK, ALICE, Share(4.0, 5.0))
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(5.0)
        memory.grant(BULK, ALICE, Share(4.0, 0.5))  # below one token nothing is admitted
        clock.advance(100.0)
        assert not buckets.take("alice", clock.seconds())


def test_without_a_share_of_its_own_a_key_has_that_of_all_again() -> None:
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(1.0, 5.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        memory.grant(BULK, ALICE, Share(100.0, 50.0))
        clock.advance(10.0)
        assert sum(buckets.take("alice", clock.seconds()) for _ in range(60)) == 50
        memory.grant(BULK, ALICE, None)
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(0.0)
        clock.advance(1.0)
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(1.0)
        memory.default_share(BULK, Share(2.0, 5.0))  # and follows it
        clock.advance(1.0)
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(3.0)
        clock.advance(10.0)
        memory.default_share(BULK, Share(3.0, 6.0))
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(5.0)
        clock.advance(10.0)
        memory.default_share(BULK, Share(3.0, 6.0))
        assert memory._returning[BULK] == {}  # full, it needs nothing of its own any more
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(6.0)


def test_a_key_that_never_had_a_share_gets_none_by_losing_it() -> None:
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(1.0, 5.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        assert buckets.take("alice", clock.seconds())
        memory.grant(BULK, ALICE, None)
        memory.grant(BULK, BOB, None)  # who has no slot either
        assert memory._returning.get(BULK, {}) == {}
        assert memory.memory.words[buckets._find("alice", 0.0).base + layout.B_PARAMETERS] == 0
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(4.0)
        memory.default_share(BULK, Share(1.0, 9.0))
        clock.advance(100.0)
        assert buckets.fill("alice", clock.seconds()) == pytest.approx(9.0)


def test_a_share_is_written_beside_the_one_in_force() -> None:
    """Until it is whole: a process that dies meanwhile leaves the one before to the others."""
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(1.0, 5.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        assert buckets.take("alice", clock.seconds())
        words = memory.memory.words
        base = buckets._find("alice", 0.0).base
        for number in range(5):
            before = words[base + layout.B_PARAMETERS]
            in_force = words[before : before + layout.PARAMETER_WORDS].tolist()
            clock.advance(1.0)
            memory.grant(BULK, ALICE, Share(2.0 + number, 10.0))
            after = words[base + layout.B_PARAMETERS]
            assert after != before
            assert after in (layout.share_of(base), layout.share_of(base) + layout.PARAMETER_WORDS)
            if before:
                assert words[before : before + layout.PARAMETER_WORDS].tolist() == in_force


def test_many_keys_that_had_a_share_once_need_no_slots_for_ever() -> None:
    """Else a user with many names fills the table, and all others share what is left."""
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(1.0, 5.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        for number in range(200):
            key = key_hash(BULK, f"user-{number}")
            memory.grant(BULK, key, Share(0.5, 2.0))
            assert buckets.take(f"user-{number}", clock.seconds())
            memory.grant(BULK, key, None)
        memory.demands(BULK)
        assert len(memory._returning[BULK]) == 200  # none is full yet
        clock.advance(10.0)
        for _ in range(4):  # as its agent does
            memory.demands(BULK)
        assert memory._returning[BULK] == {}
        words = memory.memory.words
        first, end = layout.BUCKETS_AT, layout.COUNTS_AT
        assert not any(words[base + layout.B_PARAMETERS] for base in range(first, end, layout.BUCKET_WORDS))


def test_a_token_that_was_taken_in_advance_is_waited_for_under_any_share() -> None:
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(0.1, 1.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        assert buckets.take("alice", clock.seconds())
        assert not buckets.take_in_turn("alice", clock.seconds())
        memory.grant(BULK, ALICE, Share(2.0, 4.0))
        assert buckets.wait("alice", clock.seconds()) == pytest.approx(0.5)
        clock.advance(0.25)
        memory.grant(BULK, ALICE, None)
        assert not buckets.take_in_turn("alice", clock.seconds())
        assert buckets.wait("alice", clock.seconds()) == pytest.approx(5.0)
        memory.grant(BULK, ALICE, Share(100.0, 4.0))
        clock.advance(0.005)
        assert buckets.take_in_turn("alice", clock.seconds())


shares = st.tuples(st.sampled_from([0.5, 2.0, 10.0]), st.sampled_from([1.0, 2.5, 8.0]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("grant"), shares),
            st.tuples(st.just("none"), st.none()),
            st.tuples(st.just("default"), shares),
            st.tuples(st.just("take"), st.none()),
            st.tuples(st.just("take"), st.none()),
            st.tuples(st.just("pause"), st.sampled_from([0.01, 0.3, 2.0])),
        ),
        max_size=60,
    )
)
def test_whatever_the_shares_a_key_gets_what_they_add_up_to(steps: list[tuple[str, object]]) -> None:
    """The oracle keeps tokens; each change cuts them to the burst, and time adds to them at the rate in force."""
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        default, own = (1.0, 3.0), None
        memory.default_share(BULK, Share(*default))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        tokens = 3.0
        for what, value in steps:
            if what == "pause":
                assert isinstance(value, float)
                clock.advance(value)
                rate, burst = own or default
                tokens = min(burst, tokens + rate * value)
            elif what == "take":
                admitted = buckets.take("alice", clock.seconds())
                assert admitted == (tokens >= 1 - 1e-5)
                tokens -= admitted
            else:
                if what == "grant":
                    assert isinstance(value, tuple)
                    own = value
                    memory.grant(BULK, ALICE, Share(*value))
                elif what == "none":
                    own = None
                    memory.grant(BULK, ALICE, None)
                else:
                    assert isinstance(value, tuple)
                    default = value
                    memory.default_share(BULK, Share(*value))
                tokens = min(tokens, (own or default)[1])
            assert buckets.fill("alice", clock.seconds()) == pytest.approx(tokens, abs=1e-4)


def test_a_slot_with_a_share_is_kept_and_without_room_a_key_has_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module.SlotTable, "_where", lambda table, tag: (0, 0))
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(1.0, 1.0))
        buckets = processes.tables(0).buckets(BULK, 100.0, 200, shared=True)
        for number in range(layout.WINDOW):
            memory.grant(BULK, key_hash(BULK, str(number)), Share(5.0, 5.0))
        memory.grant(BULK, ALICE, Share(5.0, 5.0))
        clock.advance(10.0)
        assert sum(buckets.take("alice", clock.seconds()) for _ in range(9)) == 1
        assert sum(buckets.take("0", clock.seconds()) for _ in range(9)) == 5
        [crowd] = [each for each in memory.demands(BULK) if each.key not in (key_hash(BULK, "0"), ALICE)]
        assert crowd == Demand(overflow_hash(BULK), 1, 8, 0)
        memory.grant(BULK, crowd.key, Share(3.0, 3.0))
        clock.advance(10.0)
        assert sum(buckets.take("alice", clock.seconds()) for _ in range(9)) == 3


# -- counts ----------------------------------------------------------------------------------------------------


def test_what_is_in_flight_is_said_as_long_as_it_is() -> None:
    with machine() as processes:
        memory = processes.memory
        memory.default_share(SHORT, Share(maximum=2))
        counts = processes.tables(0).counts(SHORT, 100, shared=True)
        alice = key_hash(SHORT, "alice")
        assert [counts.take("alice") for _ in range(3)] == [True, True, False]
        assert memory.demands(SHORT) == [Demand(alice, 2, 1, 2)]
        assert memory.demands(SHORT) == [Demand(alice, 0, 0, 2)]
        counts.release("alice")
        assert memory.demands(SHORT) == [Demand(alice, 0, 0, 1)]
        counts.release("alice")
        assert memory.demands(SHORT) == []


def test_shares_end_in_all_processes_though_nobody_takes_them_back() -> None:
    with machine() as processes:
        clock, memory = processes.clock, processes.memory
        memory.default_share(BULK, Share(2.0, 2.0))
        memory.default_share(SHORT, Share(maximum=1))
        one, two = (processes.tables(column).buckets(BULK, 100.0, 200, shared=True) for column in range(2))
        counts = processes.tables(0).counts(SHORT, 100, shared=True)
        memory.grant(BULK, ALICE, Share(50.0, 20.0))
        memory.grant(SHORT, key_hash(SHORT, "alice"), Share(maximum=3))
        for limit in (BULK, SHORT):
            memory.leases_end(limit, clock.seconds() + 5.0)
        clock.advance(4.9)
        assert sum(one.take("alice", clock.seconds()) for _ in range(30)) == 20
        assert [counts.take("alice") for _ in range(3)] == [True, True, True]
        counts.release("alice")
        clock.advance(0.1)
        assert sum(one.take("alice", clock.seconds()) for _ in range(30)) == 2  # its tokens, cut to the burst of all
        assert not counts.take("alice")
        clock.advance(0.5)
        assert sum(two.take("alice", clock.seconds()) for _ in range(30)) == 1
        for _ in range(2):
            counts.release("alice")
        assert [counts.take("alice") for _ in range(2)] == [True, False]
        # The agent is back: a share of its own again.
        for limit in (BULK, SHORT):
            memory.leases_end(limit, clock.seconds() + 5.0)
        memory.grant(BULK, ALICE, Share(50.0, 20.0))
        memory.grant(SHORT, key_hash(SHORT, "alice"), Share(maximum=2))
        clock.advance(0.2)
        assert sum(two.take("alice", clock.seconds()) for _ in range(30)) == 10
        assert counts.take("alice")


def test_a_maximum_of_its_own_and_none_again() -> None:
    with machine() as processes:
        memory = processes.memory
        memory.default_share(SHORT, Share(maximum=1))
        counts = processes.tables(0).counts(SHORT, 100, shared=True)
        memory.grant(SHORT, key_hash(SHORT, "alice"), Share(maximum=3))
        assert [counts.take("alice") for _ in range(4)] == [True, True, True, False]
        assert [counts.take("bob") for _ in range(2)] == [True, False]
        memory.grant(SHORT, key_hash(SHORT, "alice"), Share(maximum=0))
        counts.release("alice")
        assert not counts.take("alice")
        memory.grant(SHORT, key_hash(SHORT, "alice"), None)
        counts.release("alice")
        assert not counts.take("alice")
        counts.release("alice")
        assert [counts.take("alice") for _ in range(2)] == [True, False]
        assert counts.max == 100


@pytest.mark.parametrize("own", [False, True])
def test_a_greater_share_wakes_who_waits(own: bool) -> None:
    with machine() as processes:
        processes.memory.default_share(SHORT, Share(maximum=1))
        control = inflight(max=50, queue=QUEUE, per=Per.USER, shared=True)
        one, two = (flows(processes, column, control).limits_for(["interactive"], "east") for column in range(2))
        held(at_once(one.acquire("alice", False)))
        waiting = [Waiting(one), Waiting(two)]
        if own:
            processes.memory.grant(SHORT, key_hash(SHORT, "alice"), Share(maximum=3))
        else:
            processes.memory.default_share(SHORT, Share(maximum=3))
        processes.readers.run()
        assert all(each.permit is not None for each in waiting)


def test_limits_that_nobody_knows_are_ignored() -> None:
    with machine() as processes:
        processes.memory.grant(BULK, ALICE, Share(1.0, 1.0))
        processes.memory.forget(BULK)
        assert processes.memory.demands(BULK) == []


def test_a_limit_that_is_forgotten_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "RECORDS", 64)
    with machine() as processes:
        for number in range(layout.RECORDS + 10):
            limit = LimitId(f"limit-{number}", "bucket", Per.ALL)
            processes.memory.default_share(limit, Share(1.0, 1.0))
            processes.memory.forget(limit)
