"""Bodies of writes that are read whole: how much of them is held together, and what becomes of those beyond."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.writes.held_bodies import DEADLINE, MAX_BODY, PATIENCE, BodyBuffers, HeldBody
from mcproxy.http.messages import CHUNKED, RequestHead
from mcproxy.kube.status import StatusError
from tests.support.clock import Clock

KIB = 1024


class FakeExchange:
    """An exchange whose client sends when `send` is called; what comes while it is paused waits."""

    def __init__(self, length: int, *, expects_continue: bool = False) -> None:
        self.head = RequestHead()
        self.head.length, self.head.expects_continue = length, expects_continue
        self.body_complete = length == 0
        self.ended = False
        self.handler: Any = None
        self.paused = False
        self.interims: list[int] = []
        self.unread: list[bytes] = []

    def attach(self, handler: Any) -> None:
        self.handler = handler
        self.resume_body()

    def send(self, data: bytes, *, end: bool = False) -> None:
        self.unread.append(data)
        self.body_complete = end
        self._deliver()

    def pause_body(self) -> None:
        self.paused = True

    def resume_body(self) -> None:
        self.paused = False
        self._deliver()

    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        self.interims.append(status)

    def _deliver(self) -> None:
        while self.unread and self.handler is not None and not self.paused:
            data = self.unread.pop(0)
            complete = self.body_complete
            self.body_complete = complete and not self.unread
            self.handler.body_data(data)
            self.body_complete = complete
            if complete and not self.unread:
                self.handler.body_end([])


class Reading:
    """One request's body, on its way."""

    def __init__(self, bodies: BodyBuffers, user: str = "bob", length: int = CHUNKED, **options: Any) -> None:
        self.exchange = FakeExchange(length, **options)
        self.body: HeldBody = bodies.of(user)
        self.results: list[Any] = []
        self.waiting = Deferred.fromCoroutine(self.body.read(cast(Any, self.exchange)))
        self.waiting.addCallbacks(self.results.append, lambda failure: self._failed(failure.value))

    def _failed(self, problem: Exception) -> None:
        self.results.append(problem)
        self.body.release()  # as the handler does when it ends

    @property
    def refusal(self) -> StatusError:
        (found,) = self.results
        assert isinstance(found, StatusError)
        return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


def held(clock: Clock, total: int = 100, share: int = 60) -> BodyBuffers:
    """Bounds in KiB."""
    return BodyBuffers(cast(Any, clock), total * KIB, share * KIB, reserved=1)


def test_a_body_is_joined_and_counted_until_it_is_released(clock: Clock) -> None:
    bodies = held(clock)
    reading = Reading(bodies)
    reading.exchange.send(b"ab")
    reading.exchange.send(b"cd", end=True)
    assert (reading.results, bodies.total) == ([b"abcd"], 4)
    reading.body.release()
    reading.body.release()
    assert bodies.total == 0
    assert not clock.getDelayedCalls()


def test_none_is_nothing(clock: Clock) -> None:
    assert Reading(held(clock), length=0).results == [b""]


@pytest.mark.parametrize("length", [MAX_BODY + 1, CHUNKED])
def test_one_that_is_too_long_is_413(clock: Clock, length: int) -> None:
    reading = Reading(BodyBuffers(cast(Any, clock)), length=length)
    if length == CHUNKED:
        for _ in range(4):
            reading.exchange.send(b"x" * (KIB * KIB))
    assert (reading.refusal.code, reading.refusal.message) == (413, "Request entity too large: limit is 3145728")
    assert not clock.getDelayedCalls()


def test_unfinished_bodies_take_no_more_than_the_bounds(clock: Clock) -> None:
    """60 of 3 MB took 170 MB, for as long as their clients liked."""
    bodies = held(clock)
    readings = [Reading(bodies, user=f"user-{number % 30}") for number in range(60)]
    for _ in range(10):
        for reading in readings:
            reading.exchange.send(b"x" * KIB)
    assert bodies.total <= (100 + 60) * KIB  # a read of each goes beyond
    clock.advance(PATIENCE + 0.1)
    assert {reading.refusal.code for reading in readings if reading.results} == {503}
    assert all(("Retry-After" in str(reading.refusal.headers)) for reading in readings if reading.results)
    for _ in range(20):
        clock.advance(DEADLINE / 10)
    assert {reading.refusal.code for reading in readings} == {503, 504}
    assert bodies.total == 0
    assert not clock.getDelayedCalls()


