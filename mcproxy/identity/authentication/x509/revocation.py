"""Revocation of client certificates by lists (CRLs, RFC 5280): `clientCertificates.crlFile`.

A certificate is accepted only if a current list of its issuer does not have it: without a list, or with an expired one,
its revocation is unknown, so none of that issuer's certificates is accepted. nginx's `ssl_crl` does the same.

A list is used if its issuer signed it and it needs no unsupported extension: delta lists, indirect ones, those for some
reasons only or for attribute certificates are not (5.2.4, 5.2.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from math import inf

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from twisted.logger import Logger

from mcproxy.log_once import LogOnce

log = Logger(__name__)

_BEGIN, _END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"
_WEAK_HASHES = frozenset({"md5", "sha1"})
_SIGNATURES_KEPT = 256


class RevokedError(Exception):
    """A certificate is revoked, or its revocation is unknown; `cause` is for operators."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class _List:
    """One list, read once."""

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
    """The lists of one file."""

    def __init__(self, data: bytes, path: str) -> None:
        """Read PEM blocks, or one list in DER; raises ValueError if it is neither."""
        if _BEGIN in data:
            blocks = [_BEGIN + block.partition(_END)[0] + _END + b"\n" for block in data.split(_BEGIN)[1:]]
            self._lists = [_List(x509.load_pem_x509_crl(block)) for block in blocks]
        else:
            self._lists = [_List(x509.load_der_x509_crl(data))]
        self._path = path
        self._once = LogOnce(inf, most=_SIGNATURES_KEPT)
        self._is_signed_by = lru_cache(_SIGNATURES_KEPT)(_is_signed_by)

    def check(self, path: Sequence[x509.Certificate], now: float) -> tuple[float, float]:
        """Check every certificate of a verified path, the anchor last. The anchor needs no list, but must be in none.

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
        """Return the newest list of an issuer; raises RevokedError if it has no current one."""
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
    """Return whether a list applies to users' certificates, and whether to authorities'."""
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
