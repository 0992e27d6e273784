"""What is written to a cluster whose objects are not cached: without the label and annotation that others carry.

`kubectl expose` copies a pod's labels into the selector of a Service, which would select nothing; and the label of an
object that was copied from one cluster would stand in another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.writes.held_bodies import MAX_BODY
from tests.aggregate.writes.fleet import (
    ANNOTATION,
    LABEL,
    LEASES,
    NODE_METRICS,
    Answer,
    Fleet,
    FleetRequest,
    Forbids,
    forbids,
    rule,
    scoped,
)

NODES = "/apis/metrics.k8s.io/v1beta1/nodes"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/demo/leases"
MERGE, JSON_PATCH = b"application/merge-patch+json", b"application/json-patch+json"
WRITABLE = replace(NODE_METRICS, verbs=NODE_METRICS.verbs | {"create", "update", "patch", "delete"})


def marked(name: str, **labels: str) -> dict[str, Any]:
    """An object as it is copied from what the aggregate shows."""
    metadata = {"name": name, "labels": {**labels, LABEL: "east"}, "annotations": {ANNOTATION: "east", "mine": "1"}}
    return {
        "kind": "Service",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"selector": {LABEL: "east", "a": "b"}},
    }


def bare(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, **({"labels": labels} if labels else {}), "annotations": {"mine": "1"}}
    return {"kind": "Service", "apiVersion": "v1", "metadata": metadata, "spec": {"selector": {"a": "b"}}}


def beyond(fleet: Fleet, method: str, target: str, body: Any, kind: bytes = b"application/json") -> Answer:
    """Send what is outside the scope to west."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = FleetRequest(fleet, method, target, data, [(b"Content-Type", kind), (b"Accept", b"x/y")])
    results: list[Any] = []
    Deferred.fromCoroutine(fleet.writes.write_beyond(request, "west")).addBoth(results.append)
    return Answer(request, results[0])


def fleet_of_nodes(**options: Any) -> Fleet:
    """East and west have `nodes` that can be written and listed, and not watched; west has the node `n`."""
    fleet = Fleet(**options)
    for member in fleet.clusters.values():
        member.discovery.set(WRITABLE)  # type: ignore[attr-defined]
    fleet.members["west"].put("n", "", WRITABLE)
    fleet.members["west"].sent.clear()
    return fleet


def sent_to(fleet: Fleet, member: str) -> Sequence[Any]:
    return [json.loads(body) for _, _, body in fleet.writes_to(member)]


# -- outside the scope ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "name"), [("POST", ""), ("PUT", "/n")])
def test_outside_the_scope(method: str, name: str) -> None:
    fleet = fleet_of_nodes()
    answer = beyond(fleet, method, NODES + name, marked("n", app="x"))
    assert answer.forwarded == []
    assert sent_to(fleet, "west") == [bare("n", app="x")]


@pytest.mark.parametrize(
    ("kind", "patch", "expected"),
    [
        (MERGE, {"metadata": {"labels": {LABEL: "east", "app": "x"}}}, {"metadata": {"labels": {"app": "x"}}}),
        (
            JSON_PATCH,
            [
                {"op": "add", "path": "/metadata/labels/mcproxy.io~1cluster", "value": "east"},
                {"op": "add", "path": "/spec/selector", "value": {LABEL: "east", "a": "b"}},
            ],
            [{"op": "add", "path": "/spec/selector", "value": {"a": "b"}}],
        ),
    ],
)
def test_a_patch_outside_the_scope(kind: bytes, patch: Any, expected: Any) -> None:
    fleet = fleet_of_nodes()
    beyond(fleet, "PATCH", NODES + "/n", patch, kind)
    assert sent_to(fleet, "west") == [expected]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (b"application/json", b'{"metadata" : {"name":"n", "resourceVersion":"7"},"data":{"a":1}}'),
        (b"application/yaml", b"metadata: {name: n, resourceVersion: '7'}\n"),
        (b"application/vnd.kubernetes.protobuf", b"k8s\0not taken apart"),
        (b"application/cbor", b"\xd9\xd9\xf7\xa0"),
        (b"application/json", b"[" * 1000),
    ],
)
def test_what_has_no_mark_stays_byte_for_byte(kind: bytes, body: bytes) -> None:
    fleet = Fleet()
    fleet.members["west"].rule = lambda *_: (200, {"kind": "Status"})
    beyond(fleet, "PUT", NODES + "/n", body, kind)
    assert [sent for _, _, sent in fleet.members["west"].sent] == [body]


def test_a_longer_body_than_a_kube_apiserver_takes_is_the_clusters_to_refuse() -> None:
    answer = beyond(Fleet(), "POST", NODES, b" " * (MAX_BODY + 1))
    assert answer.forwarded == [("west", NODES.encode())]


