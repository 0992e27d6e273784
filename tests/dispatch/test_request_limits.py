"""RequestLimits: what limits a request, how it is refused, and how it waits."""

from __future__ import annotations

import json

import pytest
from twisted.internet.defer import CancelledError

from mcproxy.config.model import FlowControl, Per, Queue
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.request_limits import EMPTY_PERMIT, UNLIMITED, Permit, RequestLimits
from mcproxy.kube.status import StatusError
from mcproxy.observe.metrics.families import FLOW_CONTROL_REFUSED, FLOW_CONTROL_WAIT
from mcproxy.observe.metrics.metrics import Metrics
from tests.dispatch.flow_controls import QUEUE, Waiting, admit, bucket, exempt, held, inflight
from tests.dispatch.permits import at_once, deferred
from tests.support.clock import Clock


def refusal(limits: RequestLimits, user: str = "alice", long_running: bool = False, resource: str = "") -> StatusError:
    with pytest.raises(StatusError) as caught:
        at_once(limits.acquire(user, long_running, resource))
    return caught.value


def count_until_refused(limits: RequestLimits, user: str = "alice") -> int:
    for count in range(1000):
        try:
            at_once(limits.acquire(user, False))
        except StatusError:
            return count
    raise AssertionError("never refused")


# --- no limit ---


@pytest.mark.parametrize("limits", [admit(), admit(exempt()), admit(exempt("a"), exempt("b"))])
def test_no_limit_costs_nothing(limits: RequestLimits) -> None:
    assert limits is UNLIMITED
    permit = at_once(limits.acquire("alice", False))
    assert permit is EMPTY_PERMIT
    permit.release()
    assert at_once(limits.acquire("alice", True)) is EMPTY_PERMIT
    assert Waiting(limits).permit is EMPTY_PERMIT


# --- the refusal ---


def test_a_token_bucket_refuses_in_these_words() -> None:
    error = refusal(admit(bucket(burst=0)))
    assert error.code == 429
    assert error.reason == "TooManyRequests"
    assert error.message == (
        'too many requests for cluster "east", limited by flow control "bulk" (TokenBucket, qps 50, burst 0)'
    )
    assert error.headers == ((b"Retry-After", b"1"),)
    assert json.loads(error.body())["details"] == {"retryAfterSeconds": 1}


def test_a_refusal_says_that_a_limit_is_that_of_all_replicas() -> None:
    error = refusal(admit(bucket(burst=0, shared=True)))
    assert error.message.endswith("(TokenBucket, qps 50, burst 0, over all replicas)")


@pytest.mark.parametrize(
    ("control", "figures"),
    [
        (bucket(qps=50.0, burst=100), "TokenBucket, qps 50, burst 100"),
        (bucket(qps=0.25, burst=1), "TokenBucket, qps 0.25, burst 1"),
        (bucket(qps=2e6, burst=1), "TokenBucket, qps 2000000, burst 1"),
        (bucket(qps=50, burst=1, per=Per.USER), "TokenBucket, qps 50, burst 1"),
        (inflight(max=3, max_long_running=5000), "MaxRequestsInflight, max 3, max long-running 5000"),
        (inflight(max=0), "MaxRequestsInflight, max 0"),
    ],
)
def test_the_refusal_has_the_limits(control: object, figures: str) -> None:
    limits = admit(control)  # type: ignore[arg-type]
    count_until_refused(limits)
    assert refusal(limits).message.endswith(f" ({figures})")


@pytest.mark.parametrize("control", [bucket(burst=0), inflight(max=0)])
def test_events_are_refused_without_retry_after(control: object) -> None:
    error = refusal(admit(control), resource="events")  # type: ignore[arg-type]
    assert error.code == 429
    assert error.headers == ()
    assert "retryAfterSeconds" not in error.body().decode()


# --- whose limit ---


def test_all_share_one_limit_by_default() -> None:
    flows = FlowControls.build([inflight(max=2)], Clock())
    east, west = (flows.limits_for(["interactive"], cluster) for cluster in ("east", "west"))
    at_once(east.acquire("alice", False))
    at_once(west.acquire("bob", False))
    assert 'cluster "west"' in refusal(west, "carol").message


