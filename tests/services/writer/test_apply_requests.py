"""Requests as API servers take them, and what their answers mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.services.exports.object_keys import ObjectKey
from mcproxy.services.writer.apply_requests import WriteOutcome, answer_of, request_of
from mcproxy.services.writer.differences import PlannedWrite, Verb

KEY = ObjectKey("east", "discovery.k8s.io", "v1", "endpointslices", "demo", "imported-west-s")
BODY = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"labels": {"a": "b"}}}
APPLY = PlannedWrite(Verb.APPLY, KEY, "uid", "7", BODY, "d")
DELETE = PlannedWrite(Verb.DELETE, KEY, "uid", "7")


def test_an_apply_names_what_it_changes() -> None:
    request = request_of(APPLY, 4.9)
    assert request.method == "PATCH"
    assert request.path == (
        "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices/imported-west-s?fieldManager=mcproxy&timeout=4s"
    )
    assert dict(request.headers)["content-type"] == "application/apply-patch+yaml"
    assert json.loads(request.body)["metadata"] == {
        "labels": {"a": "b"},
        "name": "imported-west-s",
        "namespace": "demo",
        "uid": "uid",
        "resourceVersion": "7",
    }


def test_a_creation_names_a_version_that_nothing_has() -> None:
    change = PlannedWrite(Verb.CREATE, KEY, "", "1", BODY, "d")
    metadata = json.loads(request_of(change, 5).body)["metadata"]
    assert metadata["resourceVersion"] == "1"
    assert "uid" not in metadata


def test_a_deletion_has_preconditions() -> None:
    request = request_of(DELETE, 0.2)
    assert request.method == "DELETE"
    assert request.path.endswith("?timeout=1s")
    assert json.loads(request.body)["preconditions"] == {"uid": "uid", "resourceVersion": "7"}


def test_a_status_goes_to_its_subresource_and_core_objects_to_their_path() -> None:
    key = ObjectKey("east", "multicluster.x-k8s.io", "v1alpha1", "serviceexports", "demo", "web")
    request = request_of(PlannedWrite(Verb.STATUS, key, "uid", "7", {"status": {}}), 5)
    assert request.path.startswith("/apis/multicluster.x-k8s.io/v1alpha1/namespaces/demo/serviceexports/web/status?")
    core = ObjectKey("east", "", "v1", "services", "demo", "derived-web")
    assert request_of(PlannedWrite(Verb.DELETE, core, "u", "1"), 5).path.startswith(
        "/api/v1/namespaces/demo/services/deri"
    )


def answer(status: int, change: PlannedWrite = APPLY, **body: Any) -> WriteOutcome:
    return answer_of(change, status, json.dumps(body).encode()).outcome


RBAC = 'endpointslices.discovery.k8s.io "x" is forbidden: User "u" cannot patch resource "endpointslices"'
WEBHOOK = 'admission webhook "w" denied the request: no'
TYPED = "failed to create typed patch object (demo/x; v1, Kind=Service): .spec.y: field not declared in schema"
TERMINATING = "unable to create new content in namespace demo because it is being terminated"


@pytest.mark.parametrize(
    ("status", "change", "body", "outcome"),
    [
        (200, APPLY, {"metadata": {"uid": "u", "resourceVersion": "8"}}, WriteOutcome.DONE),
        (200, APPLY, {"metadata": {"uid": "u", "resourceVersion": "x"}}, WriteOutcome.LATER),
        (200, APPLY, {}, WriteOutcome.LATER),
        (200, DELETE, {"kind": "Status"}, WriteOutcome.DONE),
        (404, DELETE, {}, WriteOutcome.GONE),
        (404, APPLY, {"details": {"kind": "namespaces"}}, WriteOutcome.NO_NAMESPACE),
        (404, APPLY, {}, WriteOutcome.REFUSED),
        (409, APPLY, {}, WriteOutcome.CONFLICT),
        (409, APPLY, {"details": {"causes": [{"reason": "FieldManagerConflict"}]}}, WriteOutcome.FIELD_CONFLICT),
        (409, DELETE, {}, WriteOutcome.CONFLICT),
        (500, APPLY, {"message": TYPED}, WriteOutcome.REFUSED),
        (500, APPLY, {"message": "etcdserver: request timed out"}, WriteOutcome.LATER),
        (422, APPLY, {"message": "metadata.uid: Invalid value: field is immutable"}, WriteOutcome.CONFLICT),
        (422, APPLY, {"message": "spec.ports: Invalid value"}, WriteOutcome.REFUSED),
        (403, APPLY, {"message": RBAC}, WriteOutcome.FORBIDDEN),
        (403, APPLY, {"message": WEBHOOK}, WriteOutcome.REFUSED),
        (403, APPLY, {"message": TERMINATING}, WriteOutcome.NO_NAMESPACE),
        (401, APPLY, {}, WriteOutcome.LATER),
        (429, APPLY, {}, WriteOutcome.LATER),
        (503, DELETE, {}, WriteOutcome.LATER),
        (302, APPLY, {}, WriteOutcome.REFUSED),
    ],
)
def test_what_an_answer_means(status: int, change: PlannedWrite, body: dict[str, Any], outcome: WriteOutcome) -> None:
    assert answer(status, change, **body) is outcome


@given(st.integers(200, 599), st.binary(max_size=200) | st.just(b'{"message":"\xc3"}'))
def test_any_answer_means_something(status: int, body: bytes) -> None:
    found = answer_of(APPLY, status, body)
    assert found.outcome is not WriteOutcome.DONE or found.version > 0


def test_words_of_an_api_server_are_bounded_and_printable() -> None:
    found = answer_of(APPLY, 422, json.dumps({"message": "\x1b[31m" + "x" * 1000}).encode())
    assert len(found.message) <= 300
    assert found.message.isprintable()
