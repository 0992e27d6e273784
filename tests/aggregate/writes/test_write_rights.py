"""The user's rights come first: before the body, before the owner; and what an answer tells of members is for readers.

The whole table of verbs, users and objects is in tests/e2e/test_aggregate_rights.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.request import LeftOut
from mcproxy.config.model import ResourceVersions
from mcproxy.identity.authorization.attributes import attributes_of, forbidden
from mcproxy.kube import requestinfo
from tests.aggregate.writes.fleet import (
    BOB,
    CONFIG_MAPS,
    LABEL,
    LEASES,
    LIST,
    NODE_METRICS,
    Answer,
    Fleet,
    FleetRequest,
    conflict,
    forbids,
    rule,
    scoped,
)

OBJECT = LIST + "/a"
MERGE = (b"Content-Type", b"application/merge-patch+json")
APPLY = (b"Content-Type", b"application/apply-patch+yaml")
BODY: dict[str, Any] = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}}
REQUESTS: dict[str, Any] = {
    "create": ("POST", LIST, BODY),
    "update": ("PUT", OBJECT, BODY),
    "patch": ("PATCH", OBJECT, {}, MERGE),
    "apply": ("PATCH", OBJECT + "?apply=1", BODY, APPLY),
    "delete": ("DELETE", OBJECT, {"kind": "DeleteOptions"}),
    "delete of the collection": ("DELETE", LIST, {"kind": "DeleteOptions"}),
    "eviction": ("POST", OBJECT + "/eviction", BODY),
}


class NothingIsRead:
    """In the place of an exchange: a body that is never read."""

    def __init__(self, request: FleetRequest) -> None:
        self.head = request.head
        self.body_complete = False

    def attach(self, handler: object) -> None:
        raise AssertionError("the body is read")

    send_interim = attach


@pytest.mark.parametrize("to", ["east", "Label"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_no_body_is_read_for_who_has_no_right(request_: str, to: str) -> None:
    """60 of 3 MB each that were never finished took 170 MB."""
    fleet = Fleet(create=[rule(to)])
    method, target, body, *fields = REQUESTS[request_]
    for member in fleet.members.values():
        member.put("a")
        member.rule = forbids()
    data = json.dumps(body).encode()
    request = FleetRequest(fleet, method, target, data, fields)
    request.exchange = NothingIsRead(request)  # type: ignore[assignment]
    view = fleet.views.view(CONFIG_MAPS.gvr)
    assert view is not None
    results: list[Any] = []
    Deferred.fromCoroutine(fleet.writes.serve(request, CONFIG_MAPS, view.pinned())).addBoth(results.append)
    assert Answer(request, results[0]).code == 403
    assert fleet.members["east"].sent == fleet.members["west"].sent == []


def test_the_right_to_all_objects_is_asked_for_first_which_is_the_same_for_every_name() -> None:
    fleet = Fleet("east")
    fleet.members["east"].put("a")
    fleet.asks("PATCH", OBJECT, {}, MERGE)
    assert [(each.verb, each.name) for _, each in fleet.decisions.asked[:2]] == [("patch", ""), ("watch", "")]
    fleet.decisions.asked.clear()
    fleet.members["east"].rule = forbids()
    assert fleet.asks("PATCH", OBJECT, {}, MERGE).message.startswith('configmaps "a" is forbidden: User "bob" cannot')
    assert [(each.verb, each.name) for _, each in fleet.decisions.asked] == [("patch", ""), ("patch", "a")]


class TestASilentMember:
    def fleet(self) -> tuple[Fleet, Deferred[None]]:
        """West answers a review when the returned Deferred fires."""
        fleet = Fleet()
        review: Deferred[None] = Deferred()
        fleet.decisions.held["west"] = review
        return fleet, review

    def test_it_holds_up_what_another_allows_for_a_second(self) -> None:
        fleet, _ = self.fleet()
        fleet.members["east"].put("a")
        request, _ = fleet.begin("PATCH", OBJECT, {}, MERGE)
        fleet.clock.advance(0.9)
        assert fleet.members["east"].sent == []
        fleet.clock.advance(0.2)
        assert request.recorded.status == 200

    def test_what_it_may_have_is_503_then_whether_or_not_it_does(self) -> None:
        answers = []
        for exists in (True, False):
            fleet, _ = self.fleet()
            if exists:
                fleet.members["west"].put("a")
            request, waiting = fleet.begin("PATCH", OBJECT, {}, MERGE)
            results: list[Any] = []
            waiting.addBoth(results.append)
            fleet.clock.advance(1.1)
            answers.append(Answer(request, results[0]))
        assert answers[0].code == 503
        assert (answers[0].body, answers[0].fields) == (answers[1].body, answers[1].fields)

    def test_what_none_allows_waits_for_it(self) -> None:
        fleet, review = self.fleet()
        fleet.members["east"].rule = forbids()
        fleet.members["west"].put("a")
        request, _ = fleet.begin("PATCH", OBJECT, {}, MERGE)
        fleet.clock.advance(5)
        assert request.recorded.status == 0
        review.callback(None)
        assert request.recorded.status == 200

    def test_a_client_that_goes_away_ends_the_reviews(self) -> None:
        fleet, review = self.fleet()
        _, waiting = fleet.begin("PATCH", OBJECT, {}, MERGE)
        results: list[Any] = []
        waiting.addErrback(results.append)
        waiting.cancel()
        assert results[0].check(CancelledError) is not None
        assert review.called
        assert not fleet.clock.getDelayedCalls()


class TestVersions:
    """A write's answer had the version of each member, whoever wrote: others' revisions, and a watch that was 410."""

    def written(self, fleet: Fleet) -> str:
        answer = fleet.asks("PUT", OBJECT, BODY)
        assert answer.code == 200
        return str(answer.json["metadata"]["resourceVersion"])

    def test_it_has_no_part_of_a_member_that_the_user_may_not_watch(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        fleet.members["east"].rule = forbids()
        view = fleet.views.view(CONFIG_MAPS.gvr)
        assert view is not None
        assert self.written(fleet) == view.format.written((0, 202), 1, 202)

    def test_the_owners_part_alone_for_who_may_only_write(self) -> None:
        fleet = Fleet("a", "b", "c", "d")
        fleet.members["b"].put("a")
        for member in fleet.members.values():
            member.rule = forbids(b"GET")
        version = fleet.members["b"].version + 1
        assert self.written(fleet) == fleet.object_version("b", version)

    def test_a_member_that_may_be_read_and_not_written_has_its_part(self) -> None:
        fleet = Fleet()
        fleet.members["west"].put("a")
        fleet.members["east"].rule = forbids(b"PUT")
        view = fleet.views.view(CONFIG_MAPS.gvr)
        assert view is not None
        assert self.written(fleet) == view.format.written((100, 202), 1, 202)

    def test_the_deletion_of_a_collection_tells_no_version_either(self) -> None:
        fleet = Fleet(versions=ResourceVersions.KARMADA)
        for member in fleet.members.values():
            member.put("a")
        fleet.members["east"].rule = forbids(b"GET")
        view = fleet.views.view(CONFIG_MAPS.gvr)
        assert view is not None
        answer = fleet.asks("DELETE", LIST)
        assert answer.json["metadata"]["resourceVersion"] == view.format.list_version((0, 202))
        assert answer.warnings == ['299 - "of the member"']  # west's


class TestFieldsOfAMember:
    @pytest.mark.parametrize("request_", ["update", "patch", "delete", "eviction"])
    def test_warnings_and_priority_and_fairness_are_for_who_may_read_there(self, request_: str) -> None:
        method, target, body, *fields = REQUESTS[request_]
        for refused, expected in ((b"HEAD", ['299 - "of the member"']), (b"GET", [])):
            fleet = Fleet()
            fleet.members["west"].put("a")
            fleet.members["west"].rule = forbids(refused)
            answer = fleet.asks(method, target, body, *fields)
            assert (answer.code, answer.warnings) == (200, expected)


class TestWhoMayWriteAndNotRead:
    """There is no get to ask whether a member has the object: its cache says it, once that is as new as now."""

    def fleet(self, *, exists: bool = True, **options: Any) -> Fleet:
        fleet = Fleet(**options)
        for member in fleet.members.values():
            member.rule = forbids(b"GET")
        if exists:
            fleet.members["west"].put("a")
        return fleet

    def test_what_does_not_exist_is_404(self) -> None:
        """It was 403: the right to patch was denied, which the user has."""
        answer = self.fleet(exists=False).asks("PATCH", OBJECT, {}, MERGE)
        assert (answer.code, answer.message) == (404, 'configmaps "a" not found')

    def test_what_does_is_written(self) -> None:
        assert self.fleet().asks("PATCH", OBJECT, {}, MERGE).served == ("west",)

    def test_what_several_have_is_409(self) -> None:
        fleet = self.fleet()
        fleet.members["east"].put("a")
        assert fleet.asks("PATCH", OBJECT, {}, MERGE).code == 409

    def test_a_cache_that_is_behind_leaves_it_open(self) -> None:
        fleet = self.fleet(exists=False)
        fleet.members["west"].lagging = True
        answer = fleet.asks("PATCH", OBJECT, {}, MERGE)
        assert (answer.code, answer.json["details"]) == (503, {"retryAfterSeconds": 1})

    def test_what_is_wrong_with_a_body_is_said(self) -> None:
        fleet = self.fleet()
        body = {**BODY, "metadata": {"name": "a", "resourceVersion": fleet.object_version("east", 100)}}
        assert fleet.asks("PUT", OBJECT, body).json["reason"] == "Conflict"

    def test_what_is_not_cached(self) -> None:
        target = NODE_METRICS.gvr.path("") + "/n"
        fleet = self.fleet(exists=False, scope=[scoped(NODE_METRICS)])
        answer = fleet.asks("DELETE", target)
        assert (answer.code, "cannot get resource" in answer.message) == (403, True)
        fleet.members["east"].rule = forbids()
        assert fleet.asks("DELETE", target).served == ("west",)


class TestLabels:
    @pytest.mark.parametrize("request_", ["update", "apply"])
    @pytest.mark.parametrize("exists", [True, False])
    def test_a_label_of_a_member_that_does_not_allow_it_is_refused(self, request_: str, exists: bool) -> None:
        fleet = Fleet(create=[rule("Label")])
        fleet.members["west"].rule = forbids()
        if exists:
            fleet.members["west"].put("a")
        method, target, body, *fields = REQUESTS[request_]
        labelled = {**body, "metadata": {"name": "a", "labels": {LABEL: "west"}}}
        answer = fleet.asks(method, target, labelled, *fields)
        assert (answer.code, answer.json["reason"]) == (403, "Forbidden")
        assert fleet.members["east"].sent == fleet.members["west"].sent == []

    @pytest.mark.parametrize("exists", [True, False])
    def test_or_503_where_it_cannot_be_asked(self, exists: bool) -> None:
        fleet = Fleet(create=[rule("Label")])
        if exists:
            fleet.members["west"].put("a")
        fleet.left_out = (LeftOut("west", "nobody answers", undecided=True),)
        labelled = {**BODY, "metadata": {"name": "a", "labels": {LABEL: "west"}}}
        answer = fleet.asks("PATCH", OBJECT + "?apply=1", labelled, APPLY)
        assert (answer.code, answer.message) == (
            503,
            'it is not known whether cluster west has configmaps "a": nobody answers',
        )

    def test_a_rule_goes_before_such_a_label(self) -> None:
        fleet = Fleet(conflicts=[conflict("east")])
        fleet.members["west"].rule = forbids()
        fleet.members["east"].put("a")
        labelled = {**BODY, "metadata": {"name": "a", "labels": {LABEL: "west"}}}
        assert fleet.asks("PUT", OBJECT, labelled).served == ("east",)


class TestCreates:
    LEASE = "/apis/coordination.k8s.io/v1/namespaces/demo/leases/l"

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_put_that_creates_where_the_user_has_no_right_is_refused(self, exists: bool) -> None:
        fleet = Fleet(create=[rule("west")])
        fleet.members["west"].rule = forbids()
        if exists:
            fleet.members["west"].put("l", resource=LEASES)
        answer = fleet.asks("PUT", self.LEASE, {"kind": "Lease", "metadata": {"name": "l"}})
        assert (answer.code, answer.json["reason"]) == (403, "Forbidden")
        assert fleet.writes_to("west") == []

    @pytest.mark.parametrize("exists", [True, False])
    def test_it_creates_although_one_where_the_user_has_no_right_has_the_name(self, exists: bool) -> None:
        """It was 404, and 201 where none had it."""
        fleet = Fleet(create=[rule("east")])
        fleet.members["west"].rule = forbids()
        if exists:
            fleet.members["west"].put("l", resource=LEASES)
        answer = fleet.asks("PUT", self.LEASE, {"kind": "Lease", "metadata": {"name": "l"}})
        assert (answer.code, answer.served) == (200, ("east",))


@pytest.mark.parametrize("why", ["impersonation", "policy", "busy"])
@pytest.mark.parametrize("request_", [name for name in REQUESTS if name not in ("create", "apply")])
def test_a_member_that_the_filters_left_out_is_the_same_whether_it_has_the_object(request_: str, why: str) -> None:
    method, target, body, *fields = REQUESTS[request_]
    answers = []
    for exists in (True, False):
        fleet = Fleet()
        fleet.left_out = (LeftOut("west", why, undecided=why == "busy"),)
        if exists:
            fleet.members["west"].put("a")
        answers.append(fleet.asks(method, target, body, *fields))
        assert fleet.members["west"].sent == []
    assert (answers[0].code, answers[0].body, answers[0].fields) == (
        answers[1].code,
        answers[1].body,
        answers[1].fields,
    )


def test_a_rule_of_conflicts_for_a_member_that_cannot_be_asked_leaves_it_open_whatever_that_has() -> None:
    for exists in (True, False):
        fleet = Fleet(conflicts=[conflict("west")])
        fleet.members["east"].put("a")
        if exists:
            fleet.members["west"].put("a")
        fleet.left_out = (LeftOut("west", "nobody answers", undecided=True),)
        answer = fleet.asks("DELETE", OBJECT)
        assert (answer.code, answer.message) == (
            503,
            'it is not known whether cluster west has configmaps "a": nobody answers',
        )


def test_a_right_that_was_taken_away_meanwhile() -> None:
    """The review of a moment ago still counts; then the member refuses the write itself, in the words of a cluster."""
    fleet = Fleet()
    fleet.members["west"].put("a")
    fleet.members["east"].may = False
    west = fleet.members["west"]
    west.may = True
    target = OBJECT.encode()
    refusal = forbidden(BOB, attributes_of(requestinfo.parse(b"DELETE", target), target))
    west.rule = lambda *_: (403, json.loads(refusal.body()))
    answer = fleet.asks("DELETE", OBJECT)
    assert (answer.code, answer.fields) == (403, [])
