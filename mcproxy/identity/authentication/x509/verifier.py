"""Verification of client certificates against a bundle of CAs, by the rules of a kube-apiserver.

A kube-apiserver verifies with Go's `x509.Verify` for the usage clientAuth. OpenSSL builds and verifies the path here
(signatures, validity, critical extensions, path length, name constraints); Go's further requirements are checked on the
path that OpenSSL found: extended key usage all the way up, CAs with basicConstraints, no SHA-1 or MD5.

Two properties of OpenSSL are worked around. It looks up an issuer by name and takes the first match, without trying the
signature, so that authorities of the same name with different keys (a rotated "kubernetes" CA) would work by chance. So
every certificate of the bundle is the only anchor of a separate store, and each that could have issued a certificate
of the chain is tried. And it requires a self-signed end of the path, where Go accepts any certificate of the bundle.

Two are left, which are stricter than Go: an authority key identifier that is not the issuer's rules that issuer out,
and a client certificate with exactly its authority's name counts as self-signed, unless its key identifiers differ.
Verifying such a certificate without OpenSSL's path would mean to reimplement its checks.

Source: Go `crypto/x509` verify.go; k8s.io/apiserver `pkg/authentication/request/x509`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import crypto

from mcproxy.config.model import PEMFile
from mcproxy.identity.authentication.x509.revocation import RevocationLists, RevokedError

#: Certificates that a client may send in addition to its own; Go stops after 100 signatures, no real chain needs five.
MAX_INTERMEDIATES = 10

#: Seconds after which a refusal is verified again: a certificate can become valid.
RECHECK = 10.0

_WEAK_HASHES = frozenset({"md5", "sha1"})
_MIN_RSA_BITS = 1024
_CLIENT_USAGES = frozenset({ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})
_UNKNOWN = "no authority of the bundle issued it"


class Verification:
    """The result of verifying a peer, valid from `since` until `until` (seconds since 1970, inclusive).

    `cause` is "" if the certificate is valid, else the reason, for operators. `authorities` are those of its path, as
    `authority_key` knows them.
    """

    __slots__ = ("authorities", "cause", "since", "until")

    def __init__(self, cause: str, since: float, until: float, authorities: frozenset[bytes] = frozenset()) -> None:
        self.cause = cause
        self.since = since
        self.until = until
        self.authorities = authorities


class SentCertificates(Protocol):
    """The certificates that a client sent (`peer.TLSPeer`)."""

    leaf: x509.Certificate | None
    chain: tuple[x509.Certificate, ...]


def authority_key(certificate: x509.Certificate) -> bytes:
    """Return what an authority is known by: its name and key, which stay when its certificate is renewed."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(certificate.subject.public_bytes() + key).digest()


class ClientCertificateVerifier:
    """Verifies client certificates against a bundle of CAs and, if there are such, their revocation lists."""

    __slots__ = ("_anchors", "_revocation", "crl", "pem")

    def __init__(self, pem: bytes, crl: PEMFile | None = None) -> None:
        """Read the bundle (PEM) and the lists (PEM or DER); raises ValueError for invalid data."""
        self.pem = pem
        self.crl = crl
        self._anchors = [_Anchor(certificate) for certificate in x509.load_pem_x509_certificates(pem)]
        self._revocation = None if crl is None else RevocationLists(crl.data, crl.path)

    def verify(self, peer: SentCertificates, now: float) -> Verification:
        """Verify a peer's certificate for a time (seconds since 1970): half a millisecond; `TLSPeer` keeps it."""
        try:
            return self._verify(peer, now)
        except _VerificationError as refusal:
            return Verification(refusal.cause, now, now + RECHECK)

    def _verify(self, peer: SentCertificates, now: float) -> Verification:
        """Return the validity period and the authorities of a path.

        Raises _VerificationError with the first relevant cause.
        """
        leaf, chain = peer.leaf, peer.chain
        if leaf is None:
            raise _VerificationError("it cannot be read")
        if len(chain) > MAX_INTERMEDIATES:
            raise _VerificationError(f"more than {MAX_INTERMEDIATES} certificates were sent beside it")
        try:
            issuers = {certificate.issuer for certificate in (leaf, *chain)}
            candidates = [anchor for anchor in self._anchors if anchor.may_have_issued(leaf, issuers)]
            ours = crypto.X509.from_cryptography(leaf)
            theirs = [crypto.X509.from_cryptography(certificate) for certificate in chain]
        except (ValueError, crypto.Error):
            raise _VerificationError("it cannot be read") from None
        cause = _UNKNOWN
        for anchor in candidates:
            try:
                path = _checked(anchor.path(ours, theirs, now))
                since, until = self._hold(path, now)
                return Verification("", since, until, frozenset(map(authority_key, path[1:] or path)))
            except _VerificationError as refusal:
                if cause == _UNKNOWN:
                    cause = refusal.cause
        raise _VerificationError(cause)

    def _hold(self, path: list[x509.Certificate], now: float) -> tuple[float, float]:
        """Return the validity period of a path; raises _VerificationError if a certificate of it is revoked."""
        since, until = _validity(path)
        if self._revocation is None:
            return since, until
        try:
            begin, end = self._revocation.check(path, now)
        except RevokedError as error:
            raise _VerificationError(error.cause) from None
        return max(since, begin), min(until, end)


