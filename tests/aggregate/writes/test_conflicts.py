"""Writes and subresources of a name that several members have: which of them is meant, and when none can be chosen."""

from __future__ import annotations

import json
from functools import partial
from itertools import product
from typing import Any

import pytest

from mcproxy.config.model import Show
from mcproxy.kube.status import StatusError
from tests.aggregate.writes.fleet import (
    CONFIG_MAPS,
    LABEL,
    LIST,
    NODE_METRICS,
    Answer,
    Fleet,
    conflict,
    forbids,
    rule,
    scoped,
    status,
)

OBJECT = LIST + "/a"
TYPES = {
    "merge": b"application/merge-patch+json",
    "strategic": b"application/strategic-merge-patch+json",
    "json-patch": b"application/json-patch+json",
    "apply": b"application/apply-patch+yaml",
}
CHOOSING = ("update", "apply", "create-subresource")
LABELLED_PATCHES = ("merge", "strategic")
VERBS = (*CHOOSING, *LABELLED_PATCHES, "json-patch", "delete", "get-subresource", "stream")


def send(fleet: Fleet, verb: str, label: str | None, path: str = OBJECT) -> Answer:
    metadata: dict[str, Any] = {"name": "a", "labels": {LABEL: label} if label is not None else {}}
    body: Any = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"k": "v"}}
    if verb == "delete":
        return fleet.asks("DELETE", path, {"kind": "DeleteOptions", "metadata": metadata})
    if verb == "get-subresource":
        return fleet.asks("GET", path + "/status")
    if verb == "stream":
        return fleet.asks("GET", path + "/log")
    if verb == "create-subresource":
        return fleet.asks("POST", path + "/eviction", body)
    if verb == "update":
        return fleet.asks("PUT", path, body)
    if verb == "json-patch":
        body = [{"op": "add", "path": "/metadata/labels", "value": metadata["labels"]}]
    return fleet.asks("PATCH", path, body, (b"Content-Type", TYPES[verb]))


def answers_with(body: Any, method: bytes, path: str) -> tuple[int, Any]:
    return 200, body


def reached(answer: Answer) -> str | None:
    """The member that the request was sent to."""
    return answer.served[0] if answer.served else None


def both_have_it(*, rules: tuple[str, ...] = (), sees: str = "both", away: str = "", lost: bool = False) -> Fleet:
    """A fleet whose members both have the object; `lost`: nothing is cached of the one that is away."""
    fleet = Fleet(conflicts=[conflict(to) for to in rules])
    for name, member in fleet.members.items():
        member.put("a")
        if name == away:
            member.rule = lambda *_: StatusError(503, "away")
            store = member.stores[CONFIG_MAPS.gvr, ""]
            if lost:
                store.clear()
            store.unavailable("away")
        elif sees not in ("both", name):
            member.rule = forbids()
    return fleet


def expected(verb: str, to: str | None, label: str | None, sees: str, away: str) -> str | int:
    """The member that the request goes to, or the code of its refusal, by list-watch.md."""
    if to is not None and (to == away or sees in ("both", to)):
        return 503 if to == away else to
    if label is not None and verb in CHOOSING:
        return label
    if to is None and away:
        return 503
    if to is None and sees == "both":
        return 409
    # What the user does not see does not count: neither the rule nor its member's object.
    (only,) = {"east", "west"} - {to} if to is not None else {sees}
    return 409 if verb in LABELLED_PATCHES and label not in (None, only) else only


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("to", "label", "sees", "away"),
    [
        case
        for case in product(
            (None, "east", "west"), (None, "east", "west"), ("both", "east", "west"), ("", "east", "west")
        )
        if case[2] == "both" or case[3] != case[2]  # what is away cannot be the only one that a user sees
    ],
)
def test_which_member_is_meant(verb: str, to: str | None, label: str | None, sees: str, away: str) -> None:
    fleet = both_have_it(rules=(to,) if to else (), sees=sees, away=away)
    wanted = expected(verb, to, label, sees, away)
    answer = send(fleet, verb, label)
    if isinstance(wanted, int):
        assert answer.code == wanted
        assert fleet.writes_to("east") == fleet.writes_to("west") == []
        return
    if away == wanted or sees not in ("both", wanted):  # it may be sent there, where it is refused
        assert verb == "stream" or answer.code >= 400
    elif verb == "stream":
        assert [member for member, _ in answer.forwarded] == [wanted]
    else:
        assert (answer.code, reached(answer)) == (200, wanted)
    (other,) = {"east", "west"} - {wanted}
    assert fleet.writes_to(other) == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_write_never_goes_to_another_because_it_is_not_known_whether_the_member_of_the_rule_has_it(verb: str) -> None:
    """Nothing is cached of east, which is away: it may well have the object."""
    fleet = both_have_it(rules=("east",), away="east", lost=True)
    answer = send(fleet, verb, None)
    assert (answer.code, answer.message) == (503, 'it is not known whether cluster east has configmaps "a": away')
    assert fleet.writes_to("west") == []


