"""Asking a cluster for a review: which endpoint is asked, for how long, and what counts as an answer."""

from __future__ import annotations

from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.identity.authorization import access_review
from mcproxy.identity.review_client import create_review
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.net.connect_errors import ConnectionRefused
from mcproxy.observe.metrics.families import REVIEW_DURATION, REVIEWS
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError
from tests.identity.fake_review_cluster import FakeCluster
from tests.support.clock import Clock

SUCCESS = ControlResponse(201, (), b"{}")
REFUSED = ConnectionRefused("10.0.0.1:6443 refused the connection")
STATUS = {code: ControlResponse(code, (), b"{}") for code in (302, 400, 401, 403, 404, 429, 500, 503)}


def asked(**answers: Any) -> tuple[FakeCluster, Any]:
    """Return the cluster, and the response or the trouble."""
    clock = Clock()
    cluster = FakeCluster(clock, answers)
    result: list[Any] = []
    asking = create_review(cast(Any, cluster), "authentication.k8s.io", "TokenReview", b"question", clock)
    Deferred.fromCoroutine(asking).addCallbacks(result.append, lambda failure: result.append(failure.value))
    return cluster, result[0]


def test_one_endpoint_is_enough() -> None:
    cluster, found = asked(a=SUCCESS, b=SUCCESS)
    assert found is SUCCESS
    assert [name for name, _ in cluster.asked] == ["a"]
    assert cluster.questions == [("/apis/authentication.k8s.io/v1/tokenreviews", b"question")]


def test_reviews_are_counted_by_whether_they_were_answered() -> None:
    for trouble, result in ((SUCCESS, "answered"), (STATUS[500], "failed")):
        counts = asked(a=trouble)[0].metrics.counts
        assert dict(counts.of(REVIEWS)) == {("TokenReview", "east", result): [1]}
        (numbers,) = counts.of(REVIEW_DURATION).values()
        assert sum(numbers[:-1]) == 1


@pytest.mark.parametrize(
    "trouble", [REFUSED, ControlError("a broke off the connection"), None, STATUS[500], STATUS[503], STATUS[429]]
)
def test_the_next_endpoint_is_asked_where_one_does_not_answer(trouble: Any) -> None:
    cluster, found = asked(a=trouble, b=SUCCESS)
    assert found is SUCCESS
    assert [name for name, _ in cluster.asked] == ["a", "b"]
    assert cluster.endpoints["a"].checks_requested == (1 if trouble is REFUSED else 0)


def test_a_connection_that_is_lost_at_once_is_no_answer_and_is_asked_for_once_more() -> None:
    """A server closes a kept connection while a review is on its way, which is nobody's fault; a POST is not resent."""
    broken = ControlError("a broke off the connection")
    cluster, found = asked(a=broken)
    assert isinstance(found, UnavailableError)
    assert [name for name, _ in cluster.asked] == ["a", "a"]
    cluster, found = asked(a=broken, b=REFUSED)
    assert [name for name, _ in cluster.asked] == ["a", "b", "a"]
    for other in (REFUSED, STATUS[500]):
        cluster, found = asked(a=other)
        assert [name for name, _ in cluster.asked] == ["a"]


def test_the_error_of_the_last_endpoint_is_raised() -> None:
    _, found = asked(a=STATUS[500], b=REFUSED)
    assert isinstance(found, UnavailableError)
    assert (found.kind, found.cause) == ("connection", "10.0.0.1:6443 refused the connection")


@pytest.mark.parametrize("trouble", [ControlError("no answer within 5 s"), STATUS[503], STATUS[429]])
def test_what_a_busy_api_server_does_is_no_proof_that_it_cannot_be_reached(trouble: Any) -> None:
    """Last decisions hold while a cluster cannot be reached: who can load it must not get a lost right back."""
    _, found = asked(a=trouble)
    assert isinstance(found, UnavailableError)
    assert found.kind not in access_review._UNREACHABLE
    _, found = asked(a=REFUSED)
    assert isinstance(found, UnavailableError)
    assert found.kind in access_review._UNREACHABLE


def test_without_a_ready_endpoint_each_is_in_the_error() -> None:
    _, found = asked()
    assert isinstance(found, UnavailableError)
    assert found.cause.startswith("no endpoint of cluster east is ready")


def test_all_endpoints_together_have_ten_seconds() -> None:
    cluster, found = asked(a=None, b=None, c=SUCCESS)
    assert isinstance(found, UnavailableError)
    assert [name for name, _ in cluster.asked] == ["a", "b"]
    cluster, found = asked(a=ControlError("no"), b=None, c=SUCCESS)
    assert found is SUCCESS
    assert [timeout for _, timeout in cluster.asked] == [5, 5, 5]


@pytest.mark.parametrize(
    ("answer", "todo"),
    [
        (STATUS[401], "give cluster east valid credentials"),
        (STATUS[403], "grant it what `mcproxy rbac` prints"),
        (
            STATUS[404],
            "if cluster east is an API server that extends another cluster's API, write identity: RequestHeader there, "
            "and users are judged by that cluster; else see what answers there",
        ),
        (STATUS[302], "see the log of the cluster's API server"),
        (CredentialError("cannot read the token file /x"), "give cluster east a usable credential"),
    ],
)
def test_what_is_wrong_with_the_proxy_is_so_at_every_endpoint(answer: Any, todo: str) -> None:
    cluster, found = asked(a=answer, b=SUCCESS)
    assert isinstance(found, UnavailableError)
    assert found.todo == todo
    assert [name for name, _ in cluster.asked] == ["a"]


def test_the_right_that_is_missing_is_named() -> None:
    _, found = asked(a=STATUS[403])
    assert "create tokenreviews of authentication.k8s.io" in found.cause


def test_an_answer_that_blames_the_question_is_an_answer() -> None:
    assert asked(a=STATUS[400])[1] is STATUS[400]
