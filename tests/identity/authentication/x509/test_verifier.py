"""Which client certificates authorities vouch for: as a kube-apiserver authenticators them."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.authentication.x509.peer import TLSPeer
from mcproxy.identity.authentication.x509.verifier import (
    MAX_INTERMEDIATES,
    RECHECK,
    ClientCertificateVerifier,
    authority_key,
)
from tests.identity import old_certificates as old
from tests.identity.certificates import (
    ANY,
    AUTHORITY,
    CLIENT,
    HOUR,
    NO_AUTHORITY,
    NOW,
    SERVER,
    Extension,
    Held,
    authority,
    moment,
    user,
)

CA = authority()
ALICE = user("alice", "dev")
SUCCESS = CA.client("alice", "dev").certificate
TRUSTED = ClientCertificateVerifier(CA.pem)


def peer(*chain: Held) -> TLSPeer:
    return TLSPeer(chain[0].certificate, tuple(held.certificate for held in chain[1:]))


def bundle(*held: Held) -> ClientCertificateVerifier:
    return ClientCertificateVerifier(b"".join(one.pem for one in held))


def cause(trusted: ClientCertificateVerifier, *chain: Held, at: float = NOW) -> str:
    return trusted.verify(peer(*chain), at).cause


class TestTheLeaf:
    def test_the_authoritys_own_clients_are_vouched_for(self) -> None:
        assert cause(bundle(CA), CA.client()) == ""

    @pytest.mark.parametrize(
        "extensions",
        [(), (CLIENT,), (ANY,), (NO_AUTHORITY,), ((x509.ExtendedKeyUsage([*SERVER[0], *CLIENT[0]]), True),)],  # type: ignore[misc]
    )
    def test_no_extended_key_usage_or_one_with_client_auth_is_good(self, extensions: tuple[Extension, ...]) -> None:
        assert cause(bundle(CA), CA.issue(ALICE, *extensions)) == ""

    def test_a_servers_certificate_is_no_clients(self) -> None:
        assert "clientAuth" in cause(bundle(CA), CA.issue(ALICE, SERVER))

    def test_keys_of_other_kinds(self) -> None:
        for key in (ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)):
            ca = authority(key=key)
            assert cause(bundle(ca), ca.issue(ALICE, CLIENT, key=key)) == ""

    def test_an_expired_one(self) -> None:
        assert "expired" in cause(bundle(CA), CA.issue(ALICE, CLIENT, valid=(-2, -1)))

    def test_one_that_is_not_valid_yet(self) -> None:
        assert "not yet valid" in cause(bundle(CA), CA.issue(ALICE, CLIENT, valid=(1, 2)))

    def test_another_authoritys(self) -> None:
        assert "no authority" in cause(bundle(CA), authority("other").client())

    def test_another_authoritys_that_bears_the_same_name(self) -> None:
        fake = authority()
        assert cause(bundle(CA), fake.client()) != ""
        assert cause(bundle(CA), fake.client(), fake) != ""

    def test_one_that_signed_itself(self) -> None:
        assert cause(bundle(CA), authority("alice", CLIENT)) != ""
        assert cause(bundle(CA), authority("kubernetes", CLIENT)) != ""

    def test_one_of_its_authoritys_name_needs_key_identifiers_to_tell_the_two_apart(self) -> None:
        identifier = x509.SubjectKeyIdentifier.from_public_key(CA.key.public_key())
        ca = authority("kubernetes", AUTHORITY, (identifier, False))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        own = x509.SubjectKeyIdentifier.from_public_key(ed25519.Ed25519PrivateKey.generate().public_key())
        same = user("kubernetes")
        assert cause(bundle(ca), ca.issue(same, CLIENT, (issuer, False), (own, False))) == ""
        assert "self-signed" in cause(bundle(ca), ca.issue(same, CLIENT))

    def test_one_that_stands_in_the_bundle_itself(self) -> None:
        alone = authority("alice", CLIENT)
        assert cause(bundle(CA, alone), alone) == ""
        assert "clientAuth" in cause(bundle(alone, server := authority("server", SERVER)), server)

    def test_one_with_a_critical_extension_that_nobody_knows(self) -> None:
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
        assert cause(bundle(CA), CA.issue(ALICE, (unknown, True))) != ""
        assert cause(bundle(CA), CA.issue(ALICE, (unknown, False))) == ""

    def test_one_that_cannot_be_read(self) -> None:
        assert bundle(CA).verify(TLSPeer(None), NOW).cause == "it cannot be read"

    def test_a_changed_one(self) -> None:
        leaf = CA.client("alice").certificate
        der = leaf.public_bytes(Encoding.DER).replace(b"alice", b"admin")
        assert "signature" in bundle(CA).verify(TLSPeer(x509.load_der_x509_certificate(der)), NOW).cause

    @given(st.data())
    def test_one_with_any_bit_changed(self, data: st.DataObject) -> None:
        der = bytearray(SUCCESS.public_bytes(Encoding.DER))
        place = data.draw(st.integers(0, len(der) * 8 - 1))
        der[place // 8] ^= 1 << place % 8
        try:
            changed = x509.load_der_x509_certificate(bytes(der))
        except (ValueError, x509.InvalidVersion):
            return
        shown = TLSPeer(changed)
        assert TRUSTED.verify(shown, NOW).cause != ""
        shown.certificate_user()


class TestThePath:
    def test_through_intermediates_that_the_client_sent_in_any_order_and_with_the_root(self) -> None:
        upper = CA.issue(user("upper"), AUTHORITY)
        lower = upper.issue(user("lower"), AUTHORITY)
        leaf = lower.client()
        for chain in ((lower, upper), (upper, lower), (lower, upper, CA), (CA, upper, lower, lower)):
            assert cause(bundle(CA), leaf, *chain) == ""
        assert cause(bundle(CA), leaf) != ""
        assert cause(bundle(CA), leaf, lower) != ""

    def test_it_may_end_at_an_intermediate_of_the_bundle(self) -> None:
        lower = CA.issue(user("lower"), AUTHORITY)
        assert cause(bundle(lower), lower.client()) == ""
        assert cause(bundle(lower), lower.client(), lower, CA) == ""
        assert cause(bundle(lower), CA.client(), lower, CA) != ""

    @pytest.mark.parametrize("extensions", [(), (NO_AUTHORITY,), (NO_AUTHORITY, CLIENT)])
    def test_a_client_is_no_authority(self, extensions: tuple[Extension, ...]) -> None:
        client = CA.issue(user("mallory"), *extensions)
        assert cause(bundle(CA), client.client("admin"), client) != ""
        assert cause(bundle(client), client.client("admin")) != ""
        assert cause(bundle(client, CA), client.client("admin"), client) != ""

    def test_an_authority_says_that_it_is_one(self) -> None:
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        silent = authority("silent", (signs, True))
        assert "basicConstraints" in cause(bundle(silent), silent.client())

    def test_an_authority_whose_key_usage_is_not_signing(self) -> None:
        other = x509.KeyUsage(True, False, True, False, False, False, False, False, False)
        ca = authority("ca", AUTHORITY, (other, True))
        assert cause(bundle(ca), ca.client()) != ""

    def test_the_length_that_an_authority_allows(self) -> None:
        ca = authority("ca", (x509.BasicConstraints(ca=True, path_length=0), True))
        lower = ca.issue(user("lower"), AUTHORITY)
        assert cause(bundle(ca), ca.client()) == ""
        assert cause(bundle(ca), lower.client(), lower) != ""

    def test_an_authority_for_servers_only(self) -> None:
        lower = CA.issue(user("lower"), AUTHORITY, SERVER)
        assert "clientAuth" in cause(bundle(CA), lower.client(), lower)
        root = authority("root", AUTHORITY, SERVER)
        assert "clientAuth" in cause(bundle(root), root.client())

    def test_names_that_an_authority_is_bound_to(self) -> None:
        permitted = x509.NameConstraints([x509.DNSName("example.com")], None)
        lower = CA.issue(user("lower"), AUTHORITY, (permitted, True))
        inside = x509.SubjectAlternativeName([x509.DNSName("a.example.com")])
        outside = x509.SubjectAlternativeName([x509.DNSName("a.example.org")])
        assert cause(bundle(CA), lower.issue(ALICE, (inside, False)), lower) == ""
        assert cause(bundle(CA), lower.issue(ALICE, (outside, False)), lower) != ""
        assert cause(bundle(CA), lower.issue(ALICE), lower) == ""

    def test_authorities_of_the_same_name_with_different_keys_and_no_identifiers(self) -> None:
        before, after = authority(), authority()
        for trusted in (bundle(before, after), bundle(after, before), bundle(CA, before, after, CA)):
            assert cause(trusted, before.client()) == ""
            assert cause(trusted, after.client()) == ""

    def test_a_renewed_authority_beside_its_expired_certificate(self) -> None:
        expired = authority(valid=(-9, -1))
        renewed = authority(key=expired.key)
        for trusted in (bundle(expired, renewed), bundle(renewed, expired)):
            assert cause(trusted, renewed.client()) == ""
        assert "expired" in cause(bundle(expired), renewed.client())

    def test_an_authority_by_another_key_identifier_is_another(self) -> None:
        ca = authority("ca", AUTHORITY, (x509.SubjectKeyIdentifier(b"a" * 20), False))
        mine = x509.AuthorityKeyIdentifier(b"a" * 20, None, None)
        other = x509.AuthorityKeyIdentifier(b"b" * 20, None, None)
        assert cause(bundle(ca), ca.issue(ALICE, (mine, False))) == ""
        assert cause(bundle(ca), ca.issue(ALICE, (other, False))) != ""

    def test_endless_chains_are_refused_unread(self) -> None:
        leaf = CA.client()
        assert cause(bundle(CA), leaf, *[CA] * MAX_INTERMEDIATES) == ""
        assert "more than" in cause(bundle(CA), leaf, *[CA] * (MAX_INTERMEDIATES + 1))

    def test_authorities_that_signed_each_other_end(self) -> None:
        one, two = authority("one"), authority("two")
        crossed = [two.issue(user("one"), AUTHORITY, key=one.key), one.issue(user("two"), AUTHORITY, key=two.key)]
        assert cause(bundle(CA), one.client(), *crossed * 5) != ""
        assert cause(bundle(two), one.client(), *crossed * 5) == ""


@pytest.mark.parametrize("names", [b"\x30\x02\xa3\x00", b"\x30\x04\x82\x02\xff\xff"])  # an X.400 address; no text
def test_names_that_cannot_be_read_are_a_cause_and_no_bug(names: bytes) -> None:
    odd = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.17"), names)
    assert cause(bundle(CA), CA.issue(ALICE, (odd, False))) == "a certificate of its chain cannot be read"


class TestOldCertificates:
    def verify(self, leaf: bytes) -> str:
        return (
            ClientCertificateVerifier(old.AUTHORITY)
            .verify(TLSPeer(x509.load_pem_x509_certificate(leaf)), old.VALID_AT)
            .cause
        )

    def test_version_1_has_no_extensions_and_is_good(self) -> None:
        assert self.verify(old.ALICE) == ""

    def test_sha1_is_not(self) -> None:
        assert "SHA1" in self.verify(old.SIGNED_WITH_SHA1)

    def test_nor_is_a_short_key(self) -> None:
        assert "shorter" in self.verify(old.SHORT_KEY)


class TestTheTimeOfAVerdict:
    def test_it_ends_with_the_first_of_the_path_to_expire(self) -> None:
        lower = CA.issue(user("lower"), AUTHORITY, valid=(-3, 2))
        verdict = bundle(CA).verify(peer(lower.issue(ALICE, CLIENT, valid=(-2, 9)), lower), NOW)
        assert (verdict.since, verdict.until) == (moment(-1).timestamp(), moment(2).timestamp())

    def test_it_holds_at_every_request_until_then(self) -> None:
        shown = peer(CA.issue(ALICE, CLIENT, valid=(-1, 1)))
        trusted = bundle(CA)
        first = shown.verification(trusted, NOW)
        assert shown.verification(trusted, NOW + 23 * HOUR) is first
        assert shown.verification(trusted, NOW + 24 * HOUR) is first
        assert "expired" in shown.verification(trusted, NOW + 24 * HOUR + 1).cause
        assert shown.verification(trusted, NOW).cause == ""

    def test_a_refusal_is_looked_at_again(self) -> None:
        shown = peer(CA.issue(ALICE, CLIENT, valid=(5 / 86400, 1)))
        trusted = bundle(CA)
        first = shown.verification(trusted, NOW)
        assert "not yet" in first.cause
        assert shown.verification(trusted, NOW + RECHECK) is first
        assert shown.verification(trusted, NOW + RECHECK + 1).cause == ""

    def test_authorities_judge_apart(self) -> None:
        shown = peer(CA.client())
        assert shown.verification(bundle(CA), NOW).cause == ""
        for _ in range(20):
            assert shown.verification(bundle(authority("other")), NOW).cause != ""
        assert shown.verification(bundle(CA), NOW).cause == ""


def test_a_bundle_that_is_none() -> None:
    with pytest.raises(ValueError, match="PEM"):
        ClientCertificateVerifier(b"nothing")


class TestAuthoritiesOfOneName:
    """A rotated authority: the same subject, another key, no key identifiers."""

    OLD, NEW = authority(), authority()

    @pytest.mark.parametrize("trusted", [bundle(OLD, NEW), bundle(NEW, OLD)])
    def test_either_is_trusted_in_either_order(self, trusted: ClientCertificateVerifier) -> None:
        for ca in (self.OLD, self.NEW):
            assert cause(trusted, ca.client()) == ""
            assert cause(trusted, ca.client(), self.OLD, self.NEW) == ""
            assert "expired" in cause(trusted, ca.issue(ALICE, CLIENT, valid=(-2, -1)))
        third = authority()
        assert cause(trusted, third.client(), third) != ""

    def test_intermediates_of_one_name_in_either_order(self) -> None:
        two = [CA.issue(user("intermediate"), AUTHORITY) for _ in range(2)]
        for sent in (two, two[::-1]):
            for issuer in two:
                assert cause(bundle(CA), issuer.client(), *sent) == ""
                assert cause(bundle(self.OLD, CA, self.NEW), issuer.client(), *sent) == ""
            stranger = authority("intermediate")
            assert cause(bundle(CA), stranger.client(), *sent, stranger) != ""

    def test_the_whole_path_in_the_bundle_is_found(self) -> None:
        """`certificate_homes` knows a cluster's authority by any of the path."""
        middle = CA.issue(user("intermediate"), AUTHORITY)
        for trusted in (bundle(middle, CA), bundle(CA, middle)):
            found = trusted.verify(peer(middle.client()), NOW)
            assert found.authorities == {authority_key(CA.certificate), authority_key(middle.certificate)}
