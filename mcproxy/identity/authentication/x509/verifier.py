"""Verifies client certificates against a bundle of CAs, by the rules of a kube-apiserver.

A kube-apiserver verifies with Go's `x509.Verify` for the usage clientAuth. Here OpenSSL builds and verifies the path
(signatures, validity, critical extensions, path length, name constraints). Go's further requirements are checked on the
path that OpenSSL found: extended key usage on the whole path, CAs with basicConstraints, no SHA-1 or MD5.

The paths are those of `net.certificate_paths`: each certificate of the bundle is an anchor, and of several CAs with the
same name, any CA whose key verifies the signature is accepted.

In two cases OpenSSL stays stricter than Go. A CA is excluded if its subject key identifier differs from the authority
key identifier of the certificate below it. A client certificate whose subject equals its issuer's name counts as
self-signed, unless its own subject and authority key identifiers differ. To accept such certificates, OpenSSL's checks
would have to be reimplemented.

Source: Go `crypto/x509` verify.go; k8s.io/apiserver `pkg/authentication/request/x509`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from twisted.logger import Logger

from mcproxy.certificate_blocks import read_blocks
from mcproxy.config import model
from mcproxy.config.model import PEMFile
from mcproxy.log_once import LogOnce
from mcproxy.net.certificate_paths import PathError, TrustAnchors, check_strength, verified

log = Logger(__name__)

_BEGIN, _END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"
# Revocation of client certificates by lists (CRLs, RFC 5280): `clientCertificates.crlFile`.
#
# A certificate is accepted only if its issuer has a current list that does not contain it. Without a list, or with an
# expired list, the revocation status is unknown, so no certificate of this issuer is accepted. nginx's `ssl_crl` does
# the same. A list is used if its issuer signed it and it has no unsupported critical extension: delta CRLs, indirect
# CRLs, and CRLs for only some reasons or for attribute certificates are not used (5.2.4, 5.2.5).

_WEAK_HASHES = frozenset({"md5", "sha1"})
_SIGNATURES_KEPT = 256


class RevokedError(Exception):
    """A certificate is revoked, or its revocation status is unknown; `cause` is for operators."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class _List:
    """One parsed CRL."""

    __slots__ = ("begin", "crl", "end", "for_authorities", "for_users", "issuer", "serials")

    def __init__(self, crl: x509.CertificateRevocationList) -> None:
        self.crl = crl
        self.issuer = crl.issuer
        self.begin = crl.last_update_utc.timestamp()
        end = crl.next_update_utc
        self.end = float("inf") if end is None else end.timestamp()
        self.for_users, self.for_authorities = _scope(crl)
        self.serials = frozenset(each.serial_number for each in crl)


class RevocationLists:
    """The CRLs in one file."""

    def __init__(self, data: bytes, path: str) -> None:
        """Parse PEM blocks, or one CRL in DER; raises ValueError for any other data."""
        if _BEGIN in data:
            blocks = [_BEGIN + block.partition(_END)[0] + _END + b"\n" for block in data.split(_BEGIN)[1:]]
            self._lists = [_List(x509.load_pem_x509_crl(block)) for block in blocks]
        else:
            self._lists = [_List(x509.load_der_x509_crl(data))]
        self._path = path
        self._once = LogOnce(inf, most=_SIGNATURES_KEPT)
        self._is_signed_by = lru_cache(_SIGNATURES_KEPT)(_is_signed_by)

    def check(self, path: Sequence[x509.Certificate], now: float) -> tuple[float, float]:
        """Check every certificate of a verified path, the anchor last. The anchor needs no list, but must not be in a
        list.

        Returns the period for which the result is valid; raises RevokedError. Times are seconds since 1970.
        """
        since, until = 0.0, float("inf")
        for depth, (certificate, issuer) in enumerate(pairwise(path)):
            current = self._current(issuer, now, authority=depth > 0)
            if certificate.serial_number in current.serials:
                raise RevokedError("it is revoked" if depth == 0 else "an authority of its chain is revoked")
            since, until = max(since, current.begin), min(until, current.end)
        anchor = path[-1]
        if any(each.issuer == anchor.issuer and anchor.serial_number in each.serials for each in self._lists):
            raise RevokedError("it is revoked" if len(path) == 1 else "an authority of its chain is revoked")
        return since, until

    def _current(self, issuer: x509.Certificate, now: float, *, authority: bool) -> _List:
        """Return the newest list of an issuer; raises RevokedError if the issuer has no current list."""
        usable = [
            each
            for each in self._lists
            if each.issuer == issuer.subject
            and (each.for_authorities if authority else each.for_users)
            and each.begin <= now
            and self._is_signed_by(each, issuer)
        ]
        newest = max(usable, key=lambda each: (each.begin, each.end), default=None)
        if newest is None:
            raise self._unknown(issuer, "there is no revocation list of its authority")
        if newest.end < now:
            end = datetime.fromtimestamp(newest.end, UTC)
            raise self._unknown(issuer, f"the revocation list of its authority expired on {end:%Y-%m-%d %H:%M} UTC")
        return newest

    def _unknown(self, issuer: x509.Certificate, cause: str) -> RevokedError:
        """Log once that no certificate of an issuer is accepted."""
        if self._once.allows((issuer.subject, cause)):
            log.warn(
                "revocation list unusable: all client certificates of its authority are refused",
                event="crl_unusable",
                authority=issuer.subject.rfc4514_string(),
                cause=cause,
                file=self._path,
                log_subject=("revocation", self._path, issuer.subject.rfc4514_string()),
                log_state=cause,
            )
        return RevokedError(cause)


