"""What is left of a plugin's complaint in the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.upstream.exec_plugin import redacted, secret_arguments

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2ln-_"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such session", "no such session"),
        ("cannot read /home/k8s/.config/plugin.json: permission denied", "cannot read /home/k8s/.config/plugin.json: "),
        ("dial tcp 10.0.0.1:443: connect: connection refused", "dial tcp 10.0.0.1:443: connect: connection refused"),
        ("request 3f2504e0-4f89-11d3-9a0c-0305e82c3301 failed", "3f2504e0-4f89-11d3-9a0c-0305e82c3301 failed"),
        ("token expired, log in again", "token expired, log in again"),
    ],
)
def test_what_helps_an_operator_stays(text: str, shown: str) -> None:
    assert shown in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        f"bad token {JWT}",
        f"401 for Authorization: Bearer {JWT}",
        "401 for Authorization: Bearer hunter2-hunter2",
        'body {"refresh_token": "hunter2-hunter2", "x": 1}',
        "POST client_secret=hunter2-hunter2&grant_type=x",
        "usage: --client-secret hunter2-hunter2 --x",
        "usage: --client-secret=hunter2-hunter2",
        "PASSWORD='hunter2-hunter2' is wrong",
        "GET https://admin:hunter2-hunter2@login.example.com/",
        "key 0123456789abcdef0123456789abcdef0123456789abcdef-hunter2-hunter2 refused",
        "env: hunter2-hunter2",
    ],
)
def test_what_looks_like_a_secret_does_not(text: str) -> None:
    shown = redacted(text, ["hunter2-hunter2"] if text.startswith("env") else [])
    assert "hunter2" not in shown
    assert "eyJ" not in shown
    assert "***" in shown


def test_arguments_of_secret_flags_are_found() -> None:
    arguments = [
        "get-token",
        "--client-id",
        "k8s",
        "--client-secret",
        "s3cr3t",
        "--password=p4ss",
        "--token",
        "--x",
        "y",
    ]
    assert secret_arguments(arguments) == ["s3cr3t", "p4ss"]


@given(st.text(), st.text(min_size=6, alphabet="abcdefXYZ0123456789"), st.text())
def test_a_configured_value_never_shows(before: str, secret: str, after: str) -> None:
    assert secret not in redacted(before + secret + after, [secret]).replace("***", "\n")


@given(st.text(max_size=300))
def test_any_text_is_taken(text: str) -> None:
    assert isinstance(redacted(text), str)