@pytest.mark.parametrize("control", [inflight(max=2, per=Per.USER), bucket(burst=2, per=Per.USER)])
def test_a_limit_for_each_user(control: object) -> None:
    limits = admit(control)  # type: ignore[arg-type]
    assert [count_until_refused(limits, user) for user in ("alice", "bob")] == [2, 2]


@pytest.mark.parametrize("control", [inflight("x", max=2, per=Per.CLUSTER), bucket("x", burst=2, per=Per.CLUSTER)])
def test_a_limit_for_each_cluster(control: object) -> None:
    flows = FlowControls.build([control], Clock())  # type: ignore[list-item]
    east, west = (flows.limits_for(["x"], cluster) for cluster in ("east", "west"))
    at_once(east.acquire("alice", False))
    assert count_until_refused(east, "bob") == 1
    assert count_until_refused(west, "bob") == 2


def test_long_running_requests_have_a_budget_of_their_own() -> None:
    limits = admit(inflight(max=1, max_long_running=2))
    held(at_once(limits.acquire("alice", True)))
    held(at_once(limits.acquire("alice", True)))
    refusal(limits, long_running=True)
    held(at_once(limits.acquire("alice", False)))
    refusal(limits)


def test_long_running_requests_are_not_limited_unless_the_file_says_so() -> None:
    limits = admit(inflight(max=0))
    assert all(at_once(limits.acquire("alice", True)) for _ in range(1000))
    refusal(limits)


def test_a_token_bucket_counts_long_running_requests_too() -> None:
    limits = admit(bucket(burst=2))
    at_once(limits.acquire("alice", True))
    assert count_until_refused(limits) == 1


# --- permits ---


def test_a_second_release_does_nothing() -> None:
    limits = admit(inflight(max=2))
    first, _second = held(at_once(limits.acquire("alice", False))), at_once(limits.acquire("alice", False))
    first.release()
    first.release()
    assert count_until_refused(limits) == 1


def test_counts() -> None:
    flows = FlowControls.build([inflight(max=1, max_long_running=1, queue=Queue(size=1, timeout=5.0))], Clock())
    limits = flows.limits_for(["interactive"], "east")
    control = flows.controls["interactive"]
    permits = [held(at_once(limits.acquire("alice", long))) for long in (False, True)]
    assert at_once(limits.acquire("alice", False)) is None
    waiting = Waiting(limits)
    refusal(limits)
    assert (control.in_use, control.in_use_long_running, control.waiting, control.refused) == (1, 1, 1, 1)
    for permit in permits:
        permit.release()
    held(waiting.permit).release()
    assert (control.in_use, control.in_use_long_running, control.waiting, control.refused) == (0, 0, 0, 1)


# --- several limits ---


def test_all_limits_must_let_it_through_and_the_refusing_one_is_named() -> None:
    flows = FlowControls.build([inflight("policy", max=5), inflight("cluster", max=2)], Clock())
    limits = flows.limits_for(["policy", "cluster"], "east")
    permits = [held(at_once(limits.acquire("alice", False))) for _ in range(2)]
    assert 'flow control "cluster"' in refusal(limits).message
    assert [flows.controls[name].in_use for name in ("policy", "cluster")] == [2, 2]
    assert [flows.controls[name].refused for name in ("policy", "cluster")] == [0, 1]
    for permit in permits:
        permit.release()
        permit.release()
    assert [flows.controls[name].in_use for name in ("policy", "cluster")] == [0, 0]


def test_a_token_comes_back_when_a_later_limit_refuses() -> None:
    flows = FlowControls.build([bucket("policy", burst=2), inflight("cluster", max=1)], Clock())
    both, alone = flows.limits_for(["policy", "cluster"], "east"), flows.limits_for(["policy"], "east")
    held(at_once(both.acquire("alice", False)))
    for _ in range(10):
        refusal(both)
    assert count_until_refused(alone) == 1


def test_a_control_that_is_named_twice_counts_once() -> None:
    limits = admit(inflight(max=2))
    flows = FlowControls.build([inflight(max=2), exempt()], Clock())
    limits = flows.limits_for(["interactive", "unlimited", "interactive"], "east")
    assert count_until_refused(limits) == 2


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError):
        FlowControls.build([], Clock()).limits_for(["nobody"], "east")


