"""Certificates of every kind, good and bad, made for one moment (`NOW`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
DAY = timedelta(days=1)
HOUR = 3600.0

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
Extension = tuple[x509.ExtensionType, bool]

AUTHORITY: Extension = (x509.BasicConstraints(ca=True, path_length=None), True)
NO_AUTHORITY: Extension = (x509.BasicConstraints(ca=False, path_length=None), True)
CLIENT: Extension = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False)
SERVER: Extension = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
ANY: Extension = (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]), False)


def moment(days: float) -> datetime:
    return datetime.fromtimestamp(NOW, UTC) + days * DAY


def name(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])


def user(common_name: str, *groups: str) -> x509.Name:
    return name(*[(NameOID.ORGANIZATION_NAME, group) for group in groups], (NameOID.COMMON_NAME, common_name))


@dataclass(frozen=True)
class Held:
    """A certificate whose key is at hand."""

    certificate: x509.Certificate
    key: Key

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        subject: x509.Name,
        *extensions: Extension,
        valid: tuple[float, float] = (-1, 365),
        key: Key | None = None,
    ) -> Held:
        """Sign another certificate; `valid` is in days from NOW."""
        return _made(subject, extensions, valid, key, self)

    def client(self, common_name: str = "alice", *groups: str) -> Held:
        """Sign a usual client certificate."""
        return self.issue(user(common_name, *groups), NO_AUTHORITY, CLIENT)


def revocations(
    by: Held,
    *revoked: Held,
    valid: tuple[float, float] = (-1, 7),
    extensions: tuple[Extension, ...] = (),
    issuer: x509.Name | None = None,
    key: Key | None = None,
) -> x509.CertificateRevocationList:
    """Make a list by an authority; `valid` is in days from NOW, `issuer` and `key` make a forged one."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer or by.certificate.subject)
        .last_update(moment(valid[0]))
        .next_update(moment(valid[1]))
    )
    for held in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(held.certificate.serial_number)
        builder = builder.add_revoked_certificate(entry.revocation_date(moment(valid[0])).build())
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key or by.key, hashes.SHA256())


def authority(
    common_name: str = "kubernetes",
    *extensions: Extension,
    valid: tuple[float, float] = (-1, 3650),
    key: Key | None = None,
) -> Held:
    """Make a certificate that signed itself; an authority's, if no other extensions are given."""
    return _made(user(common_name), extensions or (AUTHORITY,), valid, key, None)


def _made(
    subject: x509.Name,
    extensions: tuple[Extension, ...],
    valid: tuple[float, float],
    key: Key | None,
    issuer: Held | None,
) -> Held:
    key = key or ec.generate_private_key(ec.SECP256R1())
    signer = key if issuer is None else issuer.key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment(valid[0]))
        .not_valid_after(moment(valid[1]))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return Held(builder.sign(signer, algorithm), key)
