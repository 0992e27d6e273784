"""Finds certification paths from a certificate to a trust anchor that OpenSSL alone would miss.

OpenSSL looks up an issuer by name and takes the first match without checking its signature. So of two authorities with
one subject (a rotated "kubernetes" CA) and no key identifiers, only one works, by chance. This module tries every
issuer with the right name, and keeps issuers with the right signature. Then OpenSSL verifies each remaining path:
signatures, validity, critical extensions, path length, name constraints, key usage.

As in Go, each certificate of a bundle is an anchor, even if it is not self-signed.
Source: Go `crypto/x509` verify.go, buildChains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from OpenSSL import crypto
from OpenSSL._util import lib

MAX_ISSUERS = 100
"""Limit of signature checks for a certificate and all its issuers, as Go's maxChainSignatureChecks."""

_WEAK_HASHES = frozenset({"md5", "sha1"})


class PathError(Exception):
    """A path is invalid, with a `cause` for operators."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class TrustAnchors:
    """The certificates of a bundle, each of them a trust anchor."""

    __slots__ = ("_by_subject", "_certificates")

    def __init__(self, certificates: Iterable[x509.Certificate]) -> None:
        self._certificates = frozenset(certificates := list(certificates))
        self._by_subject: dict[x509.Name, list[x509.Certificate]] = {}
        for certificate in dict.fromkeys(certificates):
            self._by_subject.setdefault(certificate.subject, []).append(certificate)

    def paths(self, leaf: x509.Certificate, sent: Sequence[x509.Certificate]) -> Iterator[list[x509.Certificate]]:
        """Yield the paths from the leaf to an anchor, by names, and by signatures if several issuers have one name.

        `sent` are the peer's other certificates, in any order. Longer paths come before paths that end at an
        intermediate certificate of the bundle. Raises ValueError for a malformed name.
        """
        by_subject: dict[x509.Name, list[x509.Certificate]] = {}
        for certificate in dict.fromkeys(sent):
            if certificate not in self._certificates:
                by_subject.setdefault(certificate.subject, []).append(certificate)
        return self._extended([leaf], by_subject, iter(range(MAX_ISSUERS)))

    def _extended(
        self, path: list[x509.Certificate], sent: dict[x509.Name, list[x509.Certificate]], budget: Iterator[int]
    ) -> Iterator[list[x509.Certificate]]:
        last = path[-1]
        name = last.issuer
        issuers = [*self._by_subject.get(name, ()), *sent.get(name, ())]
        for issuer in issuers:
            if issuer in path:
                continue
            if next(budget, None) is None:
                return
            if len(issuers) == 1 or is_issued_by(last, issuer):
                yield from self._extended([*path, issuer], sent, budget)
        if last in self._certificates:
            yield path


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether `issuer` has the name and the key that signed `certificate`."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):  # another issuer, or an unknown algorithm
        return False
    return True


def verified(path: Sequence[x509.Certificate], at: float, *, server: bool = False) -> list[x509.Certificate]:
    """Have OpenSSL verify a path at a time (seconds since 1970), and return it; raises PathError.

    With `server`, every certificate of the path must allow the usage TLS server.
    """
    store = crypto.X509Store()  # a new store each time, because OpenSSL keeps the first time that is set in a store
    try:
        leaf, *issuers = map(crypto.X509.from_cryptography, path)
        store.add_cert(issuers[-1] if issuers else leaf)
        store.set_flags(crypto.X509StoreFlags.PARTIAL_CHAIN)
        store.set_time(datetime.fromtimestamp(at, UTC))
        if server:
            lib.X509_STORE_set_purpose(store._store, lib.X509_PURPOSE_SSL_SERVER)  # pyOpenSSL has no method for it
        found = crypto.X509StoreContext(store, leaf, issuers[:-1]).get_verified_chain()
    except crypto.X509StoreContextError as error:
        raise PathError(str(error)) from None
    except (ValueError, crypto.Error):
        raise PathError("it cannot be verified") from None
    return [certificate.to_cryptography() for certificate in found]


def check_strength(path: Sequence[x509.Certificate], min_rsa_bits: int) -> None:
    """Raise PathError for a short RSA key, or a signature with SHA-1 or MD5. The anchor's signature does not count."""
    for certificate in path:
        key = certificate.public_key()
        if isinstance(key, rsa.RSAPublicKey) and key.key_size < min_rsa_bits:
            raise PathError(f"an RSA key of its chain is shorter than {min_rsa_bits} bits")
        algorithm = certificate.signature_hash_algorithm if certificate is not path[-1] else None
        if algorithm is not None and algorithm.name in _WEAK_HASHES:
            raise PathError(f"its chain is signed with {algorithm.name.upper()}, which can be forged")