# --- queues: requests in flight ---


def test_over_the_limit_a_request_waits_until_another_ends() -> None:
    limits = admit(inflight(max=1, queue=QUEUE))
    running = held(at_once(limits.acquire("alice", False)))
    assert at_once(limits.acquire("alice", False)) is None
    waiting = [Waiting(limits) for _ in range(2)]
    assert not waiting[0].over
    running.release()
    assert [each.permit is not None for each in waiting] == [True, False]
    held(waiting[0].permit).release()
    held(waiting[1].permit).release()
    assert at_once(limits.acquire("alice", False)) is not None


def test_a_hundred_waiting_of_one_user_delay_another_by_one_turn() -> None:
    limits = admit(inflight(max=1, queue=QUEUE))
    running = held(at_once(limits.acquire("noisy", False)))
    noisy = [Waiting(limits, "noisy") for _ in range(99)]
    quiet = Waiting(limits, "quiet")
    running.release()
    held(noisy[0].permit).release()
    assert quiet.permit is not None
    assert noisy[1].permit is None


def test_a_full_queue_refuses_at_once_whoever_has_no_less_in_it_than_others() -> None:
    flows = FlowControls.build([inflight(max=1, queue=Queue(size=1, timeout=5.0))], Clock())
    limits = flows.limits_for(["interactive"], "east")
    held(at_once(limits.acquire("alice", False)))
    Waiting(limits)
    assert "waited" not in refusal(limits, "bob").message
    late = Waiting(limits, "bob")  # it filled up between asking and waiting
    assert isinstance(late.error, StatusError)
    assert flows.controls["interactive"].waiting == 1


@pytest.mark.parametrize(
    "control",
    [inflight(max=1, queue=Queue(size=3, timeout=5.0)), bucket(burst=1, qps=0.1, queue=Queue(size=3, timeout=5.0))],
)
def test_in_a_full_queue_the_newest_of_the_fullest_user_makes_room(control: FlowControl) -> None:
    clock = Clock()
    flows = FlowControls.build([control], clock)
    limits = flows.limits_for([control.name], "east")
    held(at_once(limits.acquire("noisy", False)))
    noisy = [Waiting(limits, "noisy") for _ in range(3)]
    refusal(limits, "noisy")
    assert at_once(limits.acquire("quiet", False)) is None
    quiet = Waiting(limits, "quiet")
    assert [each.over for each in (*noisy, quiet)] == [False, False, True, False]
    assert isinstance(noisy[2].error, StatusError)
    assert (noisy[2].error.code, "waited" in noisy[2].error.message) == (429, False)
    other = Waiting(limits, "other")  # noisy has two, each of the others one
    assert [each.over for each in (*noisy, quiet, other)] == [False, True, True, False, False]
    refusal(limits, "another")
    assert (flows.controls[control.name].waiting, flows.controls[control.name].refused) == (3, 4)
    clock.advance(5.1)
    assert clock.getDelayedCalls() == []


def test_a_request_that_makes_room_gives_back_what_it_held() -> None:
    flows = FlowControls.build(
        [inflight("policy", max=5), inflight("cluster", max=1, queue=Queue(size=2, timeout=5.0))], Clock()
    )
    limits = flows.limits_for(["policy", "cluster"], "east")
    held(at_once(limits.acquire("noisy", False)))
    noisy = [Waiting(limits, "noisy") for _ in range(2)]
    quiet = Waiting(limits, "quiet")
    assert [each.over for each in (*noisy, quiet)] == [False, True, False]
    assert [flows.controls[name].in_use for name in ("policy", "cluster")] == [3, 1]


def test_a_flood_of_one_user_takes_no_place_from_others_in_the_queue() -> None:
    limits = admit(inflight(max=1, queue=Queue(size=100, timeout=5.0)))
    running = held(at_once(limits.acquire("flood", False)))
    flood = [Waiting(limits, "flood") for _ in range(900)]
    assert sum(each.over for each in flood) == 800
    legitimate = [Waiting(limits, f"user{number}") for number in range(20)]
    served = 0
    while not all(each.over for each in legitimate):
        permit, running = running, None  # type: ignore[assignment]
        permit.release()
        served += 1
        running = next(each.permit for each in (*flood, *legitimate) if each.permit is not None and each.permit._limit)
    assert all(each.permit is not None for each in legitimate)
    assert served <= 21