@pytest.mark.parametrize("verb", VERBS)
def test_nor_because_it_was_never_reached(verb: str) -> None:
    fleet = Fleet("east", "west", "north", unknown=["east"], conflicts=[conflict("east")])
    fleet.members["west"].put("a")
    fleet.members["east"].rule = lambda *_: StatusError(503, "away")
    assert send(fleet, verb, None).code == 503
    fleet.members["west"].lagging = True
    fleet.members["west"].put("b")
    assert send(fleet, verb, None, LIST + "/b").code == 503
    assert fleet.writes_to("west") == []


def test_nor_where_no_cache_has_it_yet() -> None:
    fleet = Fleet(conflicts=[conflict("east")])
    for member in fleet.members.values():
        member.lagging = True
        member.put("a")
    assert fleet.begin("DELETE", OBJECT)[0] is not None
    assert (len(fleet.writes_to("east")), fleet.writes_to("west")) == (1, [])
    fleet = Fleet(conflicts=[conflict("east")])
    fleet.members["west"].lagging = True
    fleet.members["west"].put("a")
    fleet.members["east"].rule = lambda *_: StatusError(503, "away")
    assert fleet.asks("DELETE", OBJECT).code == 503
    assert fleet.writes_to("west") == []


def test_a_member_that_is_there_and_does_not_have_it_is_not_asked() -> None:
    fleet = Fleet(conflicts=[conflict("east")])
    fleet.members["west"].put("a")
    assert fleet.asks("DELETE", OBJECT).served == ("west",)
    assert fleet.members["east"].sent == []


def test_what_the_member_of_the_rule_no_longer_has_is_the_others() -> None:
    """The cache has not seen the deletion."""
    fleet = both_have_it(rules=("east",))
    fleet.members["east"].lagging = True
    fleet.members["east"].remove("a")
    assert fleet.asks("DELETE", OBJECT).served == ("west",)


def test_the_rule_of_a_member_that_a_policy_leaves_out_does_not_count() -> None:
    fleet = both_have_it(rules=("east",))
    fleet.left_out = (("east", "policy"),)
    assert fleet.asks("DELETE", OBJECT).served == ("west",)


def test_the_first_rule_that_matches_decides() -> None:
    fleet = Fleet(
        conflicts=[
            conflict("west", resource="pods"),
            conflict("west", "prod"),
            conflict("east", "demo"),
            conflict("west"),
        ]
    )
    for member in fleet.members.values():
        member.put("a")
        member.put("a", "prod")
        member.put("a", "other")
    assert fleet.asks("DELETE", OBJECT).served == ("east",)
    assert fleet.asks("DELETE", OBJECT.replace("demo", "prod")).served == ("west",)
    assert fleet.asks("DELETE", OBJECT.replace("demo", "other")).served == ("west",)


def test_primary_is_the_primary() -> None:
    fleet = Fleet(conflicts=[conflict("Primary")], primary="west")
    for member in fleet.members.values():
        member.put("a")
    assert fleet.asks("DELETE", OBJECT).served == ("west",)


def test_a_rule_for_a_member_that_does_not_have_the_name_leaves_it_to_the_label() -> None:
    fleet = Fleet("east", "west", "north", conflicts=[conflict("north")])
    fleet.members["east"].put("a")
    fleet.members["west"].put("a")
    assert fleet.asks("DELETE", OBJECT).code == 409
    assert send(fleet, "update", "west").served == ("west",)


