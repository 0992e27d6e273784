"""A reload keeps what has not changed, and changes figures without forgetting who is under way or waits."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config.model import FlowControl, Per, Queue
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.kube.status import StatusError
from tests.dispatch.flow_controls import QUEUE, Waiting, bucket, exempt, held, inflight
from tests.dispatch.permits import at_once
from tests.support.clock import Clock


class Daemon:
    """The flow controls in force, over reloads. The limits are always that of the first control named `x`."""

    def __init__(self, control: FlowControl) -> None:
        self.clock = Clock()
        self.flows = FlowControls.build([control], self.clock)
        self.limits = self.flows.limits_for(["x"], "east")

    @property
    def control(self) -> Any:
        return self.flows.controls["x"]

    def reload(self, control: FlowControl) -> None:
        self.flows = FlowControls.build([control], self.clock, self.flows)
        self.flows.activate()
        self.limits = self.flows.limits_for(["x"], "east")

    def passes(self, user: str = "alice") -> bool:
        try:
            return at_once(self.limits.acquire(user, False)) is not None
        except StatusError:
            return False


def test_an_unchanged_control_is_the_same_object() -> None:
    daemon = Daemon(bucket("x", burst=2))
    before = daemon.control
    assert daemon.passes()
    daemon.reload(bucket("x", burst=2))
    assert daemon.control is before
    assert [daemon.passes() for _ in range(2)] == [True, False]


def test_nothing_changes_before_the_new_configuration_is_in_force() -> None:
    daemon = Daemon(inflight("x", max=1))
    new = FlowControls.build([inflight("x", max=2)], daemon.clock, daemon.flows)
    assert [daemon.passes() for _ in range(2)] == [True, False]
    new.activate()
    assert [daemon.passes() for _ in range(2)] == [True, False]  # late requests of the old Runtime, by the new figures
    assert daemon.control.in_use == 2


def test_a_larger_maximum_holds_for_the_next_request() -> None:
    daemon = Daemon(inflight("x", max=1))
    assert [daemon.passes() for _ in range(2)] == [True, False]
    daemon.reload(inflight("x", max=3))
    assert [daemon.passes() for _ in range(3)] == [True, True, False]


def test_those_under_way_count_against_a_smaller_maximum() -> None:
    daemon = Daemon(inflight("x", max=None))
    permits = [held(at_once(daemon.limits.acquire("alice", False))) for _ in range(3)]
    daemon.reload(inflight("x", max=2))
    assert not daemon.passes()
    permits.pop().release()
    assert not daemon.passes()
    permits.pop().release()
    assert [daemon.passes() for _ in range(2)] == [True, False]


def test_a_changed_bucket_keeps_its_fill_cut_to_the_new_burst() -> None:
    daemon = Daemon(bucket("x", qps=1, burst=10))
    assert all(daemon.passes() for _ in range(4))
    daemon.reload(bucket("x", qps=1, burst=100))
    daemon.reload(bucket("x", qps=2, burst=5))
    assert [daemon.passes() for _ in range(6)] == [True] * 5 + [False]
    daemon.clock.advance(0.5)
    assert daemon.passes()


@pytest.mark.parametrize("other", [bucket("x", burst=1, per=Per.USER), inflight("x", max=1)])
def test_another_type_or_key_is_another_control(other: FlowControl) -> None:
    daemon = Daemon(bucket("x", burst=1))
    before = daemon.control
    assert [daemon.passes() for _ in range(2)] == [True, False]
    daemon.reload(other)
    assert daemon.control is not before
    assert [daemon.passes() for _ in range(2)] == [True, False]


def test_permits_of_a_removed_control_are_released_without_harm() -> None:
    daemon = Daemon(inflight("x", max=1))
    permit, old = held(at_once(daemon.limits.acquire("alice", False))), daemon.control
    daemon.reload(exempt("x"))
    assert all(daemon.passes() for _ in range(10))
    permit.release()
    permit.release()
    assert old.in_use == 0


def test_a_larger_maximum_lets_those_through_who_wait() -> None:
    daemon = Daemon(inflight("x", max=1, queue=QUEUE))
    assert daemon.passes()
    waiting = [Waiting(daemon.limits) for _ in range(3)]
    daemon.reload(inflight("x", max=3, queue=QUEUE))
    assert [each.permit is not None for each in waiting] == [True, True, False]


def test_those_who_wait_for_tokens_do_so_at_the_new_rate() -> None:
    daemon = Daemon(bucket("x", qps=0.01, burst=1, queue=Queue(size=9, timeout=60.0)))
    assert daemon.passes()
    waiting = Waiting(daemon.limits)
    daemon.reload(bucket("x", qps=10, burst=1, queue=Queue(size=9, timeout=60.0)))
    daemon.clock.advance(0.1)
    assert waiting.permit is not None


def test_without_the_queue_those_in_it_go_on_waiting_and_are_not_overtaken() -> None:
    daemon = Daemon(bucket("x", qps=1, burst=1, queue=QUEUE))
    assert daemon.passes()
    waiting = Waiting(daemon.limits)
    daemon.reload(bucket("x", qps=1, burst=1))
    assert not daemon.passes()
    daemon.clock.advance(1)
    assert waiting.permit is not None


@pytest.mark.parametrize("new", [inflight("x", max=0, queue=QUEUE), inflight("x", max=0)])
def test_a_limit_of_0_holds_no_request_longer_than_the_timeout(new: FlowControl) -> None:
    daemon = Daemon(inflight("x", max=1, queue=Queue(size=9, timeout=5.0)))
    running = held(at_once(daemon.limits.acquire("alice", False)))
    waiting = Waiting(daemon.limits)
    daemon.reload(new)
    running.release()
    daemon.clock.advance(5)
    assert isinstance(waiting.error, StatusError)
    assert waiting.error.message.endswith("(MaxRequestsInflight, max 0); waited 5 s in its queue")


@pytest.mark.parametrize("new", [exempt("x"), inflight("x", max=1, per=Per.USER, queue=QUEUE)])
def test_those_who_wait_at_a_removed_control_do_so_by_its_old_figures(new: FlowControl) -> None:
    daemon = Daemon(inflight("x", max=1, queue=Queue(size=9, timeout=5.0)))
    running = held(at_once(daemon.limits.acquire("alice", False)))
    first, second = Waiting(daemon.limits), Waiting(daemon.limits)
    daemon.reload(new)
    running.release()
    assert first.permit is not None
    daemon.clock.advance(5)
    assert isinstance(second.error, StatusError)


def test_a_reload_that_changes_nothing_starts_no_timers() -> None:
    daemon = Daemon(bucket("x"))
    daemon.reload(bucket("x", qps=3))
    assert daemon.clock.getDelayedCalls() == []