class _VerificationError(Exception):
    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class _Anchor:
    """One certificate of the bundle: a trust anchor."""

    __slots__ = ("_certificate", "_subject", "_trusted")

    def __init__(self, certificate: x509.Certificate) -> None:
        self._certificate = certificate
        self._subject = certificate.subject
        self._trusted = crypto.X509.from_cryptography(certificate)

    def may_have_issued(self, leaf: x509.Certificate, issuers: set[x509.Name]) -> bool:
        """Whether it is named as an issuer, or is the client's own certificate, which Go accepts too."""
        return self._subject in issuers or self._certificate == leaf

    def path(self, leaf: crypto.X509, chain: Sequence[crypto.X509], now: float) -> list[x509.Certificate]:
        """Return the path from the leaf to this anchor as OpenSSL verifies it; raises _VerificationError."""
        store = crypto.X509Store()  # a new one each time: OpenSSL keeps the first time that a store is given
        store.add_cert(self._trusted)
        store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        store.set_time(datetime.fromtimestamp(now, UTC))
        try:
            found = crypto.X509StoreContext(store, leaf, chain).get_verified_chain()
        except crypto.X509StoreContextError as error:
            raise _VerificationError(str(error)) from None
        except crypto.Error:
            raise _VerificationError("it cannot be verified") from None
        return [certificate.to_cryptography() for certificate in found]


def _checked(path: list[x509.Certificate]) -> list[x509.Certificate]:
    """Check Go's further requirements on a verified path; raises _VerificationError."""
    try:
        for depth, certificate in enumerate(path):
            extensions = certificate.extensions
            _check_usage(extensions)
            _check_strength(certificate, signed=depth < len(path) - 1)
            if depth:
                _check_authority(certificate, extensions, anchor=depth == len(path) - 1)
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise _VerificationError("a certificate of its chain cannot be read") from None
    return path


def _check_usage(extensions: x509.Extensions) -> None:
    """No extended key usage means any; where one is given, an authority's too, it must allow clientAuth."""
    try:
        usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if _CLIENT_USAGES.isdisjoint(usages):
        raise _VerificationError("its extended key usage, or its authority's, does not include clientAuth")


def _check_strength(certificate: x509.Certificate, *, signed: bool) -> None:
    """Check one certificate; `signed`: its signature is checked too, as for all but the anchor."""
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        raise _VerificationError(f"an RSA key of its chain is shorter than {_MIN_RSA_BITS} bits")
    algorithm = certificate.signature_hash_algorithm if signed else None
    if algorithm is not None and algorithm.name in _WEAK_HASHES:
        raise _VerificationError(f"its chain is signed with {algorithm.name.upper()}, which can be forged")


def _check_authority(certificate: x509.Certificate, extensions: x509.Extensions, *, anchor: bool) -> None:
    if anchor and certificate.version is x509.Version.v1:
        return  # without extensions (version 1); it is an authority because it is in the bundle
    try:
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise _VerificationError("it was issued by a certificate that is no authority's (basicConstraints)")


def _validity(path: list[x509.Certificate]) -> tuple[float, float]:
    """Return the period in which all certificates of a path are valid."""
    return (
        max(certificate.not_valid_before_utc.timestamp() for certificate in path),
        min(certificate.not_valid_after_utc.timestamp() for certificate in path),
    )
