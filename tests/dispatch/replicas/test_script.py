"""The script, in a real Redis whose clock is an argument: what it grants never adds up to more than the limit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcproxy.config.model import Per
from mcproxy.dispatch.replicas.leases import LeasedLimit, equal_part
from mcproxy.dispatch.replicas.script import Ask, How, leaving, parse, renewal
from mcproxy.dispatch.tables.limit_shares import LimitId
from tests.dispatch.replicas.virtual import BUCKET, FIFTY, LASTS, PREFIX, SHORT, VirtualRedis

KEY = 7
TEN = LeasedLimit(SHORT, 10)


def settled(virtual: VirtualRedis, limit: LeasedLimit, *members: str) -> None:
    """Let replicas join, and the state be old enough that something is free."""
    for _ in range(3):
        for member in members:
            virtual.renew(limit, member)
        virtual.now += LASTS / 2


def lease(virtual: VirtualRedis, member: str, ask: Ask, limit: LeasedLimit = TEN) -> float | None:
    return virtual.renew(limit, member, [ask]).granted[0].lease


def test_a_new_state_gives_what_a_replica_holds_and_nothing_more(virtual: VirtualRedis) -> None:
    assert lease(virtual, "a", Ask(KEY, 10, held=4)) == 4
    virtual.now += LASTS
    assert lease(virtual, "a", Ask(KEY, 10, held=4)) == 10


def test_what_is_free_is_what_the_others_neither_hold_nor_have_as_their_equal_part(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b", "c")
    assert lease(virtual, "a", Ask(KEY, 10)) == 4  # b and c have 3 each
    assert lease(virtual, "b", Ask(KEY, 0)) == 0
    assert lease(virtual, "a", Ask(KEY, 10)) == 7
    assert lease(virtual, "c", Ask(KEY, 9)) == 3
    assert lease(virtual, "b", Ask(KEY, 9)) == 0


def test_what_is_in_flight_is_nobody_elses_though_it_is_not_granted(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b")
    lease(virtual, "b", Ask(KEY, 0))
    assert lease(virtual, "a", Ask(KEY, 10)) == 10
    assert lease(virtual, "a", Ask(KEY, 2, least=8)) == 2
    assert lease(virtual, "b", Ask(KEY, 8)) == 2
    lease(virtual, "a", Ask(KEY, 2, least=5))
    assert lease(virtual, "b", Ask(KEY, 8)) == 5


def test_a_lease_ends_by_itself_and_with_its_replica(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b")
    lease(virtual, "b", Ask(KEY, 0))
    lease(virtual, "a", Ask(KEY, 10))
    virtual.now += LASTS / 2
    assert lease(virtual, "b", Ask(KEY, 10)) == 0
    virtual.now += LASTS / 2
    assert lease(virtual, "b", Ask(KEY, 10)) == 10
    settled(virtual, TEN, "a", "b")
    assert lease(virtual, "a", Ask(KEY, 10)) == 5
    virtual.leave(TEN, "b")
    assert lease(virtual, "a", Ask(KEY, 10)) == 10


def test_a_lease_is_given_back_when_the_equal_part_is_free(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b")
    lease(virtual, "b", Ask(KEY, 1))
    assert lease(virtual, "a", Ask(KEY, 9)) == 9
    assert lease(virtual, "b", Ask(KEY, 5, how=How.RELEASE)) == 1  # a has 9
    assert lease(virtual, "a", Ask(KEY, 4, least=6, how=How.RELEASE)) is not None  # 6 in flight are more than its part
    assert lease(virtual, "a", Ask(KEY, 4, how=How.RELEASE)) is None
    assert lease(virtual, "b", Ask(KEY, 5, how=How.RELEASE)) is None


def test_who_wants_more_is_made_known_for_a_while(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b")
    virtual.renew(TEN, "a", [Ask(KEY, 10, how=How.WANT_MORE), Ask(8, 5)])
    assert virtual.renew(TEN, "b").noted == (KEY,)
    virtual.now += 2 * LASTS
    assert virtual.renew(TEN, "b").noted == ()


def test_wants_come_in_one_order_for_all(virtual: VirtualRedis) -> None:
    settled(virtual, FIFTY, "a", "b", "c")
    for member, want in (("c", 3.0), ("a", 1.0)):
        virtual.renew(FIFTY, member, [Ask(KEY, 5, want=want)])
    (granted,) = virtual.renew(FIFTY, "b", [Ask(KEY, 5, want=2.5)]).granted
    assert (granted.me, granted.wants) == (1, (1.0, 2.5, 3.0))


def test_the_lower_of_two_limits_holds_and_each_is_told_of_the_other(virtual: VirtualRedis) -> None:
    virtual.renew(LeasedLimit(BUCKET, 50.0, 10), "a")
    answer = virtual.renew(LeasedLimit(BUCKET, 20.0, 10), "b")
    assert (answer.limit, answer.differing) == (20, "a qps 50, burst 10")
    answer = virtual.renew(LeasedLimit(BUCKET, 50.0, 10), "a")
    assert (answer.limit, answer.differing) == (20, "b qps 20, burst 10")
    assert virtual.renew(LeasedLimit(BUCKET, 20.0, 11), "c").differing != ""  # another burst is a difference, too
    assert virtual.renew(LeasedLimit(LimitId("other", "bucket", Per.ALL), 1.0, 1), "c").differing == ""


def test_a_clock_that_goes_back_keeps_no_dead_replica_alive(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b")
    lease(virtual, "b", Ask(KEY, 9))
    virtual.now -= 3600
    assert virtual.renew(TEN, "a").members == 2
    virtual.now += LASTS
    answer = virtual.renew(TEN, "a", [Ask(KEY, 10)])
    assert answer.members == 1
    virtual.now += LASTS  # the state counts as new for as long as a lease lasts
    assert lease(virtual, "a", Ask(KEY, 10)) == 10


def test_a_clock_that_goes_forward_gives_no_more_than_the_limit(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b")
    lease(virtual, "a", Ask(KEY, 8))
    lease(virtual, "b", Ask(KEY, 2))
    virtual.now += 3600
    # Fair parts are asked for, not all that may be free, so what was held is held again.
    assert lease(virtual, "b", Ask(KEY, 2, held=2)) == 2
    assert lease(virtual, "a", Ask(KEY, 8, held=8)) == 8


def test_a_known_replica_is_one_at_once_whatever_was_lost(virtual: VirtualRedis) -> None:
    assert virtual.renew(TEN, "a", known=False).joined_for == 0
    virtual.client.flushall()
    assert virtual.renew(TEN, "a", known=True).joined_for == LASTS


def test_one_that_joins_is_told_when_all_others_have_heard_of_it(virtual: VirtualRedis) -> None:
    for member in ("a", "b"):
        virtual.renew(TEN, member)
    virtual.now += LASTS / 2
    before = virtual.renew(TEN, "a").time
    virtual.now += 0.01
    joined = virtual.renew(TEN, "c", known=False)
    assert joined.seen is False
    virtual.now += 0.01
    after = virtual.renew(TEN, "a", seen=before).time
    virtual.renew(TEN, "b", seen=after)
    assert virtual.renew(TEN, "c").seen is False  # what `a` has taken in is from before
    virtual.renew(TEN, "a", seen=after + 3_600_000)  # of another clock
    assert virtual.renew(TEN, "c").seen is False
    virtual.renew(TEN, "a", seen=after)
    assert virtual.renew(TEN, "c").seen is True


def test_all_keys_of_a_limit_are_in_one_slot_whatever_its_name() -> None:
    limit = LimitId("a{b}c", "bucket", Per.USER)
    call = renewal("p", limit, "m", 2.0, 1.0, "", [Ask(1, 1), Ask(2, 1)], whole=False, known=True, seen=0)
    assert {key[: key.index("}") + 1] for key in call.keys} == {"{p:a(b)c:bucket:User}"}
    assert set(leaving("p", limit, "m").keys) < set(call.keys)


GRANTED: list[object] = ["5", 1, "4", "6"]
ANSWER: list[object] = [1_000_000, 9000, 1, 9000, 3, 1, "50", "", [], [GRANTED]]


def answer_with(place: int, value: object) -> list[object]:
    return [*ANSWER[:place], value, *ANSWER[place + 1 :]]


@pytest.mark.parametrize(
    "reply",
    [
        *(None, [], [1], ["x"] * 10, 5),
        *(answer_with(place, value) for place in range(6) for value in (-1, 10**400, "nan", None)),
        *(answer_with(2, 2), answer_with(4, 0), answer_with(5, 3)),
        *(answer_with(6, value) for value in ("nan", "inf", "-inf", "0", "-5", "1e300")),
        *(answer_with(9, []), answer_with(9, [GRANTED, GRANTED]), answer_with(9, [[]]), answer_with(9, [{}])),
        *(answer_with(9, [[value, 0, "4"]]) for value in ("nan", "inf", "-1", "more")),
        *(answer_with(9, [["5", me, "4"]]) for me in (-1, 1, 10**400)),
        *(answer_with(9, [["5", 0, want]]) for want in ("nan", "inf", "-1")),
        answer_with(9, [["5", 0]]),
    ],
)
def test_another_answer_is_refused(reply: object) -> None:
    with pytest.raises(ValueError):
        parse(reply, [Ask(7, 20.0)])


def test_no_answer_gives_more_than_was_asked_for() -> None:
    assert parse(ANSWER, [Ask(7, 20.0)]).granted[0].lease == 5
    assert parse(ANSWER, [Ask(7, 3.0)]).granted[0].lease == 3
    noted = parse(answer_with(8, ["zz", "00000000000000ff", "-1"]), [Ask(7, 3.0)]).noted
    assert noted == (255,)


@pytest.mark.parametrize("row", ["", "junk", "9e9 0 0 x y", "9999999999999 0 0 -5 max", "9999999999999 0 0 nan max"])
def test_rows_that_others_have_written_are_removed(virtual: VirtualRedis, row: str) -> None:
    settled(virtual, TEN, "a", "b")
    tag = f"{{{PREFIX}:{TEN.id.name}:{TEN.id.kind}:{TEN.id.per}}}"
    virtual.client.hset(f"{tag}:members", "stranger", row)
    virtual.client.hset(f"{tag}:key:{KEY:016x}", "b", row)
    answer = virtual.renew(TEN, "a", [Ask(KEY, 9.0)])
    assert (answer.members, answer.limit, answer.differing) == (2, 10, "")
    assert answer.granted[0].lease == 5  # the other half is b's
    assert not virtual.client.hexists(f"{tag}:members", "stranger")


def test_what_others_have_written_makes_no_answer_long(virtual: VirtualRedis) -> None:
    settled(virtual, TEN, "a", "b")
    tag = f"{{{PREFIX}:{TEN.id.name}:{TEN.id.kind}:{TEN.id.per}}}"
    later = round(virtual.now * 1000) + 1000
    virtual.client.hset(f"{tag}:members", "c" * 1000, f"{later} 0 0 10 max {'x' * 100_000}")
    virtual.client.hset(f"{tag}:key:{KEY:016x}", "b", f"{later} 2 {'0' * 100_000}3")
    virtual.client.zadd(f"{tag}:noted", {"f" * 100_000: later, f"{KEY:016x}": later})
    call = renewal(PREFIX, TEN.id, "a", LASTS, 10, TEN.label, [Ask(KEY, 9.0)], whole=True, known=True, seen=0)
    reply = virtual.run(call)
    assert len(str(reply)) < 1000
    answer = parse(reply, [Ask(KEY, 9.0)])
    assert answer.noted == (KEY,)
    assert 3 in answer.granted[0].wants


@dataclass
class Held:
    lease: float
    until: float


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # the replica
        st.sampled_from(["renew", "renew", "renew", "release", "leave", "time", "lose"]),
        st.floats(0, 12),  # what it asks for
        st.integers(0, 4),  # what it has in flight
        st.floats(0, 1.2),  # seconds that pass
    ),
    max_size=60,
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(_STEPS, st.booleans())
def test_leases_that_have_not_expired_never_add_up_to_more_than_the_limit(
    virtual: VirtualRedis, steps: list[tuple[int, str, float, int, float]], whole: bool
) -> None:
    virtual.client.flushall()
    limit = LeasedLimit(SHORT, 10) if whole else LeasedLimit(BUCKET, 10.0, 1)
    held: dict[str, Held] = {}
    seen: dict[str, float] = {}  # when a replica was heard of last
    unsure: set[str] = set()  # without a lease as far as they know: the answer that gave them one was lost
    for number, what, ask, in_flight, seconds in steps:
        member = f"replica-{number}"
        if what == "time":
            virtual.now += seconds
            continue
        if what == "leave":
            virtual.leave(limit, member)
            held.pop(member, None)
            seen.pop(member, None)
            continue
        before = held.get(member, Held(0.0, 0.0))
        holds = before.lease if before.until > virtual.now else 0.0
        least = min(in_flight, int(holds))  # nobody has more in flight than was granted
        how = How.RELEASE if what == "release" else How.RENEW
        question = Ask(KEY, int(ask) if whole else ask, least, holds, ask, how)
        answer = virtual.renew(limit, member, [question])
        seen[member] = virtual.now
        granted = answer.granted[0].lease
        unsure.discard(member)
        if granted is None:
            held.pop(member, None)
        elif what == "lose" and granted >= holds:  # the answer is lost: it goes on with what it held
            if not holds:
                unsure.add(member)
        else:
            held[member] = Held(max(granted, least), virtual.now + LASTS)
        unexpired = {name: each.lease for name, each in held.items() if each.until > virtual.now}
        assert sum(unexpired.values()) <= 10 * (1 + 1e-9)
        if granted is not None and granted > holds:
            # A rise leaves their equal parts to those that have no lease.
            alive = sorted(name for name, at in seen.items() if virtual.now - at < LASTS)
            without = [name for name in alive if name not in unexpired and name not in unsure]
            parts = [equal_part(10, len(alive), alive.index(name), whole=whole) for name in without]
            assert sum(unexpired.values()) + sum(parts) <= 10 * (1 + 1e-9)
