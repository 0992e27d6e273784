"""Key sets: which keys are taken, and which of them a signature may be checked with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.authentication.oidc.key_source import ALGORITHMS, parse_keys
from tests.identity.issuer import ec_jwk, jwks, rsa_jwk


def ids(keys: Any) -> list[Any]:
    return [key.id for key in keys]


def test_a_key_is_found_by_its_id_and_algorithm() -> None:
    keys = parse_keys(jwks(rsa_jwk("a"), rsa_jwk("b"), ec_jwk("P-256", "c"), ec_jwk("P-384", "d")))
    assert ids(keys.matching("b", "RS256")) == ["b"]
    assert ids(keys.matching("b", "PS512")) == ["b"]
    assert ids(keys.matching("c", "ES256")) == ["c"]
    assert ids(keys.matching("b", "ES256")) == []
    assert ids(keys.matching("c", "ES384")) == []
    assert ids(keys.matching("none", "RS256")) == []


def test_a_token_without_an_id_is_checked_with_every_fitting_key_up_to_a_bound() -> None:
    keys = parse_keys(jwks(ec_jwk(), *(rsa_jwk("a", kid=f"k{number}") for number in range(80))))
    assert ids(keys.matching(None, "RS256")) == [f"k{number}" for number in range(64)]


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS384", "HS512", "RS1", "EdDSA", "ES256K", ""])
def test_no_key_is_for_an_algorithm_that_is_not_accepted(algorithm: str) -> None:
    assert algorithm not in ALGORITHMS
    assert parse_keys(jwks(rsa_jwk(), ec_jwk())).matching(None, algorithm) == ()


def test_a_key_for_one_algorithm_is_for_that_alone() -> None:
    keys = parse_keys(jwks(rsa_jwk("a", alg="RS512")))
    assert ids(keys.matching("a", "RS512")) == ["a"]
    assert ids(keys.matching("a", "RS256")) == []


@pytest.mark.parametrize(
    "bad",
    [
        rsa_jwk("weak", 1024),
        rsa_jwk("encrypts", use="enc"),
        rsa_jwk("odd-use", use=7),
        rsa_jwk("encrypts", key_ops=["encrypt"]),
        rsa_jwk("odd-ops", key_ops="verify"),
        rsa_jwk("symmetric", alg="HS256"),
        rsa_jwk("odd-alg", alg=["RS256"]),
        rsa_jwk("other", alg="RSA-OAEP"),
        rsa_jwk("odd-kid", kid=3),
        rsa_jwk("no-modulus", n=None),
        rsa_jwk("no-modulus", n="***"),
        rsa_jwk("even", e="AA"),
        {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
        {"kty": "OKP", "kid": "edwards", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        {"kty": "RSA"},
        {"kty": "EC", "crv": "P-256"},
        ec_jwk("P-256", "off-curve", x="AAAA"),
        {"kty": ["RSA"]},
        {},
        "key",
        None,
    ],
)
def test_keys_that_are_not_for_us_are_left_out_and_cost_no_other(bad: Any) -> None:
    assert len(parse_keys(jwks(bad, rsa_jwk("good"), bad))) == 1
    with pytest.raises(ValueError, match="has no key"):
        parse_keys(jwks(bad))


def test_a_curve_that_is_not_accepted_matches_nothing() -> None:
    keys = parse_keys(jwks(ec_jwk("secp256k1"), ec_jwk("P-256", "two")))
    assert ids(keys.matching(None, "ES256")) == ["two"]


@pytest.mark.parametrize("document", [b"", b"{}", b'{"keys": {}}', b'{"keys": []}', b"[]", b'{"keys": null}'])
def test_a_document_without_keys_is_none(document: bytes) -> None:
    with pytest.raises(ValueError):
        parse_keys(document)


def test_a_set_is_read_up_to_a_bound() -> None:
    assert len(parse_keys(jwks(*[ec_jwk()] * 150))) == 100


scalars = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=3), max_size=2)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("kty", "crv", "n", "e", "x", "y", "use", "alg"), scalars)))
def test_broken_keys_raise_nothing_but_value_error(entry: dict[str, Any]) -> None:
    for kind in ("RSA", "EC", entry.get("kty")):
        assert len(parse_keys(jwks({**entry, "kty": kind}, ec_jwk()))) >= 1
