"""Refusals are those of a kube-apiserver, word for word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.identity.authorization.attributes import Attributes, attributes_of, forbidden, go_quote
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.user import UserInfo

GOLDEN = Path(__file__).parents[2] / "golden" / "errors"
# Not here: 403-basic-auth, whose sentence is that of 403-anonymous-pods.
NAMES = sorted(path.stem for path in GOLDEN.glob("403-*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_status_is_that_of_the_recording(name: str) -> None:
    recording = json.loads((GOLDEN / f"{name}.json").read_text())
    target = recording["request"]["path"].encode()
    info = parse(recording["request"]["method"].encode(), target)
    user = UserInfo("alice" if "alice" in name else "system:anonymous")
    error = forbidden(user, attributes_of(info, target))
    assert error.code == recording["response"]["status"]
    assert error.body().decode() == recording["response"]["body"]
    sent = dict(recording["response"]["headers"])
    assert {name.decode(): value.decode() for name, value in error.headers}.items() <= sent.items()


def test_there_are_recordings() -> None:
    assert len(NAMES) >= 18


def test_a_reason_is_appended() -> None:
    error = forbidden(UserInfo("bob"), Attributes("get", resource="pods", name="a"), "RBAC: no such role")
    assert error.message.endswith(' in API group "" at the cluster scope: RBAC: no such role')
    path = Attributes("get", path="/metrics", is_resource=False)
    assert forbidden(UserInfo("bob"), path, "no").message == 'forbidden: User "bob" cannot get path "/metrics": no'


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("alice", '"alice"'),
        ('a"b\\c', r'"a\"b\\c"'),
        ("a\nb\x00\x7f", r'"a\nb\x00\x7f"'),
        ("Jürgen 山", '"Jürgen 山"'),
        ("\u200b\u0085\U000e0001", r'"\u200b\u0085\U000e0001"'),
    ],
)
def test_names_are_quoted_as_go_does(text: str, quoted: str) -> None:
    assert go_quote(text) == quoted


def test_what_is_not_printable_is_escaped_once_among_all_else() -> None:
    text = 'a"b\\x7f\x7f\x85\xa0\u200b\U000e0001\nä'
    assert go_quote(text) == r'"a\"b\\x7f\x7f\u0085\u00a0\u200b\U000e0001\nä"'
