"""Protobuf bodies: recorded ones of kubectl, and invalid ones."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubesim.apimachinery import protobuf
from mcproxy.kube.protobuf import MAGIC

RECORDED: dict[str, tuple[str, dict[str, Any]]] = {
    "auth can-i": (
        "azhzAAoyChdhdXRob3JpemF0aW9uLms4cy5pby92MRIXU2VsZlN1YmplY3RBY2Nlc3NSZXZpZXcSOgoQCgASABoAIgAqADIAOABCABIcChoK"
        "BGRlbW8SBGxpc3QaACIAKgRwb2RzMgA6ABoICAASABoAIAAaACIA",
        {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {"generation": 0},
            "spec": {"resourceAttributes": {"namespace": "demo", "verb": "list", "resource": "pods"}},
        },
    ),
    "create configmap": (
        "azhzAAoPCgJ2MRIJQ29uZmlnTWFwEh4KFAoEbWFkZRIAGgAiACoAMgA4AEIAEgYKAWESATEaACIA",
        {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {"name": "made", "generation": 0},
            "data": {"a": "1"},
        },
    ),
    "create token": (
        "azhzAAooChhhdXRoZW50aWNhdGlvbi5rOHMuaW8vdjESDFRva2VuUmVxdWVzdBIdChAKABIAGgAiACoAMgA4AEIAEgMg2AQaBAoAEgAaACIA",
        {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"generation": 0},
            "spec": {"expirationSeconds": 600},
        },
    ),
    "autoscale": (
        "azhzAAopCg5hdXRvc2NhbGluZy92MhIXSG9yaXpvbnRhbFBvZEF1dG9zY2FsZXISPQoTCgNhcGkSABoAIgAqADIAOABCABIgChoKCkRlcGxv"
        "eW1lbnQSA2FwaRoHYXBwcy92MRABGAIaBBgAIAAaACIA",
        {
            "kind": "HorizontalPodAutoscaler",
            "apiVersion": "autoscaling/v2",
            "metadata": {"name": "api", "generation": 0},
            "spec": {
                "scaleTargetRef": {"kind": "Deployment", "name": "api", "apiVersion": "apps/v1"},
                "minReplicas": 1,
                "maxReplicas": 2,
            },
        },
    ),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_bodies(name: str) -> None:
    body, expected = RECORDED[name]
    assert protobuf.decode(base64.b64decode(body)) == expected


@pytest.mark.parametrize("name", RECORDED)
def test_a_body_that_is_cut_within_its_envelope_is_refused(name: str) -> None:
    body = base64.b64decode(RECORDED[name][0])
    envelope_end = len(body) - 4  # two empty fields: encoding and content type
    for size in range(envelope_end):
        if size == len(MAGIC) + 2 + body[len(MAGIC) + 1]:
            continue  # the end of TypeMeta: an object without fields
        with pytest.raises(protobuf.Undecodable):
            protobuf.decode(body[:size])


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def unknown(api_version: str, kind: str, raw: bytes) -> bytes:
    return MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, raw)


def test_a_job_made_from_a_cron_job() -> None:
    quantity = field(1, "cpu") + field(2, field(1, "100m"))
    container = field(1, "c") + field(2, "i:1") + field(8, field(2, quantity))
    template = field(1, b"") + field(2, field(2, container) + field(3, "Never"))
    owner = field(1, "CronJob") + field(3, "nightly") + field(4, "u") + field(5, "batch/v1") + field(6, 1)
    raw = field(1, field(1, "now") + field(13, owner)) + field(2, field(1, 1) + field(6, template) + field(10, 0))
    assert protobuf.decode(unknown("batch/v1", "Job", raw)) == {
        "kind": "Job",
        "apiVersion": "batch/v1",
        "metadata": {
            "name": "now",
            "ownerReferences": [
                {"kind": "CronJob", "name": "nightly", "uid": "u", "apiVersion": "batch/v1", "controller": True}
            ],
        },
        "spec": {
            "parallelism": 1,
            "template": {
                "metadata": {},
                "spec": {
                    "containers": [{"name": "c", "image": "i:1", "resources": {"requests": {"cpu": "100m"}}}],
                    "restartPolicy": "Never",
                },
            },
            "suspend": False,
        },
    }


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_maps_come_through(data: dict[str, str]) -> None:
    entries = b"".join(field(2, field(1, key) + field(2, value)) for key, value in data.items())
    assert protobuf.decode(unknown("v1", "ConfigMap", entries)).get("data", {}) == data


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_numbers_are_signed(number: int) -> None:
    raw = field(2, field(1, number % 2**64))
    assert protobuf.decode(unknown("apps/v1", "Deployment", raw))["spec"] == {"replicas": number}


@given(st.sampled_from(sorted(RECORDED)), st.binary(min_size=1, max_size=6), st.integers(min_value=0, max_value=200))
def test_damaged_bodies_are_decoded_or_refused(name: str, damage: bytes, where: int) -> None:
    body = base64.b64decode(RECORDED[name][0])
    where %= len(body)
    try:
        assert "kind" in protobuf.decode(body[:where] + damage + body[where + len(damage) :])
    except protobuf.Undecodable:
        pass


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(protobuf.Undecodable, match="not a k8s protobuf body"):
        protobuf.decode(b"{}")
    with pytest.raises(protobuf.Undecodable, match="no schema for x/v1 Y"):
        protobuf.decode(unknown("x/v1", "Y", b""))
    with pytest.raises(protobuf.Undecodable, match="more than ten bytes"):
        protobuf.decode(MAGIC + b"\xff" * 11)
