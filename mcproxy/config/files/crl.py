"""Certificate revocation lists (RFC 5280), in PEM or DER."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from mcproxy.config.files import pem
from mcproxy.config.model import PEMFile
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place

_BEGIN, _END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"


def read(context: Context, place: Place, authorities: Sequence[x509.Certificate]) -> PEMFile | None:
    """Return the file with revocation lists that `place` names; None where it cannot be used (reported).

    Warns of each of `authorities` without a valid list: none of its certificates is accepted then.
    """
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    if context.offline:
        return PEMFile(path, data)
    lists = parse(data)
    if not lists:
        holds = "holds a certificate, no revocation list" if b"BEGIN CERTIFICATE-----" in data else None
        what = f"{path} {holds or 'holds no readable revocation list'}"
        context.error(place, what, "give the authority's CRL in PEM or DER form")
        return None
    for authority in authorities:
        if pem.is_authority(authority):
            _check_authority(context, place, path, authority, lists)
    issuers = {authority.subject for authority in authorities}
    for each in lists:
        if authorities and each.issuer not in issuers:
            what = f"{path} has a list of {each.issuer.rfc4514_string()}, which is not an authority in caFile"
            context.warn(place, "foreign-crl", what, "take it out, or add the authority to caFile")
    return PEMFile(path, data)


def parse(data: bytes) -> list[x509.CertificateRevocationList]:
    """Return the lists in PEM blocks, or the one in DER; nothing where one of them cannot be read."""
    try:
        if _BEGIN not in data:
            return [x509.load_der_x509_crl(data)]
        blocks = data.split(_BEGIN)[1:]
        return [x509.load_pem_x509_crl(_BEGIN + block.partition(_END)[0] + _END + b"\n") for block in blocks]
    except (ValueError, x509.InvalidVersion):
        return []


def _check_authority(
    context: Context,
    place: Place,
    path: str,
    authority: x509.Certificate,
    lists: Sequence[x509.CertificateRevocationList],
) -> None:
    name = authority.subject.rfc4514_string()
    refused = "so none of its certificates is accepted"
    mine = [each for each in lists if each.issuer == authority.subject and _is_signed_by(each, authority)]
    if not mine:
        context.warn(
            place, "missing-crl", f"{path} has no list signed by the authority {name}, {refused}", "add its current CRL"
        )
        return
    newest = max(
        mine, key=lambda each: (each.last_update_utc, each.next_update_utc or datetime.max.replace(tzinfo=UTC))
    )
    end = newest.next_update_utc
    if end is not None and end < context.now:
        what = f"the list of the authority {name} in {path} expired on {end:%Y-%m-%d %H:%M} UTC, {refused}"
        context.warn(place, "missing-crl", what, "get its current CRL")
    elif newest.last_update_utc > context.now:
        what = f"the list of the authority {name} in {path} is of {newest.last_update_utc:%Y-%m-%d %H:%M} UTC"
        context.warn(place, "not-yet-valid", f"{what}, in the future", "check this machine's clock")


def _is_signed_by(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    try:
        return crl.is_signature_valid(authority.public_key())  # type: ignore[arg-type]  # other kinds raise TypeError
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False
