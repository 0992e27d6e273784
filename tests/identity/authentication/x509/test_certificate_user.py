"""Whom a client certificate names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authentication.x509.peer import CREDENTIAL_ID, TLSPeer, certificate_user
from mcproxy.kube.user import UserInfo
from tests.identity.certificates import authority, name

CA = authority()
CN, ORG, UNIT = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
UID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")
GOLDEN = Path(__file__).parents[3] / "golden"


def leaf(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Certificate:
    return CA.issue(name(*attributes)).certificate


def named(*attributes: tuple[x509.ObjectIdentifier, str]) -> UserInfo:
    caller = certificate_user(leaf(*attributes)).authenticated
    assert caller is not None
    return caller.user


def test_common_name_organizations_and_the_certificates_hash_as_a_kube_apiserver_says_it() -> None:
    certificate = leaf((ORG, "dev"), (CN, "alice"))
    exchange = json.loads((GOLDEN / "auth/selfsubjectreview-alice.json").read_text())
    recorded = json.loads(exchange["response"]["body"])["status"]["userInfo"]
    digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    ((key, (value,)),) = recorded["extra"].items()
    assert key == CREDENTIAL_ID
    extra = ((key, (value[: -len(digest)] + digest,)),)
    assert certificate_user(certificate).authenticated == AuthenticatedUser(
        UserInfo(recorded["username"], tuple(recorded["groups"]), "", extra)
    )
    assert certificate_user(certificate).common_name == "alice"


def test_groups_keep_their_order_and_lose_doubles() -> None:
    attributes = (ORG, "b"), (CN, "alice"), (ORG, "a"), (UNIT, "unit"), (ORG, "b"), (ORG, "system:masters")
    assert named(*attributes).groups == ("b", "a", "system:masters", "system:authenticated")


def test_of_several_common_names_the_last_counts() -> None:
    assert named((CN, "alice"), (CN, "bob")).name == "bob"


def test_several_in_one_set_are_read_too() -> None:
    both = x509.RelativeDistinguishedName([x509.NameAttribute(CN, "alice"), x509.NameAttribute(ORG, "dev")])
    caller = certificate_user(CA.issue(x509.Name([both])).certificate).authenticated
    assert caller is not None
    assert (caller.user.name, caller.user.groups[0]) == ("alice", "dev")


def test_without_a_common_name_nobody_is_named_and_nothing_is_wrong() -> None:
    said = certificate_user(leaf((ORG, "dev")))
    assert (said.authenticated, said.cause, said.common_name) == (None, "", "")


def test_a_uid_in_the_subject() -> None:
    assert named((CN, "alice"), (UID, "u-1")).uid == "u-1"


def test_two_uids_are_wrong() -> None:
    said = certificate_user(leaf((CN, "alice"), (UID, "u-1"), (UID, "u-2")))
    assert said.authenticated is None
    assert "UID" in said.cause


def test_non_ascii_names() -> None:
    assert named((CN, "jürgen"), (ORG, "дев")).name == "jürgen"


@pytest.mark.parametrize("oid", [b"\x55\x04\x2d", b"\x55\x04\x0a", b"\x55\x04\x03", b"\x55\x04\x0b"])
def test_a_name_that_is_no_text_is_not_left_out(oid: bytes) -> None:
    bits = x509.NameAttribute(NameOID.X500_UNIQUE_IDENTIFIER, b"\0devs", _ASN1Type.BitString)
    certificate = CA.issue(x509.Name([x509.NameAttribute(CN, "alice"), bits])).certificate
    encoded = certificate.public_bytes(Encoding.DER).replace(b"\x55\x04\x2d", oid)
    said = certificate_user(x509.load_der_x509_certificate(encoded))
    assert said.authenticated is None
    assert said.cause


class Transport:
    def __init__(self, *chain: x509.Certificate, is_tls: bool = True, broken: bool = False) -> None:
        self.is_tls = is_tls
        self.chain = chain
        self.broken = broken

    def peer_certificate(self) -> x509.Certificate | None:
        if self.broken:
            raise ValueError("error parsing asn1 value")
        return self.chain[0] if self.chain else None

    def peer_chain(self) -> list[x509.Certificate]:
        return list(self.chain[1:])


class TestPeer:
    def test_is_what_the_connection_shows(self) -> None:
        alice = CA.client().certificate
        peer = TLSPeer.of(Transport(alice, CA.certificate))
        assert peer is not None
        assert (peer.leaf, peer.chain) == (alice, (CA.certificate,))
        assert peer.certificate_user() is peer.certificate_user()
        assert peer.certificate_user().common_name == "alice"

    def test_is_none_without_tls_or_certificate(self) -> None:
        assert TLSPeer.of(Transport(is_tls=False)) is None
        assert TLSPeer.of(Transport()) is None

    @pytest.mark.parametrize("transport", [Transport(broken=True)])
    def test_names_nobody_if_the_certificate_cannot_be_read(self, transport: Transport) -> None:
        peer = TLSPeer.of(transport)
        assert peer is not None
        assert peer.leaf is None
        assert peer.certificate_user().authenticated is None
        assert peer.certificate_user().cause