class TestMessages:
    WAYS = "through the path /clusters/east/ or /clusters/west/, or by a rule in `conflicts` of the aggregate"

    @pytest.mark.parametrize("verb", ["delete", "merge", "stream", "get-subresource", "create-subresource"])
    def test_a_409_names_all_clusters_and_what_the_verb_can_do(self, verb: str) -> None:
        answer = send(both_have_it(), verb, None)
        label = "by the label mcproxy.io/cluster in the object that is sent, " if verb in CHOOSING else ""
        assert answer.message == f'configmaps "a" exists in several clusters: east, west; choose one {label}{self.WAYS}'
        assert (answer.code, answer.json["reason"]) == (409, "AlreadyExists")

    @pytest.mark.parametrize("verb", ["update", "apply"])
    def test_a_put_and_an_apply_can_choose_by_the_label(self, verb: str) -> None:
        answer = send(both_have_it(), verb, None)
        assert "choose one by the label mcproxy.io/cluster in the object that is sent, through" in answer.message

    def test_a_put_by_the_label_with_the_version_of_the_other_is_told_where_to_get_its_own(self) -> None:
        """`kubectl replace` takes the version from a get, which shows the first cluster's object, however often."""
        fleet = both_have_it()
        metadata = {"name": "a", "labels": {LABEL: "west"}, "resourceVersion": fleet.object_version("east", 101)}
        answer = fleet.asks("PUT", OBJECT, {"metadata": metadata})
        assert (answer.code, answer.json["reason"]) == (409, "Conflict")
        assert "/clusters/west/" in answer.message
        assert "try again" not in answer.message
        assert fleet.writes_to("west") == []

    @pytest.mark.parametrize("verb", ["merge", "strategic"])
    def test_of_the_label_of_a_patch_it_is_said_that_it_does_not_choose(self, verb: str) -> None:
        """kubectl apply said "configured", twice, of what it had worked out from the other cluster's object."""
        answer = send(both_have_it(), verb, "west")
        assert answer.code == 409
        assert answer.message.endswith("; a patch does not choose by its label mcproxy.io/cluster")

    def test_many_clusters_are_named_and_the_path_is_told_once(self) -> None:
        fleet = Fleet("a1", "a2", "a3", "a4")
        for member in fleet.members.values():
            member.put("a")
        message = fleet.asks("DELETE", OBJECT).message
        assert "a1, a2, a3, a4; choose one through the path /clusters/NAME/, or by a rule" in message


class TestLabelOfAnother:
    @pytest.mark.parametrize("verb", ["update", "apply", "merge", "strategic"])
    def test_a_label_that_the_rule_overrides_is_said_not_to_be_followed(self, verb: str) -> None:
        answer = send(both_have_it(rules=("east",)), verb, "west")
        assert (answer.code, answer.served) == (200, ("east",))
        assert answer.warnings[-1] == (
            '299 - "the label mcproxy.io/cluster=west is not followed: a conflicts rule of this server names east"'
        )

    def test_a_label_that_agrees_is_not(self) -> None:
        assert send(both_have_it(rules=("east",)), "update", "east").warnings == ['299 - "of the member"']

    @pytest.mark.parametrize("verb", ["merge", "strategic"])
    def test_a_patch_for_one_cluster_does_not_change_the_object_of_the_only_other_that_has_it(self, verb: str) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        answer = send(fleet, verb, "west")
        assert (answer.code, answer.json["reason"]) == (409, "AlreadyExists")
        assert answer.message == (
            'configmaps "a" is in cluster east, and the label mcproxy.io/cluster of the patch names west; a patch does '
            "not choose by its label: send it without the label, or go to the other cluster by a server-side apply, or "
            "through the path /clusters/west/"
        )
        assert fleet.writes_to("east") == fleet.writes_to("west") == []

    @pytest.mark.parametrize("label", ["east", "nowhere"])
    def test_its_own_label_and_one_that_names_no_member_are_taken_off(self, label: str) -> None:
        fleet = Fleet()
        fleet.members["east"].put("a")
        assert send(fleet, "merge", label).served == ("east",)
        assert "labels" not in json.loads(fleet.writes_to("east")[0][2])["metadata"]

    def test_it_does_not_tell_that_an_object_exists(self) -> None:
        answers = []
        for exists in (True, False):
            fleet = Fleet()
            fleet.members["east"].rule = forbids()
            if exists:
                fleet.members["east"].put("a")
            answers.append(send(fleet, "merge", "west"))
        assert answers[0].code == 404
        assert answers[0].body == answers[1].body

    @pytest.mark.parametrize(("verb", "needed"), [("update", "update"), ("merge", "patch")])
    def test_a_right_that_was_taken_away_leaves_no_warning_that_tells_of_it(self, verb: str, needed: str) -> None:
        message = f'configmaps "a" is forbidden: User "bob" cannot {needed} resource "configmaps" in API group "" '
        message += 'in the namespace "demo"'
        answers = []
        for exists in (True, False):
            fleet = both_have_it(rules=("east",))
            for member in fleet.members.values():
                if exists:  # what was decided does not hold any more
                    member.rule = lambda *_: (403, {**status(403, "Forbidden"), "message": message})
                    member.may = True
                else:
                    member.rule = forbids()
            answers.append(send(fleet, verb, "west"))
        told, absent = answers
        assert (told.code, told.body, told.warnings) == (absent.code, absent.body, absent.warnings)

    def test_an_apply_with_the_label_of_a_cluster_that_does_not_have_it_creates_it_there(self) -> None:
        fleet = Fleet(create=[rule("Label")], conflicts=[conflict("east")])
        fleet.members["east"].put("a")
        body = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "labels": {LABEL: "west"}}}
        apply = (b"Content-Type", TYPES["apply"])
        assert fleet.asks("PATCH", OBJECT + "?apply=1", body, apply).served == ("west",)
        assert fleet.writes_to("east") == []