def test_each_user_has_a_queue_where_each_has_a_limit() -> None:
    limits = admit(inflight(max=1, per=Per.USER, queue=Queue(size=1, timeout=5.0)))
    for user in ("alice", "bob"):
        held(at_once(limits.acquire(user, False)))
        assert not Waiting(limits, user).over
        refusal(limits, user)


def test_each_budget_has_a_queue_of_its_own() -> None:
    limits = admit(inflight(max=1, max_long_running=1, queue=Queue(size=1, timeout=5.0)))
    for long in (False, True):
        held(at_once(limits.acquire("alice", long)))
        assert not Waiting(limits, "alice", long).over


@pytest.mark.parametrize("control", [inflight(max=0, queue=QUEUE), bucket(burst=0, queue=QUEUE)])
def test_a_limit_of_0_does_not_queue(control: object) -> None:
    refusal(admit(control))  # type: ignore[arg-type]


def test_after_the_timeout_it_is_refused_in_the_same_words_and_for_how_long_it_waited() -> None:
    clock = Clock()
    limits = admit(inflight(max=1, queue=Queue(size=5, timeout=2.5)), clock=clock)
    running = held(at_once(limits.acquire("alice", False)))
    waiting, event = Waiting(limits), Waiting(limits, resource="events")
    clock.advance(2.4)
    assert not waiting.over
    clock.advance(0.2)
    assert isinstance(waiting.error, StatusError)
    assert waiting.error.message == (
        'too many requests for cluster "east", limited by flow control "interactive" (MaxRequestsInflight, max 1)'
        "; waited 2.5 s in its queue"
    )
    assert waiting.error.headers == ((b"Retry-After", b"1"),)
    assert isinstance(event.error, StatusError)
    assert event.error.headers == ()
    running.release()
    assert at_once(limits.acquire("alice", False)) is not None


def test_refusals_and_waits_are_counted_by_flow_control() -> None:
    clock, metrics = Clock(), Metrics()
    controls = [inflight(max=1, queue=Queue(size=3, timeout=2.0)), bucket(burst=1)]
    flows = FlowControls.build(controls, clock, None, None, metrics)
    limits = flows.limits_for(["interactive"], "east")
    running = held(at_once(limits.acquire("alice", False)))
    admitted, gone, late = Waiting(limits), Waiting(limits), Waiting(limits)
    refusal(limits)  # the queue is full
    clock.advance(1.5)
    running.release()
    gone.cancel()
    clock.advance(1.0)
    assert (admitted.error, late.permit) == (None, None)
    assert count_until_refused(flows.limits_for(["bulk"], "east")) == 1
    counts = metrics.counts
    assert counts.of(FLOW_CONTROL_REFUSED) == {("interactive",): [2], ("bulk",): [1]}
    waits = counts.of(FLOW_CONTROL_WAIT)
    assert {labels: (sum(numbers[:-1]), numbers[-1]) for labels, numbers in waits.items()} == {
        ("interactive", "admitted"): (1, 1.5),
        ("interactive", "left"): (1, 1.5),
        ("interactive", "refused"): (1, 2.5),
    }


def test_whoever_goes_away_leaves_the_queue() -> None:
    clock = Clock()
    flows = FlowControls.build([inflight(max=1, queue=QUEUE)], clock)
    limits = flows.limits_for(["interactive"], "east")
    running = held(at_once(limits.acquire("alice", False)))
    gone, stays = Waiting(limits), Waiting(limits)
    gone.cancel()
    assert isinstance(gone.error, CancelledError)
    assert flows.controls["interactive"].waiting == 1
    running.release()
    held(stays.permit).release()
    assert flows.controls["interactive"].in_use == 0
    assert clock.getDelayedCalls() == []


