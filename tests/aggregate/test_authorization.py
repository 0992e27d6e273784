"""Reads from caches: each member decides, and its last decisions hold while it cannot be asked."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, cast
from weakref import ref

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.authorization import MemberAuthorizer, check_decided
from mcproxy.aggregate.last_decisions import LastDecisions, StaleReviewers
from mcproxy.aggregate.request import LeftOut
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending, known, settled
from tests.support.aggregated_request import FakeRequest
from tests.support.clock import Clock

ALICE = UserInfo("alice", ("dev", "system:authenticated"))
PODS = b"/api/v1/namespaces/demo/pods"
YES, NO = Decision(True), Decision(False, "no rule says so")
DOWN = ReviewUnavailable("west", unreachable=True)
LATE = ReviewUnavailable("west", unreachable=False)


class FakeReviewer:
    """Answers `answer`, or waits for ever where that is None; caches until `forget`."""

    def __init__(self, answer: Decision | Exception | None) -> None:
        self.answer = answer
        self.asked: list[Attributes] = []
        self.cache: dict[tuple[UserInfo, Attributes], Decision] = {}
        self.cancelled = 0

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        return self.cache.get((user, attributes)) or self._review(user, attributes)

    async def _review(self, user: UserInfo, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        if self.answer is None:
            await Deferred[None](self._cancel)
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        self.cache[user, attributes] = self.answer
        return self.answer

    def _cancel(self, _: object) -> None:
        self.cancelled += 1


class Bench:
    """Two members, east and west."""

    def __init__(self, east: Decision | Exception | None = YES, west: Decision | Exception | None = YES) -> None:
        self.clock = Clock()
        self.wall = Clock()
        self.reviewers = {"east": FakeReviewer(east), "west": FakeReviewer(west)}
        self.down: set[str] = set()
        self.uids = {"east": "e", "west": "w"}
        self.last = LastDecisions(self.wall.seconds)

    @property
    def members(self) -> dict[str, Any]:
        """Members as `Reflectors` has them."""
        return {
            name: SimpleNamespace(uid=uid, unavailable_since=1.0 if name in self.down else None)
            for name, uid in self.uids.items()
        }

    def reads(self, **settings: Any) -> MemberAuthorizer:
        reads = model.ReadsConfig(**settings)
        clock = cast(Any, self.clock)
        reflectors = cast(Any, self)
        return MemberAuthorizer(reads, StaleReviewers(self.reviewers.__getitem__, reflectors, self.last, clock, reads))

    def ask(self, request: FakeRequest | None = None, **settings: Any) -> list[Any]:
        """Ask; the list gets (members, left out) or the error when there is one."""
        request = request or FakeRequest(PODS, ALICE, ("east", "west"))
        result: list[Any] = []
        asking = self.reads(**settings).allowed(request, ("east", "west"), request.info.verb, request.info)
        waiting = Deferred.fromCoroutine(asking)
        waiting.addCallbacks(result.append, lambda failure: result.append(failure.value))
        return result

    def later(self, seconds: float) -> None:
        """Let time pass, and the caches expire."""
        self.wall.advance(seconds)
        self.clock.advance(seconds)
        for reviewer in self.reviewers.values():
            reviewer.cache.clear()


def test_members_that_say_no_are_left_out_with_the_sentence_of_their_refusal() -> None:
    bench = Bench(west=NO)
    [(members, left_out)] = bench.ask()
    assert members == ("east",)
    [(name, why, undecided)] = left_out
    assert not undecided
    assert name == "west"
    assert why == (
        'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the namespace "demo": '
        "no rule says so"
    )


def test_all_say_no_is_the_403_of_one_cluster() -> None:
    [refusal] = Bench(NO, NO).ask()
    assert isinstance(refusal, StatusError)
    assert (refusal.code, refusal.reason) == (403, "Forbidden")
    assert refusal.message.startswith('pods is forbidden: User "alice" cannot list resource "pods"')


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (PODS, Attributes("list", version="v1", resource="pods", namespace="demo")),
        (b"/api/v1/pods", Attributes("list", version="v1", resource="pods")),
        (PODS + b"/web", Attributes("get", version="v1", resource="pods", namespace="demo", name="web")),
        (PODS + b"?watch=1", Attributes("watch", version="v1", resource="pods", namespace="demo")),
        (
            PODS + b"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            Attributes("watch", version="v1", resource="pods", namespace="demo"),
        ),
        (
            b"/apis/apps/v1/deployments?labelSelector=a%3Db",
            Attributes("list", "apps", "v1", "deployments", label_selector="a=b"),
        ),
    ],
)
def test_each_read_needs_exactly_its_own_right(target: bytes, wanted: Attributes) -> None:
    bench = Bench()
    [(members, left_out)] = bench.ask(FakeRequest(target, ALICE, ("east", "west")))
    assert (members, left_out) == (("east", "west"), ())
    beside = {"list": "watch", "watch": "list"}.get(wanted.verb)
    asked = [wanted] if beside is None else [wanted, wanted._replace(verb=beside)]
    assert bench.reviewers["east"].asked == bench.reviewers["west"].asked == asked


def test_a_cached_decision_is_not_asked_for_again() -> None:
    bench = Bench()
    bench.ask()
    [(members, _)] = bench.ask()
    assert members == ("east", "west")
    assert [each.verb for each in bench.reviewers["east"].asked] == ["list", "watch"]


def test_members_that_the_request_may_not_touch_are_never_asked() -> None:
    bench = Bench()
    request = FakeRequest(PODS, ALICE, ("east",), left_out=[("west", "no policy for it")])
    [(members, left_out)] = bench.ask(request)
    assert (members, left_out) == (("east",), (LeftOut("west", "no policy for it"),))
    assert bench.reviewers["west"].asked == []
    [refusal] = bench.ask(FakeRequest(PODS, ALICE, (), left_out=[("east", "x"), ("west", "x")]))
    assert (refusal.code, refusal.message) == (403, "x")


def test_who_is_nobody_in_a_member_is_not_asked_about_there() -> None:
    bench = Bench()
    [(members, left_out)] = bench.ask(FakeRequest(PODS, ALICE, ("east", "west"), foreign=["west"]))
    assert (members, left_out) == (("east",), (LeftOut("west", "forbidden: nobody in west"),))
    assert bench.reviewers["west"].asked == []


def test_server_decides_alone_where_the_configuration_says_so() -> None:
    bench = Bench(NO, NO)
    [(members, _)] = bench.ask(authorize=model.ReadAuthorization.SERVER)
    assert members == ("east", "west")
    request = FakeRequest(PODS, ALICE, ("east",), left_out=[("west", "its rules refuse it")])
    [(members, left_out)] = bench.ask(request, authorize=model.ReadAuthorization.SERVER)
    assert (members, left_out) == (("east",), (LeftOut("west", "its rules refuse it"),))


def test_last_decisions_hold_while_a_member_is_down() -> None:
    bench = Bench()
    bench.ask()
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    bench.later(86_000)
    asked = len(bench.reviewers["west"].asked)
    [(members, _)] = bench.ask()
    assert members == ("east", "west")
    assert len(bench.reviewers["west"].asked) == asked  # nor is it waited for
    bench.later(1000)
    [(members, left_out)] = bench.ask()
    assert members == ("east",)
    assert left_out == (LeftOut("west", "it cannot be asked whether this is allowed", undecided=True),)


def test_an_unreachable_reviewer_is_enough_to_count_as_down() -> None:
    bench = Bench()
    bench.ask()
    bench.reviewers["west"].answer = DOWN
    bench.later(50_000)
    [(members, _)] = bench.ask()
    assert members == ("east", "west")


def test_a_last_decision_of_no_holds_too() -> None:
    bench = Bench(west=NO)
    bench.ask()
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    bench.later(100)
    [(members, left_out)] = bench.ask()
    assert members == ("east",)
    assert "cannot list resource" in left_out[0][1]


def test_no_earlier_decision_leaves_the_member_out() -> None:
    bench = Bench(west=DOWN)
    [(members, left_out)] = bench.ask()
    assert (members, left_out[0][0]) == (("east",), "west")
    bench = Bench(DOWN, DOWN)
    [refusal] = bench.ask()
    assert (refusal.code, refusal.reason) == (503, "ServiceUnavailable")


@pytest.mark.parametrize(("first", "then"), [(b"", b"?watch=1"), (b"?watch=1", b"")], ids=["list", "watch"])
@pytest.mark.parametrize("cache_allowed", [0.0, 300.0])
def test_who_listed_may_watch_while_a_member_is_down_and_the_reverse(
    first: bytes, then: bytes, cache_allowed: float
) -> None:
    """An informer that had listed got 410 for each watch from its list's version, for the whole outage."""
    bench = Bench()
    for _ in range(3):
        bench.ask(FakeRequest(PODS + first, ALICE, ("east", "west")), cache_allowed=cache_allowed)
    verbs = [each.verb for each in bench.reviewers["west"].asked]
    assert verbs.count("watch" if then else "list") == 1  # nor is it asked again while it is fresh
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    bench.later(80_000)
    [(members, left_out)] = bench.ask(FakeRequest(PODS + then, ALICE, ("east", "west")), cache_allowed=cache_allowed)
    assert (members, left_out) == (("east", "west"), ())


