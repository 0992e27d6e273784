"""What is asked of a cluster about the proxy's own rights, and how its answers are read."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.identity import self_access_review
from mcproxy.identity.required_rights import Right
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.identity.self_access_review import is_granted, review_body
from mcproxy.upstream.control import ControlResponse
from tests.support.clock import Clock

RIGHT = Right("why", "impersonate", "users")


@pytest.mark.parametrize(
    ("right", "spec"),
    [
        (RIGHT, {"resourceAttributes": {"verb": "impersonate", "group": "", "version": "*", "resource": "users"}}),
        (
            Right("why", "impersonate", "userextras/scopes", "authentication.k8s.io"),
            {
                "resourceAttributes": {
                    "verb": "impersonate",
                    "group": "authentication.k8s.io",
                    "version": "*",
                    "resource": "userextras",
                    "subresource": "scopes",
                }
            },
        ),
        (
            Right("why", "list", "pods", namespace="demo"),
            {
                "resourceAttributes": {
                    "verb": "list",
                    "group": "",
                    "version": "*",
                    "resource": "pods",
                    "namespace": "demo",
                }
            },
        ),
        (
            Right("why", "get", "namespaces", name="kube-system"),
            {
                "resourceAttributes": {
                    "verb": "get",
                    "group": "",
                    "version": "*",
                    "resource": "namespaces",
                    "name": "kube-system",
                }
            },
        ),
        (Right("why", "get", path="/readyz"), {"nonResourceAttributes": {"path": "/readyz", "verb": "get"}}),
    ],
)
def test_a_right_is_asked_for_in_the_terms_of_the_api(right: Right, spec: dict[str, Any]) -> None:
    review = json.loads(review_body(right))
    assert review == {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}


def outcome(monkeypatch: pytest.MonkeyPatch, status: int, body: bytes) -> Any:
    asked: list[tuple[Any, ...]] = []

    async def create_review(*args: Any) -> ControlResponse:
        asked.append(args)
        return ControlResponse(status, (), body)

    monkeypatch.setattr(self_access_review, "create_review", create_review)
    results: list[Any] = []
    Deferred.fromCoroutine(is_granted(cast(Any, "cluster"), RIGHT, cast(Any, Clock()))).addBoth(results.append)
    assert asked[0][:3] == ("cluster", "authorization.k8s.io", "SelfSubjectAccessReview")
    return results[0]


@pytest.mark.parametrize("allowed", [True, False])
def test_the_answer(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    body = json.dumps({"status": {"allowed": allowed, "denied": not allowed}}).encode()
    assert outcome(monkeypatch, 201, body) is allowed


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (201, b""),
        (201, b"[]"),
        (201, b'{"status": {}}'),
        (201, b'{"status": {"allowed": "true"}}'),
        (201, b'{"status": {"allowed": true, "allowed": false}}'),
        (422, b'{"status": {"allowed": true}}'),
    ],
)
def test_what_is_no_answer_grants_nothing_and_denies_nothing(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes
) -> None:
    error = outcome(monkeypatch, status, body).value
    assert isinstance(error, UnavailableError)
    assert error.kind == "answer"
