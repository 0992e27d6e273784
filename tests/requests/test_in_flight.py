"""Ending the requests that are in flight, by a clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.kube.requestinfo import parse
from mcproxy.proxy.api_requests import APIRequestsInFlight
from mcproxy.requests.in_flight import RequestInFlight, RequestKind, kind_of
from tests.support.clock import Clock

SHORT, WATCH, LOG, TUNNEL = RequestKind.SHORT, RequestKind.WATCH, RequestKind.LOG, RequestKind.TUNNEL


class FakeRequest(RequestInFlight):
    """A request. `obeys`: it ends when it is asked to; `answered`: it can be asked."""

    def __init__(self, in_flight: Any, kind: RequestKind, *, obeys: bool = True, answered: bool = True) -> None:
        self._kind = kind
        self.was_cut = False
        self.obeys = obeys
        self.answered = answered
        self.asked_at: float | None = None
        self.cut_at: float | None = None
        self.closed_at: float | None = None
        self.upstream = None
        self.waiting = None
        self._in_flight = in_flight
        in_flight.requests.add(self)

    @property
    def kind(self) -> RequestKind:
        return self._kind

    def end(self) -> None:
        self._in_flight.requests.discard(self)

    def begin_again(self) -> bool:
        return False

    def end_gracefully(self) -> bool:
        if not self.answered:
            return False
        self.asked_at = self._in_flight._clock.elapsed
        if self.obeys:
            self.end()
        return True

    def cut(self, *, now: bool = False) -> None:
        """A tunnel that obeys closes at once, another one stays until it must go."""
        self.was_cut = True
        if self.cut_at is None:
            self.cut_at = self._in_flight._clock.elapsed
        if self.kind is not TUNNEL or now or self.obeys:
            self.closed_at = self._in_flight._clock.elapsed
            self.end()


class Requests:
    def __init__(self) -> None:
        self.clock = Clock()
        self.in_flight: Any = APIRequestsInFlight(self.clock)
        self.ended_at: float | None = None

    def request(self, kind: RequestKind, **how: bool) -> FakeRequest:
        return FakeRequest(self.in_flight, kind, **how)

    def waits(self, coroutine: Any) -> None:
        done = Deferred.fromCoroutine(coroutine)
        done.addCallback(lambda _: setattr(self, "ended_at", self.clock.elapsed))

    def removes(self, requests: list[FakeRequest], timeout: float) -> None:
        self.waits(self.in_flight.end_removed(requests, timeout))

    def passes(self, seconds: float) -> None:
        self.clock.pump([0.1] * round(seconds / 0.1))


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        (b"GET", b"/api/v1/pods", SHORT),
        (b"GET", b"/version", SHORT),
        (b"GET", b"/api/v1/pods?watch=1", WATCH),
        (b"GET", b"/api/v1/watch/pods", WATCH),
        (b"GET", b"/api/v1/namespaces/a/pods/b/log", SHORT),
        (b"GET", b"/api/v1/namespaces/a/pods/b/log?follow=true", LOG),
        (b"POST", b"/api/v1/namespaces/a/pods/b/exec?command=sh", TUNNEL),
        (b"GET", b"/api/v1/namespaces/a/pods/b/attach", TUNNEL),
        (b"GET", b"/api/v1/namespaces/a/pods/b/portforward", TUNNEL),
        (b"GET", b"/api/v1/namespaces/a/pods/b/proxy/exec", SHORT),
        (b"GET", b"/api/v1/namespaces/a/services/b/proxy/events", SHORT),
    ],
)
def test_what_a_request_is(method: bytes, target: bytes, kind: RequestKind) -> None:
    assert kind_of(parse(method, target)) is kind


class TestDrain:
    def test_with_nothing_to_wait_for_it_is_over_at_once(self) -> None:
        requests_ = Requests()
        requests_.request(SHORT)
        watch = requests_.request(WATCH)
        requests_.waits(requests_.in_flight.drain(30))
        assert requests_.ended_at == 0
        assert watch.asked_at is None
        assert not requests_.clock.getDelayedCalls()

    def test_it_ends_with_the_last_tunnel_or_log_and_cuts_none(self) -> None:
        requests_ = Requests()
        requests = [requests_.request(kind) for kind in (TUNNEL, LOG)]
        requests_.waits(requests_.in_flight.drain(30))
        requests_.passes(20)
        assert not requests_.ended_at
        for request in requests:
            request.end()
        requests_.passes(0.2)
        assert requests_.ended_at is not None
        assert not requests_.in_flight.cut

    def test_what_is_left_is_cut_after_the_whole_time_and_not_waited_for(self) -> None:
        requests_ = Requests()
        requests = [requests_.request(kind, obeys=False) for kind in (TUNNEL, LOG, LOG)]
        short = requests_.request(SHORT)
        requests_.waits(requests_.in_flight.drain(5))
        requests_.passes(4.9)
        assert all(request.cut_at is None for request in requests)
        requests_.passes(0.2)
        assert all(request.cut_at is not None for request in requests)
        assert requests_.ended_at is not None
        assert short.cut_at is None
        assert requests_.in_flight.cut == {TUNNEL: 1, LOG: 2}

    def test_a_tunnel_that_was_cut_and_lingers_is_counted_once(self) -> None:
        requests_ = Requests()
        tunnel = requests_.request(TUNNEL, obeys=False)
        requests_.waits(requests_.in_flight.drain(0))
        requests_.waits(requests_.in_flight.finish(1, 5))
        requests_.passes(2)
        assert tunnel.closed_at is not None
        assert tunnel.closed_at <= 1.1
        assert requests_.in_flight.cut == {TUNNEL: 1}


class TestFinish:
    def test_watches_end_at_once_and_short_requests_are_waited_for(self) -> None:
        requests_ = Requests()
        watches = [requests_.request(WATCH) for _ in range(100)]
        short = requests_.request(SHORT)
        requests_.waits(requests_.in_flight.finish(1, 5))
        assert all(watch.asked_at == 0 for watch in watches)
        requests_.passes(3)
        assert not requests_.ended_at
        short.end()
        requests_.passes(0.2)
        assert requests_.ended_at is not None
        assert not requests_.in_flight.cut

    def test_a_watch_that_does_not_reach_a_border_is_cut_after_its_time_and_a_request_after_its_own(self) -> None:
        requests_ = Requests()
        watch, short = requests_.request(WATCH, obeys=False), requests_.request(SHORT)
        requests_.waits(requests_.in_flight.finish(1, 5))
        requests_.passes(6)
        assert watch.cut_at is not None
        assert 1 <= watch.cut_at < 1.2
        assert short.cut_at is not None
        assert 5 <= short.cut_at < 5.2
        assert requests_.in_flight.cut == {WATCH: 1, SHORT: 1}

    def test_a_watch_that_gets_its_answer_meanwhile_ends_cleanly(self) -> None:
        requests_ = Requests()
        watch = requests_.request(WATCH, answered=False)
        requests_.waits(requests_.in_flight.finish(1, 5))
        requests_.passes(0.5)
        watch.answered = True
        requests_.passes(0.2)
        assert watch.asked_at is not None
        assert requests_.ended_at is not None
        assert not requests_.in_flight.cut


class TestRetire:
    def test_watches_end_over_five_seconds_and_tunnels_have_their_time(self) -> None:
        requests_ = Requests()
        watches = [requests_.request(WATCH) for _ in range(10)]
        tunnel, log, short = requests_.request(TUNNEL), requests_.request(LOG), requests_.request(SHORT)
        requests_.waits(requests_.in_flight.retire(20))
        requests_.passes(2.5)
        ended = sum(watch.asked_at is not None for watch in watches)
        assert 4 <= ended <= 7
        late = requests_.request(WATCH)
        requests_.passes(3)
        assert all(watch.asked_at is not None for watch in [*watches, late])
        for request in (short, log):
            request.end()
        requests_.passes(14)
        assert not tunnel.cut_at
        requests_.passes(2)
        assert tunnel.cut_at is not None
        assert 20 <= tunnel.cut_at < 20.2
        assert requests_.ended_at is not None
        assert requests_.in_flight.cut == {TUNNEL: 1}

    def test_without_time_for_tunnels_watches_and_short_requests_have_theirs(self) -> None:
        requests_ = Requests()
        tunnel, short, watch = (requests_.request(kind, obeys=False) for kind in (TUNNEL, SHORT, WATCH))
        requests_.waits(requests_.in_flight.retire(0))
        requests_.passes(4.9)
        assert tunnel.cut_at == 0
        assert short.cut_at is watch.cut_at is None
        requests_.passes(3)
        assert requests_.in_flight.cut == {TUNNEL: 1, SHORT: 1, WATCH: 1}
        assert requests_.ended_at is not None


class TestRemoved:
    def test_with_nothing_in_flight_it_is_over_at_once(self) -> None:
        requests_ = Requests()
        requests_.removes([], 30)
        assert requests_.ended_at == 0
        assert not requests_.clock.getDelayedCalls()

    @pytest.mark.parametrize(("timeout", "spread"), [(30, 5), (600, 5), (2, 2)])
    def test_watches_end_one_after_the_other_over_5_seconds(self, timeout: float, spread: float) -> None:
        requests_ = Requests()
        requests = [requests_.request(WATCH) for _ in range(100)]
        requests_.removes(requests, timeout)
        asked: list[int] = []
        for _ in range(5):
            asked.append(sum(request.asked_at is not None for request in requests))
            requests_.passes(spread / 5)
        assert asked[0] == 1
        assert all(15 <= later - earlier <= 25 for earlier, later in pairwise(asked))
        requests_.passes(0.2)
        assert requests_.ended_at is not None
        assert requests_.ended_at <= spread + 0.2
        assert not requests_.clock.getDelayedCalls()

    def test_what_becomes_a_watch_meanwhile_is_asked_too(self) -> None:
        requests_ = Requests()
        requests = [requests_.request(WATCH, answered=answered) for answered in (True, False, False)]
        requests_.removes(requests, 30)
        requests_.passes(4)
        requests[1].answered = True
        requests_.passes(16)
        requests[2].answered = True
        requests_.passes(0.2)
        assert all(request.asked_at is not None and request.cut_at is None for request in requests)
        assert requests_.ended_at is not None

    @pytest.mark.parametrize("kind", [SHORT, LOG, TUNNEL])
    def test_all_else_is_waited_for(self, kind: RequestKind) -> None:
        requests_ = Requests()
        request = requests_.request(kind)
        requests_.removes([request], 30)
        requests_.passes(29)
        assert not requests_.ended_at
        request.end()
        requests_.passes(0.2)
        assert requests_.ended_at is not None
        assert (request.asked_at, request.cut_at) == (None, None)

    def test_what_does_not_end_is_cut_at_the_end_of_the_time_and_others_are_left_alone(self) -> None:
        requests_ = Requests()
        stubborn = [requests_.request(kind, obeys=False) for kind in RequestKind]
        other = requests_.request(WATCH)
        requests_.removes(stubborn, 5)
        requests_.passes(4.5)
        assert not requests_.ended_at
        requests_.passes(1)
        assert all(request.cut_at is not None and 5 <= request.cut_at < 5.3 for request in stubborn)
        requests_.passes(1)
        assert requests_.ended_at is not None
        assert other in requests_.in_flight.requests
        assert not requests_.in_flight.cut  # that counts what a shutdown cut

    def test_without_any_time_all_is_cut_at_once(self) -> None:
        requests_ = Requests()
        requests = [requests_.request(WATCH, obeys=False), requests_.request(SHORT)]
        requests_.removes(requests, 0)
        assert (requests_.ended_at, len(requests_.in_flight)) == (0, 0)
