"""What is warned of that the cases cannot show: permissions of files, and certificates that clients would refuse."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from mcproxy.config.files import pem
from mcproxy.config.load import load
from tests.config import pki
from tests.config.pki import NOW

TEXT = """version: 1
listeners: [{name: l, bind: "127.0.0.1:0", tls: {certificates: [a]}}]
certificates: [{name: a, certFile: a.crt, keyFile: a.key}]
clusters: [{name: a, endpoints: [{url: "https://10.0.0.1"}], credentials: {tokenFile: token},
  proxy: {url: "http://proxy:3128", user: edge, passwordFile: proxy-password}}]
authentication: [{name: all, tokenFile: tokens.csv}]
servers: [{name: a, default: true, backend: {cluster: a}, authentication: all}]
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter, as pytest's own may not be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        certificate, key = pki.make("a", names=("a.example.com",))
        (path / "a.crt").write_bytes(pki.cert_pem(certificate))
        (path / "a.key").write_bytes(pki.key_pem(key))
        (path / "token").write_text("t")
        (path / "proxy-password").write_text("p")
        (path / "tokens.csv").write_text("t,alice,1\n")
        (path / "mcproxy.yaml").write_text(TEXT)
        for file in path.iterdir():
            file.chmod(0o640)
        yield path


def warnings(folder: Path) -> list[str]:
    found = load(str(folder / "mcproxy.yaml"), environ={}, now=NOW).warnings
    return [f"{warning.key}: {warning.lint}: {warning.what}".replace(f"{folder}/", "") for warning in found]


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("a.key", "certificates[0].keyFile"),
        ("token", "clusters[0].credentials.tokenFile"),
        ("tokens.csv", "authentication[0].tokenFile"),
        ("proxy-password", "clusters[0].proxy.passwordFile"),
    ],
)
def test_a_world_readable_secret_is_a_warning(folder: Path, file: str, key: str) -> None:
    assert warnings(folder) == []
    (folder / file).chmod(0o644)
    assert warnings(folder) == [f"{key}: readable-secret: every user of this machine may read {file}"]
    folder.chmod(0o750)  # nobody else gets there
    assert warnings(folder) == []


@pytest.mark.parametrize(
    ("user", "proxy", "warned"),
    [
        ("{token: t}", "", True),
        ("{tokenFile: token}", "", False),
        ("{tokenFile: token}", "http://edge:hush@proxy:3128", True),
        ("{tokenFile: token}", "http://proxy:3128", False),
    ],
)
def test_a_world_readable_kubeconfig_with_secrets_is_a_warning(
    folder: Path, user: str, proxy: str, warned: bool
) -> None:
    (folder / "k").write_text(
        f"clusters: [{{name: c, cluster: {{server: 'https://10.0.0.1', proxy-url: '{proxy}'}}}}]\n"
        f"users: [{{name: u, user: {user}}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
    )
    (folder / "k").chmod(0o644)
    text = TEXT.replace(
        'endpoints: [{url: "https://10.0.0.1"}], credentials: {tokenFile: token},', "kubeconfig: {file: k}}]"
    ).replace('  proxy: {url: "http://proxy:3128", user: edge, passwordFile: proxy-password}}]\n', "")
    (folder / "mcproxy.yaml").write_text(text)
    what = "clusters[0].kubeconfig.file: readable-secret: every user of this machine may read k"
    assert warnings(folder) == ([what] if warned else [])


def test_a_world_readable_certificate_is_no_warning(folder: Path) -> None:
    (folder / "a.crt").chmod(0o644)
    assert warnings(folder) == []


def test_a_comment_switches_a_warning_off(folder: Path) -> None:
    (folder / "token").chmod(0o644)
    text = TEXT.replace("{tokenFile: token},", "{tokenFile: token},  # mcproxy: allow readable-secret")
    (folder / "mcproxy.yaml").write_text(text)
    assert warnings(folder) == []


def certificate(*usages: ObjectIdentifier) -> x509.Certificate:
    made, key = pki.make("a", names=("a.example.com",))
    builder = (
        x509.CertificateBuilder(made.issuer, made.subject, made.public_key(), made.serial_number)
        .not_valid_before(pki.START)
        .not_valid_after(pki.END)
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(key, hashes.SHA256())


def test_a_certificate_for_clients_only_is_none_for_servers() -> None:
    usage = ExtendedKeyUsageOID
    assert pem.is_for_servers(certificate())
    assert pem.is_for_servers(certificate(usage.SERVER_AUTH, usage.CLIENT_AUTH))
    assert pem.is_for_servers(certificate(usage.ANY_EXTENDED_KEY_USAGE))
    assert not pem.is_for_servers(certificate(usage.CLIENT_AUTH))


def test_a_server_certificate_for_clients_only_is_warned_of(folder: Path) -> None:
    made, key = pki.make("a", names=("a.example.com",))
    builder = x509.CertificateBuilder(made.issuer, made.subject, made.public_key(), made.serial_number)
    names = x509.SubjectAlternativeName([x509.DNSName("a.example.com")])
    signed = (
        builder.not_valid_before(pki.START)
        .not_valid_after(pki.END)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "a.crt").write_bytes(pki.cert_pem(signed))
    (folder / "a.key").write_bytes(pki.key_pem(key))
    os.chmod(folder / "a.key", 0o600)
    what = (
        "certificates[0].certFile: certificate-usage: the certificate in a.crt is for clients only (extendedKeyUsage)"
    )
    assert warnings(folder) == [what]
