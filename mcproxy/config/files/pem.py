"""Reads certificates, keys and revocation lists from PEM files, and checks that they match and are not expired."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from mcproxy.certificate_blocks import Blocks, calendar_fault, read_blocks
from mcproxy.config.model import PEMFile
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place

EXPIRY_WARNING = timedelta(days=30)
_MIN_RSA_BITS = 2048
_SHOWN = 5  # limit of further unreadable blocks in a message

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


def read_file(context: Context, place: Place) -> PEMFile | None:
    """Return the file that `place` names, without parsing it."""
    found = context.read(place)
    return PEMFile(*found) if found is not None else None


def read_key(context: Context, place: Place) -> PEMFile | None:
    """Return the file with a private key that `place` names, without parsing it."""
    found = read_file(context, place)
    if found is not None:
        context.check_private(place, found.path)
    return found


def is_for_servers(certificate: x509.Certificate) -> bool:
    """Whether the extended key usage of a certificate permits its use by TLS servers."""
    return _is_for(certificate, ExtendedKeyUsageOID.SERVER_AUTH)


def is_for_clients(certificate: x509.Certificate) -> bool:
    """Whether the extended key usage of a certificate permits its use by TLS clients."""
    return _is_for(certificate, ExtendedKeyUsageOID.CLIENT_AUTH)


def _is_for(certificate: x509.Certificate, purpose: x509.ObjectIdentifier) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return True
    return purpose in usage or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usage


def authorities(context: Context, place: Place, pem: PEMFile, *, strict: bool = False) -> list[x509.Certificate]:
    """Check a bundle of authorities and return them; warn if all of them have expired.

    An unreadable certificate is skipped with a warning, as in client-go. With `strict` it is an error, as for the
    authorities of clients in kube-apiserver (client-go `util/cert`, ParseCertsPEM).
    """
    found = _certificates(context, place, pem, skip=not strict) if not context.offline else []
    if found and all(certificate.not_valid_after_utc < context.now for certificate in found):
        last = max(certificate.not_valid_after_utc for certificate in found)
        what = f"every certificate in {pem.path} has expired, the last on {last:%Y-%m-%d}"
        context.warn(place, "expired", what, "get the authority's new certificate")
    return found


def read_authorities(
    context: Context, place: Place, *, strict: bool = False
) -> tuple[PEMFile, list[x509.Certificate]] | None:
    """Return the bundle of authorities that `place` names, with its certificates; None if invalid (reported).

    Offline the list is empty. `strict` has the same meaning as in `authorities`.
    """
    pem = read_file(context, place)
    found = authorities(context, place, pem, strict=strict) if pem is not None else []
    return (pem, found) if pem is not None and (found or context.offline) else None


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate is a CA certificate. X.509 version 1 certificates, which cannot state this, count."""
    if certificate.version is x509.Version.v1:
        return True
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def read_pair(context: Context, place: Place) -> tuple[PEMFile, PEMFile] | None:
    """Return the chain and key that `certFile` and `keyFile` at `place` name; None if they do not match (reported)."""
    cert_place, key_place = place.get("certFile"), place.get("keyFile")
    chain = read_file(context, cert_place) if cert_place is not None else None
    key = read_key(context, key_place) if key_place is not None else None
    if chain is None or key is None or cert_place is None or key_place is None:
        return None
    if context.offline:
        return chain, key
    return (chain, key) if pair(context, cert_place, chain, key_place, key) is not None else None


def pair(
    context: Context, cert_place: Place, chain: PEMFile, key_place: Place, key: PEMFile
) -> x509.Certificate | None:
    """Check that a chain (leaf first) and a key are valid and belong together; return the leaf.

    None if there is an error (reported), and offline.
    """
    if context.offline:
        return None
    certificates = _certificates(context, cert_place, chain)
    private = _private_key(context, key_place, key)
    if not certificates:
        return None
    _calendar(context, cert_place, chain, certificates[0])
    _check_order(context, cert_place, chain, certificates)
    if private is None:
        return None
    public = _spki(private.public_key())
    keys = [_public_key(certificate) for certificate in certificates]
    if keys[0] == public:
        return certificates[0]
    if public in keys:
        right = f"put the leaf certificate first in {chain.path}"
    else:
        right = "name the key that the certificate was made for"
    context.error(key_place, f"{key.path} does not belong to the certificate in {chain.path}", right)
    return None


def _check_order(context: Context, place: Place, chain: PEMFile, certificates: list[x509.Certificate]) -> None:
    for issued, issuer in itertools.pairwise(certificates):
        if issued.issuer != issuer.subject:
            what = f"{chain.path} is not a chain: {issuer.subject.rfc4514_string()} did not issue the one before it"
            context.warn(place, "chain-order", what, "order it leaf first, each followed by its issuer")
            return


