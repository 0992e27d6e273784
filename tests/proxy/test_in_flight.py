"""Ending the requests that are under way, by a clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from mcproxy.proxy.in_flight import InFlightRequests


class FakeRequest:
    """A request; `obeys` tells whether it ends when it is asked to."""

    def __init__(self, in_flight: Any, *, open_ended: bool, obeys: bool = True) -> None:
        self.open_ended = open_ended
        self.obeys = obeys
        self.asked_at: float | None = None
        self.broken_at: float | None = None
        self.upstream = None
        self.waiting = None
        self._in_flight = in_flight
        in_flight.requests.add(self)

    def end(self) -> None:
        self._in_flight.requests.discard(self)

    def end_gracefully(self) -> None:
        self.asked_at = self._in_flight._clock.seconds()
        if self.obeys:
            self.end()

    def abort(self) -> None:
        if self in self._in_flight.requests:
            self.broken_at = self._in_flight._clock.seconds()
            self.end()


class Play:
    def __init__(self) -> None:
        self.clock = Clock()
        self.in_flight: Any = InFlightRequests(self.clock)
        self.ended_at: float | None = None

    def ends(self, requests: list[FakeRequest], timeout: float) -> None:
        done = Deferred.fromCoroutine(self.in_flight.end(requests, timeout))
        done.addCallback(lambda _: setattr(self, "ended_at", self.clock.seconds()))

    def passes(self, seconds: float) -> None:
        self.clock.pump([0.1] * round(seconds / 0.1))


def test_with_nothing_under_way_it_is_over_at_once() -> None:
    play = Play()
    play.ends([], 30)
    assert play.ended_at == 0
    assert not play.clock.getDelayedCalls()


def test_watches_are_asked_to_end_one_after_the_other_within_the_time() -> None:
    play = Play()
    requests = [FakeRequest(play.in_flight, open_ended=True) for _ in range(100)]
    play.ends(requests, 10)
    asked: list[int] = []
    for _ in range(10):
        asked.append(sum(request.asked_at is not None for request in requests))
        play.passes(1)
    assert asked[0] == 1
    assert all(5 < later - earlier < 20 for earlier, later in pairwise(asked[1:]))
    assert play.ended_at is not None
    assert play.ended_at < 10
    assert not play.clock.getDelayedCalls()


def test_what_becomes_a_watch_meanwhile_is_asked_too() -> None:
    play = Play()
    requests = [FakeRequest(play.in_flight, open_ended=open_ended) for open_ended in (True, False, False)]
    play.ends(requests, 10)
    play.passes(5)
    requests[1].open_ended = True
    play.passes(4.5)
    requests[2].open_ended = True
    play.passes(0.2)
    assert all(request.asked_at is not None and request.broken_at is None for request in requests)
    assert play.ended_at is not None


def test_short_requests_are_only_waited_for() -> None:
    play = Play()
    request = FakeRequest(play.in_flight, open_ended=False)
    play.ends([request], 10)
    play.passes(3)
    assert play.ended_at is None
    request.end()
    play.passes(0.2)
    assert play.ended_at is not None
    assert request.asked_at is None


def test_what_does_not_end_is_broken_off_at_the_end_of_the_time_and_others_are_left_alone() -> None:
    play = Play()
    stubborn = [FakeRequest(play.in_flight, open_ended=open_ended, obeys=False) for open_ended in (True, False)]
    other = FakeRequest(play.in_flight, open_ended=True)
    play.ends(stubborn, 5)
    play.passes(4.5)
    assert play.ended_at is None
    play.passes(1)
    assert all(request.broken_at is not None and 5 <= request.broken_at < 5.3 for request in stubborn)
    assert play.ended_at is not None
    assert other in play.in_flight.requests


def test_without_any_time_all_is_broken_off_at_once() -> None:
    play = Play()
    requests = [
        FakeRequest(play.in_flight, open_ended=True, obeys=False),
        FakeRequest(play.in_flight, open_ended=False),
    ]
    play.ends(requests, 0)
    assert (play.ended_at, len(play.in_flight)) == (0, 0)