class TestUncached:
    """Resources that are asked of the members each time."""

    TARGET = "/apis/metrics.k8s.io/v1beta1/nodes/a"

    def fleet(self, *rules: str, away: str = "") -> Fleet:
        fleet = Fleet(scope=[scoped(NODE_METRICS)], conflicts=[conflict(to) for to in rules])
        for name, member in fleet.members.items():
            member.put("a", "", NODE_METRICS)
            if name == away:
                member.rule = lambda *_: StatusError(503, "away")
        return fleet

    @pytest.mark.parametrize("to", ["east", "west"])
    def test_the_rule_decides(self, to: str) -> None:
        assert self.fleet(to).asks("DELETE", self.TARGET).served == (to,)

    def test_no_rule_is_409(self) -> None:
        answer = self.fleet().asks("DELETE", self.TARGET)
        assert answer.code == 409
        assert "label" not in answer.message

    def test_a_member_of_a_rule_that_is_away_is_503(self) -> None:
        assert self.fleet("east", away="east").asks("DELETE", self.TARGET).code == 503
        assert self.fleet("east", away="west").asks("DELETE", self.TARGET).served == ("east",)

    @pytest.mark.parametrize("to", ["east", "west"])
    def test_a_get_is_of_the_member_of_the_rule(self, to: str) -> None:
        answer = self.fleet(to).asks("GET", self.TARGET)
        assert (answer.code, answer.served) == (200, (to,))
        assert not any("also in" in text for text in answer.warnings)

    @pytest.mark.parametrize("to", ["east", "west"])
    def test_a_list_has_one_of_each_name(self, to: str) -> None:
        fleet = Fleet(scope=[scoped(NODE_METRICS)], conflicts=[conflict(to, show=Show.ONE)])
        items = {"east": ("a", "b"), "west": ("b", "c")}

        def rows(member: str) -> Any:
            found = [{"cells": [name], "object": {"metadata": {"name": name}}} for name in items[member]]
            nameless = {"cells": ["?"], "object": None}
            table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": []}
            return {**table, "rows": [*found, nameless]}

        def objects(member: str) -> Any:
            found = [{"metadata": {"name": name}} for name in items[member]]
            return {"kind": "NodeMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": found}

        path = self.TARGET.removesuffix("/a")
        for make in (objects, rows):
            for name, member in fleet.members.items():
                member.rule = partial(answers_with, make(name))
            body = fleet.asks("GET", path).json
            shown = [each.get("object", each) for each in body.get("rows", body.get("items"))]
            found = [(each["metadata"]["labels"][LABEL], each["metadata"]["name"]) for each in shown if each]
            assert found == [("east", "a"), (to, "b"), ("west", "c")]