def test_a_member_that_refuses_watches_refuses_them_while_it_is_down() -> None:
    bench = Bench()
    watch = Attributes("watch", version="v1", resource="pods", namespace="demo")
    bench.reviewers["west"].cache[ALICE, watch] = NO
    bench.ask()
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    bench.later(1000)
    [(members, left_out)] = bench.ask(FakeRequest(PODS + b"?watch=1", ALICE, ("east", "west")))
    assert (members, left_out[0].undecided) == (("east",), False)


@pytest.mark.parametrize("answer", [DOWN, None], ids=["down", "silent"])
def test_nobody_waits_for_what_is_asked_beside(answer: Decision | Exception | None) -> None:
    bench = Bench()
    for reviewer in bench.reviewers.values():
        reviewer.cache[ALICE, Attributes("list", version="v1", resource="pods", namespace="demo")] = YES
        reviewer.answer = answer
    [(members, _)] = bench.ask()
    assert members == ("east", "west")
    bench.clock.advance(6)
    assert bench.clock.getDelayedCalls() == []


def test_the_right_to_another_thing_does_not_count_while_a_member_is_down() -> None:
    bench = Bench()
    bench.ask()
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    for target in (b"/api/v1/pods", b"/api/v1/namespaces/demo/secrets", PODS + b"/web"):
        [(members, _)] = bench.ask(FakeRequest(target, ALICE, ("east", "west")))
        assert members == ("east",), target


