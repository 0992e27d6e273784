"""Chains of servers' certificates of every kind, valid for a century, and a listener that shows one."""

from __future__ import annotations

from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mcproxy.config.model import Certificate, PEMFile
from mcproxy.net.certificate_store import CertificateStore
from mcproxy.net.pending_connection import ListenerSettings
from tests.identity.certificates import AUTHORITY, NO_AUTHORITY, SERVER, Extension, Held, Key, authority, user

CENTURY = (-3650.0, 36500.0)
PAST = (-3650.0, -3600.0)

CANNOT_MATCH: tuple[x509.GeneralName, ...] = (
    x509.DNSName("127.0.0.1"),
    x509.DNSName("*.local"),
    x509.DNSName("*"),
    x509.DNSName("foo.*.example.com"),
    x509.DNSName(""),
    x509.UniformResourceIdentifier("urn:uuid:1:2"),
    x509.UniformResourceIdentifier("https://h.example:6443/a"),
    x509.UniformResourceIdentifier(""),
    x509.UniformResourceIdentifier("spiffe://cluster.local/ns/a/sa/b"),
    x509.RFC822Name("a@example.com"),
    x509.DirectoryName(user("a.example.com")),
    x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
)
"""Names in subjectAltName that are not a server's."""


def root(
    name: str = "root", *extensions: Extension, key: Key | None = None, valid: tuple[float, float] = CENTURY
) -> Held:
    """Make a self-signed authority, without key identifiers."""
    return authority(name, *(extensions or (AUTHORITY,)), valid=valid, key=key)


def intermediate(
    issuer: Held,
    name: str = "intermediate",
    *extensions: Extension,
    key: Key | None = None,
    valid: tuple[float, float] = CENTURY,
) -> Held:
    """Make an authority that another one signed."""
    return issuer.issue(user(name), *(extensions or (AUTHORITY,)), valid=valid, key=key)


def server(
    issuer: Held, *names: str | x509.GeneralName, valid: tuple[float, float] = CENTURY, usage: Extension = SERVER
) -> Held:
    """Make a server's certificate for names, localhost unless others are given."""
    found = [name if isinstance(name, x509.GeneralName) else _name(name) for name in names or ("localhost",)]
    extensions = (NO_AUTHORITY, usage, (x509.SubjectAlternativeName(found), False))
    return issuer.issue(user("server"), *extensions, valid=valid)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem(*held: Held) -> bytes:
    """Return the certificates as a bundle."""
    return b"".join(one.pem for one in held)


def key_pem(held: Held) -> bytes:
    """Return the private key."""
    return held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def showing(*chain: Held) -> ListenerSettings:
    """Return the settings of a listener that shows a chain, leaf first."""
    shown = Certificate(name="a", chain=PEMFile("c", pem(*chain)), key=PEMFile("k", key_pem(chain[0])), server_names=())
    return ListenerSettings(certificates=CertificateStore.build([shown]))
