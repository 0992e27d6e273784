"""A Status is read from JSON and from protobuf, and from nothing else."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.status import StatusText, read_status

ERRORS = Path(__file__).parents[1] / "golden" / "errors"


def response(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ERRORS / f"{name}.json").read_text())["response"]
    return content


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 1 << 14
    length = bytes([len(content)]) if len(content) < 128 else bytes([len(content) & 127 | 128, len(content) >> 7])
    return bytes([number << 3 | 2]) + length + content


def protobuf(message: str, reason: str = "Forbidden", kind: str = "Status") -> bytes:
    """A Status as a kube-apiserver encodes it."""
    status = field(1, b"") + field(2, b"Failure") + field(3, message.encode()) + field(4, reason.encode())
    status += field(5, field(2, b"pods")) + b"\x30\x93\x03"  # code 403
    return b"k8s\x00" + field(1, field(1, b"v1") + field(2, kind.encode())) + field(2, status) + field(3, b"")


def test_the_recorded_json() -> None:
    body = response("403-alice-exec")["body"].encode()
    assert read_status(body) == StatusText("Forbidden", json.loads(body)["message"])


def test_the_recorded_protobuf() -> None:
    body = base64.b64decode(response("406-cr-protobuf-only")["body_base64"])
    status = read_status(body)
    assert status is not None
    assert status.reason == "NotAcceptable"
    assert status.message.startswith("only the following media types are accepted")


@pytest.mark.parametrize("message", ["short", "a" * 200, 'users "ä" is forbidden'])
def test_protobuf(message: str) -> None:
    assert read_status(protobuf(message)) == StatusText("Forbidden", message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"404 page not found\n",
        b"[]",
        b'{"kind":"Pod"}',
        b"[" * 8000,
        b'{"kind":"Status","reason":1,"message":"x"}',
        protobuf("x", kind="Pod"),
        protobuf("x" * 100)[:-40],
        b"k8s\x00",
        b"k8s\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"k8s\x00\x0b",
        b"k8s\x00" + field(1, field(2, b"Status")) + field(2, field(3, b"\xff")),
    ],
)
def test_anything_else_is_none(body: bytes) -> None:
    assert read_status(body) is None


@given(st.binary(max_size=60))
def test_nothing_that_a_peer_sends_breaks_it(noise: bytes) -> None:
    for body in (noise, b"k8s\x00" + noise, protobuf("x") + noise):
        read_status(body)
