"""Reviews are read as a kube-apiserver reads them, in JSON and protobuf, and answered in its documents."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.review_api import review_body
from mcproxy.identity.review_api.review_body import (
    ACCESS_REVIEW,
    KINDS,
    LOCAL_ACCESS_REVIEW,
    TOKEN_REVIEW,
    ReviewKind,
    from_protobuf,
    to_protobuf,
)
from mcproxy.kube import protobuf
from mcproxy.kube.media_types import JSON, PROTOBUF, YAML
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo

GOLDEN = Path(__file__).parents[2] / "golden" / "auth"
ANSWERED = ["tokenreview-valid-static", "tokenreview-valid-sa", "sar-allowed", "sar-denied", "sar-as-mcproxy"]
ANSWERED += ["sar-nonresource", "sar-subresource", "localsar"]
WORDS = st.text(max_size=20)


def recording(name: str) -> tuple[ReviewKind, bytes, dict[str, Any]]:
    found = json.loads((GOLDEN / f"{name}.json").read_text())
    path = found["request"]["path"].split("/")
    body = found["request"]["body"]
    return KINDS[path[2], path[-1]], body.encode(), found["response"]


@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
def test_an_answer_is_that_of_the_recording_without_managed_fields(name: str, media_type: str) -> None:
    kind, body, response = recording(name)
    expected = json.loads(response["body"])
    del expected["metadata"]["managedFields"]
    spec = review_body.read(kind, body, JSON.encode())
    assert spec is not None
    namespace = expected["metadata"].get("namespace", "")
    answer = review_body.answer(kind, spec, expected["status"], namespace, media_type)
    if media_type == JSON:
        assert answer.decode() == json.dumps(expected, separators=(",", ":")) + "\n"
        return
    # What was written in protobuf is read as what was written in JSON.
    assert review_body.read(kind, answer, PROTOBUF.encode()) == spec
    raw = protobuf.envelope(answer).raw
    (status,) = protobuf.only(3, answer, raw.content, raw.end)
    assert from_protobuf(answer[status.content : status.end], kind.status) == {
        name: value for name, value in expected["status"].items() if value
    }


def test_the_bytes_of_protobuf_are_those_of_the_published_field_numbers() -> None:
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}, "user": "a", "groups": ["g"]}
    raw = b"\x0a\x0b\x12\x03get\x2a\x04pods\x1a\x01a\x22\x01g"
    assert to_protobuf(spec, ACCESS_REVIEW.spec) == raw
    assert (
        to_protobuf({"allowed": True, "denied": False, "reason": "r"}, ACCESS_REVIEW.status)
        == b"\x08\x01\x12\x01r \x00"
    )
    info = {"username": "a", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}
    status = {"authenticated": True, "user": info, "audiences": ["x"]}
    user = b"\x0a\x01a\x12\x011\x1a\x01g\x22\x08\x0a\x01k\x12\x03\x0a\x01v"
    assert to_protobuf(status, TOKEN_REVIEW.status) == b"\x08\x01\x12" + bytes([len(user)]) + user + b"\x22\x01x"
    assert to_protobuf({"token": "t", "audiences": ["x"]}, TOKEN_REVIEW.spec) == b"\x0a\x01t\x12\x01x"


@given(
    user=WORDS,
    groups=st.lists(WORDS.filter(bool), max_size=3),
    extra=st.dictionaries(WORDS, st.lists(WORDS, max_size=2), max_size=3),
    names=st.fixed_dictionaries({}, optional={name: WORDS.filter(bool) for name in ("verb", "group", "name")}),
)
def test_a_spec_is_the_same_behind_both_encodings(
    user: str, groups: list[str], extra: dict[str, list[str]], names: dict[str, str]
) -> None:
    spec = {"resourceAttributes": names, "user": user, "groups": groups, "extra": extra}
    body = json.dumps({"spec": spec}, ensure_ascii=False).encode()
    read = review_body.read(ACCESS_REVIEW, body, None)
    assert read is not None
    again = from_protobuf(to_protobuf(read, ACCESS_REVIEW.spec), ACCESS_REVIEW.spec)
    assert again == read
    asked = review_body.access_review(ACCESS_REVIEW, read, "")
    assert (asked is None) == (not user and not groups)
    if asked is not None:
        assert (asked.subject.name, asked.attributes.verb) == (user, names.get("verb", ""))


@given(st.binary(max_size=200))
def test_whatever_comes_is_read_or_refused(body: bytes) -> None:
    for content_type in (JSON, PROTOBUF):
        for kind in KINDS.values():
            for data in (body, protobuf.MAGIC + body):
                with suppress(StatusError):  # no other error
                    review_body.read(kind, data, content_type.encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"spec": {"token": 5}}',
        b'{"spec": {"token": "a", "token": "b"}}',
        b'{"spec": {"token": "\\ud800"}}',
        b'{"spec": {"token": "a", "audiences": "b"}}',
        b'{"spec": ' + b'{"a":' * 50 + b"1" + b"}" * 51,
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        review_body.read(TOKEN_REVIEW, body, JSON.encode())
    assert caught.value.code == 400
    assert "must be of type TokenReview" in caught.value.message


def test_another_media_type_is_refused_in_the_words_of_kubernetes() -> None:
    for content_type in (b"application/cbor", b"text/plain"):
        with pytest.raises(StatusError) as caught:
            review_body.read(TOKEN_REVIEW, b"{}", content_type)
        assert caught.value.code == 415
        assert caught.value.message.startswith("the body of the request was in an unknown format - accepted media")


def test_what_is_not_valid_is_left_to_the_backend() -> None:
    other = {"apiVersion": "authentication.k8s.io/v1beta1", "kind": "TokenReview", "spec": {"token": "a"}}
    assert review_body.read(TOKEN_REVIEW, json.dumps(other).encode(), None) is None
    named = {"metadata": {"name": "x"}, "spec": {"user": "a"}}
    assert review_body.read(ACCESS_REVIEW, json.dumps(named).encode(), None) is None
    for token in ("", "a b", "a\n", "a\x00"):
        assert review_body.token_review({"token": token}) is None
    of_path, of_resource = {"path": "/healthz", "verb": "get"}, {"verb": "get", "namespace": "demo"}
    for spec in (
        {"user": "a"},
        {"user": "a", "resourceAttributes": of_resource, "nonResourceAttributes": of_path},
        {"resourceAttributes": of_resource},
    ):
        assert review_body.access_review(ACCESS_REVIEW, spec, "") is None
    for attributes in ({"nonResourceAttributes": of_path}, {"resourceAttributes": of_resource}):
        assert review_body.access_review(LOCAL_ACCESS_REVIEW, {"user": "a", **attributes}, "other") is None
    both = {"rawSelector": "a=b", "requirements": [{"key": "a", "operator": "Exists"}]}
    selecting = {"user": "a", "resourceAttributes": {**of_resource, "labelSelector": both}}
    assert review_body.access_review(ACCESS_REVIEW, selecting, "") is None


def test_selectors_are_text_or_left_out() -> None:
    def asked(fields: Any, labels: Any) -> Attributes:
        attributes = {"verb": "list", "resource": "pods", "fieldSelector": fields, "labelSelector": labels}
        review = review_body.access_review(ACCESS_REVIEW, {"user": "a", "resourceAttributes": attributes}, "")
        assert review is not None
        assert review.subject == UserInfo("a")
        return review.attributes

    def requirement(operator: str, *values: str) -> dict[str, Any]:
        return {"requirements": [{"key": "k", "operator": operator, "values": list(values)}]}

    raw = asked({"rawSelector": "spec.nodeName=n"}, {"rawSelector": "a in (b)"})
    assert (raw.field_selector, raw.label_selector) == ("spec.nodeName=n", "a in (b)")
    made = asked(requirement("In", "a,b"), requirement("NotIn", "a", "b"))
    assert (made.field_selector, made.label_selector) == ("k=a\\,b", "k notin (a,b)")
    # What has no text is asked without: that is wider, so never allowed where the narrower is not.
    wide = asked(requirement("In", "a", "b"), requirement("Near"))
    assert (wide.field_selector, wide.label_selector) == ("", "")


def test_the_media_type_of_the_answer_follows_accept() -> None:
    assert review_body.answer_type(b"") == JSON
    assert review_body.answer_type(b"application/vnd.kubernetes.protobuf,application/json") == PROTOBUF
    assert review_body.answer_type(b"application/yaml") == YAML
    for accept in (b"application/cbor", b"application/json;as=Table;g=meta.k8s.io;v=v1"):
        with pytest.raises(StatusError, match=r"media types|Acceptable"):
            review_body.answer_type(accept)


def test_yaml_is_read_as_a_kube_apiserver_reads_it_and_answered() -> None:
    text = b"kind: TokenReview\napiVersion: authentication.k8s.io/v1\nspec:\n  token: abc\n  audiences: [a]\n"
    spec = review_body.read(TOKEN_REVIEW, text, YAML.encode())
    assert spec == {"token": "abc", "audiences": ["a"]}
    answer = review_body.answer(TOKEN_REVIEW, spec, {"authenticated": True}, "", YAML)
    assert yaml.safe_load(answer) == {
        "kind": "TokenReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {},
        "spec": spec,
        "status": {"authenticated": True},
    }


@pytest.mark.parametrize(
    "body",
    [
        b"spec: {token: 5}",
        b"spec: {token: yes}",
        b"spec: {token: a, token: b}",
        b"spec: &a {token: a}\nmetadata: *a",
        b"spec: [",
        b"\xff",
        b"a: b\n---\nspec: {token: a}",
        b"{a: " * 20_000,
    ],
)
def test_yaml_that_could_be_read_in_two_ways_is_refused(body: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        review_body.read(TOKEN_REVIEW, body, YAML.encode())
    assert caught.value.code == 400
