"""Status objects, byte for byte as a kube-apiserver writes them (recordings in tests/golden)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis.strategies import text

from mcproxy.kube.status import StatusError, retry_after

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDINGS = [
    "errors/401-no-credentials-anonymous-off.json",
    "errors/403-alice-list-nodes.json",
    "errors/403-alice-nonresource.json",
    "impersonation/group-without-user.json",
    "discovery/api-unknown-version.json",
    "table/404.json",
    "kubelet/exec-no-upgrade.json",
    "kubelet/pod-proxy-refused.json",
    "crd/429-just-established.json",
    "rv/configmaps-future.json",
    "expired/restarted-exact.json",
]


def recorded(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())["response"]


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_body_is_a_kube_apiservers(name: str) -> None:
    response = recorded(name)
    status = json.loads(response["body"])
    error = StatusError(
        status["code"], status["message"], reason=status.get("reason", ""), details=status.get("details")
    )
    assert error.body().decode() == response["body"]


@pytest.mark.parametrize("name", [name for name in RECORDINGS if "409" not in name])
def test_the_usual_reason_of_a_code_need_not_be_said(name: str) -> None:
    status = json.loads(recorded(name)["body"])
    assert StatusError(status["code"], "x").reason == status["reason"]


def test_retry_after_is_said_twice_and_the_same() -> None:
    error = retry_after(429, "storage is (re)initializing", 1)
    assert error.headers == ((b"Retry-After", b"1"),)
    assert error.body().decode() == recorded("crd/429-just-established.json")["body"]
    assert retry_after(503, "x", 5, name="east").details == {"name": "east", "retryAfterSeconds": 5}


@pytest.mark.parametrize("name", RECORDINGS)
def test_in_yaml_it_is_the_same(name: str) -> None:
    status = json.loads(recorded(name)["body"])
    error = StatusError(
        status["code"], status["message"], reason=status.get("reason", ""), details=status.get("details")
    )
    assert yaml.safe_load(error.yaml_body()) == status


@given(text())
def test_any_message_is_the_same_in_yaml(message: str) -> None:
    error = StatusError(404, message, details={"name": message})
    assert yaml.safe_load(error.yaml_body()) == error.status()


def test_a_code_that_kubernetes_has_no_reason_for() -> None:
    assert json.loads(StatusError(421, "x").body()) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "x",
        "code": 421,
    }


def test_any_text_stays_json() -> None:
    text = 'a"b\\c\n<é>&\u2028\x00'
    assert json.loads(StatusError(400, text).body())["message"] == text
