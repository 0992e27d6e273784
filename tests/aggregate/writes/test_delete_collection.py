"""Deletion of a collection in several clusters."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from mcproxy.aggregate.writes import delete_collection
from mcproxy.kube.status import StatusError
from tests.aggregate.writes.fleet import ANNOTATION, CONFIG_MAPS, LABEL, LIST, Fleet, forbids, scoped, status


def fleet(*names: str, **how: Any) -> Fleet:
    made = Fleet(*names, **how)
    for name, member in made.members.items():
        member.put("a")
        member.put(f"only-{name}")
    return made


def test_the_merged_list_is_answered() -> None:
    """Elsewhere it was a 500."""
    room = fleet()
    answer = room.asks("DELETE", LIST)
    assert (answer.code, answer.served) == (200, ("east", "west"))
    assert (answer.json["kind"], answer.json["apiVersion"]) == ("ConfigMapList", "v1")
    items = [(item["metadata"]["name"], item["metadata"]["labels"][LABEL]) for item in answer.json["items"]]
    assert items == [("a", "east"), ("only-east", "east"), ("a", "west"), ("only-west", "west")]
    first = answer.json["items"][0]["metadata"]
    assert first["annotations"] == {ANNOTATION: "east"}
    assert first["resourceVersion"] == room.object_version("east", 101)
    view = room.views.view(CONFIG_MAPS.gvr)
    assert view is not None
    assert answer.json["metadata"]["resourceVersion"] == view.format.list_version((104, 204))
    assert room.members["east"].objects == room.members["west"].objects == {}


@pytest.mark.parametrize(
    ("selector", "sent"),
    [
        ("app=x", {"east": "app=x", "west": "app=x"}),
        ("app in (x,y),!z", {"east": "app in (x,y),!z", "west": "app in (x,y),!z"}),
        ("mcproxy.io/cluster=east", {"east": None}),
        ("mcproxy.io/cluster!=east,app=x", {"west": "app in (x)"}),
        ("mcproxy.io/cluster in (east,west),!z,n>3", {"east": "!z,n>3", "west": "!z,n>3"}),
        ("app,mcproxy.io/cluster", {"east": "app", "west": "app"}),
        ("!mcproxy.io/cluster", {}),
        ("mcproxy.io/cluster=north", {}),
        ("mcproxy.io/cluster=east,mcproxy.io/cluster=west", {}),
        ("mcproxy.io/cluster notin (east)", {"west": None}),
    ],
)
def test_each_member_gets_the_selector_without_the_virtual_label(selector: str, sent: dict[str, str | None]) -> None:
    """Members' objects do not have the label: `!=` would select all of them there, in every cluster."""
    room = fleet()
    answer = room.asks("DELETE", f"{LIST}?labelSelector={quote(selector)}&fieldSelector=a%3Db")
    assert answer.code == 200
    for name in room.names:
        targets = [target.decode() for _, target, _ in room.writes_to(name)]
        if name not in sent:
            assert targets == []
            assert len(room.members[name].objects) == 2
            continue
        wanted = sent[name]
        label = "" if wanted is None else f"labelSelector={quote(wanted, safe='')}&"
        if wanted == selector:
            label = f"labelSelector={quote(wanted)}&"
        assert targets == [f"{LIST}?{label}fieldSelector=a%3Db"]
    if not sent:
        assert answer.json["items"] == []
        assert answer.json["kind"] == "ConfigMapList"


def test_a_selector_that_is_none_deletes_nothing() -> None:
    room = fleet()
    assert room.asks("DELETE", LIST + "?labelSelector=a%3D%3D%3Db").code == 400
    assert room.writes_to("east") == room.writes_to("west") == []


def pages(room: Fleet, query: str) -> list[list[str]]:
    """The names of the objects that each page deleted, to the end."""
    found, token = [], ""
    while True:
        answer = room.asks("DELETE", f"{LIST}?{query}" + (f"&continue={token}" if token else ""))
        assert answer.code == 200, answer.json
        found.append(
            [f"{each['metadata']['labels'][LABEL]}/{each['metadata']['name']}" for each in answer.json["items"]]
        )
        token = answer.json["metadata"].get("continue", "")
        if not token:
            return found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("limit=1", [["east/a"], ["east/only-east"], ["west/a"], ["west/only-west"]]),
        ("limit=2", [["east/a", "east/only-east"], ["west/a", "west/only-west"]]),
        ("limit=3", [["east/a", "east/only-east", "west/a"], ["west/only-west"]]),
        ("limit=9", [["east/a", "east/only-east", "west/a", "west/only-west"]]),
        ("limit=1&labelSelector=mcproxy.io/cluster%3Dwest", [["west/a"], ["west/only-west"]]),
    ],
)
def test_a_limit_deletes_a_page_and_answers_how_to_go_on(query: str, expected: list[list[str]]) -> None:
    room = fleet()
    assert pages(room, query) == expected
    assert all(member.objects == {} or "labelSelector" in query for member in room.members.values())


def test_a_token_that_is_not_ours_or_of_a_cluster_that_has_gone() -> None:
    room = fleet()
    assert room.asks("DELETE", f"{LIST}?limit=1&continue=abc").code == 400
    assert room.asks("DELETE", f"{LIST}?continue=eyJ2IjoxfQ").code == 400
    gone = delete_collection.encode(delete_collection.PagePosition("north", "x"))
    assert room.asks("DELETE", f"{LIST}?continue={gone}").code == 410
    assert room.writes_to("east") == room.writes_to("west") == []
    assert fleet("east").asks("DELETE", f"{LIST}?limit=1").code == 200


