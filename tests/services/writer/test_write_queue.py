"""Which change is written next, and when."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.services.api_types import SOURCE_CLUSTER
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey
from mcproxy.services.writer.differences import PlannedWrite, Verb
from mcproxy.services.writer.write_queue import BURST, LAST_BLOCK, OBJECT_GAP, RATE, ClusterWriteQueue, scope_of
from tests.support.clock import Clock


def key(name: str, namespace: str = "demo", resource: str = "endpointslices") -> ObjectKey:
    return ObjectKey("east", "discovery.k8s.io", "v1", resource, namespace, name)


def change(name: str, source: str = "west", digest: str = "d", namespace: str = "demo") -> PlannedWrite:
    body = {"metadata": {"labels": {SOURCE_CLUSTER: source}}}
    return PlannedWrite(Verb.APPLY, key(name, namespace), "u", "1", body, digest)


def service(name: str) -> ServiceKey:
    return ServiceKey("demo", name)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pending(clock: Clock) -> ClusterWriteQueue:
    return ClusterWriteQueue(clock.seconds)


def take(pending: ClusterWriteQueue) -> str:
    taken = pending.take()
    return "" if taken is None else taken[1].key.name


def test_only_the_newest_change_of_an_object_waits(pending: ClusterWriteQueue) -> None:
    pending.replace(service("a"), [change("x", digest="1")])
    pending.replace(service("a"), [change("x", digest="2")])
    taken = pending.take()
    assert taken is not None
    assert (taken[0], taken[1].digest) == (service("a"), "2")
    assert pending.take() is None


def test_what_is_not_wanted_any_more_is_not_written(pending: ClusterWriteQueue) -> None:
    pending.replace(service("a"), [change("x"), change("y")])
    pending.replace(service("a"), [change("y")])
    assert [take(pending), take(pending)] == ["y", ""]
    assert pending.next_at() is None


def test_sources_take_turns(pending: ClusterWriteQueue) -> None:
    pending.replace(service("a"), [change(f"west{n}", "west") for n in range(50)])
    pending.replace(service("b"), [change("north0", "north"), change("north1", "north")])
    assert [take(pending) for _ in range(5)] == ["west0", "north0", "west1", "north1", "west2"]


def test_an_object_is_written_once_a_second_and_not_while_it_is_being_written(
    pending: ClusterWriteQueue, clock: Clock
) -> None:
    pending.replace(service("a"), [change("x")])
    taken = pending.take()
    assert taken is not None
    pending.replace(service("a"), [change("x", digest="2")])
    assert take(pending) == ""
    assert pending.next_at() is None  # `done` comes
    pending.done(taken[1])
    assert take(pending) == ""
    assert pending.next_at() == clock.seconds() + OBJECT_GAP
    clock.advance(OBJECT_GAP)
    assert take(pending) == "x"


def test_a_cluster_gets_a_burst_and_then_so_many_a_second(pending: ClusterWriteQueue, clock: Clock) -> None:
    pending.replace(service("a"), [change(f"x{n}") for n in range(1000)])
    first = 0
    while take(pending):
        first += 1
    assert first == BURST
    count = 0
    for _ in range(100):
        clock.advance(0.1)
        while take(pending):
            count += 1
    assert count == pytest.approx(10 * RATE, abs=2)


def test_what_was_refused_is_tried_with_back_off_and_something_else_at_once(
    pending: ClusterWriteQueue, clock: Clock
) -> None:
    times = []
    for _ in range(100_000):
        pending.replace(service("a"), [change("x")])
        taken = pending.take()
        if taken is not None:
            times.append(clock.elapsed)
            pending.failed(taken[1], soon=False)
        clock.advance(0.1)
        if clock.elapsed > 1000:
            break
    gaps = [round(b - a) for a, b in itertools.pairwise(times)]
    assert gaps[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert set(gaps[9:]) <= {300}
    pending.replace(service("a"), [change("x", digest="other")])
    assert take(pending) == "x"


def test_what_was_written_long_ago_is_forgotten_and_what_is_held_or_delayed_is_not(
    pending: ClusterWriteQueue, clock: Clock
) -> None:
    def attempt(name: str) -> PlannedWrite:
        pending.replace(service(name), [change(name)])
        taken = pending.take()
        assert taken is not None
        return taken[1]

    pending.hold(attempt("held"))
    for _ in range(9):
        pending.failed(attempt("delayed"), soon=False)
        clock.advance(256)
    clock.advance(44)
    pending.failed(attempt("delayed"), soon=False)  # for five minutes
    taken = attempt("busy")
    for n in range(9000):
        pending.done(attempt(f"x{n}"))
        clock.advance(1 / RATE)
    assert len(pending._objects) <= 4096 + 3
    for name in ("held", "delayed"):
        pending.replace(service(name), [change(name)])
    assert take(pending) == ""
    pending.replace(service("busy"), [change("busy", digest="2")])
    assert take(pending) == ""
    pending.done(taken)
    clock.advance(OBJECT_GAP)
    assert take(pending) == "busy"


def test_a_conflict_is_tried_again_after_four_seconds_at_most(pending: ClusterWriteQueue, clock: Clock) -> None:
    for _ in range(8):
        pending.replace(service("a"), [change("x")])
        taken = pending.take()
        assert taken is not None
        pending.failed(taken[1], soon=True)
        clock.advance(4)


def test_a_scope_that_is_blocked_gets_one_attempt_and_holds_up_no_other(
    pending: ClusterWriteQueue, clock: Clock
) -> None:
    attempts = 0
    for _ in range(1200):
        pending.replace(service("a"), [change(f"x{n}", namespace="gone") for n in range(100)])
        while (taken := pending.take()) is not None:
            attempts += 1
            pending.block(taken[1], scope_of(taken[1].key, of_resource=False))
        clock.advance(0.1)
    assert attempts < 12
    pending.replace(service("b"), [change("y")])
    assert take(pending) == "y"
    clock.advance(LAST_BLOCK)
    taken = pending.take()
    assert taken is not None
    pending.done(taken[1])
    assert take(pending)  # all others, too


names = st.sampled_from("abcde")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("replace"), names, st.sets(names)),
        st.tuples(
            st.sampled_from(["take", "done", "failed", "soon", "block", "back", "wait", "clear"]), names, st.none()
        ),
    ),
    max_size=60,
)


@given(steps)
def test_every_change_is_taken_in_the_end_and_none_twice_at_one_time(actions: list[tuple[str, str, set[str]]]) -> None:
    clock = Clock()
    pending = ClusterWriteQueue(clock.seconds)
    busy: list[PlannedWrite] = []
    wanted: dict[str, set[str]] = {}
    for what, name, objects in actions:
        if what == "replace":
            wanted[name] = {f"{name}{each}" for each in objects}
            pending.replace(service(name), [change(each, digest=str(clock.seconds())) for each in sorted(wanted[name])])
        elif what == "clear":
            pending.clear()
            wanted.clear()
        elif what == "wait":
            clock.advance(0.7)
        elif what == "take":
            taken = pending.take()
            if taken is not None:
                assert taken[1].key not in {each.key for each in busy}
                busy.append(taken[1])
                wanted[taken[0].service].discard(taken[1].key.name)
        elif busy:
            one = busy.pop()
            if what == "done":
                pending.done(one)
            elif what == "block":
                pending.block(one, scope_of(one.key, of_resource=True))
            elif what == "back":
                pending.drop(one)
            else:
                pending.failed(one, soon=what == "soon")
    for one in busy:
        pending.drop(one)
    left = {each for found in wanted.values() for each in found}
    assert len(pending) == len(left)
    while left:
        at = pending.next_at()
        assert at is not None
        clock.advance(max(0.0, at - clock.seconds()) + 0.001)
        while (taken := pending.take()) is not None:
            left.discard(taken[1].key.name)
            pending.done(taken[1])
    assert pending.next_at() is None or not len(pending)
