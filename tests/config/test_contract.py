"""The configuration contract, with every file that it names: nothing of it is refused."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from mcproxy.config.load import load
from tests.config import pki
from tests.config.pki import NOW

CONTRACT = Path(__file__).with_name("contract.yaml")
KUBECONFIG = """
clusters: [{name: c, cluster: {server: "https://10.1.0.13:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: admin, context: {cluster: c, user: u}}]
current-context: admin
"""


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    for folder in ("tls", "east", "metrics", "conf.d"):
        (tmp_path / folder).mkdir()
    ca, clients, front = (pki.make(name) for name in ("Test CA", "Clients CA", "Front CA"))
    for file, authority in (
        ("east/ca", ca),
        ("metrics/ca", ca),
        ("tls/idp-ca", ca),
        ("tls/redis-ca", ca),
        ("tls/hub-ca", ca),
        ("tls/clients-ca", clients),
        ("tls/front-proxy-ca", front),
    ):
        (tmp_path / f"{file}.crt").write_bytes(pki.cert_pem(authority[0]))
    (tmp_path / "tls/clients.crl").write_bytes(pki.crl(clients).public_bytes(Encoding.PEM))
    names = ("k8s.example.com", "*.k8s.example.com", "*.east.k8s.example.com")
    for name in ("fleet", "east", "front-proxy", "edge"):
        certificate, key = pki.make(name, names=names, issuer=ca)
        (tmp_path / f"tls/{name}.crt").write_bytes(pki.cert_pem(certificate))
        (tmp_path / f"tls/{name}.key").write_bytes(pki.key_pem(key))
    for file in ("east/token", "metrics/token", "redis-password", "proxy-password"):
        (tmp_path / file).write_text("t")
    for file in ("west.kubeconfig", "webhook.kubeconfig"):
        (tmp_path / file).write_text(KUBECONFIG)
    (tmp_path / "users.csv").write_text('hush,alice,1,"dev,ops"\n')
    (tmp_path / "jwks.json").write_bytes((CONTRACT.parent / "cases/jwks/good.json").read_bytes())
    path = tmp_path / "mcproxy.yaml"
    path.write_bytes(CONTRACT.read_bytes())
    return path


def test_all_of_it_is_accepted(contract: Path) -> None:
    loaded = load(str(contract), environ={}, now=NOW)
    assert [warning.key for warning in loaded.warnings] == [
        "daemon.sharedState",
        "clusters[0].frontProxy",
        "authentication[0].clientCertificates.caFile",
        "authentication[0].tokenReview.cluster",
        "authentication[0].oidc[0].caFile",
        "authorization[1].rules[0].resources",
        "flowControls[2]",
        "aggregates[0].conflicts[0]",
        "ingresses[0].tls",  # its one listener is plain
        "ingresses[0].tls[0].hosts[0]",
    ]
