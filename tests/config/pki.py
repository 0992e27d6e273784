"""A folder of certificates, keys, tokens and kubeconfigs, with fixed dates, for configuration files to name."""

from __future__ import annotations

import base64
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)

Key = ec.EllipticCurvePrivateKey
Pair = tuple[x509.Certificate, Key]


def make(
    name: str,
    *,
    names: tuple[str, ...] = (),
    issuer: Pair | None = None,
    start: datetime = START,
    end: datetime = END,
    usages: tuple[x509.ObjectIdentifier, ...] = (),
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
    )
    if issuer is None:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


def cert_pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates)


def key_pem(key: Key | rsa.RSAPrivateKey | dsa.DSAPrivateKey, password: bytes | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def crl(issuer: Pair, *, start: datetime = START, end: datetime = END) -> x509.CertificateRevocationList:
    """Return a revocation list that revokes nothing."""
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer[0].subject)
    return builder.last_update(start).next_update(end).sign(issuer[1], hashes.SHA256())


def write(folder: Path) -> None:
    """Fill `folder`."""
    ca = make("Test CA")
    (folder / "ca.crt").write_bytes(cert_pem(ca[0]))
    old = make("Old CA", start=START - timedelta(days=400), end=START)
    (folder / "old-ca.crt").write_bytes(cert_pem(old[0]))

    front = make("Front CA")
    (folder / "front-ca.crt").write_bytes(cert_pem(front[0]))
    (folder / "both-ca.crt").write_bytes(cert_pem(front[0], ca[0]))

    impostor = make("Test CA")
    for name, lists in {
        "ca": [crl(ca)],
        "both": [crl(front), crl(ca, end=NOW - timedelta(days=2)), crl(ca)],
        "stale": [crl(ca, end=NOW - timedelta(days=1))],
        "early": [crl(ca, start=NOW + timedelta(days=1))],
        "front": [crl(front)],
        "forged": [crl(impostor)],
    }.items():
        (folder / f"{name}.crl").write_bytes(b"".join(one.public_bytes(serialization.Encoding.PEM) for one in lists))
    (folder / "der.crl").write_bytes(crl(ca).public_bytes(serialization.Encoding.DER))

    def pair(
        file: str, *names: str, start: datetime = START, end: datetime = END, usage: x509.ObjectIdentifier | None = None
    ) -> Pair:
        usages = (usage,) if usage is not None else ()
        made = make(file, names=names, issuer=ca, start=start, end=end, usages=usages)
        (folder / f"{file}.crt").write_bytes(cert_pem(made[0], ca[0]))
        (folder / f"{file}.key").write_bytes(key_pem(made[1]))
        return made

    good = pair("good", "k8s.example.com", "*.k8s.example.com")
    pair("other", "other.example.com")
    client = pair("client")
    pair("servers", usage=ExtendedKeyUsageOID.SERVER_AUTH)
    (folder / "client-alone.crt").write_bytes(cert_pem(client[0]))
    pair("expired", "k8s.example.com", end=NOW - timedelta(days=1))
    pair("soon", "k8s.example.com", end=NOW + timedelta(days=10))
    pair("future", "k8s.example.com", start=NOW + timedelta(days=1))
    (folder / "reversed.crt").write_bytes(cert_pem(ca[0], good[0]))
    (folder / "unrelated.crt").write_bytes(cert_pem(good[0], old[0]))
    (folder / "encrypted.key").write_bytes(key_pem(good[1], b"secret"))
    (folder / "weak.key").write_bytes(key_pem(rsa.generate_private_key(65537, 1024)))
    (folder / "dsa.key").write_bytes(key_pem(dsa.generate_private_key(1024)))
    (folder / "junk.pem").write_bytes(b"junk\n")
    damaged = b"-----BEGIN CERTIFICATE-----\nbm9!ZQ==\n-----END CERTIFICATE-----\n"
    (folder / "partly.pem").write_bytes(b"# ours\n" + cert_pem(ca[0]) + damaged + cert_pem(old[0]) + b"\n" + damaged)
    (folder / "damaged.pem").write_bytes(damaged)
    (folder / "token").write_text("abc.def\n")
    (folder / "empty").write_text("")
    (folder / "two-words").write_text("two words\n")
    (folder / "folder").mkdir()
    (folder / "latin1.yaml").write_bytes("version: 1\n# h\u00e9\n".encode("latin-1"))
    (folder / "nul.yaml").write_bytes(b"version: 1\ndaemon: \x00\n")
    plugin = folder / "plugin"
    plugin.write_text("#!/bin/sh\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    data = {
        "CA": cert_pem(ca[0]),
        "PARTLY": (folder / "partly.pem").read_bytes(),
        "CERT": (folder / "client.crt").read_bytes(),
        "KEY": (folder / "client.key").read_bytes(),
        "OTHERKEY": (folder / "other.key").read_bytes(),
    }
    for template in sorted(folder.glob("**/*.kubeconfig")):
        text = template.read_text()
        for name, content in data.items():
            text = text.replace(f"@{name}@", base64.b64encode(content).decode())
        template.write_text(text)
