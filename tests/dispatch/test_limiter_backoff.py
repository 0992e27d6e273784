"""Clients that back off as client-go does get what the figures say: 429 with Retry-After is tried ten times more.

Source: client-go `rest/with_retry.go` (Retry-After is slept exactly; the default is 10 retries).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcproxy.config.model import FlowControl, Per, Queue
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.request_limits import RequestLimits
from mcproxy.kube.status import StatusError
from tests.dispatch.flow_controls import Waiting, bucket, inflight
from tests.dispatch.permits import at_once, deferred
from tests.support.clock import Clock

RETRIES = 10


class Crowd:
    """Clients that each send one request after the other, as quickly as they are let."""

    def __init__(self, control: FlowControl, latency: float = 1 / 64) -> None:
        self.clock = Clock()
        self.latency = latency
        self.flows = FlowControls.build([control], self.clock)
        self.limits: RequestLimits = self.flows.limits_for([control.name], "east")
        self.done: list[float] = []  # when requests were admitted
        self.refusals = 0
        self.given_up = 0

    def client(self, user: str, requests: int, tries: int = 0) -> None:
        """Send `requests`; every one is tried again after Retry-After."""
        if not requests:
            return
        try:
            permit = at_once(self.limits.acquire(user, False))
        except StatusError as error:
            self._refused(error, user, requests, tries)
            return
        if permit is not None:
            self._admitted(permit.release, user, requests)
            return
        waiting = deferred(self.limits, user, False)
        waiting.addCallbacks(
            lambda permit: self._admitted(permit.release, user, requests),
            lambda failure: self._refused(failure.value, user, requests, tries),
        )

    def run(self, seconds: float) -> None:
        self.clock.pump([1 / 128] * round(seconds * 128))

    def _admitted(self, release: Callable[[], None], user: str, requests: int) -> None:
        self.done.append(self.clock.elapsed)
        self.clock.callLater(self.latency, release)
        self.clock.callLater(self.latency, self.client, user, requests - 1)

    def _refused(self, error: BaseException, user: str, requests: int, tries: int) -> None:
        assert isinstance(error, StatusError)
        self.refusals += 1
        if tries == RETRIES:
            self.given_up += 1
            return
        (name, value) = error.headers[0]
        assert name == b"Retry-After"
        self.clock.callLater(int(value), self.client, user, requests, tries + 1)


def test_a_surge_that_fits_into_the_tries_is_served_whole() -> None:
    """400 at once against 50 a second and a burst of 100: the last is served after 6 s, and nobody gives up."""
    crowd = Crowd(bucket(qps=50, burst=100))
    for _ in range(400):
        crowd.client("alice", 1)
    crowd.run(12)
    assert len(crowd.done) == 400
    assert crowd.given_up == 0
    assert 5.9 <= crowd.done[-1] <= 7.1


def test_a_load_above_the_rate_is_served_at_the_rate() -> None:
    """200 clients in closed loops: the rate is used up, and not a request more gets through."""
    crowd = Crowd(bucket(qps=50, burst=100))
    for n in range(200):
        crowd.client(f"user-{n}", 1000)
    crowd.run(30)
    assert 0.95 * (100 + 50 * 30) <= len(crowd.done) <= 100 + 50 * 30
    for second in range(30):
        assert sum(second < when <= second + 1 for when in crowd.done) <= 150


def test_a_load_below_the_rate_is_never_refused() -> None:
    crowd = Crowd(bucket(qps=50, burst=5), latency=0.1)
    for n in range(4):  # 40 a second
        crowd.client(f"user-{n}", 1000)
    crowd.run(30)
    assert crowd.refusals == 0
    assert len(crowd.done) >= 4 * 270


def test_one_user_in_a_loop_does_not_touch_another() -> None:
    crowd = Crowd(bucket(qps=50, burst=100, per=Per.USER), latency=0.1)
    for _ in range(200):
        crowd.client("noisy", 1000)
    before = crowd.refusals
    crowd.client("quiet", 50)
    assert crowd.refusals == before
    crowd.run(6)
    assert crowd.refusals > 0
    quiet = Crowd(bucket(qps=50, burst=100, per=Per.USER), latency=0.1)
    quiet.client("quiet", 50)
    quiet.run(6)
    assert len(quiet.done) == 50


@pytest.mark.parametrize("control", [bucket(qps=50, burst=10), inflight(max=5)])
def test_a_queue_spares_clients_the_refusals(control: FlowControl) -> None:
    without = Crowd(control)
    with_queue = Crowd(
        FlowControl(
            name=control.name, type=control.type, max=control.max, qps=control.qps, burst=control.burst,
            queue=Queue(size=100, timeout=5.0),
        )
    )  # fmt: skip
    for crowd in (without, with_queue):
        for n in range(40):
            crowd.client(f"user-{n}", 1000)
        crowd.run(10)
    assert without.refusals > 100
    assert with_queue.refusals == 0
    assert len(with_queue.done) >= len(without.done)


def test_a_maximum_is_held_and_used_up() -> None:
    """10 at a time, 1/64 s each, in queues: 640 a second."""
    crowd = Crowd(inflight(max=10, queue=Queue(size=100, timeout=5.0)))
    for n in range(50):
        crowd.client(f"user-{n}", 10_000)
    control = crowd.flows.controls["interactive"]
    for _ in range(640):
        crowd.run(1 / 128)
        assert control.in_use <= 10
    assert len(crowd.done) >= 0.99 * 640 * 5
    assert Waiting(crowd.limits).error is None