def _scope(crl: x509.CertificateRevocationList) -> tuple[bool, bool]:
    """Return whether a list applies to end-entity certificates, and whether to CA certificates."""
    algorithm = crl.signature_hash_algorithm
    if algorithm is not None and algorithm.name in _WEAK_HASHES:
        return False, False
    users = authorities = True
    try:
        for extension in crl.extensions:
            value = extension.value
            if isinstance(value, x509.IssuingDistributionPoint):
                if value.indirect_crl or value.only_some_reasons or value.only_contains_attribute_certs:
                    return False, False
                users = users and not value.only_contains_ca_certs
                authorities = authorities and not value.only_contains_user_certs
            elif extension.critical or isinstance(value, x509.DeltaCRLIndicator):
                return False, False
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return False, False
    return users, authorities


def _is_signed_by(listed: _List, issuer: x509.Certificate) -> bool:
    try:
        usage = issuer.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        usage = None
    except ValueError:
        return False
    if usage is not None and not usage.crl_sign:
        return False
    try:
        return listed.crl.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]  # other kinds raise TypeError
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


#: Maximum number of sent intermediates; Go stops after 100 signatures, and no real chain needs five.
MAX_INTERMEDIATES = 10

#: Seconds after which a refusal is verified again: a certificate can become valid.
RECHECK = 10.0

_MIN_RSA_BITS = 1024
_CLIENT_USAGES = frozenset({ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})
_UNKNOWN = "no authority of the bundle issued it"


class Verification:
    """The result of verifying a peer, valid from `since` until `until` (seconds since 1970, inclusive).

    `cause` is "" if the certificate is valid, else the reason for operators. `authorities` are the `authority_key`s on
    its path.
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
    """Return the identity of a CA: its name and key, which stay the same when the CA's certificate is renewed."""
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(certificate.subject.public_bytes() + key).digest()


class ClientCertificateVerifier:
    """Verifies client certificates against a bundle of CAs and any revocation lists."""

    __slots__ = ("_anchors", "_revocation", "crl", "pem")

    def __init__(self, pem: bytes, crl: PEMFile | None = None) -> None:
        """Read the bundle (PEM) and the lists (PEM or DER); raises ValueError for invalid data."""
        self.pem = pem
        self.crl = crl
        self._anchors = TrustAnchors(x509.load_pem_x509_certificates(pem))
        self._revocation = None if crl is None else RevocationLists(crl.data, crl.path)

    def verify(self, peer: SentCertificates, now: float) -> Verification:
        """Verify a peer's certificate at `now` (seconds since 1970). It takes 0.5 ms; `TLSPeer` caches the result."""
        try:
            return self._verify(peer, now)
        except PathError as refusal:
            return Verification(refusal.cause, now, now + RECHECK)

    def _verify(self, peer: SentCertificates, now: float) -> Verification:
        """Return the validity period and the CAs of a path.

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
        """Return the validity period of a path; raises PathError if one of its certificates is revoked."""
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
    """Check that extended key usage, if present, allows clientAuth, also in CAs; without it any use is allowed."""
    try:
        usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if _CLIENT_USAGES.isdisjoint(usages):
        raise PathError("its extended key usage, or its authority's, does not include clientAuth")


def _check_authority(certificate: x509.Certificate, extensions: x509.Extensions, *, anchor: bool) -> None:
    if anchor and certificate.version is x509.Version.v1:
        return  # version 1 has no extensions: it is a CA because it is in the bundle
    try:
        is_authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        raise PathError("it was issued by a certificate that is no authority's (basicConstraints)")


def _validity(path: list[x509.Certificate]) -> tuple[float, float]:
    """Return the period during which all certificates of a path are valid."""
    return (
        max(certificate.not_valid_before_utc.timestamp() for certificate in path),
        min(certificate.not_valid_after_utc.timestamp() for certificate in path),
    )


def certificate_homes(clusters: Iterable[model.ClusterConfig]) -> Mapping[bytes, tuple[str, ...]]:
    """Return the clusters of each CA in the clusters' `tls.caFile`, by `authority_key`.

    If all of several clusters share a CA, it is left out, since its names have the same meaning everywhere.
    """
    clusters = list(clusters)
    found: dict[bytes, list[str]] = {}
    read: dict[bytes, list[bytes]] = {}
    for cluster in clusters:
        if cluster.tls.ca is None:
            continue
        pem = cluster.tls.ca.data
        if pem not in read:  # many clusters can have the same file
            read[pem] = _keys(pem)
        for key in read[pem]:
            found.setdefault(key, []).append(cluster.name)
    return {key: tuple(names) for key, names in found.items() if len(names) == 1 or len(names) < len(clusters)}


def _keys(pem: bytes) -> list[bytes]:
    found: dict[bytes, None] = {}
    for certificate in read_blocks(pem).certificates:
        try:
            found[authority_key(certificate)] = None
        except (ValueError, UnsupportedAlgorithm):  # a key of an unknown type cannot have signed a client certificate
            continue
    return list(found)
