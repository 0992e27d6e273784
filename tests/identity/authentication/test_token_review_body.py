"""TokenReview on the wire: questions and answers are those of a kube-apiserver, and anything else is no answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.authentication.token_authenticator import Accepted, Refused
from mcproxy.identity.authentication.token_review import GROUP, decode_review, encode_review
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.kube.user import UserInfo

GOLDEN = Path(__file__).parents[2] / "golden" / "auth"
RECORDED = ["valid-static", "valid-sa", "invalid", "invalid-jwt", "audience", "west-token-of-east"]


def recorded(name: str) -> tuple[dict[str, Any], bytes]:
    """Return the question and the answer's body."""
    content = json.loads((GOLDEN / f"tokenreview-{name}.json").read_text())
    assert content["request"]["path"] == f"/apis/{GROUP}/v1/tokenreviews"
    return json.loads(content["request"]["body"]), content["response"]["body"].encode()


def review(status: Any, **more: Any) -> bytes:
    content = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status, **more}
    return json.dumps(content).encode()


def good(**user: Any) -> bytes:
    return review({"authenticated": True, "user": {"username": "alice", **user}})


@pytest.mark.parametrize("name", RECORDED)
def test_questions_are_those_that_a_cluster_understands(name: str) -> None:
    sent, _ = recorded(name)
    spec = sent["spec"]
    assert json.loads(encode_review(spec["token"], tuple(spec.get("audiences", ())))) == sent


def test_a_static_user_as_a_cluster_tells_it() -> None:
    sent, body = recorded("valid-static")
    assert decode_review(body, sent["spec"]["token"], ()) == Accepted(
        UserInfo("alice", ("dev", "system:authenticated"), "uid-alice")
    )


def test_a_service_account_as_a_cluster_tells_it() -> None:
    sent, body = recorded("valid-sa")
    result = decode_review(body, sent["spec"]["token"], ())
    assert isinstance(result, Accepted)
    assert result.user.name == "system:serviceaccount:demo:builder"
    assert result.user.groups == (
        "system:serviceaccounts",
        "system:serviceaccounts:demo",
        "system:authenticated",
    )
    assert dict(result.user.extra)["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")


@pytest.mark.parametrize("name", ["invalid", "invalid-jwt", "audience", "west-token-of-east"])
def test_refusals_as_a_cluster_tells_them_with_its_reason(name: str) -> None:
    sent, body = recorded(name)
    token = sent["spec"]["token"]
    result = decode_review(body, token, tuple(sent["spec"].get("audiences", ())))
    assert isinstance(result, Refused)
    assert not result.own
    assert result.cause
    assert token not in result.cause


def test_audiences_that_were_asked_for_must_be_among_those_of_the_answer() -> None:
    def parsed(asked: tuple[str, ...], **status: Any) -> Any:
        return decode_review(review({"authenticated": True, "user": {"username": "a"}, **status}), "t", asked)

    assert isinstance(parsed(("x", "y"), audiences=["y", "z"]), Accepted)
    assert parsed(("x",), audiences=["z"]) == Refused("the token is for other audiences")
    assert parsed(("x",)) == Refused("the token is for other audiences")
    assert parsed(("x",), audiences=[]) == Refused("the token is for other audiences")
    assert isinstance(parsed((), audiences=["z"]), Accepted)


def test_extra_keys_are_lower_case_sorted_and_joined() -> None:
    result = decode_review(good(extra={"Scopes": ["b"], "a": ["1"], "scopes": ["b", "c"]}), "t", ())
    assert isinstance(result, Accepted)
    assert result.user.extra == (("a", ("1",)), ("scopes", ("b", "c")))


def test_absent_and_null_parts_are_empty() -> None:
    for body in (good(), good(uid="", groups=None, extra=None)):
        assert decode_review(body, "t", ()) == Accepted(UserInfo("alice"))
    assert isinstance(decode_review(review(None), "t", ()), Refused)
    assert isinstance(decode_review(review({}), "t", ()), Refused)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"ok",
        b"[]",
        b"{}",
        b"\xff",
        json.dumps({"apiVersion": "v1", "kind": "Status", "status": "Success"}).encode(),
        review({}, kind="SubjectAccessReview"),
        review({}, apiVersion="authentication.k8s.io/v1alpha1"),
        review("yes"),
        review([True]),
        review({"authenticated": "true"}),
        review({"authenticated": 1}),
        review({"authenticated": None}),
        review({"authenticated": True}),
        review({"authenticated": True, "user": {}}),
        review({"authenticated": True, "user": "alice"}),
        good(username=""),
        good(username=7),
        good(username=["alice"]),
        good(uid=7),
        good(groups="dev"),
        good(groups=["dev", 7]),
        good(groups={"dev": True}),
        good(extra=["a"]),
        good(extra={"a": "b"}),
        good(extra={"a": [1]}),
        good()[:-2] + b', "user": {"username": "admin"}}}',
    ],
)
def test_anything_else_is_no_answer(body: bytes) -> None:
    with pytest.raises(UnavailableError) as caught:
        decode_review(body, "t", ())
    assert caught.value.kind == "answer"
    assert len(caught.value.cause) < 100


def test_a_reason_that_repeats_the_token_is_not_shown() -> None:
    token = "header-part.payload-part.signature-part"
    for error in (
        f"bad token {token}",
        "no key for header-part",
        'signature "signature-part" is wrong',
        f"bad token {token[:12]}...",
        f"{'x' * 300} {token}",
    ):
        result = decode_review(review({"error": error}), token, ())
        assert isinstance(result, Refused)
        assert not any(part in result.cause for part in token.split("."))


def test_a_reason_is_one_short_line() -> None:
    result = decode_review(review({"error": "no\nlog: forged \x1b[2J" + "x" * 5000}), "t", ())
    assert isinstance(result, Refused)
    assert result.cause.isprintable()
    assert len(result.cause) <= 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
users = st.fixed_dictionaries({}, optional=dict.fromkeys(("username", "uid", "groups", "extra"), json_values))
statuses = st.fixed_dictionaries(
    {"authenticated": st.booleans() | json_values},
    optional={"user": users | json_values, "audiences": json_values, "error": json_values},
)


@given(statuses | json_values, st.sampled_from([(), ("x",)]))
def test_answers_of_any_kind_raise_nothing_but_trouble(status: Any, audiences: tuple[str, ...]) -> None:
    try:
        result = decode_review(review(status), "t", audiences)
    except UnavailableError:
        return
    assert isinstance(result, Refused) or result.user.name