def test_a_page_whose_member_fails_deletes_nothing_further() -> None:
    room = fleet()
    room.members["west"].may = True  # what refuses it is admission
    room.members["west"].rule = forbids(b"DELETE")
    first = room.asks("DELETE", f"{LIST}?limit=2")
    assert first.code == 200
    assert room.writes_to("west") == []
    token = first.json["metadata"]["continue"]
    assert room.asks("DELETE", f"{LIST}?limit=2&continue={token}").code == 403
    assert fleet().asks("DELETE", f"{LIST}?limit=abc").code == 400


def test_options_pass_with_the_owners_part() -> None:
    room = fleet()
    body = {"propagationPolicy": "Background"}
    room.asks("DELETE", LIST + "?resourceVersion=" + room.object_version("east", 101), body)
    assert room.writes_to("east") == []  # west has no part of it: nothing is done anywhere
    view = room.views.view(CONFIG_MAPS.gvr)
    assert view is not None
    room.asks("DELETE", LIST + "?resourceVersion=" + view.format.list_version((102, 202)), body)
    assert room.writes_to("east") == [(b"DELETE", f"{LIST}?resourceVersion=102".encode(), json.dumps(body).encode())]


def test_a_member_that_does_not_allow_it_is_left_out_as_in_a_list() -> None:
    room = fleet()
    room.members["west"].rule = forbids(b"DELETE")
    answer = room.asks("DELETE", LIST)
    assert (answer.code, room.writes_to("west")) == (200, [])
    assert {each["metadata"]["labels"][LABEL] for each in answer.json["items"]} == {"east"}
    assert any(text.startswith('299 - "cluster west: its objects were left: configmaps is') for text in answer.warnings)


def test_a_member_that_fails_is_named_with_its_answer() -> None:
    room = fleet()
    room.members["west"].may = True  # what refuses it is admission
    room.members["west"].rule = forbids(b"DELETE")
    answer = room.asks("DELETE", LIST)
    assert answer.code == 500
    assert answer.message == "the collection of configmaps was not deleted in every cluster; failed: west"
    assert answer.json["details"] == {
        "kind": "configmaps",
        "causes": [
            {"reason": "Success", "message": "cluster east: its collection was deleted"},
            {"reason": "Forbidden", "message": "cluster west: 403: no: Forbidden"},
        ],
    }


def test_one_that_cannot_be_reached() -> None:
    room = fleet()
    room.members["west"].rule = lambda *_: StatusError(503, "no endpoint")
    causes = room.asks("DELETE", LIST).json["details"]["causes"]
    assert causes[1] == {"reason": "ServiceUnavailable", "message": "cluster west: 503: no endpoint"}


def test_where_all_refuse_it_is_their_refusal() -> None:
    room = fleet()
    for member in room.members.values():
        member.may = True  # it is admission that refuses it
        member.rule = forbids()
    answer = room.asks("DELETE", LIST)
    assert (answer.code, answer.json) == (403, status(403, "Forbidden"))


def test_members_that_are_left_out_are_said() -> None:
    room = fleet()
    room.left_out = (("west", "policy"),)
    answer = room.asks("DELETE", LIST)
    assert (answer.code, answer.served) == (200, ("east",))
    assert answer.warnings[-1] == '299 - "cluster west: its objects were left: policy"'
    assert len(room.members["west"].objects) == 2
    room.left_out = (("east", "policy"), ("west", "policy"))
    assert room.asks("DELETE", LIST).code == 403


def test_only_members_with_the_namespace_in_scope() -> None:
    room = fleet(scope=[scoped(CONFIG_MAPS, "demo", clusters=("west",)), scoped(CONFIG_MAPS, "x", clusters=("east",))])
    assert room.asks("DELETE", LIST).served == ("west",)
    assert room.asks("DELETE", "/api/v1/namespaces/hidden/configmaps").code == 404


def test_a_table() -> None:
    room = fleet()
    for name, member in room.members.items():
        columns = [{"name": "Name", "type": "string", "format": "", "description": "", "priority": 0}]
        row = {"cells": [name], "object": {"kind": "PartialObjectMetadata", "metadata": {"resourceVersion": "101"}}}
        table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": columns, "rows": [row]}
        member.rule = lambda method, _, table=table: (200, table)  # type: ignore[misc]
    answer = room.asks("DELETE", LIST, b"", (b"Accept", b"application/json;as=Table;g=meta.k8s.io;v=v1"))
    assert [row["cells"] for row in answer.json["rows"]] == [["east"], ["west"]]
    assert [row["object"]["metadata"]["labels"][LABEL] for row in answer.json["rows"]] == ["east", "west"]


def test_it_is_answered_when_the_caches_show_it() -> None:
    room = fleet()
    for member in room.members.values():
        member.lagging = True
    request, _ = room.begin("DELETE", LIST)
    room.clock.advance(1)
    room.members["east"].catch_up()
    assert request.recorded.status == 0
    room.members["west"].catch_up()
    assert request.recorded.status == 200
    assert not room.clock.getDelayedCalls()


def test_a_list_that_cannot_be_read_is_502() -> None:
    room = fleet()
    room.members["west"].rule = lambda *_: (200, b'{"kind":"ConfigMapList","items":[{]}')
    assert room.asks("DELETE", LIST).code == 502
