"""Pairs of certificate and key, and what contexts are made of."""

from __future__ import annotations

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import dsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from OpenSSL import SSL

from mcproxy.net.tls_contexts import PairError, client_context, load_pair, server_context, verify_reason
from tests.net.peers import CA, pair


@pytest.mark.parametrize("key_type", list(trustme.KeyType))
def test_rsa_and_ecdsa_pairs_are_taken(key_type: trustme.KeyType) -> None:
    chain, key = pair("a.example.com", key_type=key_type)
    certificates, _ = load_pair(chain, key)
    assert len(certificates) == chain.count(b"BEGIN CERTIFICATE")
    server_context(chain, key).get_verify_mode()


def test_a_chain_is_kept_whole() -> None:
    chain, key = pair("a.example.com")
    assert len(load_pair(chain + CA.cert_pem.bytes(), key)[0]) == chain.count(b"BEGIN CERTIFICATE") + 1


def _encrypted(key: bytes) -> bytes:
    private = load_pem_private_key(key, None)
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def _dsa_key() -> bytes:
    return dsa.generate_private_key(2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


CHAIN, KEY = pair("a.example.com")


@pytest.mark.parametrize(
    ("chain", "key", "why"),
    [
        (CHAIN, pair("b.example.com")[1], "the key does not belong to the first certificate"),
        (CA.cert_pem.bytes() + CHAIN, KEY, "the key does not belong to the first certificate"),
        (CHAIN, _encrypted(KEY), "the key is encrypted"),
        (CHAIN, b"junk", "no PEM private key"),
        (CHAIN, CHAIN, "no PEM private key"),
        (CHAIN, b"", "no PEM private key"),
        (b"junk", KEY, "no PEM certificate"),
        (b"", KEY, "no PEM certificate"),
        (KEY, KEY, "no PEM certificate"),
        (CHAIN.replace(b"\nMI", b"\nMX"), KEY, "no PEM certificate"),
        (CHAIN, _dsa_key(), "neither RSA nor ECDSA"),
    ],
)
def test_a_pair_that_cannot_serve_says_why(chain: bytes, key: bytes, why: str) -> None:
    with pytest.raises(PairError, match=why):
        load_pair(chain, key)
    with pytest.raises(PairError, match=why):
        client_context(None, (chain, key), True)


def test_authorities_that_cannot_be_read_are_an_error() -> None:
    with pytest.raises(ValueError):
        client_context(b"junk", None, True)


def test_idle_buffers_are_released_on_both_sides() -> None:
    for context in (server_context(CHAIN, KEY), client_context(None, None, True)):
        assert context.set_mode(0) & SSL.MODE_RELEASE_BUFFERS
        assert context.set_options(0) & SSL.OP_NO_RENEGOTIATION


def test_reasons_are_in_openssls_words() -> None:
    assert verify_reason(10) == "certificate has expired"
    assert verify_reason(20) == "unable to get local issuer certificate"
    assert verify_reason(4711) == "certificate verify error 4711"


def test_http2_permits_every_cipher() -> None:
    """RFC 9113, Appendix A, forbids TLS 1.2's without ephemeral keys or authenticated encryption.

    So none can be negotiated for which INADEQUATE_SECURITY would be the answer.
    """
    chain, key = pair("a.example.com")
    names = SSL.Connection(server_context(chain, key)).get_cipher_list()
    assert names
    for name in names:
        assert name.startswith(("ECDHE-", "TLS_")), name
        assert "GCM" in name or "CHACHA20" in name, name