def test_one_user_has_a_share_and_others_are_not_held_up(clock: Clock) -> None:
    bodies = held(clock)
    first = Reading(bodies)
    first.exchange.send(b"x" * 60 * KIB)
    assert first.exchange.paused
    second, other = Reading(bodies), Reading(bodies, user="alice")
    other.exchange.send(b"x" * 10 * KIB, end=True)
    assert len(other.results[0]) == 10 * KIB
    second.exchange.send(b"x")
    assert second.exchange.handler is None  # unread
    clock.advance(PATIENCE)
    assert first.refusal.code == 429
    assert first.refusal.details == {"retryAfterSeconds": 1}
    second.exchange.send(b"x", end=True)  # its turn came when the first one was given up
    assert second.results == [b"xx"]


def test_what_waits_goes_on_in_its_turn_when_another_is_released(clock: Clock) -> None:
    bodies = held(clock, share=100)
    full = Reading(bodies)
    full.exchange.send(b"x" * 100 * KIB, end=True)
    waiting = [Reading(bodies, expects_continue=True) for _ in range(3)]
    assert [each.exchange.interims for each in waiting] == [[], [], []]
    for each in waiting:
        each.exchange.send(b"y" * 60 * KIB)
    clock.advance(PATIENCE - 1)
    full.body.release()
    assert [each.exchange.handler is not None for each in waiting] == [True, True, False]
    assert [each.exchange.paused for each in waiting[:2]] == [False, True]
    waiting[0].exchange.send(b"z", end=True)
    assert len(waiting[0].results[0]) == 60 * KIB + 1
    waiting[0].body.release()
    assert waiting[2].exchange.handler is not None
    assert not waiting[1].exchange.paused


def test_a_client_that_does_not_finish_is_not_waited_for(clock: Clock) -> None:
    bodies = held(clock)
    reading = Reading(bodies)
    for _ in range(30):  # it always sends something
        reading.exchange.send(b"x")
        clock.advance(DEADLINE / 29)
    assert (reading.refusal.code, reading.refusal.reason) == (504, "Timeout")
    assert bodies.total == 0
    reading.exchange.send(b"x", end=True)  # is dropped
    assert bodies.total == 0


@pytest.mark.parametrize("paused", [False, True])
def test_a_client_that_goes_away_leaves_nothing(clock: Clock, paused: bool) -> None:
    bodies = held(clock, total=10)
    reading = Reading(bodies)
    reading.exchange.send(b"x" * (10 if paused else 1) * KIB)
    reading.exchange.handler.cancelled()
    assert isinstance(reading.results[0], CancelledError)
    assert bodies.total == 0
    assert not clock.getDelayedCalls()


def test_nor_does_one_that_waited_unread(clock: Clock) -> None:
    bodies = held(clock, total=10)
    Reading(bodies).exchange.send(b"x" * 10 * KIB)
    reading = Reading(bodies, user="alice")
    reading.waiting.cancel()
    assert isinstance(reading.results[0], CancelledError)
    assert len(clock.getDelayedCalls()) == 2  # of the first one


def test_very_many_cannot_begin_at_once_by_sending_little(clock: Clock) -> None:
    bodies = BodyBuffers(cast(Any, clock), 100 * KIB, 60 * KIB, reserved=10 * KIB)
    readings = [Reading(bodies, user=f"user-{number}") for number in range(100)]
    assert sum(each.exchange.handler is not None for each in readings) == 10
    small = BodyBuffers(cast(Any, clock), 100 * KIB, 60 * KIB, reserved=10 * KIB)
    readings = [Reading(small, user=f"user-{number}", length=KIB) for number in range(200)]
    assert sum(each.exchange.handler is not None for each in readings) == 100
    readings[0].exchange.send(b"x", end=True)
    assert small.total == 99 * KIB + 1 + KIB  # the next one has begun


def test_only_so_many_wait(clock: Clock) -> None:
    bodies = held(clock, total=1)
    Reading(bodies).exchange.send(b"x" * KIB)
    readings = [Reading(bodies) for _ in range(1100)]
    assert {each.refusal.code for each in readings if each.results} == {503}
    assert sum(bool(each.results) for each in readings) == 100


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.integers(1, 20)), max_size=80))
def test_whatever_happens_the_count_is_that_of_what_is_held(steps: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    bodies = held(clock, total=40, share=25)
    readings: dict[int, Reading] = {}
    for place, step, size in steps:
        reading = readings.get(place)
        if reading is None or reading.results:
            if reading is not None:
                reading.body.release()
            readings[place] = Reading(bodies, user=f"user-{place % 3}")
        elif step == 3:
            reading.waiting.cancel()
        elif step == 2:
            clock.advance(size / 5)
        elif not reading.exchange.body_complete:
            reading.exchange.send(b"x" * size * KIB, end=step == 1)
        assert 0 <= bodies.total <= (40 + 20 * 8) * KIB
    for reading in readings.values():
        if not reading.results:
            reading.waiting.cancel()
        reading.body.release()
    assert bodies.total == 0
    assert not clock.getDelayedCalls()
