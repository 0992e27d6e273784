"""What can be listed but not watched is asked of all members each time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.request import MemberResponse
from mcproxy.kube.status import StatusError
from tests.aggregate.writes.fleet import ANNOTATION, LABEL, NODE_METRICS, Fleet, forbids, scoped, status

NODES = "/apis/metrics.k8s.io/v1beta1/nodes"
TABLE = (b"Accept", b"application/json;as=Table;g=meta.k8s.io;v=v1,application/json")


def metrics(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": "2026-11-21T09:38:02Z"}, "usage": {"cpu": "1n"}}


def metrics_list(*names: str) -> dict[str, Any]:
    return {
        "kind": "NodeMetricsList",
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [metrics(name) for name in names],
    }


def table(columns: list[str], *rows: list[Any]) -> dict[str, Any]:
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": [
            {"name": name, "type": "string", "format": "", "description": "", "priority": 0} for name in columns
        ],
        "rows": [
            {"cells": row, "object": {"kind": "PartialObjectMetadata", "metadata": {"name": row[0]}}} for row in rows
        ],
    }


def fleet(**answers: Any) -> Fleet:
    made = Fleet(*answers)
    for name, answer in answers.items():
        rule = answer if callable(answer) else (lambda *_, answer=answer: (200, answer))
        made.members[name].rule = rule
    return made


def test_the_lists_are_merged() -> None:
    room = fleet(east=metrics_list("e1", "e2"), west=metrics_list("w1"))
    answer = room.asks("GET", NODES + "?limit=500&labelSelector=a%3Db&resourceVersion=0")
    assert (answer.code, answer.json["kind"], answer.json["apiVersion"]) == (
        200,
        "NodeMetricsList",
        "metrics.k8s.io/v1beta1",
    )
    found = [(item["metadata"]["name"], item["metadata"]["labels"][LABEL]) for item in answer.json["items"]]
    assert found == [("e1", "east"), ("e2", "east"), ("w1", "west")]
    assert answer.json["items"][0]["metadata"]["annotations"] == {ANNOTATION: "east"}
    assert answer.json["items"][0]["usage"] == {"cpu": "1n"}
    assert room.members["east"].sent[0][1] == f"{NODES}?labelSelector=a%3Db".encode()


def test_other_work_is_done_between_the_items_of_a_long_list() -> None:
    room = fleet(east=metrics_list(*(f"e{number}" for number in range(450))), west=metrics_list("w1"))
    request, _ = room.begin("GET", NODES)
    assert request.recorded.status == 0
    room.clock.advance(0)
    assert len(json.loads(request.recorded.body)["items"]) == 451


def test_members_that_fail_are_left_out_with_a_warning() -> None:
    """Elsewhere one failing member failed all."""
    room = fleet(east=lambda *_: StatusError(503, "no endpoint"), west=metrics_list("w1"), north=forbids())
    answer = room.asks("GET", NODES)
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["w1"]
    assert answer.warnings == [
        '299 - "of the member"',
        '299 - "cluster east: its objects are left out: no endpoint"',
        '299 - "cluster north: its objects are left out: no: Forbidden"',
    ]


def test_where_all_fail_it_is_the_first_failure() -> None:
    answer = fleet(east=lambda *_: (404, status(404, "NotFound")), west=forbids()).asks("GET", NODES)
    assert (answer.code, answer.json) == (403, status(403, "Forbidden"))
    assert fleet(east=lambda *_: StatusError(503, "no"), west=forbids()).asks("GET", NODES).code == 503


def test_the_virtual_label_selects_members() -> None:
    room = fleet(east=metrics_list("e1"), west=metrics_list("w1"))
    answer = room.asks("GET", NODES + "?labelSelector=mcproxy.io%2Fcluster%3Dwest")
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["w1"]
    assert room.members["east"].sent == []
    assert room.members["west"].sent[0][1] == NODES.encode()
    nothing = room.asks("GET", NODES + "?labelSelector=mcproxy.io%2Fcluster%3Dsouth")
    assert (nothing.code, nothing.json["kind"], nothing.json["items"]) == (200, "NodeMetricsList", [])


def test_tables() -> None:
    room = fleet(east=table(["Name", "CPU"], ["e1", "1"]), west=table(["Name", "Window", "CPU"], ["w1", "10s", "2"]))
    answer = room.asks("GET", NODES, b"", TABLE)
    assert [column["name"] for column in answer.json["columnDefinitions"]] == ["Name", "Window", "CPU"]
    assert [row["cells"] for row in answer.json["rows"]] == [["e1", None, "1"], ["w1", "10s", "2"]]
    assert answer.json["rows"][1]["object"]["metadata"]["labels"] == {LABEL: "west"}


def test_a_member_that_makes_no_tables_is_not_lost() -> None:
    def east(method: bytes, path: str) -> tuple[int, Any]:
        tables = b"as=Table" in room.members["east"].fields[-1][b"Accept"]
        return 200, table(["Name"], ["e1"]) if tables else metrics_list("e1")

    room = fleet(east=east, west=metrics_list("w1"))
    answer = room.asks("GET", NODES, b"", TABLE)
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["e1", "w1"]


def test_get_by_name() -> None:
    room = fleet(east=lambda *_: (404, status(404, "NotFound")), west=metrics("n"))
    answer = room.asks("GET", NODES + "/n")
    assert (answer.code, answer.served) == (200, ("west",))
    assert answer.json["metadata"]["labels"] == {LABEL: "west"}


def test_get_of_what_several_have_is_the_first_with_a_warning() -> None:
    answer = fleet(east=metrics("n"), west=metrics("n")).asks("GET", NODES + "/n")
    assert answer.served == ("east",)
    assert answer.warnings[-1] == '299 - "nodes \\"n\\" is shown of cluster east, and is also in: west"'


def missing(*_: Any) -> tuple[int, Any]:
    return 404, status(404, "NotFound")


def test_get_of_what_none_has() -> None:
    assert fleet(east=missing, west=missing).asks("GET", NODES + "/n").message == 'nodes.metrics.k8s.io "n" not found'
    assert fleet(east=missing, west=forbids()).asks("GET", NODES + "/n").code == 404
    assert fleet(east=missing, west=lambda *_: StatusError(503, "no")).asks("GET", NODES + "/n").code == 503
    assert fleet(east=forbids(), west=forbids()).asks("GET", NODES + "/n").code == 403


def test_members_outside_the_scope_and_left_out_ones_are_not_asked() -> None:
    room = Fleet("east", "west", "north", scope=[scoped(NODE_METRICS, clusters=("east", "north"))])
    for name, member in room.members.items():
        member.rule = lambda *_, name=name: (200, metrics_list(name))
    room.left_out = (("north", "policy"),)
    answer = room.asks("GET", NODES)
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["east"]
    assert answer.warnings == ['299 - "of the member"', '299 - "cluster north: its objects are left out: policy"']


def test_only_json_is_made_of_several_lists() -> None:
    room = fleet(east=metrics_list("e1"))
    assert room.asks("GET", NODES, b"", (b"Accept", b"application/vnd.kubernetes.protobuf")).code == 406
    assert room.members["east"].sent == []


def test_a_list_of_too_many_elements_is_refused_before_it_takes_their_memory() -> None:
    body = b'{"kind":"NodeMetricsList","items":[' + b"1," * 2_500_000 + b"1]}"
    assert fleet(east=lambda *_: (200, body)).asks("GET", NODES).code == 502


@pytest.mark.parametrize("body", [b"[]", b"<html>", b'{"kind":"NodeMetricsList","items":[1}', b'{"kind":"Secret"}'])
def test_a_list_that_cannot_be_read_is_502(body: bytes) -> None:
    assert fleet(east=lambda *_: (200, body)).asks("GET", NODES).code == 502


@pytest.mark.parametrize("body", [b"[]", b"<html>", b'{"kind":"NodeMetricsList","items":[1}', b'{"kind":"Secret"}'])
def test_a_list_that_cannot_be_read_is_left_out_alone(body: bytes) -> None:
    """Elsewhere one failing member failed all."""
    answer = fleet(east=lambda *_: (200, body), west=metrics_list("w1")).asks("GET", NODES)
    assert answer.code == 200
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["w1"]
    assert "cluster east: its objects are left out: " in answer.warnings[-1]


@pytest.mark.parametrize("accept", [(), (TABLE,)])
def test_an_object_that_cannot_be_taken_apart_is_left_out_alone(accept: tuple[Any, ...]) -> None:
    twice = b'{"metadata":{"name":"bad","labels":{"a":"1"},"labels":{}},"usage":{}}'
    if accept:
        east: Any = json.dumps(table(["NAME"], ["e1"], ["e2"])).encode()
        east = east.replace(b'{"name": "e2"}', b'{"name":"bad","labels":{"a":"1"},"labels":{}}')
        west: Any = table(["NAME"], ["w1"])
    else:
        east = json.dumps(metrics_list("e1")).encode().replace(b'"items": [', b'"items": [' + twice + b",")
        west = metrics_list("w1")
    answer = fleet(east=lambda *_: (200, east), west=west).asks("GET", NODES, b"", *accept)
    assert answer.code == 200
    assert b"bad" not in answer.body
    assert len(answer.json["rows" if accept else "items"]) == 2
    assert answer.warnings[-1] == '299 - "cluster east: 1 object is left out, it cannot be read"'


def test_what_a_member_warns_of_with_its_refusal_reaches_nobody() -> None:
    """The user may not read there."""
    room = fleet(east=lambda *_: StatusError(503, "no endpoint"), west=metrics_list("w1"), north=forbids())
    north = room.members["north"]
    answer_of_north = north.answer

    def warns(*asked: Any) -> MemberResponse:
        return replace(answer_of_north(*asked), fields=((b"Warning", b'299 - "a secret of north"'),))

    north.answer = warns  # type: ignore[assignment, method-assign]
    found = room.asks("GET", NODES)
    assert found.code == 200
    assert not [text for text in found.warnings if "secret" in text]


def test_the_members_are_asked_at_once() -> None:
    room = fleet(east=metrics_list("e1"), west=metrics_list("w1"))
    asked: list[str] = []
    request, _ = room.begin("GET", NODES)
    never: Deferred[Any] = Deferred()

    async def send(member: str, *args: Any, **how: Any) -> Any:
        asked.append(member)
        return await never

    request.send = send  # type: ignore[method-assign]
    waiting = Deferred.fromCoroutine(room.writes.read_uncached(request, NODE_METRICS))
    waiting.addErrback(lambda _: None)
    assert asked == ["east", "west"]
    waiting.cancel()
    assert never.called
