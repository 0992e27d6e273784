"""Reviews that users ask for about themselves."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from tests.aggregate.writes.fleet import Fleet, FleetRequest, forbids, status

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
            "metadata": {"creationTimestamp": "2026-09-21T14:13:20Z"},
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

    def test_clusters_that_do_not_know_the_user_do_not_count_and_of_their_refusals_the_first_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        users: dict[str, UserInfo] = {}

        def user_for(_: FleetRequest, member: str) -> UserInfo:
            if member not in users:
                raise StatusError(403, f"not known to {member}")
            return users[member]

        monkeypatch.setattr(FleetRequest, "user_for", user_for)
        refused = Fleet().review(WHO_AM_I, b'{"kind":"SelfSubjectReview"}')
        assert (refused.code, refused.message) == (403, "not known to east")
        users["west"] = UserInfo("bob", ("dev",))
        info = Fleet().review(WHO_AM_I, b'{"kind":"SelfSubjectReview"}').json["status"]["userInfo"]
        assert info == {"username": "bob", "groups": ["dev"]}

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


class TestForms:
    def test_yaml(self) -> None:
        fleet = Fleet()
        for member in fleet.members.values():
            member.rule = lambda method, _: (201, access(True))
        accept = (b"Accept", b"application/yaml")
        answer = fleet.review(ACCESS, recorded("auth-can-i"), accept, PROTOBUF)
        assert yaml.safe_load(answer.body) == access(True)
        assert fleet.members["east"].fields[-1][b"Accept"] == b"application/json"
        who = fleet.review(WHO_AM_I, recorded("auth-whoami"), accept, PROTOBUF)
        assert yaml.safe_load(who.body)["status"]["userInfo"]["username"] == "bob"
        assert ("Content-Type", "application/yaml") in who.fields

    @pytest.mark.parametrize("path", [ACCESS, RULES, WHO_AM_I])
    @pytest.mark.parametrize(
        "accept",
        [b"text/html", b"application/json;as=Table;v=v1;g=meta.k8s.io", b"application/json;as=PartialObjectMetadata"],
    )
    def test_what_a_review_is_not_answered_in_is_406(self, path: str, accept: bytes) -> None:
        fleet = Fleet()
        assert fleet.review(path, b"{}", (b"Accept", accept)).code == 406
        assert fleet.members["east"].sent == []

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"kind":"Pod"}', b'{"status":1}', b"k8s\0x"])
    def test_a_body_that_is_no_self_subject_review_is_refused_in_the_words_of_a_cluster(self, body: bytes) -> None:
        fleet = Fleet()
        fleet.members["east"].rule = lambda method, _: (400, status(400, "BadRequest"))
        answer = fleet.review(WHO_AM_I, body)
        assert (answer.code, answer.json["reason"]) == (400, "BadRequest")
        assert [sent[2] for sent in fleet.members["east"].sent] == [body]
        assert fleet.members["west"].sent == []

    def test_one_that_a_cluster_takes_is_answered_here(self) -> None:
        fleet = Fleet()
        fleet.members["east"].rule = lambda method, _: (201, {"kind": "SelfSubjectReview", "status": {"userInfo": {}}})
        answer = fleet.review(WHO_AM_I, b"kind: SelfSubjectReview", (b"Content-Type", b"application/yaml"))
        assert answer.json["status"]["userInfo"]["username"] == "bob"
