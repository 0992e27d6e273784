"""Fixed credentials: header values, what is refused, and that nothing shows a secret."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.upstream.credentials import CredentialError, CredentialSource, bearer
from tests.upstream.fakes import cluster_config, make_upstream_context


def source(**fields: object) -> CredentialSource:
    return make_upstream_context().credential_source(cluster_config(credentials=model.Credentials(**fields)))  # type: ignore[arg-type]


def test_a_token_is_a_bearer_header() -> None:
    assert source(token=model.Secret("abc")).authorization() == b"Bearer abc"


def test_no_credential_is_no_header() -> None:
    assert source().authorization() is None
    assert source().is_ready


def test_name_and_password_are_a_basic_header() -> None:
    header = source(basic=("admin", model.Secret("pä:ss"))).authorization()
    assert header == b"Basic " + base64.b64encode("admin:pä:ss".encode())


def test_a_colon_in_the_name_is_refused() -> None:
    with pytest.raises(CredentialError, match="colon"):
        source(basic=("a:b", model.Secret("x")))


def test_a_fixed_credential_has_nothing_better_after_a_401() -> None:
    assert not source(token=model.Secret("abc")).invalidate(b"Bearer abc")


def test_the_configured_certificate_is_used_for_connections() -> None:
    certificate = source(certificate=model.PEMFile("c", b"CHAIN"), key=model.PEMFile("k", b"KEY")).certificate
    assert certificate is not None
    assert (certificate.chain, certificate.key) == (b"CHAIN", b"KEY")
    assert "KEY" not in repr(certificate)


@pytest.mark.parametrize(
    "half", [{"certificate": model.PEMFile("c", b"CHAIN")}, {"key": model.PEMFile("k", b"KEY")}, {}]
)
def test_half_a_certificate_is_none(half: dict[str, Any]) -> None:
    assert source(**half).certificate is None


@given(st.text())
def test_a_token_survives_as_a_header_or_is_refused(token: str) -> None:
    bare = token.strip(" \t\r\n")
    if bare and all(" " <= c <= "~" for c in bare):
        assert bearer(token, "somewhere") == b"Bearer " + bare.encode("ascii")
    else:
        with pytest.raises(CredentialError):
            bearer(token, "somewhere")


@pytest.mark.parametrize("token", ["a\nb", "a\rb", "a\0b", "a\tb", "a\x7fb", "ä"])
def test_control_and_foreign_characters_are_refused_not_cleaned(token: str) -> None:
    with pytest.raises(CredentialError, match="control or non-ASCII"):
        bearer(token, "t")


@pytest.mark.parametrize("fields", [{"token": model.Secret("s3cret")}, {"basic": ("u", model.Secret("s3cret"))}])
def test_repr_shows_no_secret(fields: dict[str, object]) -> None:
    made = source(**fields)
    assert "s3cret" not in repr(made) + str(made)
    assert base64.b64encode(b"u:s3cret").decode() not in repr(made)
