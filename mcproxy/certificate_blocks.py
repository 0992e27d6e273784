"""The certificates of a PEM bundle, block by block, so that one that cannot be read does not take the others along.

As client-go (Go's `CertPool.AppendCertsFromPEM`), which skips such a block. Everything else in the file (keys,
comments, a byte order mark) is ignored.
"""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning

_BEGIN = re.compile(rb"-----BEGIN (?:X509 )?CERTIFICATE-----")
_END = re.compile(rb"-----END (?:X509 )?CERTIFICATE-----")
_NO_CERTIFICATE = "there is no certificate in PEM form"


class Unreadable(NamedTuple):
    """A certificate block that cannot be read: the line where it begins (counted from 1) and the reason."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"the certificate in line {self.line} cannot be read: {self.reason}"


class Blocks(NamedTuple):
    """What a bundle holds."""

    certificates: list[x509.Certificate]
    unreadable: list[Unreadable]


def read_blocks(data: bytes) -> Blocks:
    """Return the certificates of a bundle, in their order, and what cannot be read."""
    found = Blocks([], [])
    line, counted = 1, 0
    for begin in _BEGIN.finditer(data):
        line += data.count(b"\n", counted, begin.start())
        counted = begin.start()
        after = data.find(b"-----BEGIN ", begin.end())
        certificate = _certificate(data[counted : after if after >= 0 else len(data)])
        if isinstance(certificate, str):
            found.unreadable.append(Unreadable(line, certificate))
        else:
            found.certificates.append(certificate)
    return found


def load_certificates(data: bytes) -> list[x509.Certificate]:
    """Return the certificates of a bundle that can be read; raises ValueError, with the reason, if there is none."""
    found = read_blocks(data)
    if not found.certificates:
        raise ValueError(str(found.unreadable[0]) if found.unreadable else _NO_CERTIFICATE)
    return found.certificates


def calendar_fault(certificate: x509.Certificate, now: datetime) -> str:
    """Return why a certificate does not count at a time ("expired on 2026-11-01 10:00 UTC"); "" if it does."""
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    end = certificate.not_valid_after_utc
    return f"expired on {end:%Y-%m-%d %H:%M} UTC" if end < now else ""


def one_of_each_name(certificates: Sequence[x509.Certificate]) -> list[list[x509.Certificate]]:
    """Return selections with one certificate for each name; every certificate is in at least one selection.

    For OpenSSL without our own search for paths (`net.certificate_paths`): it takes only the first of a name.
    """
    by_name: dict[x509.Name, list[x509.Certificate]] = {}
    for certificate in dict.fromkeys(certificates):
        by_name.setdefault(certificate.subject, []).append(certificate)
    most = max(map(len, by_name.values()), default=0)
    return [[each[number % len(each)] for each in by_name.values()] for number in range(most)]


def _certificate(block: bytes) -> x509.Certificate | str:
    """Return the certificate of a block, or why there is none; `block` goes up to the next one."""
    end = _END.search(block)
    if end is None:
        return "it has no END line"
    block = block[: end.end()]
    try:
        with warnings.catch_warnings():
            # The library warns about the serial number 0 too, which Go accepts; a negative one is refused below.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            certificate = x509.load_pem_x509_certificate(block)
            return "its serial number is negative" if certificate.serial_number < 0 else certificate
    except (ValueError, x509.InvalidVersion) as error:
        try:
            base64.b64decode(b"".join(block.split(b"-----")[2].split()), validate=True)
        except binascii.Error:
            return "its base64 is damaged"
        return f"it is no X.509 certificate ({' '.join(str(error).split())})"
