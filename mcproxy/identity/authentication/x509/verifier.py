"""Verification of client certificates against a bundle of CAs, by the rules of a kube-apiserver.

A kube-apiserver verifies with Go's `x509.Verify` for the usage clientAuth. OpenSSL builds and verifies the path here
(signatures, validity, critical extensions, path length, name constraints); Go's further requirements are checked on the
path that OpenSSL found: extended key usage all the way up, CAs with basicConstraints, no SHA-1 or MD5.

The paths are those of `net.certificate_paths`: each certificate of the bundle is an anchor, and of several authorities
with one name any whose key verifies counts.

Two properties of OpenSSL are left, which are stricter than Go: an authority key identifier that is not the issuer's
rules that issuer out, and a client certificate with exactly its authority's name counts as self-signed, unless its key
identifiers differ. Verifying such a certificate without OpenSSL's path would mean to reimplement its checks.

Source: Go `crypto/x509` verify.go; k8s.io/apiserver `pkg/authentication/request/x509`.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from mcproxy.config.model import PEMFile
from mcproxy.identity.authentication.x509.revocation import RevocationLists, RevokedError
from mcproxy.net.certificate_paths import Anchors, PathError, check_strength, verified

#: Certificates that a client may send in addition to its own; Go stops after 100 signatures, no real chain needs five.
MAX_INTERMEDIATES = 10

#: Seconds after which a refusal is verified again: a certificate can become valid.
RECHECK = 10.0

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
        self._anchors = Anchors(x509.load_pem_x509_certificates(pem))
        self._revocation = None if crl is None else RevocationLists(crl.data, crl.path)

    def verify(self, peer: SentCertificates, now: float) -> Verification:
        """Verify a peer's certificate for a time (seconds since 1970): half a millisecond; `TLSPeer` keeps it."""
        try:
            return self._verify(peer, now)
        except PathError as refusal:
            return Verification(refusal.cause, now, now + RECHECK)

    def _verify(self, peer: SentCertificates, now: float) -> Verification:
        """Return the validity period and the authorities of a path.

        Raises PathError with the first relevant cause.
        """
        leaf, chain = peer.leaf, peer.chain
        if leaf is None:
            raise PathError("it cannot be read")
        if len(chain) > MAX_INTERMEDIATES:
            raise PathError(f"more than {MAX_INTERMEDIATES} certificates were sent beside it")
        cause = _UNKNOWN
        try:
            for path in self._anchors.paths(leaf, chain):
                try:
                    return self._accepted(_checked(verified(path, now)), now)
                except PathError as refusal:
                    if cause == _UNKNOWN:
                        cause = refusal.cause
        except ValueError:
            raise PathError("it cannot be read") from None
        raise PathError(cause)

    def _accepted(self, path: list[x509.Certificate], now: float) -> Verification:
        since, until = self._hold(path, now)
        return Verification("", since, until, frozenset(map(authority_key, path[1:] or path)))

    def _hold(self, path: list[x509.Certificate], now: float) -> tuple[float, float]:
        """Return the validity period of a path; raises PathError if a certificate of it is revoked."""
        since, until = _validity(path)
        if self._revocation is None:
            return since, until
        try:
            begin, end = self._revocation.check(path, now)
        except RevokedError as error:
            raise PathError(error.cause) from None
        return max(since, begin), min(until, end)


def _checked(path: list[x509.Certificate]) -> list[x509.Certificate]:
    """Check Go's further requirements on a verified path; raises PathError."""
    try:
        check_strength(path, _MIN_RSA_BITS)
        for depth, certificate in enumerate(path):
            extensions = certificate.extensions
            _check_usage(extensions)
            if depth:
                _check_authority(certificate, extensions, anchor=depth == len(path) - 1)
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise PathError("a certificate of its chain cannot be read") from None
    return path


def _check_usage(extensions: x509.Extensions) -> None:
    """No extended key usage means any; where one is given, an authority's too, it must allow clientAuth."""
    try:
        usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if _CLIENT_USAGES.isdisjoint(usages):
        raise PathError("its extended key usage, or its authority's, does not include clientAuth")


def _check_authority(certificate: x509.Certificate, extensions: x509.Extensions, *, anchor: bool) -> None:
    if anchor and certificate.version is x509.Version.v1:
        return  # without extensions (version 1); it is an authority because it is in the bundle
    try:
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise PathError("it was issued by a certificate that is no authority's (basicConstraints)")


def _validity(path: list[x509.Certificate]) -> tuple[float, float]:
    """Return the period in which all certificates of a path are valid."""
    return (
        max(certificate.not_valid_before_utc.timestamp() for certificate in path),
        min(certificate.not_valid_after_utc.timestamp() for certificate in path),
    )
