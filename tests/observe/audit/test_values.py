"""The values of an audit event have Kubernetes' keys, are ASCII and bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from mcproxy.kube.requestinfo import parse
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo
from mcproxy.observe.audit import values
from mcproxy.observe.audit.event import COMPLETE, annotations_of, received
from mcproxy.observe.audit.log import encode, later


def read(raw: Any) -> Any:
    assert isinstance(raw, Raw)
    return json.loads(bytes(raw))


def test_a_user_has_the_keys_of_user_info() -> None:
    user = UserInfo("alice", ("dev", "ops"), "7", (("scopes", ("a", "b")),))
    assert read(values.user_of(user)) == {
        "username": "alice",
        "uid": "7",
        "groups": ["dev", "ops"],
        "extra": {"scopes": ["a", "b"]},
    }
    assert bytes(values.user_of(None)) == b"{}"


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/api/v1/nodes", {"resource": "nodes", "apiVersion": "v1"}),
        (
            "PUT",
            "/apis/apps/v1/namespaces/a/deployments/b/scale",
            {
                "resource": "deployments",
                "namespace": "a",
                "name": "b",
                "apiGroup": "apps",
                "apiVersion": "v1",
                "subresource": "scale",
            },
        ),
        (
            "DELETE",
            "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Db",
            {"resource": "pods", "namespace": "a", "apiVersion": "v1"},
        ),
        (
            "GET",
            "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Db",
            {"resource": "pods", "namespace": "a", "name": "b", "apiVersion": "v1"},
        ),
    ],
)
def test_an_object_reference_is_that_of_a_kube_apiserver(method: str, target: str, expected: dict[str, str]) -> None:
    assert read(values.object_ref_of(parse(method.encode(), target.encode()))) == expected


def test_a_path_that_is_no_resource_has_none() -> None:
    assert values.object_ref_of(parse(b"GET", b"/healthz")) is UNSET


def test_the_status_of_a_refusal_is_its_own() -> None:
    assert read(values.status_of(429, retry_after(429, "slow", 3))) == {
        "metadata": {},
        "status": "Failure",
        "message": "slow",
        "reason": "TooManyRequests",
        "details": {"retryAfterSeconds": 3},
        "code": 429,
    }
    assert bytes(values.status_of(404, None)) == b'{"metadata":{},"code":404}'
    assert len(read(values.status_of(403, StatusError(403, "x" * 100_000)))["message"]) == 4096


def test_times_have_six_digits() -> None:
    micro_time = values.MicroTime()
    assert micro_time(1795261320.0) == "2026-11-21T11:42:00.000000Z"
    assert micro_time(1795261320.25) == "2026-11-21T11:42:00.250000Z"


def test_a_long_user_agent_is_cut_as_in_a_kube_apiserver() -> None:
    assert values.user_agent_of("x" * 1025) == "x" * 1024 + "...TRUNCATED"
    assert values.user_agent_of("") is UNSET


@given(st.text(), st.text(max_size=20), st.text(max_size=20), st.binary(max_size=40))
def test_an_event_is_one_ascii_line_whatever_a_client_chose(agent: str, name: str, reason: str, path: bytes) -> None:
    target = b"/" + bytes(byte for byte in path if 32 < byte < 127)
    first = received(
        "id",
        values.uri_of(target),
        values.text(name),
        values.user_of(UserInfo(name, (name,), name, ((name, (name,)),))),
        values.source_ips_of((name,)),
        values.user_agent_of(agent),
        UNSET,
        "t",
    )
    last = later(first, COMPLETE, UNSET, values.status_of(200, None), "t", annotations_of("allow", reason))
    data = encode([first, last])
    assert data.isascii()
    one, two = data.decode("ascii").splitlines()
    assert json.loads(one)["user"].get("username", "") == name
    assert json.loads(two)["annotations"]["authorization.k8s.io/reason"] == reason


@pytest.mark.parametrize("name", ["alice", "jos\u00e9", 'quo"te\\', "tab\t\x01\x7f", "\ud800", "\U0001f600", ""])
def test_a_user_is_json_in_ascii_that_reads_back(name: str) -> None:
    raw = bytes(values.user_of(UserInfo(name or "x", (name,), "", (("k", (name,)),))))
    assert raw.isascii()
    assert json.loads(raw) == {"username": name or "x", "groups": [name], "extra": {"k": [name]}}
    assert raw == json.dumps(json.loads(raw), separators=(",", ":")).encode()
