"""Throw-away certificates: authorities and the certificates that they signed (ECDSA P-256, valid for a day).

ECDSA, because its handshakes are cheap and the same for all subjects; rates are measured on kept connections anyway.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Identity:
    """Files of a server or a client: certificate, key, and the authority that issued it (all PEM)."""

    certificate: Path
    key: Path
    authority: Path


def make_identity(directory: Path, name: str, server_name: str) -> Identity:
    """Make an authority of its own and a certificate for `server_name`; files are called `name`.*."""
    alternative = x509.SubjectAlternativeName([x509.DNSName(server_name)])
    return _make(directory, name, _name(server_name), ExtendedKeyUsageOID.SERVER_AUTH, alternative)


def make_client(directory: Path, name: str, user: str, groups: Sequence[str]) -> Identity:
    """Make an authority of its own and a client certificate that names `user` and `groups`, as Kubernetes reads it."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    return _make(directory, name, subject, ExtendedKeyUsageOID.CLIENT_AUTH)


def _make(
    directory: Path, name: str, holder: x509.Name, usage: x509.ObjectIdentifier, *extensions: x509.ExtensionType
) -> Identity:
    directory.mkdir(parents=True, exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    subject = _name(f"{name} authority")
    authority = (
        _builder(subject, subject, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    unsigned = (
        _builder(holder, subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    for extension in extensions:
        unsigned = unsigned.add_extension(extension, critical=False)
    certificate = unsigned.sign(authority_key, hashes.SHA256())
    made = Identity(directory / f"{name}.crt", directory / f"{name}.key", directory / f"{name}-ca.crt")
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key.touch(0o600)
    made.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