def test_a_long_queue_whose_requests_end_at_once_empties_without_deep_recursion() -> None:
    limits = admit(inflight(max=1, queue=Queue(size=1500, timeout=5.0)))
    running = held(at_once(limits.acquire("alice", False)))
    served = []

    def serve(permit: Permit) -> None:
        served.append(permit)
        permit.release()

    for _ in range(1500):
        deferred(limits, "alice", False).addCallback(serve)
    running.release()
    assert len(served) == 1500


# --- queues: tokens ---


def test_whoever_waits_for_a_token_is_woken_when_it_comes() -> None:
    clock = Clock()
    limits = admit(bucket(qps=8, burst=2, queue=QUEUE), clock=clock)
    assert [at_once(limits.acquire("alice", False)) for _ in range(3)] == [EMPTY_PERMIT, EMPTY_PERMIT, None]
    waiting = [Waiting(limits) for _ in range(3)]
    admitted = []
    for _ in range(4):
        clock.advance(0.125)
        admitted.append(sum(each.permit is not None for each in waiting))
    assert admitted == [1, 2, 3, 3]
    assert clock.getDelayedCalls() == []


def test_requests_that_wait_for_a_token_are_not_overtaken() -> None:
    clock = Clock()
    limits = admit(bucket(qps=10, burst=1, queue=QUEUE), clock=clock)
    held(at_once(limits.acquire("alice", False)))
    waiting = [Waiting(limits) for _ in range(2)]
    clock.rightNow += 0.15  # the timer is late
    assert at_once(limits.acquire("bob", False)) is None
    assert [each.permit is not None for each in waiting] == [True, False]


def test_users_take_turns_for_tokens() -> None:
    clock = Clock()
    limits = admit(bucket(qps=10, burst=1, queue=QUEUE), clock=clock)
    held(at_once(limits.acquire("noisy", False)))
    noisy = [Waiting(limits, "noisy") for _ in range(50)]
    quiet = Waiting(limits, "quiet")
    clock.pump([0.125, 0.125])
    assert quiet.permit is not None
    assert sum(each.over for each in noisy) == 1


def test_waiting_for_tokens_has_an_end_too() -> None:
    clock = Clock()
    limits = admit(bucket(qps=1, burst=1, queue=Queue(size=9, timeout=2.5)), clock=clock)
    held(at_once(limits.acquire("alice", False)))
    waiting = [Waiting(limits) for _ in range(5)]
    clock.pump([0.1] * 40)
    assert [each.permit is not None for each in waiting] == [True, True, False, False, False]
    assert all(isinstance(each.error, StatusError) for each in waiting[2:])
    assert clock.getDelayedCalls() == []


@pytest.mark.parametrize("queue", [QUEUE, Queue(size=3, timeout=0.5)])
def test_with_a_queue_a_bucket_admits_no_more_than_without(queue: Queue) -> None:
    clock = Clock()
    limits = admit(bucket(qps=50, burst=100, queue=queue), clock=clock)
    admitted, waiting = 0, []
    for _ in range(30 * 200):
        clock.advance(0.005)
        try:
            if at_once(limits.acquire("alice", False)) is None:
                waiting.append(Waiting(limits))
            else:
                admitted += 1
        except StatusError:
            pass
    total = admitted + sum(each.permit is not None for each in waiting)
    assert 100 + 50 * 30 - 1 <= total <= 100 + 50 * 30


# --- queues: several limits ---


def test_it_holds_the_first_while_it_waits_for_the_second() -> None:
    flows = FlowControls.build([inflight("policy", max=2), inflight("cluster", max=1, queue=QUEUE)], Clock())
    limits = flows.limits_for(["policy", "cluster"], "east")
    running = held(at_once(limits.acquire("alice", False)))
    assert at_once(limits.acquire("alice", False)) is None
    assert flows.controls["policy"].in_use == 1
    waiting = Waiting(limits)
    assert flows.controls["policy"].in_use == 2
    refusal(limits)
    running.release()
    held(waiting.permit).release()
    assert [flows.controls[name].in_use for name in ("policy", "cluster")] == [0, 0]


