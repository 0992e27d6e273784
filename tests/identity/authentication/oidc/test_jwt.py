"""Tokens taken apart, and their signatures: by every algorithm that is accepted, and by every trick that is not."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.identity.authentication.oidc.jwt import InvalidTokenError, check_signature, read
from mcproxy.identity.authentication.oidc.key_source import ALGORITHMS, parse_keys
from tests.identity.issuer import claims, ec_jwk, ec_key, jwks, rsa_jwk, rsa_key, token, unsigned, with_signature

GOLDEN = Path(__file__).parents[3] / "golden" / "auth"
KEYS = parse_keys(
    jwks(rsa_jwk(), ec_jwk("P-256"), ec_jwk("P-384"), ec_jwk("P-521"), ec_jwk("secp256k1"), rsa_jwk("two"))
)


def signed(raw: bytes, keys: Any = KEYS) -> bool:
    taken = read(raw)
    assert taken is not None
    return check_signature(taken, keys)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_good_signature_of_every_accepted_algorithm(algorithm: str) -> None:
    assert signed(token(alg=algorithm))
    assert signed(token(alg=algorithm, kid=None))


def test_a_token_that_a_cluster_signed() -> None:
    keys = json.loads((GOLDEN / "oidc-jwks-any.json").read_text())["response"]["body"]
    question = json.loads((GOLDEN / "tokenreview-valid-sa.json").read_text())["request"]["body"]
    raw = json.loads(question)["spec"]["token"].encode()
    taken = read(raw)
    assert taken is not None
    assert taken.claims["sub"] == "system:serviceaccount:demo:builder"
    assert signed(raw, parse_keys(keys.encode()))
    with pytest.raises(InvalidTokenError, match="signature is wrong"):
        signed(raw[:-6] + b"AAAAAA", parse_keys(keys.encode()))


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_a_signature_over_anything_else_is_wrong(algorithm: str) -> None:
    good = token(alg=algorithm)
    _, _, signature = good.rpartition(b".")
    other = unsigned(claims(sub="admin"), alg=algorithm, kid="one") + b"." + signature
    with pytest.raises(InvalidTokenError, match="signature is wrong"):
        signed(other)


def test_a_signature_by_a_key_of_the_same_name_is_wrong() -> None:
    with pytest.raises(InvalidTokenError, match="signature is wrong"):
        signed(token(key=rsa_key("stranger")))


def test_a_key_that_is_not_in_the_set_is_not_there() -> None:
    assert not signed(token(kid="three"))
    assert not signed(token(alg="ES256", kid="two"))


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS256", "HS512", "RS1", "EdDSA", None, 7, ["RS256"]]
)
def test_no_other_algorithm_is_accepted(algorithm: Any) -> None:
    start = unsigned(claims(), alg=algorithm, kid="one")
    for signature in (b"", b"x" * 256):
        with pytest.raises(InvalidTokenError, match="no algorithm"):
            signed(with_signature(start, signature))


def test_a_header_without_an_algorithm_is_refused() -> None:
    with pytest.raises(InvalidTokenError, match="no algorithm"):
        signed(with_signature(unsigned(claims(), kid="one"), b"x"))


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_hmac_with_the_public_key_is_refused(encoding: Encoding) -> None:
    """Whoever takes the algorithm from the token checks this with the very key that everybody knows."""
    public = rsa_key().public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    start = unsigned(claims(), alg="HS256", kid="one")
    with pytest.raises(InvalidTokenError, match="no algorithm"):
        signed(with_signature(start, hmac.new(public, start, hashlib.sha256).digest()))


def test_keys_in_the_header_are_never_looked_at() -> None:
    stranger = rsa_key("stranger")
    for extra in (
        {"jwk": rsa_jwk("stranger")},
        {"jku": "https://evil.example/jwks"},
        {"x5u": "https://evil.example/cert"},
        {"x5c": ["AAAA"]},
    ):
        with pytest.raises(InvalidTokenError, match="signature is wrong"):
            signed(token(key=stranger, **extra))
        assert not signed(token(key=stranger, kid="stranger", **extra))
        assert signed(token(**extra))


@pytest.mark.parametrize("extra", [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"crit": ["b64"], "b64": False}])
def test_a_header_that_changes_how_the_token_is_read_is_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError, match="crit"):
        signed(token(**extra))


def test_a_key_id_that_is_no_string_is_refused() -> None:
    with pytest.raises(InvalidTokenError, match="key id"):
        signed(with_signature(unsigned(claims(), alg="RS256", kid=7), b"x"))


@pytest.mark.parametrize("length", [0, 1, 63, 65, 71, 132])
def test_an_ec_signature_of_another_length_is_wrong(length: int) -> None:
    with pytest.raises(InvalidTokenError, match="signature is wrong"):
        signed(with_signature(unsigned(claims(), alg="ES256", kid="one"), b"\1" * length))


def test_an_ec_signature_of_zeros_is_wrong() -> None:
    """CVE-2022-21449: r and s of zero verify for anybody where nobody looks."""
    with pytest.raises(InvalidTokenError, match="signature is wrong"):
        signed(with_signature(unsigned(claims(), alg="ES256", kid="one"), bytes(64)))


def test_a_signature_in_der_is_wrong() -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    start = unsigned(claims(), alg="ES256", kid="one")
    with pytest.raises(InvalidTokenError, match="signature is wrong"):
        signed(with_signature(start, ec_key("P-256").sign(start, ec.ECDSA(hashes.SHA256()))))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b".",
        b"..",
        b"a.b",
        b"a.b.c",
        b"a.b.c.d",
        b"e30.e30",
        b"e30.e30.x.e30.e30",
        b"e30=.e30=.AAAA",
        b"e31.e30.AAAA",  # trailing bits that mean nothing
        b"e30.W10.AAAA",  # the claims are []
        b"W10.e30.AAAA",
        b"e30.e30.A",
        b" e30.e30.AAAA",
        b"e30.e30.AAAA\n",
        b"e30.e30.AA+A",
        b"e30.\xff.AAAA",
    ],
)
def test_what_is_no_jwt_is_none(raw: bytes) -> None:
    assert read(raw) is None


def test_a_token_of_600_groups_is_one() -> None:
    raw = with_signature(unsigned({"groups": [f"group-{number:020}" for number in range(601)]}), b"x")
    assert len(raw) > 22_000
    parsed = read(raw)
    assert parsed is not None
    assert len(parsed.claims["groups"]) == 601


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_raise_nothing(raw: bytes) -> None:
    assert read(raw) is None or isinstance(read(raw), tuple)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
headers = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("alg", "kid", "typ", "jwk", "jku", "x5c", "crit", "b64", "cty"), json_values)
)


@settings(max_examples=200)
@given(headers, st.sampled_from([*sorted(ALGORITHMS), None]), st.binary(max_size=80))
def test_headers_of_any_kind_raise_nothing_but_a_refusal(
    header: dict[str, Any], algorithm: str | None, signature: bytes
) -> None:
    if algorithm is not None:
        header = {**header, "alg": algorithm}
    taken = read(with_signature(unsigned(claims(), **header), signature))
    if taken is None:
        return
    try:
        assert not check_signature(taken, KEYS)
    except InvalidTokenError:
        pass
