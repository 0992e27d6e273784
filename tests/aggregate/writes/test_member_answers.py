"""Members' answers to writes, as clients get them: recorded ones, in JSON and protobuf."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.aggregate.request import MemberResponse
from mcproxy.aggregate.writes import member_requests
from mcproxy.kube import protobuf
from mcproxy.kube.status import StatusError

GOLDEN = Path(__file__).parents[2] / "golden"
LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"


def recorded(path: str) -> MemberResponse:
    """The last response of a recording."""
    content = json.loads((GOLDEN / path).read_text())
    response: dict[str, Any] = content.get("exchanges", [content])[-1]["response"]
    encoded = response.get("body_base64")
    body = base64.b64decode(encoded) if encoded else response["body"].encode()
    fields = tuple((name.encode(), value.encode()) for name, value in response["headers"])
    return MemberResponse("east", response["status"], fields, body)


def vector(number: int) -> str:
    return f"{number}-vector"


@pytest.mark.parametrize(
    "name", ["create-configmap", "patch-apply-create", "ephemeralcontainers", "delete-pod-graceful"]
)
def test_an_object_in_json(name: str) -> None:
    answer = recorded(f"writes/{name}.json")
    before = json.loads(answer.body)
    written = member_requests.read_written(answer)
    assert written.name == before["metadata"]["name"]
    assert written.uid == before["metadata"]["uid"]
    assert written.version == int(before["metadata"]["resourceVersion"])
    assert written.stays == (name == "delete-pod-graceful")
    after = json.loads(member_requests.edited_answer(answer, vector))
    assert after["metadata"].pop("resourceVersion") == f"{written.version}-vector"
    assert after["metadata"]["labels"].pop(LABEL) == "east"
    assert after["metadata"]["annotations"].pop(ANNOTATION) == "east"
    del before["metadata"]["resourceVersion"]
    for each in (before, after):
        for key in ("labels", "annotations"):
            if not each["metadata"].get(key):
                each["metadata"].pop(key, None)
    assert after == before


def test_an_object_in_protobuf() -> None:
    answer = recorded("clients/kubectl-1.36/cordon.json")
    labels, version = protobuf.metadata_of(answer.body)
    assert member_requests.read_written(answer).version == int(version)
    edited = member_requests.edited_answer(answer, vector)
    assert protobuf.metadata_of(edited) == (labels | {LABEL: "east"}, f"{version}-vector")


@pytest.mark.parametrize("name", ["writes/delete-configmap", "writes/eviction", "writes/binding"])
def test_a_status_stays(name: str) -> None:
    answer = recorded(f"{name}.json")
    assert member_requests.read_written(answer).is_status
    assert member_requests.edited_answer(answer, vector) is answer.body


def test_a_status_in_protobuf_stays() -> None:
    answer = recorded("errors/406-cr-protobuf-only.json")
    assert member_requests.edited_answer(answer, vector) is answer.body
    assert member_requests.read_written(answer).is_status


def test_a_recorded_table() -> None:
    after = json.loads(member_requests.edited_answer(recorded("writes/create-accept-table.json"), vector))
    assert after["kind"] == "Table"
    assert after["rows"][0]["object"]["metadata"]["labels"][LABEL] == "east"


def test_a_dry_run_has_no_version() -> None:
    answer = recorded("writes/create-dryrun.json")
    assert member_requests.read_written(answer).version == 0
    assert "resourceVersion" not in json.loads(member_requests.edited_answer(answer, vector))["metadata"]


@pytest.mark.parametrize("more", [0, 1])
def test_an_answer_that_no_cache_would_take_says_nothing(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"kind":"ConfigMap","metadata":{"name":"a","uid":"u","resourceVersion":"7"}}'
    monkeypatch.setattr(member_requests, "MAX_OBJECT_BYTES", len(body) - more)
    found = member_requests.read_written(MemberResponse("east", 200, ((b"Content-Type", b"application/json"),), body))
    assert (found.name, found.version) == (("", 0) if more else ("a", 7))


@pytest.mark.parametrize("body", [b"k8s\x00", b"k8s\x00\x12\x05abc", b""])
def test_malformed_protobuf_is_502(body: bytes) -> None:
    answer = MemberResponse("east", 200, ((b"Content-Type", b"application/vnd.kubernetes.protobuf"),), body)
    assert member_requests.read_written(answer) == member_requests.WrittenObject()
    with pytest.raises(StatusError) as caught:
        member_requests.edited_answer(answer, vector)
    assert caught.value.code == 502


@pytest.mark.parametrize("text", ["", "abc", "-1", "1" * 21, "１", "1.0"])  # noqa: RUF001 - a digit that is none
def test_what_is_no_version(text: str) -> None:
    assert member_requests.version_number(text) == 0
