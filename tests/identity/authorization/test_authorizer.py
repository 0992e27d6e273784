"""Rules, reviews, or the one and then the other; and who decides about impersonation."""

from __future__ import annotations

from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.authorization.authorizer import Authorizer, ImpersonationAuthorizer
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending, known, settled

ALICE = UserInfo("alice", ("dev", "system:authenticated"))
LIST_PODS = Attributes("list", "", "v1", "pods", "", "demo")
DELETE_PODS = LIST_PODS._replace(verb="delete")
IMPERSONATE = Attributes("impersonate", "", "v1", "users", name="bob")

RULES = (model.Rule(users=("alice",), verbs=("list", "impersonate"), api_groups=("",), resources=("pods", "users")),)


class FakeReviews:
    """Reviews by one cluster, which refuses all."""

    def __init__(self) -> None:
        self.kept: dict[Any, Decision] = {}
        self.asked = 0

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        return self.kept.get((user, attributes)) or self._review(user, attributes)

    async def _review(self, user: UserInfo, attributes: Attributes) -> Decision:
        self.asked += 1
        self.kept[user, attributes] = Decision(False, f"asked {self.asked} times")
        return self.kept[user, attributes]


class Reviewers:
    def __init__(self) -> None:
        self.reviews = {"east": FakeReviews(), "west": FakeReviews()}

    def of(self, name: str) -> Any:
        return self.reviews[name]

    def build(self, **fields: Any) -> Authorizer:
        return Authorizer.build(model.Authorization(name="x", **fields), self.of)


@pytest.fixture
def reviewers() -> Reviewers:
    return Reviewers()


def decide(authorizer: Authorizer | ImpersonationAuthorizer, attributes: Attributes, cluster: str = "east") -> Decision:
    result: list[Any] = []
    Deferred.fromCoroutine(settled(authorizer.decide(ALICE, attributes, cluster))).addBoth(result.append)
    return cast(Decision, result[0])


def test_rules_alone_always_know(reviewers: Reviewers) -> None:
    authorizer = reviewers.build(rules=RULES)
    assert known(authorizer.decide(ALICE, LIST_PODS, "east")) == Decision(True)
    assert known(authorizer.decide(ALICE, DELETE_PODS, "east")) == Decision(False)
    assert decide(authorizer, DELETE_PODS) == Decision(False)


def test_a_review_is_by_the_cluster_that_the_request_goes_to(reviewers: Reviewers) -> None:
    authorizer = reviewers.build(subject_access_review=model.SubjectAccessReview())
    assert known(authorizer.decide(ALICE, LIST_PODS, "west")) is None
    assert decide(authorizer, LIST_PODS, "west") == Decision(False, "asked 1 times")
    assert known(authorizer.decide(ALICE, LIST_PODS, "west")) == Decision(False, "asked 1 times")
    assert known(authorizer.decide(ALICE, LIST_PODS, "east")) is None


def test_or_by_the_one_that_is_named(reviewers: Reviewers) -> None:
    authorizer = reviewers.build(subject_access_review=model.SubjectAccessReview(cluster="east"))
    decide(authorizer, LIST_PODS, "west")
    assert (reviewers.reviews["east"].asked, reviewers.reviews["west"].asked) == (1, 0)


def test_what_no_rule_allows_is_reviewed(reviewers: Reviewers) -> None:
    authorizer = reviewers.build(rules=RULES, subject_access_review=model.SubjectAccessReview())
    assert decide(authorizer, LIST_PODS) == Decision(True)
    assert reviewers.reviews["east"].asked == 0
    assert decide(authorizer, DELETE_PODS) == Decision(False, "asked 1 times")


def impersonation(reviewers: Reviewers, **fields: Any) -> ImpersonationAuthorizer:
    return ImpersonationAuthorizer(model.Authorization(name="x", **fields) if fields else None, reviewers.of)


def test_impersonation_is_reviewed_by_the_cluster_where_the_server_has_no_authorizer(reviewers: Reviewers) -> None:
    assert decide(impersonation(reviewers), IMPERSONATE, "west") == Decision(False, "asked 1 times")


def test_impersonation_is_reviewed_by_the_requests_cluster_whoever_else_is_named(reviewers: Reviewers) -> None:
    authorizer = impersonation(reviewers, subject_access_review=model.SubjectAccessReview(cluster="east"))
    decide(authorizer, IMPERSONATE, "west")
    assert (reviewers.reviews["east"].asked, reviewers.reviews["west"].asked) == (0, 1)


def test_rules_and_the_cluster_must_both_allow_impersonation(reviewers: Reviewers) -> None:
    authorizer = impersonation(reviewers, rules=RULES)
    assert known(authorizer.decide(ALICE, IMPERSONATE, "east")) is None
    assert decide(authorizer, IMPERSONATE) == Decision(False, "asked 1 times")
    reviewers.reviews["east"].kept[ALICE, IMPERSONATE] = Decision(True)
    assert known(authorizer.decide(ALICE, IMPERSONATE, "east")) == Decision(True)
    groups = IMPERSONATE._replace(resource="groups")
    reviewers.reviews["east"].kept[ALICE, groups] = Decision(True)
    assert known(authorizer.decide(ALICE, groups, "east")) == Decision(False)


@pytest.mark.parametrize("verbs", [("*",), ("-get",), ("get", "*"), ("-get", "-list"), ("list",), ()])
def test_only_a_rule_that_writes_the_verb_out_allows_impersonation(
    reviewers: Reviewers, verbs: tuple[str, ...]
) -> None:
    everything: dict[str, Any] = {"api_groups": ("*",), "resources": ("*",), "non_resource_urls": ("*",)}
    authorizer = impersonation(reviewers, rules=(model.Rule(verbs=verbs, **everything),))
    reviewers.reviews["east"].kept[ALICE, IMPERSONATE] = Decision(True)
    assert known(authorizer.decide(ALICE, IMPERSONATE, "east")) == Decision(False)
    written = impersonation(reviewers, rules=(model.Rule(verbs=(*verbs, "impersonate"), **everything),))
    assert known(written.decide(ALICE, IMPERSONATE, "east")) == Decision(True)


def test_with_passthrough_the_cluster_sees_for_itself_what_rules_allow(reviewers: Reviewers) -> None:
    authorizer = impersonation(reviewers, rules=RULES)
    assert known(authorizer.decide(ALICE, IMPERSONATE, "east", cluster_decides=True)) == Decision(True)
    assert known(impersonation(reviewers).decide(ALICE, IMPERSONATE, "east", cluster_decides=True)) is None


def test_rules_of_an_authorizer_that_reviews_leave_impersonation_to_the_cluster(reviewers: Reviewers) -> None:
    review = model.SubjectAccessReview(cluster="east")
    authorizer = impersonation(reviewers, rules=RULES, subject_access_review=review)
    assert decide(authorizer, IMPERSONATE, "west") == Decision(False, "asked 1 times")
    assert reviewers.reviews["west"].asked == 1
