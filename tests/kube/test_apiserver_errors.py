"""The errors that a kube-apiserver answers, byte for byte (recordings in tests/golden)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.kube import status as errors
from mcproxy.kube.status import StatusCause, StatusError

GOLDEN = Path(__file__).parent.parent / "golden"


def recorded(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())["response"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("errors/404-object.json", errors.not_found("", "configmaps", "absent")),
        ("rv/configmaps-future.json", errors.too_large_resource_version("100363", "363")),
        (
            "expired/restarted-exact.json",
            errors.expired("The resourceVersion for the provided list is too old."),
        ),
    ],
)
def test_the_body_is_a_kube_apiservers(name: str, error: StatusError) -> None:
    response = recorded(name)
    assert error.body().decode() == response["body"]
    assert error.code == response["status"]


def test_an_expired_continue_has_a_token_to_go_on_with() -> None:
    response = recorded("expired/restarted-continue.json")
    status = json.loads(response["body"])
    error = errors.expired(status["message"], continue_token=status["metadata"]["continue"])
    assert error.body().decode() == response["body"]


def test_an_invalid_object_names_every_cause() -> None:
    causes = [
        StatusCause("FieldValueInvalid", "Invalid value: 1", "a"),
        StatusCause("FieldValueInvalid", "Invalid value: 1", "a"),
    ]
    error = errors.invalid("apps", "Deployment", "web", causes)
    assert error.message == 'Deployment.apps "web" is invalid: a: Invalid value: 1'
    assert error.details is not None
    assert error.details["causes"] == [cause.as_dict() for cause in causes]


def test_a_cause_without_a_field() -> None:
    assert StatusCause("R", "m").as_dict() == {"reason": "R", "message": "m"}


def test_the_method() -> None:
    assert (errors.method_not_allowed().code, errors.method_not_allowed().reason) == (
        405,
        "MethodNotAllowed",
    )
