"""Reviews that users ask for about themselves."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from tests.aggregate.writes.fleet import Fleet, FleetRequest, forbids

GOLDEN = Path(__file__).parents[2] / "golden" / "clients" / "kubectl-1.36"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
ACCEPT = (b"Accept", b"application/vnd.kubernetes.protobuf,application/json")
PROTOBUF = (b"Content-Type", b"application/vnd.kubernetes.protobuf")


def recorded(name: str) -> bytes:
    """The review that kubectl sends, in protobuf."""
    (request,) = [
        each["request"]
        for each in json.loads((GOLDEN / f"{name}.json").read_text())["exchanges"]
        if each["request"]["method"] == "POST"
    ]
    encoded = request.get("body_base64")
    return base64.b64decode(encoded) if encoded else request["body"].encode()


def access(allowed: bool, **more: Any) -> dict[str, Any]:
    return {"kind": "SelfSubjectAccessReview", "spec": {}, "status": {"allowed": allowed, **more}}


class TestWhoAmI:
    def test_the_proxy_answers_kubectl_itself(self) -> None:
        fleet = Fleet()
        answer = fleet.review(WHO_AM_I, recorded("auth-whoami"), ACCEPT, PROTOBUF)
        assert answer.code == 201
        assert answer.json == {
            "kind": "SelfSubjectReview",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"},
            "status": {"userInfo": {"username": "bob", "groups": ["dev"]}},
        }
        assert ("Content-Type", "application/json") in answer.fields
        assert fleet.members["east"].sent == fleet.members["west"].sent == []

    def test_json_and_all_of_a_user(self, monkeypatch: pytest.MonkeyPatch) -> None:
        users = {
            "east": UserInfo("system:serviceaccount:a:b", ("x",), "u", (("k", ("v", "w")),)),
            "west": UserInfo("system:serviceaccount:a:b", ("x", "system:serviceaccounts"), "u", (("k", ("v", "w")),)),
        }
        monkeypatch.setattr(FleetRequest, "user_for", lambda _, member: users[member])
        info = Fleet().review(WHO_AM_I, b'{"kind":"SelfSubjectReview"}').json["status"]["userInfo"]
        assert info == {
            "username": "system:serviceaccount:a:b",
            "uid": "u",
            "groups": ["x", "system:serviceaccounts"],
            "extra": {"k": ["v", "w"]},
        }

    def test_protobuf_alone_is_406(self) -> None:
        assert Fleet().review(WHO_AM_I, b"", (b"Accept", b"application/vnd.kubernetes.protobuf")).code == 406


class TestAccess:
    def test_each_member_and_the_primary_are_asked_with_the_body_as_it_is(self) -> None:
        fleet = Fleet(primary="west")
        for member in fleet.members.values():
            member.rule = lambda *_: (201, access(False))
        body = recorded("auth-can-i")
        answer = fleet.review(ACCESS, body, ACCEPT, PROTOBUF)
        assert (answer.code, answer.json, answer.served) == (201, access(False), ("west", "east"))
        for member in fleet.members.values():
            assert member.sent == [(b"POST", ACCESS.encode(), body)]
            assert member.fields == [{b"Accept": b"application/json", b"Content-Type": PROTOBUF[1]}]

    def test_the_first_that_allows_is_the_answer(self) -> None:
        fleet = Fleet("east", "west", "north")
        fleet.members["east"].rule = lambda *_: (201, access(False))
        fleet.members["west"].rule = lambda *_: (201, access(True, reason="RBAC: west"))
        fleet.members["north"].rule = lambda *_: (201, access(True, reason="RBAC: north"))
        assert fleet.review(ACCESS, b"{}").json["status"] == {"allowed": True, "reason": "RBAC: west"}

    def test_members_that_fail_do_not_matter_while_one_answers(self) -> None:
        fleet = Fleet()
        fleet.members["east"].rule = lambda *_: StatusError(503, "no endpoint")
        fleet.members["west"].rule = lambda *_: (201, access(False))
        assert fleet.review(ACCESS, b"{}").json == access(False)
        fleet.members["west"].rule = forbids()
        assert fleet.review(ACCESS, b"{}").code == 503

    @pytest.mark.parametrize("body", [b"", b"[]", b'{"status":{"allowed":"true"}}', b'{"status":null}', b"\xff"])
    def test_only_a_true_answer_allows(self, body: bytes) -> None:
        fleet = Fleet()
        fleet.members["east"].rule = lambda *_: (201, body)
        fleet.members["west"].rule = lambda *_: (201, access(False))
        fleet.members["west"].rule = lambda *_: (201, access(True))
        assert fleet.review(ACCESS, b"{}").json == access(True)


class TestRules:
    def rules(self, *resources: str, **more: Any) -> dict[str, Any]:
        status = {
            "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": [name]} for name in resources],
            "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}],
            "incomplete": False,
        }
        return {
            "kind": "SelfSubjectRulesReview",
            "metadata": {},
            "spec": {"namespace": "a"},
            "status": {**status, **more},
        }

    def test_the_union(self) -> None:
        fleet = Fleet()
        fleet.members["east"].rule = lambda *_: (201, self.rules("pods", "secrets"))
        fleet.members["west"].rule = lambda *_: (201, self.rules("secrets", "nodes", evaluationError="webhook"))
        answer = fleet.review(RULES, recorded("auth-can-i-list"), ACCEPT, PROTOBUF)
        assert answer.code == 201
        assert answer.json == self.rules("pods", "secrets", "nodes", evaluationError="webhook")

    def test_it_is_incomplete_where_a_member_did_not_answer(self) -> None:
        fleet = Fleet()
        fleet.members["east"].rule = lambda *_: (201, self.rules("pods"))
        fleet.members["west"].rule = lambda *_: StatusError(503, "no")
        assert fleet.review(RULES, b"{}").json == self.rules("pods", incomplete=True)

    def test_where_none_answers(self) -> None:
        fleet = Fleet()
        for member in fleet.members.values():
            member.rule = forbids()
        assert fleet.review(RULES, b"{}").code == 403
