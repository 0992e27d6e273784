"""The values of an audit event have Kubernetes' keys, are ASCII and bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.kube.requestinfo import parse
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo
from mcproxy.observe.audit import values


def read(text: str) -> Any:
    assert text.isascii()
    return json.loads(text)


def member(text: str) -> Any:
    """Return the value of a member with its key."""
    (value,) = read("{" + text.removeprefix(",") + "}").values()
    return value


def test_a_user_has_the_keys_of_user_info() -> None:
    user = UserInfo("alice", ("dev", "ops"), "7", (("scopes", ("a", "b")),))
    assert read(values.user_of(user)) == {
        "username": "alice",
        "uid": "7",
        "groups": ["dev", "ops"],
        "extra": {"scopes": ["a", "b"]},
    }
    assert values.user_of(None) == "{}"


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
    assert member(values.ObjectReferences().member(parse(method.encode(), target.encode()))) == expected


def test_a_path_that_is_no_resource_has_none() -> None:
    assert values.ObjectReferences().member(parse(b"GET", b"/healthz")) == ""


def test_the_status_of_a_refusal_is_its_own() -> None:
    assert member(values.status_of(429, retry_after(429, "slow", 3))) == {
        "metadata": {},
        "status": "Failure",
        "message": "slow",
        "reason": "TooManyRequests",
        "details": {"retryAfterSeconds": 3},
        "code": 429,
    }
    assert values.status_of(404, None) == ',"responseStatus":{"metadata":{},"code":404}'
    assert len(member(values.status_of(403, StatusError(403, "x" * 100_000)))["message"]) == 4096


def test_times_have_six_digits() -> None:
    micro_time = values.MicroTime().text
    assert micro_time(1795261319.007_042) == "2026-11-21T11:41:59.007041Z"  # cut, as a float is a little less
    assert micro_time(1795261320.0) == "2026-11-21T11:42:00.000000Z"
    assert micro_time(1795261320.25) == "2026-11-21T11:42:00.250000Z"


def test_a_long_user_agent_is_cut_as_in_a_kube_apiserver() -> None:
    assert member(values.user_agent_of("x" * 1025)) == "x" * 1024 + "...TRUNCATED"
    assert values.user_agent_of("") == ""


@pytest.mark.parametrize("name", ["alice", "jos\u00e9", 'quo"te\\', "tab\t\x01\x7f", "\ud800", "\U0001f600", ""])
def test_a_user_is_json_in_ascii_that_reads_back(name: str) -> None:
    raw = values.user_of(UserInfo(name or "x", (name,), "", (("k", (name,)),)))
    assert raw.isascii()
    assert json.loads(raw) == {"username": name or "x", "groups": [name], "extra": {"k": [name]}}
    assert raw == json.dumps(json.loads(raw), separators=(",", ":"))
