"""Who may discover API services: who may get their paths, by policies, authorizer and review."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.discovery.api_services import ServedGroupVersion
from mcproxy.aggregate.discovery.service_visibility import Found, ServiceVisibility
from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import RuleSet
from mcproxy.identity.authorization.access_review import Decision, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.authorization.authorizer import Authorizer
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending
from tests.support.aggregated_request import FakeRequest
from tests.support.clock import Clock

ALICE = UserInfo("alice", ("dev",))


class Reviewer:
    """A cluster that allows some paths; None: it never answers, an exception: it cannot be asked."""

    def __init__(self, *allowed: str, fails: bool = False, hangs: bool = False) -> None:
        self.allowed = set(allowed)
        self.fails, self.hangs = fails, hangs
        self.cache: dict[tuple[str, str], Decision] = {}
        self.reviews: list[str] = []
        self.waiting = 0

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        return self.cache.get((user.name, attributes.path)) or self._review(user, attributes)

    async def _review(self, user: UserInfo, attributes: Attributes) -> Decision:
        assert (attributes.verb, attributes.is_resource) == ("get", False)
        self.reviews.append(attributes.path)
        if self.fails:
            raise ReviewUnavailable("core", unreachable=True)
        if self.hangs:
            self.waiting += 1
            try:
                await Deferred()
            finally:
                self.waiting -= 1
        decision = self.cache[user.name, attributes.path] = Decision(attributes.path in self.allowed)
        return decision


class Policies:
    """Has the part of `dispatch.plan.Dispatch` that is asked; `none` are API services that no policy is for."""

    def __init__(self, *none: str) -> None:
        self._none = none

    def plan_of_service(self, user: UserInfo, info: RequestInfo, service: model.APIService) -> Any:
        assert info.path == f"/apis/{service.group_version}"
        return None if service.group_version in self._none else type("Plan", (), {"reject": None})


def service(group_version: str, authority: str = "core", cluster: str = "api") -> model.APIService:
    group, _, version = group_version.partition("/")
    return model.APIService(group=group, version=version, cluster=cluster, authority=authority)


SERVICES = (service("a.io/v1"), service("b.io/v1"), service("c.io/v1"))
REGISTERED = [ServedGroupVersion(each.group, each.version, each.cluster, 1000, 100) for each in SERVICES]
A, B, C = (each.group_version for each in REGISTERED)


def visibility(
    reviewers: Mapping[str, Reviewer] | None,
    *,
    clock: Clock | None = None,
    services: tuple[model.APIService, ...] = SERVICES,
    authorizer: Authorizer | None = None,
    policies: Any = None,
) -> Callable[..., list[Any]]:
    made = ServiceVisibility(
        services,
        clock or Clock(),
        dispatch=cast(Any, policies or Policies()),
        authorizer=authorizer,
        reviewers=None if reviewers is None else reviewers.__getitem__,
    )

    def ask(**more: Any) -> list[Any]:
        request = FakeRequest(b"/apis", ALICE, ("core",), **more)
        found: list[Any] = []
        Deferred.fromCoroutine(made.of(request, REGISTERED)).addBoth(found.append)
        return found

    return ask


def found(may: set[tuple[str, str]], undecided: set[tuple[str, str]] | None = None) -> list[Found]:
    return [(frozenset(may), frozenset(undecided or ()))]


def test_one_review_of_all_paths_is_enough_and_is_asked_once() -> None:
    core = Reviewer("/apis/*")
    ask = visibility({"core": core})
    assert ask() == found({A, B, C})
    assert ask() == found({A, B, C})
    assert core.reviews == ["/apis/*"]


def test_who_may_not_see_all_is_asked_about_each_and_decisions_are_cached() -> None:
    core = Reviewer("/apis/b.io/v1")
    ask = visibility({"core": core})
    assert ask() == found({B})
    assert core.reviews[0] == "/apis/*"
    assert sorted(core.reviews[-3:]) == ["/apis/a.io/v1", "/apis/b.io/v1", "/apis/c.io/v1"]
    count = len(core.reviews)
    assert ask() == found({B})
    assert len(core.reviews) == count


def test_each_authority_decides_about_its_own() -> None:
    services = (service("a.io/v1"), service("b.io/v1", "other", "other"), service("c.io/v1", "third", "third"))
    reviewers = {"core": Reviewer("/apis/*"), "other": Reviewer(), "third": Reviewer("/apis/c.io/v1")}
    assert visibility(reviewers, services=services)() == found({A, C})


@pytest.mark.parametrize("kind", ["fails", "hangs"])
def test_what_cannot_be_decided_is_left_out_and_named(kind: str) -> None:
    clock = Clock()
    ask = visibility({"core": Reviewer(**{kind: True})}, clock=clock)
    outcome = ask()
    clock.advance(3)
    assert outcome == found(set(), {A, B, C})


def test_a_client_that_goes_away_waits_for_no_review_any_more() -> None:
    clock, core = Clock(), Reviewer(hangs=True)
    made = ServiceVisibility(SERVICES, clock, dispatch=cast(Any, Policies()), authorizer=None, reviewers=lambda _: core)
    asking = Deferred.fromCoroutine(made.of(FakeRequest(b"/apis", ALICE, ("core",)), REGISTERED))
    assert core.waiting == 3
    ended: list[Any] = []
    asking.addBoth(ended.append)
    asking.cancel()
    assert ended[0].check(CancelledError)
    assert core.waiting == 0
    assert not clock.getDelayedCalls()


def test_an_api_server_that_reviews_slowly_delays_nobody_but_the_first() -> None:
    clock = Clock()
    services = (service("a.io/v1"), service("b.io/v1"), service("c.io/v1", "slow", "slow"))
    ask = visibility({"core": Reviewer("/apis/*"), "slow": Reviewer(hangs=True)}, clock=clock, services=services)
    first = ask()
    clock.advance(0.25)
    assert first == found({A, B}, {C})
    assert ask() == found({A, B}, {C})  # at once


def test_nobody_there_sees_nothing() -> None:
    core = Reviewer("/apis/*")
    assert visibility({"core": core})(foreign=["core"]) == found(set())
    assert not core.reviews


def test_what_no_policy_admits_is_not_shown() -> None:
    assert visibility({"core": Reviewer("/apis/*")}, policies=Policies("b.io/v1"))() == found({A, C})


def rules(*urls: str) -> RuleSet:
    return RuleSet((model.Rule(verbs=("*",), non_resource_urls=urls),))


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        (("*",), {A, B, C}),
        (("/apis/*",), {A, B, C}),
        (("/apis/a.io/*", "/apis/b.io/v1"), {A, B}),
        (("/api/*",), set()),
    ],
)
@pytest.mark.parametrize("reviewed", [True, False])
def test_rules_of_the_server_are_asked_for_each_path(
    urls: tuple[str, ...], expected: set[tuple[str, str]], reviewed: bool
) -> None:
    reviewers = {"core": Reviewer("/apis/*")} if reviewed else None
    assert visibility(reviewers, authorizer=Authorizer(rules(*urls), None))() == found(expected)


def test_the_servers_reviewer_and_the_authority_must_both_allow_it() -> None:
    core, judge = Reviewer("/apis/a.io/v1", "/apis/b.io/v1"), Reviewer("/apis/b.io/v1", "/apis/c.io/v1")
    reviewers = {"core": core, "judge": judge}
    authorizer = Authorizer(None, reviewers.__getitem__, "judge")
    assert visibility(reviewers, authorizer=authorizer)() == found({B})


def test_two_hundred_are_decided_by_one_review() -> None:
    services = tuple(service(f"g{number}.io/v1") for number in range(200))
    core = Reviewer("/apis/*")
    made = ServiceVisibility(
        services,
        Clock(),
        dispatch=cast(Any, Policies()),
        authorizer=None,
        reviewers=lambda _: core,
    )
    outcome: list[Any] = []
    registered = [ServedGroupVersion(each.group, each.version, each.cluster, 1000, 100) for each in services]
    request = FakeRequest(b"/apis", ALICE, ("core",))
    Deferred.fromCoroutine(made.of(request, registered)).addBoth(outcome.append)
    assert len(outcome[0][0]) == 200
    assert core.reviews == ["/apis/*"]