def test_a_mark_in_cbor_is_refused_upon_which_clients_send_json() -> None:
    fleet = Fleet()
    answer = beyond(fleet, "POST", NODES, b"\xd9\xd9\xf7" + LABEL.encode(), b"application/cbor")
    assert answer.code == 415
    assert fleet.members["west"].sent == []


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", NODES), ("DELETE", NODES + "/n"), ("PUT", NODES + "/n/status"), ("POST", NODES + "/n/exec")],
)
def test_what_is_no_object_goes_through_unread(method: str, target: str) -> None:
    assert beyond(Fleet(), method, target, b"").forwarded == [("west", target.encode())]


# -- in the scope, and not cached -------------------------------------------------------------------------------------


def test_what_can_be_listed_but_not_watched() -> None:
    fleet = fleet_of_nodes(create=[rule("east")])
    shown = fleet.asks("GET", NODES + "/n").json
    assert (shown["metadata"]["labels"], shown["metadata"]["annotations"]) == ({LABEL: "west"}, {ANNOTATION: "west"})
    answer = fleet.asks("PUT", NODES + "/n", shown)
    assert (answer.code, answer.forwarded) == (200, [])
    [sent] = sent_to(fleet, "west")
    assert "labels" not in sent["metadata"]
    assert "annotations" not in sent["metadata"]
    assert answer.json["metadata"]["labels"] == {LABEL: "west"}
    created = fleet.asks("POST", NODES, marked("m"))
    assert (created.code, created.json["metadata"]["labels"]) == (201, {LABEL: "east"})
    assert sent_to(fleet, "east") == [bare("m")]


def test_what_the_member_warns_of_reaches_those_alone_who_may_read_there() -> None:
    fleet = fleet_of_nodes(create=[rule("west")])
    assert fleet.asks("POST", NODES, marked("m")).warnings == ['299 - "of the member"']
    api = fleet.members["west"]
    api.rule = Forbids(b"GET")
    assert (answer := fleet.asks("POST", NODES, marked("o"))).code == 201
    assert answer.warnings == []


def test_a_create_in_a_namespace_outside_the_scope_is_404() -> None:
    namespaced = replace(WRITABLE, namespaced=True)
    fleet = Fleet(create=[rule("west")], scope=[scoped(WRITABLE, "demo")])
    for member in fleet.clusters.values():
        member.discovery.set(namespaced)  # type: ignore[attr-defined]
    path = "/apis/metrics.k8s.io/v1beta1/namespaces/{}/nodes"
    request = FleetRequest(fleet, "POST", path.format("other"), b"{}", [])
    results: list[Any] = []
    Deferred.fromCoroutine(fleet.writes.serve(request, namespaced, None)).addBoth(results.append)
    answer = Answer(request, results[0])
    assert (answer.code, answer.message) == (404, 'namespaces "other" not found')
    assert answer.forwarded == []
    assert fleet.members["west"].sent == []


def test_a_create_outside_the_scope_is_403_first() -> None:
    """Whoever may not create learns nothing of the scope: rights, then owner."""
    namespaced = replace(WRITABLE, namespaced=True)
    answers = []
    for namespace in ("demo", "other"):
        fleet = Fleet(create=[rule("west")], scope=[scoped(WRITABLE, "demo")])
        for member in fleet.clusters.values():
            member.discovery.set(namespaced)  # type: ignore[attr-defined]
        fleet.members["west"].rule = forbids()
        path = f"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/nodes"
        request = FleetRequest(fleet, "POST", path, b"{}", [])
        results: list[Any] = []
        Deferred.fromCoroutine(fleet.writes.serve(request, namespaced, None)).addBoth(results.append)
        answer = Answer(request, results[0])
        answers.append((answer.code, answer.message.replace(namespace, "NAMESPACE")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 403


# -- where a create rule leads out of the scope -----------------------------------------------------------------------


@pytest.mark.parametrize("to", ["west"])
def test_a_create_rule_that_leads_out_of_the_scope(to: str) -> None:
    fleet = Fleet(create=[rule(to)], scope=[scoped(LEASES, clusters=("east",))])
    answer = fleet.asks("POST", LEASE_PATH, marked("a", app="x"))
    assert (answer.code, answer.served) == (201, (to,))
    assert sent_to(fleet, to) == [bare("a", app="x")]
    assert "is not followed" in answer.warnings[-1]


def test_an_apply_that_creates_out_of_the_scope() -> None:
    fleet = Fleet(create=[rule("west")], scope=[scoped(LEASES, clusters=("east",))])
    kind = (b"Content-Type", b"application/apply-patch+yaml")
    answer = fleet.asks("PATCH", f"{LEASE_PATH}/a?apply=1", marked("a"), kind)
    assert (answer.code, answer.served) == (200, ("west",))
    assert sent_to(fleet, "west") == [bare("a")]


def test_who_may_not_create_there_is_refused_before_the_body_is_read() -> None:
    fleet = Fleet(create=[rule("west")], scope=[scoped(LEASES, clusters=("east",))])
    fleet.members["west"].rule = forbids(b"POST")
    assert fleet.asks("POST", LEASE_PATH, b"{" * 1000).code == 403