@pytest.mark.parametrize("end", ["cancel", "timeout", "refusal"])
def test_whatever_ends_the_wait_for_the_second_gives_back_the_first(end: str) -> None:
    clock = Clock()
    size = 0 if end == "refusal" else 5
    flows = FlowControls.build(
        [
            bucket("tokens", burst=2, qps=0.001),
            inflight("policy", max=2),
            inflight("cluster", max=1, queue=Queue(size=size, timeout=1.0)),
        ],
        clock,
    )
    held(at_once(flows.limits_for(["cluster"], "east").acquire("alice", False)))
    waiting = Waiting(flows.limits_for(["tokens", "policy", "cluster"], "east"))
    if end == "cancel":
        waiting.cancel()
    clock.advance(2)
    assert waiting.error is not None
    assert flows.controls["policy"].in_use == 0
    assert count_until_refused(flows.limits_for(["tokens"], "east")) == 2


def test_a_refunded_token_goes_to_whoever_waits_for_it() -> None:
    flows = FlowControls.build([bucket(burst=1, qps=0.001, queue=QUEUE), inflight(max=1, queue=QUEUE)], Clock())
    held(at_once(flows.limits_for(["interactive"], "east").acquire("alice", False)))
    both = Waiting(flows.limits_for(["bulk", "interactive"], "east"))
    alone = Waiting(flows.limits_for(["bulk"], "east"))
    assert not alone.over
    both.cancel()
    assert alone.permit is EMPTY_PERMIT


# --- tunnels ---


def test_a_request_that_becomes_a_tunnel_moves_to_the_long_running_budgets() -> None:
    flows = FlowControls.build(
        [
            inflight("policy", max=1, max_long_running=1),
            bucket("tokens", burst=1, qps=0.001),
            inflight("cluster", max=3),
        ],
        Clock(),
    )
    limits = flows.limits_for(["policy", "tokens", "cluster"], "east")
    permit = limits.switch_to_long_running(held(at_once(limits.acquire("alice", False))), "alice")
    counts = [(flows.controls[name].in_use, flows.controls[name].in_use_long_running) for name in ("policy", "cluster")]
    assert counts == [(0, 1), (0, 1)]
    permit.release()
    assert [flows.controls[name].in_use_long_running for name in ("policy", "cluster")] == [0, 0]


def test_without_a_place_for_a_tunnel_it_keeps_what_it_has_and_is_refused() -> None:
    flows = FlowControls.build(
        [inflight("policy", max=2, max_long_running=5), inflight("cluster", max=2, max_long_running=0, queue=QUEUE)],
        Clock(),
    )
    limits = flows.limits_for(["policy", "cluster"], "east")
    permit = held(at_once(limits.acquire("alice", False)))
    with pytest.raises(StatusError, match='flow control "cluster"') as caught:
        limits.switch_to_long_running(permit, "alice")
    assert caught.value.code == 429
    control = flows.controls["policy"]
    assert (control.in_use, control.in_use_long_running) == (1, 0)
    permit.release()
    assert control.in_use == 0


def test_nothing_counts_a_tunnel_without_limits() -> None:
    assert admit().switch_to_long_running(EMPTY_PERMIT, "alice") is EMPTY_PERMIT


# --- turns ---


def test_a_key_whose_queue_is_empty_does_not_wait_for_the_queue_of_another() -> None:
    limits = admit(inflight(max=1, per=Per.USER, queue=QUEUE))
    held(at_once(limits.acquire("alice", False)))
    assert not Waiting(limits, "alice").over
    held(at_once(limits.acquire("bob", False)))


def test_requests_are_not_overtaken_while_they_are_admitted() -> None:
    """A larger limit admits the queue one by one; what the first of them does at once must not pass the second."""
    clock = Clock()
    flows = FlowControls.build([inflight("x", max=1, queue=QUEUE)], clock)
    limits = flows.limits_for(["x"], "east")
    held(at_once(limits.acquire("alice", False)))
    overtaken: list[Permit | None] = []
    first = deferred(limits, "alice", False)
    first.addCallback(lambda _: overtaken.append(at_once(limits.acquire("bob", False))))
    second = Waiting(limits)
    FlowControls.build([inflight("x", max=3, queue=QUEUE)], clock, flows).activate()
    assert overtaken == [None]
    assert second.permit is not None
