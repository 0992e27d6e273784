"""Writes and subresources while a member is away: what it may have is 503, never 404; `aggregate.freshness` has the
table. East can be asked, and has the object or not; west is in each state.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.aggregate.request import LeftOut
from mcproxy.kube.status import StatusError
from tests.aggregate.writes.fleet import (
    CONFIG_MAPS,
    LIST,
    NODE_METRICS,
    RESOURCES,
    Answer,
    Fleet,
    forbids,
    rule,
    scoped,
    status,
)
from tests.support.clock import DATE

OBJECT = LIST + "/a"
MERGE = (b"Content-Type", b"application/merge-patch+json")
APPLY = (b"Content-Type", b"application/apply-patch+yaml")
BODY = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}}
EVICTION = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "a"}}
REQUESTS: dict[str, Any] = {
    "delete": ("DELETE", OBJECT, b""),
    "update": ("PUT", OBJECT, BODY),
    "patch": ("PATCH", OBJECT, {}, MERGE),
    "apply": ("PATCH", OBJECT + "?fieldManager=me&apply=1", BODY, APPLY),
    "get status": ("GET", OBJECT + "/status", b""),
    "update scale": ("PUT", OBJECT + "/scale", BODY),
    "eviction": ("POST", OBJECT + "/eviction", EVICTION),
    "log": ("GET", OBJECT + "/log", b""),
    "exec": ("POST", OBJECT + "/exec?command=ls", b""),
}
AWAY = ("away", "no answer", "500", "429", "504", "never synced", "never reached", "unasked")


def fleet(state: str, *, exists: bool = False) -> Fleet:
    """Return members of which west is in a state; `exists`: it has the object."""
    found = Fleet(create=[rule("east")], unknown=["west"] if state == "never reached" else ())
    west = found.members["west"]
    if exists:
        west.put("a")
    if state == "away":
        found.found[1].unavailable_since = DATE
    if state in ("away", "never reached"):
        west.rule = lambda *_: StatusError(503, 'no endpoint of cluster "west" is ready')
    elif state == "no answer":
        west.rule = lambda *_: StatusError(503, 'cluster "west" does not answer')
    elif state in ("500", "429", "504"):
        west.rule = lambda *_: (int(state), status(int(state), "Broken"))
    elif state == "never synced":
        west.stores[CONFIG_MAPS.gvr, ""].clear()
        west.rule = lambda *_: StatusError(503, "away")
    elif state == "unasked":
        found.left_out = (LeftOut("west", "the authorizer does not answer", undecided=True),)
    elif state == "refused":
        west.rule = forbids()
    elif state == "refused by a policy":
        found.left_out = (("west", "policy"),)
    return found


def asked(found: Fleet, request: str) -> Answer:
    method, target, body, *fields = REQUESTS[request]
    return found.asks(method, target, body, *fields)


@pytest.mark.parametrize("state", AWAY)
@pytest.mark.parametrize("request_", REQUESTS)
def test_what_is_not_known_is_503_while_a_member_is_away(request_: str, state: str) -> None:
    found = fleet(state)
    answer = asked(found, request_)
    assert (answer.code, answer.json["reason"]) == (503, "ServiceUnavailable")
    assert ("Retry-After", "1") in answer.fields
    assert answer.message.startswith('it is not known whether cluster west has configmaps "a": ')
    assert found.writes_to("east") == []  # nor is another one made
    assert answer.forwarded == []


@pytest.mark.parametrize("state", ["up", "refused", "refused by a policy"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_what_no_member_has_is_404_also_for_who_may_not_read_one(request_: str, state: str) -> None:
    answer = asked(fleet(state), request_)
    if request_ == "apply":
        assert (answer.code, answer.served) == (200, ("east",))
    else:
        assert answer.code == 404


@pytest.mark.parametrize("state", [*AWAY, "up", "refused", "refused by a policy"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_what_another_member_has_is_written_there_whoever_is_away(request_: str, state: str) -> None:
    found = fleet(state)
    found.members["east"].put("a")
    answer = asked(found, request_)
    if request_ in ("log", "exec"):
        assert [member for member, _ in answer.forwarded] == ["east"]
    else:
        assert (answer.code, answer.served) == (200, ("east",))


@pytest.mark.parametrize("state", ["away", "no answer", "unasked"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_an_object_of_the_member_that_is_away_is_answered_as_one_that_is_not_known(request_: str, state: str) -> None:
    """Whoever may not read there would else learn that it exists."""
    if (request_ in ("log", "exec")) and state == "no answer":
        return  # it is forwarded: the answer is that of forwarding
    answers = [asked(fleet(state, exists=exists), request_) for exists in (True, False)]
    assert [answer.code for answer in answers] == [503, 503]
    assert (answers[0].body, answers[0].fields) == (answers[1].body, answers[1].fields)


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_object_of_a_member_that_a_policy_refuses_is_answered_as_one_that_does_not_exist(request_: str) -> None:
    answers = [asked(fleet("refused by a policy", exists=exists), request_) for exists in (True, False)]
    assert [answer.code for answer in answers] == [200 if request_ == "apply" else 404] * 2
    assert [answer.forwarded for answer in answers] == [[], []]


@pytest.mark.parametrize("state", ["never reached", "away"])
def test_a_member_that_the_label_names_is_the_only_one_that_matters(state: str) -> None:
    body = {**BODY, "metadata": {"name": "a", "labels": {"mcproxy.io/cluster": "east"}}}
    answer = fleet(state).asks("PATCH", OBJECT + "?fieldManager=me&apply=1", body, APPLY)
    assert (answer.code, answer.served) == (200, ("east",))


def test_a_write_that_may_have_been_made_is_not_said_to_be_undecided() -> None:
    found = Fleet()
    found.members["west"].put("a")
    found.members["west"].rule = lambda *_: StatusError(504, "no answer in time")
    assert asked(found, "delete").code == 504


def test_where_all_refuse_it_is_403_but_not_while_one_cannot_be_asked() -> None:
    found = fleet("refused")
    found.members["east"].rule = forbids()
    assert asked(found, "delete").code == 403
    for state in AWAY:
        found = fleet(state)
        found.members["east"].rule = forbids()
        assert asked(found, "delete").code == 503, state


def test_a_namespace_in_the_scope_of_a_member_that_was_never_reached() -> None:
    scope = [scoped(CONFIG_MAPS, "prod", clusters=("east",)), scoped(CONFIG_MAPS, "demo", clusters=("west",))]
    found = Fleet(scope=scope, unknown=["west"])
    assert asked(found, "delete").code == 503
    assert found.asks("DELETE", "/api/v1/namespaces/other/configmaps/a").code == 404
    assert found.asks("DELETE", "/api/v1/namespaces/prod/configmaps/a").code == 404  # it is not west's matter


# -- what cannot be watched ---------------------------------------------------------------------------------------

NODE = NODE_METRICS.gvr.path("") + "/n"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize("state", [*AWAY, "up", "refused", "refused by a policy"])
def test_what_is_not_cached(state: str, method: str) -> None:
    answer = fleet(state).asks(method, NODE)
    expected = 404 if state in ("up", "refused", "refused by a policy") else 503
    assert answer.code == expected
    if expected == 503:
        assert ("Retry-After", "1") in answer.fields


# -- collections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["unasked", "never reached"])
def test_a_collection_is_not_deleted_while_a_member_cannot_be_asked(state: str) -> None:
    found = fleet(state)
    found.members["east"].put("b")
    answer = found.asks("DELETE", LIST)
    assert answer.code == 500
    causes: list[Any] = answer.json["details"]["causes"]
    assert [cause["reason"] for cause in causes] == ["Success", "ServiceUnavailable"]
    assert causes[1]["message"].startswith("cluster west: 503: cluster west is unavailable: ")
    assert found.members["east"].objects == {}
    # A selector that means no object of the member asks nothing of it.
    assert found.asks("DELETE", LIST + "?labelSelector=mcproxy.io/cluster%3Deast").code == 200


def test_a_collection_that_no_member_can_be_asked_about_is_503() -> None:
    found = fleet("unasked")
    answer = found.asks("DELETE", LIST + "?labelSelector=mcproxy.io/cluster%3Dwest")
    assert answer.code == 503


# -- creates ------------------------------------------------------------------------------------------------------


def create(found: Fleet, cluster: str = "") -> Answer:
    labels = {"mcproxy.io/cluster": cluster} if cluster else {"app": "x"}
    return found.asks("POST", LIST, {**BODY, "metadata": {"name": "a", "labels": labels}})


@pytest.mark.parametrize("to", ["west", "Label"])
def test_a_create_goes_as_it_must_to_a_member_that_has_only_just_got_the_resource(to: str) -> None:
    """It went there as the client sent it: the label was stored."""
    found = Fleet(create=[rule(to)])
    west = found.found[1].discovery
    west.set(NODE_METRICS)
    west.coming = list(RESOURCES.values())
    answer = create(found, "west")
    assert (answer.code, answer.served, answer.forwarded) == (201, ("west",), [])
    assert "labels" not in json.loads(found.writes_to("west")[0][2])["metadata"]
    assert west.refreshed == 1


@pytest.mark.parametrize("to", ["west", "Label"])
def test_a_create_in_a_member_that_cannot_be_asked_what_it_has_is_503(to: str) -> None:
    found = Fleet(create=[rule(to)], unknown=["west"])
    answer = create(found, "west")
    assert (answer.code, answer.message) == (
        503,
        "it is not known whether cluster west has configmaps: it cannot be reached",
    )
    assert create(found, "east").code == (201 if to == "Label" else 503)
