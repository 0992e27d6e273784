"""What a token claims is shown, bounded and printable, and never the token."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.authentication.token_authenticator import claimed_issuer


def jwt(claims: object) -> bytes:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    return b"e30." + payload + b".c2lnbmF0dXJl"


def test_a_jwt_has_its_issuer() -> None:
    assert claimed_issuer(jwt({"iss": "https://issuer.example", "sub": "alice"})) == "https://issuer.example"


@pytest.mark.parametrize(
    "token",
    [
        b"", b"opaque", b"a.b", b"a.b.c", b"a..c", b"a.!!!.c", jwt([]), jwt({}), jwt({"iss": 7}), jwt({"iss": ["x"]}),
        b"a." + base64.urlsafe_b64encode(b"[" * 9000) + b".c", jwt({"iss": "x", "more": "y" * 300_000}),
    ],
)  # fmt: skip
def test_anything_else_has_none(token: bytes) -> None:
    assert claimed_issuer(token) == ""


def test_a_token_of_many_groups_names_its_issuer() -> None:
    assert claimed_issuer(jwt({"iss": "https://a.example", "groups": ["a-group-of-30-characters-or-so"] * 601}))


@given(st.text())
def test_what_is_claimed_is_bounded_and_printable(issuer: str) -> None:
    shown = claimed_issuer(jwt({"iss": issuer}))
    assert len(shown) <= 200
    assert shown.isprintable()


@given(st.binary(max_size=200))
def test_no_bytes_break_it(token: bytes) -> None:
    claimed_issuer(token)
    claimed_issuer(b"a." + base64.urlsafe_b64encode(token) + b".b")