def _certificates(context: Context, place: Place, pem: PEMFile, *, skip: bool = False) -> list[x509.Certificate]:
    """Return the certificates of a file. If one is unreadable, return none and report it, or skip it if `skip`."""
    found = read_blocks(pem.data)
    if found.unreadable and skip and found.certificates:
        what = f"{_unreadable(pem, found)}; it is skipped"
        context.warn(place, "unreadable-certificate", what, "take it out, or put the right one there")
    elif found.unreadable:
        context.error(place, _unreadable(pem, found), "take it out, or put the right one there")
        return []
    elif not found.certificates and b"PRIVATE KEY-----" in pem.data:
        context.error(place, f"{pem.path} holds a key, no certificate", "name the certificate's file")
    elif not found.certificates:
        context.error(place, f"{pem.path} holds no readable certificate", "give certificates in PEM form")
    return found.certificates


def _unreadable(pem: PEMFile, found: Blocks) -> str:
    first, *others = found.unreadable
    lines = [str(other.line) for other in others[:_SHOWN]] + ["…"] * (len(others) > _SHOWN)
    return f"{pem.path}: {first}" + (f" (likewise in line {', '.join(lines)})" if lines else "")


def _private_key(context: Context, place: Place, pem: PEMFile) -> PrivateKey | None:
    try:
        key = serialization.load_pem_private_key(pem.data, None)
    except TypeError:
        context.error(
            place, f"the key in {pem.path} is encrypted", "store it without a passphrase, readable by the daemon alone"
        )
        return None
    except (ValueError, UnsupportedAlgorithm):
        if b"BEGIN CERTIFICATE-----" in pem.data and b"PRIVATE KEY-----" not in pem.data:
            context.error(place, f"{pem.path} holds a certificate, no key", "name the key's file")
        else:
            context.error(place, f"{pem.path} holds no readable private key", "give the key in PEM form")
        return None
    if not isinstance(key, PrivateKey):
        context.error(place, f"the key in {pem.path} is neither RSA nor ECDSA", "use an RSA or ECDSA key")
        return None
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < _MIN_RSA_BITS:
        what = f"the RSA key in {pem.path} has {key.key_size} bits"
        context.error(place, what, f"use one of at least {_MIN_RSA_BITS} bits, or ECDSA")
        return None
    return key


def _public_key(certificate: x509.Certificate) -> bytes | None:
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):  # the certificate's type of key is not supported for private keys
        return None
    return _spki(key)


def _spki(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _calendar(context: Context, place: Place, pem: PEMFile, leaf: x509.Certificate) -> None:
    end, fault = leaf.not_valid_after_utc, calendar_fault(leaf, context.now)
    if fault and end < context.now:
        context.warn(place, "expired", f"the certificate in {pem.path} {fault}", "renew it")
    elif fault:
        what = f"the certificate in {pem.path} {fault}"
        context.warn(place, "not-yet-valid", what, "check this machine's clock, or wait")
    elif end - context.now < EXPIRY_WARNING:
        context.warn(
            place, "expires-soon", f"the certificate in {pem.path} expires on {end:%Y-%m-%d %H:%M} UTC", "renew it"
        )


# -- Certificate revocation lists (RFC 5280), in PEM or DER ------------------------------------------------------------

_CRL_BEGIN, _CRL_END = b"-----BEGIN X509 CRL-----", b"-----END X509 CRL-----"


def read_crl(context: Context, place: Place, authorities: Sequence[x509.Certificate]) -> PEMFile | None:
    """Return the file with revocation lists that `place` names; None if it is unusable (reported).

    Warn of each of `authorities` without a valid list, because none of its certificates will be accepted.
    """
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    if context.offline:
        return PEMFile(path, data)
    lists = parse_crl(data)
    if not lists:
        holds = "holds a certificate, no revocation list" if b"BEGIN CERTIFICATE-----" in data else None
        what = f"{path} {holds or 'holds no readable revocation list'}"
        context.error(place, what, "give the authority's CRL in PEM or DER form")
        return None
    for authority in authorities:
        if is_authority(authority):
            _check_authority(context, place, path, authority, lists)
    issuers = {authority.subject for authority in authorities}
    for each in lists:
        if authorities and each.issuer not in issuers:
            what = f"{path} has a list of {each.issuer.rfc4514_string()}, which is not an authority in caFile"
            context.warn(place, "foreign-crl", what, "take it out, or add the authority to caFile")
    return PEMFile(path, data)


def parse_crl(data: bytes) -> list[x509.CertificateRevocationList]:
    """Return the lists in PEM blocks, or the single list in DER; an empty list if one of them is unreadable."""
    try:
        if _CRL_BEGIN not in data:
            return [x509.load_der_x509_crl(data)]
        blocks = data.split(_CRL_BEGIN)[1:]
        return [
            x509.load_pem_x509_crl(_CRL_BEGIN + block.partition(_CRL_END)[0] + _CRL_END + b"\n") for block in blocks
        ]
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
