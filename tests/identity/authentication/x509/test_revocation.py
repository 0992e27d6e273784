"""Which client certificates revocation lists leave: those of authorities whose list is there, current and silent."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from mcproxy.config import model
from mcproxy.identity.authentication.x509.peer import TLSPeer
from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier
from mcproxy.observe.events import EVENTS
from tests.identity.certificates import AUTHORITY, DAY, NOW, Extension, Held, authority, revocations, user
from tests.identity.conftest import Logged
from tests.support.logged import names

CA = authority()
OTHER = authority("other")
LOWER = CA.issue(user("lower"), AUTHORITY)
ALICE = CA.client("alice")
BOB = CA.client("bob")
DAY_SECONDS = DAY.total_seconds()

MISSING = "there is no revocation list of its authority"


def pem(*lists: x509.CertificateRevocationList) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in lists)


def verifier(data: bytes, *trusted: Held) -> ClientCertificateVerifier:
    return ClientCertificateVerifier(b"".join(each.pem for each in trusted or (CA,)), model.PEMFile("ca.crl", data))


def cause(data: bytes, *chain: Held, at: float = NOW, trusted: tuple[Held, ...] = ()) -> str:
    peer = TLSPeer(chain[0].certificate, tuple(each.certificate for each in chain[1:]))
    return verifier(data, *trusted).verify(peer, at).cause


@pytest.mark.parametrize("form", [Encoding.PEM, Encoding.DER])
def test_who_is_in_the_list_is_not_accepted(form: Encoding) -> None:
    data = revocations(CA, BOB).public_bytes(form)
    assert cause(data, ALICE) == ""
    assert cause(data, BOB) == "it is revoked"


def test_without_a_list_file_nobody_is_revoked() -> None:
    assert ClientCertificateVerifier(CA.pem).verify(TLSPeer(BOB.certificate), NOW).cause == ""


@pytest.mark.parametrize(
    "data",
    [
        pem(revocations(OTHER)),
        pem(revocations(CA, key=OTHER.key)),  # in the authority's name, signed by another
        pem(revocations(OTHER, issuer=CA.certificate.subject)),
        pem(revocations(CA, valid=(1, 7))),  # of a time to come
    ],
    ids=["another's", "forged", "another's in its name", "future"],
)
def test_an_authority_without_a_list_of_its_own_has_no_good_certificate(data: bytes, logged: Logged) -> None:
    tested = verifier(data)
    for peer in (ALICE, BOB, ALICE):
        assert tested.verify(TLSPeer(peer.certificate), NOW).cause == MISSING
    assert names(logged) == [("crl_unusable", "warn", MISSING)]
    assert logged[0]["authority"] == "CN=kubernetes"
    assert "CRL" in EVENTS["crl_unusable"].line_todo


def test_one_that_expired_is_none_and_that_is_one_line(logged: Logged) -> None:
    tested = verifier(pem(revocations(CA, valid=(-3, -1))))
    expired = "the revocation list of its authority expired on 2026-05-31 12:00 UTC"
    for _ in range(3):
        assert tested.verify(TLSPeer(ALICE.certificate), NOW).cause == expired
    assert names(logged) == [("crl_unusable", "warn", expired)]


def test_it_holds_until_the_list_expires() -> None:
    tested = verifier(pem(revocations(CA, valid=(-1, 3))))
    verification = tested.verify(TLSPeer(ALICE.certificate), NOW)
    assert verification.cause == ""
    assert verification.until == NOW + 3 * DAY_SECONDS
    later = tested.verify(TLSPeer(ALICE.certificate), verification.until + 1)
    assert "expired" in later.cause


def test_the_newest_list_counts() -> None:
    older, newer = revocations(CA, valid=(-3, 7)), revocations(CA, BOB, valid=(-1, 7))
    for data in (pem(older, newer), pem(newer, older)):
        assert cause(data, BOB) == "it is revoked"
    again = revocations(CA, valid=(-0.5, 7))  # a hold that was taken back
    assert cause(pem(newer, again), BOB) == ""


def test_each_authority_of_a_chain_needs_its_list() -> None:
    carol = LOWER.client("carol")
    ours, lowers = revocations(CA), revocations(LOWER)
    assert cause(pem(ours, lowers), carol, LOWER) == ""
    assert cause(pem(ours), carol, LOWER) == MISSING
    assert cause(pem(lowers), carol, LOWER) == MISSING
    assert cause(pem(ours, revocations(LOWER, carol)), carol, LOWER) == "it is revoked"
    assert cause(pem(revocations(CA, LOWER), lowers), carol, LOWER) == "an authority of its chain is revoked"


def test_an_authority_that_is_revoked_is_none_though_it_is_in_the_bundle() -> None:
    carol = LOWER.client("carol")
    for trusted in ((LOWER,), (CA, LOWER), (LOWER, CA)):
        assert cause(pem(revocations(CA), revocations(LOWER)), carol, LOWER, trusted=trusted) == ""
        data = pem(revocations(CA, LOWER), revocations(LOWER))
        assert cause(data, carol, LOWER, trusted=trusted) == "an authority of its chain is revoked"


def test_the_lists_of_two_authorities_are_apart() -> None:
    data = pem(revocations(CA, ALICE), revocations(OTHER))
    assert cause(data, OTHER.client("x"), trusted=(CA, OTHER)) == ""
    assert cause(data, ALICE, trusted=(CA, OTHER)) == "it is revoked"


def scope(**only: Any) -> Extension:
    fields: dict[str, Any] = {
        "full_name": None,
        "relative_name": None,
        "only_contains_user_certs": False,
        "only_contains_ca_certs": False,
        "only_some_reasons": None,
        "indirect_crl": False,
        "only_contains_attribute_certs": False,
    }
    return x509.IssuingDistributionPoint(**{**fields, **only}), True


@pytest.mark.parametrize(
    "extension",
    [
        (x509.DeltaCRLIndicator(1), True),
        (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True),
        scope(indirect_crl=True),
        scope(only_some_reasons=frozenset({x509.ReasonFlags.key_compromise})),
        scope(only_contains_ca_certs=True),
        scope(only_contains_attribute_certs=True),
    ],
    ids=["delta", "unknown", "indirect", "some reasons", "authorities", "attributes"],
)
def test_a_list_that_is_not_about_all_users_is_none(extension: Extension) -> None:
    assert cause(pem(revocations(CA, extensions=(extension,))), ALICE) == MISSING


def test_a_list_of_users_certificates_is_good_for_them() -> None:
    data = pem(revocations(CA, BOB, extensions=(scope(only_contains_user_certs=True), (x509.CRLNumber(7), False))))
    assert cause(data, ALICE) == ""
    assert cause(data, BOB) == "it is revoked"


def test_an_authority_that_may_not_sign_lists_has_none() -> None:
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    no_lists = authority("no lists", AUTHORITY, (usage, True))
    assert cause(pem(revocations(no_lists)), no_lists.client(), trusted=(no_lists,)) == MISSING


@pytest.mark.parametrize("data", [b"", b"x", CA.pem, pem(revocations(CA))[:-60]])
def test_what_is_no_list_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        verifier(data)


def test_a_certificate_that_is_trusted_by_itself_can_be_revoked_too() -> None:
    assert cause(pem(revocations(CA)), ALICE, trusted=(ALICE,)) == ""
    assert cause(pem(revocations(CA, ALICE)), ALICE, trusted=(ALICE,)) == "it is revoked"