@pytest.mark.parametrize(
    "query", [b"?labelSelector=mcproxy.io/cluster%3Dwest", b"?fieldSelector=status.phase%3DRunning"]
)
def test_the_right_to_everything_is_one_to_a_selection_while_a_member_is_down(query: bytes) -> None:
    bench = Bench()
    bench.ask(FakeRequest(PODS, ALICE, ("east", "west")))
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    [(members, _)] = bench.ask(FakeRequest(PODS + query, ALICE, ("east", "west")))
    assert members == ("east", "west")


@pytest.mark.parametrize(("first", "then"), [(b"?labelSelector=a%3Db", b""), (b"", b"?labelSelector=a")])
def test_a_selection_gives_no_right_to_everything_nor_a_refusal_one_to_a_selection(first: bytes, then: bytes) -> None:
    bench = Bench(west=YES if first else NO)
    bench.ask(FakeRequest(PODS + first, ALICE, ("east", "west")))
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    [(members, left_out)] = bench.ask(FakeRequest(PODS + then, ALICE, ("east", "west")))
    assert members == ("east",)
    assert left_out == (LeftOut("west", "it cannot be asked whether this is allowed", undecided=True),)


def test_where_a_member_that_is_down_fails_requests_one_that_cannot_be_asked_does() -> None:
    bench = Bench(west=DOWN)
    [(_, left_out)] = bench.ask()
    with pytest.raises(StatusError) as refusal:
        check_decided(left_out, model.UnavailableMembers.FAIL)
    assert refusal.value.code == 503
    assert refusal.value.message.startswith("cluster west is unavailable")
    check_decided(left_out, model.UnavailableMembers.STALE)
    [(_, left_out)] = Bench(west=NO).ask()
    check_decided(left_out, model.UnavailableMembers.FAIL)


