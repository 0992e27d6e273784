"""Writes and subresources of an aggregate: where they go, what of them changes, and what the client gets."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from twisted.internet.defer import Deferred

from mcproxy.config.model import ResourceVersions
from mcproxy.identity.authorization.attributes import attributes_of, forbidden
from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from tests.aggregate.writes.fleet import (
    ANNOTATION,
    BOB,
    CONFIG_MAPS,
    LABEL,
    LEASES,
    LIST,
    Fleet,
    MemberAPI,
    forbids,
    rule,
    scoped,
    served,
    status,
)

OBJECT = LIST + "/a"
MERGE = (b"Content-Type", b"application/merge-patch+json")
APPLY = (b"Content-Type", b"application/apply-patch+yaml")


def refuses_as_a_cluster(method: bytes, path: str) -> tuple[int, Any]:
    refusal = forbidden(BOB, attributes_of(requestinfo.parse(method, path.encode()), path.encode()))
    return 403, json.loads(refusal.body())


def config_map(name: str = "a", **metadata: Any) -> dict[str, Any]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, **metadata}, "data": {"k": "v"}}


class TestOwner:
    @pytest.mark.parametrize("owner", ["east", "west"])
    def test_it_is_found_in_the_cache_and_no_other_member_is_asked(self, owner: str) -> None:
        fleet = Fleet()
        fleet.members[owner].put("a")
        answer = fleet.asks("PATCH", OBJECT, {"data": {"x": "y"}}, MERGE)
        assert (answer.code, answer.served) == (200, (owner,))
        assert [sent[0] for sent in fleet.members[owner].sent] == [b"PATCH"]
        (other,) = set(fleet.members) - {owner}
        assert fleet.members[other].sent == []

    def test_what_is_not_cached_yet_is_asked_of_the_members_with_the_users_identity(self) -> None:
        fleet = Fleet()
        fleet.members["west"].lagging = True
        fleet.members["west"].put("a")
        _, waiting = fleet.begin("PATCH", OBJECT, {"data": {}}, MERGE)
        assert [sent[0] for sent in fleet.members["east"].sent] == [b"GET"]
        assert [sent[0] for sent in fleet.members["west"].sent] == [b"GET", b"PATCH"]
        waiting.cancel()

    def test_none_is_404(self) -> None:
        answer = Fleet().asks("DELETE", OBJECT)
        assert (answer.code, answer.message) == (404, 'configmaps "a" not found')
        assert answer.json["details"] == {"name": "a", "kind": "configmaps"}

    def test_several_are_409_with_a_message_that_says_how_to_choose(self) -> None:
        """Elsewhere this was a 500."""
        fleet = Fleet()
        for member in fleet.members.values():
            member.put("a")
        answer = fleet.asks("DELETE", OBJECT)
        # For Conflict kubectl would try again until its deadline, and show nothing.
        assert (answer.code, answer.json["reason"]) == (409, "AlreadyExists")
        assert answer.message == (
            'configmaps "a" exists in several clusters: east, west; choose one through the path /clusters/east/ or '
            "/clusters/west/, or by a rule in `conflicts` of the aggregate"
        )
        assert fleet.writes_to("east") == fleet.writes_to("west") == []

    def test_the_label_in_the_body_chooses(self) -> None:
        fleet = Fleet()
        for member in fleet.members.values():
            member.put("a")
        answer = fleet.asks("PUT", OBJECT, config_map(labels={LABEL: "west", "app": "x"}))
        assert (answer.code, answer.served) == (200, ("west",))
        assert json.loads(fleet.writes_to("west")[0][2])["metadata"]["labels"] == {"app": "x"}

    def test_of_several_only_those_that_the_user_may_see_count(self) -> None:
        fleet = Fleet()
        for member in fleet.members.values():
            member.put("a")
        fleet.members["east"].rule = forbids()
        assert fleet.asks("PATCH", OBJECT, {}, MERGE).served == ("west",)

    def test_a_member_that_is_away_and_was_never_read_leaves_the_owner_unknown(self) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.rule = lambda *_: StatusError(503, 'no endpoint of cluster "west" is ready')
        west.stores[CONFIG_MAPS.gvr, ""].clear()
        answer = fleet.asks("DELETE", OBJECT)
        assert (answer.code, answer.json["details"]) == (503, {"retryAfterSeconds": 1})
        assert answer.message.startswith('it is not known whether cluster west has configmaps "a": no endpoint')

    def test_of_several_owners_the_one_that_is_there_does_not_get_the_write_because_the_other_is_away(self) -> None:
        fleet = Fleet()
        for member in fleet.members.values():
            member.put("a")
        fleet.members["west"].rule = lambda *_: StatusError(503, "away")
        answer = fleet.asks("DELETE", OBJECT)
        assert (answer.code, answer.message) == (503, 'it is not known whether cluster west has configmaps "a": away')
        assert fleet.writes_to("east") == []

    def test_a_member_that_was_never_reached_may_have_the_object(self) -> None:
        fleet = Fleet("east", "west", "north", unknown=["west"])
        fleet.members["north"].put("a")
        assert fleet.asks("PATCH", OBJECT, {}, MERGE).served == ("north",)
        answer = fleet.asks("DELETE", LIST + "/absent")
        assert (answer.code, answer.message) == (
            503,
            'it is not known whether cluster west has configmaps "absent": it cannot be reached',
        )

    def test_the_only_member_of_an_aggregate_gives_the_answer_itself(self) -> None:
        fleet = Fleet("east")
        answer = fleet.asks("DELETE", OBJECT)
        assert (answer.code, answer.json) == (404, status(404, "NotFound"))
        assert [sent[0] for sent in fleet.members["east"].sent] == [b"DELETE"]


class TestWhatUsersMayKnow:
    """An answer tells nothing that the members would not have told."""

    def test_a_member_that_does_not_allow_the_verb_has_nothing_for_the_user(self) -> None:
        """It was its own 403, where it had the object."""
        answers = []
        for exists in (True, False):
            fleet = Fleet()
            if exists:
                fleet.members["east"].put("a")
            fleet.members["east"].rule = forbids(b"PATCH")
            answers.append(fleet.asks("PATCH", OBJECT, {}, MERGE))
        assert [answer.code for answer in answers] == [404, 404]
        assert (answers[0].body, answers[0].fields) == (answers[1].body, answers[1].fields)

    def test_what_admission_refuses_is_the_answer_of_the_member(self) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        fleet.members["east"].may = True
        fleet.members["east"].rule = forbids(b"PATCH")
        answer = fleet.asks("PATCH", OBJECT, {}, MERGE)
        assert (answer.code, answer.json) == (403, status(403, "Forbidden"))

    def test_an_object_that_the_user_may_not_see_is_refused_like_one_that_does_not_exist(self) -> None:
        answers = []
        for exists in (True, False):
            fleet = Fleet()
            if exists:
                fleet.members["west"].put("a")
            fleet.members["west"].rule = forbids()
            answers.append(fleet.asks("DELETE", OBJECT))
        assert [answer.code for answer in answers] == [404, 404]
        assert answers[0].body == answers[1].body

    def test_where_no_member_lets_the_user_see_anything_it_is_403_in_a_clusters_words(self) -> None:
        fleet = Fleet()
        for member in fleet.members.values():
            member.rule = forbids()
        answer = fleet.asks("PATCH", OBJECT, {}, MERGE)
        assert (answer.code, answer.message) == (
            403,
            'configmaps "a" is forbidden: User "bob" cannot patch resource "configmaps" in API group "" in the '
            'namespace "demo"',
        )

    def test_names_in_several_clusters_are_not_told_to_who_may_not_see_them(self) -> None:
        fleet = Fleet()
        for member in fleet.members.values():
            member.put("a")
            member.rule = forbids()
        assert fleet.asks("DELETE", OBJECT).code == 403

    @pytest.mark.parametrize("allowed_elsewhere", [False, True])
    @pytest.mark.parametrize("where", ["body", "query"])
    def test_a_body_that_cannot_be_sent_does_not_tell_that_the_object_exists(
        self, where: str, allowed_elsewhere: bool
    ) -> None:
        answers = []
        for exists in (True, False):
            fleet = Fleet()
            if exists:
                fleet.members["west"].put("a")
            fleet.members["west"].rule = forbids()
            if not allowed_elsewhere:
                fleet.members["east"].rule = forbids()
            version = fleet.object_version("east", 100)  # no part of west
            target = f"{OBJECT}?resourceVersion={version}" if where == "query" else OBJECT
            body: Any = config_map(resourceVersion=version) if where == "body" else config_map()
            answers.append(fleet.asks("PUT", target, body))
        assert [answer.code for answer in answers] == [404 if allowed_elsewhere else 403] * 2
        assert answers[0].body == answers[1].body

    def test_a_refusal_of_what_no_member_lets_the_user_see_is_the_same_whether_it_exists(self) -> None:
        answers = []
        for exists in (True, False):
            fleet = Fleet()
            if exists:
                fleet.members["west"].put("a")
            for member in fleet.members.values():
                member.may = False
                member.rule = refuses_as_a_cluster
            answers.append(fleet.asks("DELETE", OBJECT))
        assert [answer.code for answer in answers] == [403, 403]
        assert answers[0].body == answers[1].body
        assert answers[0].fields == answers[1].fields == []  # as a member's answer would have, of priority and fairness

    def test_what_admission_refuses_is_told_to_who_may_write_but_not_read(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        for member in fleet.members.values():
            member.may = True
            member.rule = forbids()
        assert fleet.asks("DELETE", OBJECT).message == "no: Forbidden"

    def test_a_member_that_a_policy_leaves_out_has_nothing_for_the_user(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        fleet.left_out = (("west", "policy"),)
        answer = fleet.asks("DELETE", OBJECT)
        assert answer.message == 'configmaps "a" not found'
        assert answer.warnings == ['299 - "cluster west: its objects are left out: policy"']


class TestBody:
    def test_what_was_read_can_be_put_back(self) -> None:
        fleet = Fleet()
        obj = fleet.members["west"].put("a", metadata={"labels": {"app": "x"}}, data={"k": "v"})
        read = served(obj, "west", fleet.object_version("west", 201))
        assert fleet.asks("PUT", OBJECT, read).code == 200
        assert json.loads(fleet.writes_to("west")[0][2]) == {
            **obj,
            "metadata": {**obj["metadata"], "resourceVersion": "201"},
        }

    def test_a_stale_version_conflicts_as_in_one_cluster(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        read = config_map(resourceVersion=fleet.object_version("west", 200))
        assert fleet.asks("PUT", OBJECT, read).json == status(409, "Conflict")

    @pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
    def test_a_version_of_another_member_is_409(self, method: str) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        version = fleet.object_version("east", 100)
        body: Any = {"metadata": {"resourceVersion": version}, "preconditions": {"resourceVersion": version}}
        answer = fleet.asks(method, OBJECT, body, *([MERGE] if method == "PATCH" else []))
        assert (answer.code, answer.json["reason"]) == (409, "Conflict")
        assert answer.message.startswith('Operation cannot be fulfilled on configmaps "a": ')
        assert fleet.writes_to("west") == []

    def test_delete_preconditions(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        options = {"preconditions": {"resourceVersion": fleet.object_version("west", 201)}}
        assert fleet.asks("DELETE", OBJECT, options).code == 200
        assert json.loads(fleet.writes_to("west")[0][2]) == {"preconditions": {"resourceVersion": "201"}}

    def test_a_scale_that_was_read_can_be_put_back(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        scale = {"kind": "Scale", "metadata": {"name": "a", "resourceVersion": fleet.object_version("west", 201)}}
        fleet.asks("PUT", OBJECT + "/scale", scale)
        assert json.loads(fleet.writes_to("west")[0][2])["metadata"] == {"name": "a", "resourceVersion": "201"}

    def test_a_json_patch(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": fleet.object_version("west", 201)},
            {"op": "add", "path": "/metadata/labels/x", "value": "y"},
            {"op": "add", "path": "/metadata/annotations/x", "value": "y"},
        ]
        fleet.asks("PATCH", OBJECT, patch, (b"Content-Type", b"application/json-patch+json"))
        test, *rest = json.loads(fleet.writes_to("west")[0][2])
        assert test["value"] == "201"
        # The member's object has neither labels nor annotations, which the client has seen.
        assert [operation["path"] for operation in rest] == [
            "/metadata/labels",
            "/metadata/labels",
            "/metadata/labels/x",
            "/metadata/annotations",
            "/metadata/annotations",
            "/metadata/annotations/x",
        ]

    def test_the_query_and_the_type_of_the_body_pass(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        fields = ((b"User-Agent", b"kubectl"), (b"X-Remote-User", b"root"), (b"Cookie", b"c"), (b"Authorization", b"t"))
        fleet.asks("PATCH", OBJECT + "?fieldManager=x&force=true", {}, MERGE, *fields)
        west = fleet.members["west"]
        assert west.sent[0][1] == f"{OBJECT}?fieldManager=x&force=true".encode()
        assert west.fields[0] == {
            b"Accept": b"application/json",
            b"User-Agent": b"kubectl",
            b"Content-Type": b"application/merge-patch+json",
        }

    def test_a_body_over_3_mib_is_413(self) -> None:
        answer = Fleet().asks("PUT", OBJECT, b" " * (3 * 1024 * 1024 + 1))
        assert (answer.code, answer.message) == (413, "Request entity too large: limit is 3145728")


class TestAnswer:
    def test_it_carries_label_annotation_and_the_whole_vector(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        answer = fleet.asks("PUT", OBJECT, config_map())
        view = fleet.views.view(CONFIG_MAPS.gvr)
        assert view is not None
        version = view.format.written((100, 201), 1, 202)
        assert answer.json == served(fleet.members["west"].objects["configmaps", "demo", "a"], "west", version)
        assert ("Set-Cookie", "x") not in answer.fields
        assert answer.warnings == ['299 - "of the member"']

    def test_with_karmadas_versions_the_owners_part_alone(self) -> None:
        fleet = Fleet(versions=ResourceVersions.KARMADA)
        fleet.members["west"].put("a")
        answer = fleet.asks("PUT", OBJECT, config_map())
        assert answer.json["metadata"]["resourceVersion"] == fleet.object_version("west", 202)

    def test_a_version_of_an_answer_is_taken_back(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        first = fleet.asks("PUT", OBJECT, config_map()).json
        assert fleet.asks("PUT", OBJECT, first).code == 200

    def test_with_one_member_nothing_changes_but_the_marks(self) -> None:
        fleet = Fleet("east")
        fleet.members["east"].put("a")
        answer = fleet.asks("PUT", OBJECT, config_map())
        assert answer.json == served(fleet.members["east"].objects["configmaps", "demo", "a"], "east", "102")

    def test_a_status_and_a_failure_stay_as_they_are(self) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        assert fleet.asks("DELETE", OBJECT).json["kind"] == "Status"
        fleet.members["east"].put("a")
        fleet.members["east"].rule = lambda *_: (422, status(422, "Invalid"))
        assert fleet.asks("PUT", OBJECT, config_map()).json == status(422, "Invalid")

    @pytest.mark.parametrize("body", [b'{"kind":', b'{"metadata":{]}', b'{"a":"' + b"x" * (9 * 1024 * 1024) + b'"}'])
    def test_one_that_cannot_be_read_is_502(self, body: bytes) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        fleet.members["east"].rule = lambda *_: (200, body)
        assert fleet.asks("PATCH", OBJECT, {}, MERGE).code == 502

    def test_a_table(self) -> None:
        fleet = Fleet()
        east = fleet.members["east"]
        east.put("a")
        row = {"cells": ["a"], "object": {"kind": "PartialObjectMetadata", "metadata": {"resourceVersion": "101"}}}
        table = {"kind": "Table", "metadata": {"resourceVersion": "101"}, "rows": [row]}
        east.rule = lambda *_: (200, table)
        accept = (b"Accept", b"application/vnd.kubernetes.protobuf,application/json;as=Table;g=meta.k8s.io;v=v1")
        answer = fleet.asks("PATCH", OBJECT, {}, MERGE, accept)
        assert east.fields[-1][b"Accept"] == b"application/json;as=Table;g=meta.k8s.io;v=v1"
        found = answer.json["rows"][0]["object"]["metadata"]
        assert found["labels"] == {LABEL: "east"}
        assert found["resourceVersion"] == answer.json["metadata"]["resourceVersion"] != "101"

    @pytest.mark.parametrize(
        ("accept", "sent"),
        [
            (b"application/vnd.kubernetes.protobuf,application/json", b"application/json"),
            (b"application/vnd.kubernetes.protobuf", b"application/vnd.kubernetes.protobuf"),
            (b"*/*", b"application/json"),
            (b"application/yaml;q=0.9, application/json;q=0.8", b"application/json"),
        ],
    )
    def test_answers_are_asked_for_in_json_where_the_client_takes_it(self, accept: bytes, sent: bytes) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        fleet.asks("DELETE", OBJECT, b"", (b"Accept", accept))
        assert fleet.members["east"].fields[0][b"Accept"] == sent

    def test_what_cannot_be_made_is_406_before_anything_is_done(self) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        assert fleet.asks("DELETE", OBJECT, b"", (b"Accept", b"text/plain")).code == 406
        assert fleet.members["east"].sent == []


class TestCreate:
    def test_a_rule_names_a_member(self) -> None:
        fleet = Fleet(create=[rule("east", "leases"), rule("west")])
        answer = fleet.asks("POST", LIST, config_map(labels={"app": "x"}))
        assert (answer.code, answer.served) == (201, ("west",))
        assert answer.json["metadata"]["labels"] == {"app": "x", LABEL: "west"}
        assert answer.json["metadata"]["annotations"] == {ANNOTATION: "west"}

    def test_the_label_names_the_member_and_is_taken_off(self) -> None:
        fleet = Fleet(create=[rule("Label")])
        answer = fleet.asks("POST", LIST, config_map(labels={LABEL: "west"}))
        assert answer.served == ("west",)
        assert "labels" not in json.loads(fleet.writes_to("west")[0][2])["metadata"]

    @pytest.mark.parametrize("labels", [{}, {LABEL: "north"}, {LABEL: ""}])
    def test_no_label_and_one_that_is_no_member_are_422(self, labels: dict[str, str]) -> None:
        answer = Fleet(create=[rule("Label")]).asks("POST", LIST, config_map(labels=labels))
        assert (answer.code, answer.json["reason"]) == (422, "Invalid")
        assert answer.message.startswith('ConfigMap "a" is invalid: ')
        (cause,) = answer.json["details"]["causes"]
        assert cause["field"] == "metadata.labels[mcproxy.io/cluster]"
        label = labels.get(LABEL)
        assert cause["reason"] == ("FieldValueNotSupported" if label else "FieldValueRequired")
        begins = f'Unsupported value: "{label}": supported' if label else "Required value: the cluster"
        assert cause["message"].startswith(begins)
        assert '"east", "west"' in cause["message"]

    @pytest.mark.parametrize(
        ("media_type", "body", "code", "message"),
        [
            (b"application/json", b"", 400, "unexpected end of JSON input (<empty>)"),
            (b"application/json", b'{"apiVersion":"v1","kind":', 400, 'end of JSON input ({"apiVersion":"v1","kind":)'),
            (b"application/json", b"[]", 400, "json parse error: it is no object (5b5d)"),
            (b"application/json", b"{" + b" " * 40 + b"x", 400, "({" + " " * 29 + " ...)"),
            (b"application/yaml", b"- a", 400, "it is no object"),
            (b"application/yaml", b"a: {", 400, "error decoding YAML"),
            (b"application/vnd.kubernetes.protobuf", b"", 400, "no Kubernetes protobuf"),
            (b"text/plain", b'{"metadata":{"name":"a"}}', 415, "unknown format"),
            (b"application/x-www-form-urlencoded", b"a=b", 415, "unknown format"),
        ],
    )
    def test_what_is_no_object_is_refused_as_by_a_cluster(
        self, media_type: bytes, body: bytes, code: int, message: str
    ) -> None:
        """No member gets it, which would say so (errors/400-bad-json.json, 400-empty-body.json, 415-create.json)."""
        fleet = Fleet(create=[rule("Label")])
        answer = fleet.asks("POST", LIST, body, (b"Content-Type", media_type))
        assert (answer.code, message in answer.message) == (code, True), answer.message
        assert fleet.writes_to("east") == fleet.writes_to("west") == []

    def test_no_rule_is_405_with_a_reason(self) -> None:
        answer = Fleet(create=[rule("east", "leases")]).asks("POST", LIST, config_map())
        assert (answer.code, answer.json["reason"]) == (405, "MethodNotAllowed")
        assert 'aggregate "fleet" has no create rule for configmaps' in answer.message

    def test_the_primary(self) -> None:
        fleet = Fleet(create=[rule("Primary")], primary="west")
        assert fleet.asks("POST", LIST, config_map()).served == ("west",)

    def test_a_primary_that_is_no_member_gets_it_unchanged(self) -> None:
        fleet = Fleet(create=[rule("Primary")], primary="hub")
        hub = fleet.members["hub"] = MemberAPI("hub", 7)
        body = json.dumps(config_map(), indent=3).encode()
        answer = fleet.asks("POST", LIST, body)
        assert (answer.code, answer.served) == (201, ("hub",))
        assert hub.sent == [(b"POST", LIST.encode(), body)]

    def test_a_label_that_is_not_followed_is_said(self) -> None:
        fleet = Fleet(create=[rule("east")])
        answer = fleet.asks("POST", LIST, config_map(labels={LABEL: "west"}))
        assert answer.served == ("east",)
        assert any("mcproxy.io/cluster=west is not followed" in text for text in answer.warnings)

    def test_an_apply_of_what_does_not_exist_is_a_create(self) -> None:
        fleet = Fleet(create=[rule("west")])
        answer = fleet.asks("PATCH", OBJECT + "?apply=1", config_map(), APPLY)
        assert (answer.code, answer.served) == (200, ("west",))
        assert fleet.asks("PATCH", OBJECT + "?apply=1", config_map(), APPLY).served == ("west",)

    def test_an_apply_goes_to_the_owner_whatever_the_rules(self) -> None:
        fleet = Fleet(create=[rule("west")])
        fleet.members["east"].put("a")
        assert fleet.asks("PATCH", OBJECT + "?apply=1", config_map(), APPLY).served == ("east",)

    def test_an_apply_without_a_rule_is_405(self) -> None:
        for names in (("east", "west"), ("east",)):
            fleet = Fleet(*names)
            assert fleet.asks("PATCH", OBJECT + "?apply=1", config_map(), APPLY).code == 405
            assert fleet.writes_to("east") == []

    def test_a_put_that_would_create(self) -> None:
        lease = "/apis/coordination.k8s.io/v1/namespaces/demo/leases/l"
        body = {"kind": "Lease", "metadata": {"name": "l"}}
        assert Fleet(create=[rule("west")]).asks("PUT", lease, body).served == ("west",)
        assert Fleet().asks("PUT", lease, body).code == 405

    def test_a_put_of_what_a_put_does_not_create_is_404(self) -> None:
        for rules in ([], [rule("west")], [rule("Label")]):
            fleet = Fleet(create=rules)
            assert fleet.asks("PUT", OBJECT, config_map()).code == 404
            assert fleet.writes_to("west") == []


class TestScope:
    SCOPE = (
        scoped(CONFIG_MAPS, "demo", clusters=("east",)),
        scoped(CONFIG_MAPS, "other", clusters=("west",)),
        scoped(LEASES),
    )

    def test_a_name_in_a_namespace_outside_it_is_404_without_a_call(self) -> None:
        fleet = Fleet(scope=self.SCOPE, create=[rule("east")])
        for method, path in (("DELETE", "/a"), ("PUT", "/a"), ("GET", "/a/status"), ("POST", "")):
            answer = fleet.asks(method, "/api/v1/namespaces/hidden/configmaps" + path, config_map())
            assert answer.code == 404
        assert fleet.members["east"].sent == fleet.members["west"].sent == []

    def test_members_that_do_not_have_the_namespace_in_scope_are_not_asked(self) -> None:
        fleet = Fleet(scope=self.SCOPE)
        fleet.members["west"].put("a")
        assert fleet.asks("DELETE", OBJECT).code == 404
        assert fleet.members["west"].sent == []

    def test_a_member_outside_it_is_none_to_create_in(self) -> None:
        fleet = Fleet(scope=self.SCOPE, create=[rule("Label")])
        answer = fleet.asks("POST", LIST, config_map(labels={LABEL: "west"}))
        assert answer.code == 422
        assert fleet.members["west"].sent == []


class TestSubresources:
    @pytest.mark.parametrize("subresource", ["log", "exec", "attach", "portforward", "proxy", "proxy/a/b"])
    def test_those_that_stream_are_forwarded_to_the_owner(self, subresource: str) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        target = f"{OBJECT}/{subresource}?x=y"
        answer = fleet.asks("GET", target)
        assert answer.forwarded == [("west", target.encode())]
        assert answer.served == ("west",)

    @pytest.mark.parametrize("name", ["https:a:443", "a:443", "a"])
    def test_a_proxy_to_a_port(self, name: str) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        assert fleet.asks("GET", f"{LIST}/{name}/proxy/").forwarded == [("west", f"{LIST}/{name}/proxy/".encode())]

    def test_a_stream_of_what_does_not_exist_is_404(self) -> None:
        assert Fleet().asks("GET", OBJECT + "/log").code == 404

    def test_a_get_has_the_owners_part_alone(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        answer = fleet.asks("GET", OBJECT + "/status?resourceVersion=" + fleet.object_version("west", 201))
        assert answer.json["metadata"]["resourceVersion"] == fleet.object_version("west", 201)
        assert fleet.members["west"].sent[0][1] == f"{OBJECT}/status?resourceVersion=201".encode()

    def test_an_eviction_with_preconditions(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        body = {"metadata": {"name": "a"}, "deleteOptions": {"preconditions": {"resourceVersion": "@"}}}
        fleet.asks(
            "POST", OBJECT + "/eviction", json.dumps(body).replace("@", fleet.object_version("west", 201)).encode()
        )
        assert fleet.writes_to("west")[0][2] == json.dumps(body).replace("@", "201").encode()

    def test_a_token_is_handed_out_as_it_is(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        token = {"kind": "TokenRequest", "metadata": {"name": "a"}, "status": {"token": "t"}}
        fleet.members["west"].rule = lambda *_: (201, token)
        assert fleet.asks("POST", OBJECT + "/token", {"spec": {}}).json == token


class TestReadYourWrites:
    """Elsewhere `kubectl apply && kubectl get` showed the past."""

    def test_a_write_is_answered_when_the_cache_has_it(self) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.lagging = True
        request, _ = fleet.begin("PATCH", OBJECT, {"data": {}}, MERGE)
        fleet.clock.advance(1)
        assert request.recorded.status == 0
        west.catch_up()
        assert request.recorded.status == 200

    def test_but_not_later_than_after_3_seconds(self) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.lagging = True
        request, _ = fleet.begin("PATCH", OBJECT, {"data": {}}, MERGE)
        fleet.clock.advance(2.9)
        assert request.recorded.status == 0
        fleet.clock.advance(0.2)
        assert request.recorded.status == 200
        # The vector is older than the write then, so a watch from it shows the write.
        version = json.loads(request.recorded.body)["metadata"]["resourceVersion"]
        assert version > fleet.object_version("west", 201)

    def test_and_a_read_then_waits_for_the_write_whatever_silence_suggests(self) -> None:
        """A probe and a silence behind it say that the cache is as new as now, which the write shows to be wrong."""
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.lagging = True
        request, _ = fleet.begin("PATCH", OBJECT, {"data": {}}, MERGE)
        fleet.clock.advance(3.1)
        assert request.recorded.status == 200
        store = west.stores[CONFIG_MAPS.gvr, ""]
        store.presume(west.version)
        read: list[bool] = []
        Deferred.fromCoroutine(store.when_current(west.version, 3.0)).addCallback(read.append)
        assert read == []
        west.catch_up()
        assert read == [True]

    def test_a_delete_is_answered_when_the_object_is_gone(self) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.lagging = True
        request, _ = fleet.begin("DELETE", OBJECT)
        west.put("b")
        fleet.clock.advance(1)
        assert request.recorded.status == 0
        west.catch_up()
        assert request.recorded.status == 200
        assert not fleet.clock.getDelayedCalls()

    def test_a_delete_that_a_finalizer_holds_is_answered_when_that_is_seen(self) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        held = {"deletionTimestamp": "2026-11-21T09:38:32Z", "finalizers": ["x"]}
        west.rule = lambda method, _: (200, west.put("a", metadata=held)) if method == b"DELETE" else None
        assert fleet.asks("DELETE", OBJECT).json["metadata"]["finalizers"] == ["x"]

    def test_a_delete_that_another_object_of_the_name_follows(self) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.lagging = True
        request, _ = fleet.begin("DELETE", OBJECT)
        west.put("a")
        west.catch_up()
        assert request.recorded.status == 200

    @pytest.mark.parametrize("subresource", ["eviction", "binding"])
    def test_what_is_answered_by_a_status_alone_is_seen_too(self, subresource: str) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.rule = lambda *_: (201, {"kind": "Status", "status": "Success"})
        request, _ = fleet.begin("POST", f"{OBJECT}/{subresource}", {"metadata": {"name": "a"}})
        assert request.recorded.status == 0
        west.put("a", metadata={"deletionTimestamp": "2026-11-21T09:38:32Z", "finalizers": ["x"]})
        assert request.recorded.status == 201
        assert fleet.asks("POST", f"{OBJECT}/{subresource}", {"metadata": {"name": "a"}}).code == 201

    @pytest.mark.parametrize("how", ["query", "options"])
    def test_a_dry_run_does_not_wait(self, how: str) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.lagging = True
        if how == "query":
            fleet.asks("DELETE", OBJECT + "?dryRun=All")
        else:
            fleet.asks("DELETE", OBJECT, {"dryRun": ["All"]})

    def test_a_dry_run_answers_with_the_version_that_a_get_has(self) -> None:
        """`kubectl diff` compares the two; nothing was written, so there is no later version either."""
        fleet = Fleet()
        for name, member in fleet.members.items():
            member.put(name)
        fleet.members["west"].rule = lambda *_: (200, fleet.members["west"].objects["configmaps", "demo", "west"])
        version = int(fleet.members["west"].objects["configmaps", "demo", "west"]["metadata"]["resourceVersion"])
        answer = fleet.asks("PATCH", LIST + "/west?dryRun=All", {"data": {}}, MERGE)
        assert answer.json["metadata"]["resourceVersion"] == fleet.object_version("west", version)

    def test_a_cache_that_is_not_followed_is_not_waited_for(self) -> None:
        fleet = Fleet()
        west = fleet.members["west"]
        west.put("a")
        west.lagging = True
        west.stores[CONFIG_MAPS.gvr, ""].unavailable("away")
        assert fleet.asks("PATCH", OBJECT, {"data": {}}, MERGE).code == 200
        assert fleet.asks("DELETE", OBJECT).code == 200


class TestYAML:
    """Who takes YAML alone gets it: the member is asked for JSON."""

    ACCEPT = (b"Accept", b"application/yaml")

    def test_answers_of_writes_and_subresources(self) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        json_answer = fleet.asks("GET", OBJECT + "/status", b"")
        for method, target, body, fields in [
            ("GET", OBJECT + "/status", b"", ()),
            ("PATCH", OBJECT, b'{"data":{"a":"b"}}', (MERGE,)),
            ("PUT", OBJECT, b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}', ()),
            ("DELETE", LIST, b"", ()),
        ]:
            answer = fleet.asks(method, target, body, self.ACCEPT, *fields)
            assert answer.code == 200, answer.body
            assert [value for name, value in answer.fields if name == "Content-Type"] == ["application/yaml"]
            assert fleet.members["east"].fields[-1][b"Accept"] == b"application/json"
            found = yaml.safe_load(answer.body)
            if target == OBJECT + "/status":
                assert found == json_answer.json
            elif target == OBJECT:
                assert found["metadata"]["labels"] == {LABEL: "east"}
                assert answer.body.startswith(b"apiVersion: v1\n")

    def test_a_failure_too(self) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        fleet.members["east"].rule = lambda method, _: (422, status(422, "Invalid")) if method == b"PATCH" else None
        answer = fleet.asks("PATCH", OBJECT, b"{}", self.ACCEPT, MERGE)
        assert (answer.code, yaml.safe_load(answer.body)["reason"]) == (422, "Invalid")

    def test_one_that_is_too_long_stays_json(self) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a", data={"a": "x" * 300_000})
        answer = fleet.asks("PATCH", OBJECT, b'{"immutable":true}', self.ACCEPT, MERGE)
        assert ("Content-Type", "application/json") in answer.fields
        assert answer.json["metadata"]["name"] == "a"


def test_a_patch_that_changes_nothing_answers_the_version_that_a_get_shows() -> None:
    fleet = Fleet()
    api = fleet.members["east"]
    known = api.put("a")
    api.put("later")  # the version of the cache is beyond that of the object
    api.rule = lambda method, _: (200, known) if method in (b"PATCH", b"PUT") else None
    same = fleet.object_version("east", int(known["metadata"]["resourceVersion"]))
    for method in ("PATCH", "PUT"):
        answer = fleet.asks(method, OBJECT, b'{"metadata":{"name":"a"}}', MERGE)
        assert answer.json["metadata"]["resourceVersion"] == same
    api.rule = lambda method, _: None
    assert fleet.asks("PATCH", OBJECT, b'{"data":{}}', MERGE).json["metadata"]["resourceVersion"] != same


def test_a_second_deletion_of_what_a_finalizer_holds_answers_the_version_that_a_get_shows() -> None:
    fleet = Fleet()
    api = fleet.members["east"]
    held = {"deletionTimestamp": "2026-11-21T09:38:32Z", "finalizers": ["x"]}
    known = api.put("a", metadata=held)
    api.put("later")
    api.rule = lambda method, _: (200, known) if method == b"DELETE" else None
    same = fleet.object_version("east", int(known["metadata"]["resourceVersion"]))
    assert fleet.asks("DELETE", OBJECT).json["metadata"]["resourceVersion"] == same