def test_another_cluster_under_the_name_is_not_believed_by_earlier_decisions() -> None:
    bench = Bench()
    bench.ask()
    bench.uids["west"] = "another"
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    bench.later(400)
    [(members, _)] = bench.ask()
    assert members == ("east",)


def test_a_black_holed_member_is_bounded_by_time() -> None:
    bench = Bench()
    bench.ask()
    bench.reviewers["west"].answer = None
    bench.later(301)
    result = bench.ask()
    assert result == []
    bench.clock.advance(6)
    [(members, _)] = result  # its decision has just expired
    assert members == ("east", "west")
    assert bench.reviewers["west"].cancelled == 1


def test_reviews_that_are_late_by_the_clients_doing_do_not_extend_a_right_for_long() -> None:
    bench = Bench()
    bench.ask()
    bench.reviewers["west"].answer = LATE
    bench.later(359)
    [(members, _)] = bench.ask()
    assert members == ("east", "west")
    bench.later(2)
    [(members, _)] = bench.ask()
    assert members == ("east",)


def test_decisions_that_somebody_else_had_made_count_later() -> None:
    bench = Bench()
    for reviewer in bench.reviewers.values():
        reviewer.cache[ALICE, Attributes("list", version="v1", resource="pods", namespace="demo")] = YES
    bench.ask()
    assert [each.verb for each in bench.reviewers["west"].asked] == ["watch"]
    bench.reviewers["west"].answer = DOWN
    bench.down.add("west")
    bench.later(1000)
    [(members, _)] = bench.ask()
    assert members == ("east", "west")


def test_a_client_that_goes_away_ends_the_wait() -> None:
    bench = Bench(west=None)
    request = FakeRequest(PODS, ALICE, ("east", "west"))
    result = bench.ask(request)
    assert request.waiting is not None
    request.waiting.cancel()
    [error] = result
    assert isinstance(error, CancelledError)
    assert bench.reviewers["west"].cancelled == 1
    assert bench.clock.getDelayedCalls() == []


@pytest.mark.parametrize(("allowed", "seconds"), [(300.0, 30.0), (0.0, 10.0), (200.0, 20.0), (3600.0, 30.0)])
def test_watches_are_checked_again_within_half_a_minute(allowed: float, seconds: float) -> None:
    assert Bench().reads(cache_allowed=allowed).recheck_after == seconds


def test_what_clients_wrote_is_not_kept() -> None:
    """A selector may have 32 KiB, and each makes a review of its own."""
    bench = Bench()
    selector = Text("x" * 30_000)
    alive = ref(selector)
    attributes = Attributes("list", resource="pods", label_selector=selector)
    reflectors, clock = cast(Any, bench), cast(Any, bench.clock)
    reviewer = StaleReviewers(bench.reviewers.__getitem__, reflectors, bench.last, clock, model.ReadsConfig())
    reviewing = Deferred.fromCoroutine(settled(reviewer("east").decide(ALICE, attributes)))
    assert reviewing.result == YES
    bench.reviewers["east"].asked.clear()
    bench.reviewers["east"].cache.clear()
    del selector, attributes, reviewing
    gc.collect()
    assert alive() is None
    assert known(reviewer("east").decide(ALICE, Attributes("list"))) is None


class Text(str):
    """A text that can be watched."""
