"""The configuration contract, with every file that it names: what is not supported yet is refused, and nothing else."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors
from tests.config import pki
from tests.config.pki import NOW

CONTRACT = Path(__file__).with_name("contract.yaml")
NOT_BUILT = [
    "ingresses",
    "listeners[2].serves",
    "servers[2].apiServices",
    "serviceDiscovery",
    "serviceExports",
]
KUBECONFIG = """
clusters: [{name: c, cluster: {server: "https://10.1.0.13:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: admin, context: {cluster: c, user: u}}]
current-context: admin
"""


@pytest.fixture
def contract(tmp_path: Path) -> Path:
    for folder in ("tls", "east", "metrics"):
        (tmp_path / folder).mkdir()
    ca, clients, front = (pki.make(name) for name in ("Test CA", "Clients CA", "Front CA"))
    for file, authority in (
        ("east/ca", ca),
        ("metrics/ca", ca),
        ("tls/idp-ca", ca),
        ("tls/redis-ca", ca),
        ("tls/clients-ca", clients),
        ("tls/front-proxy-ca", front),
    ):
        (tmp_path / f"{file}.crt").write_bytes(pki.cert_pem(authority[0]))
    (tmp_path / "tls/clients.crl").write_bytes(pki.crl(clients).public_bytes(Encoding.PEM))
    names = ("k8s.example.com", "*.k8s.example.com", "*.east.k8s.example.com")
    for name in ("fleet", "east", "front-proxy"):
        certificate, key = pki.make(name, names=names, issuer=ca)
        (tmp_path / f"tls/{name}.crt").write_bytes(pki.cert_pem(certificate))
        (tmp_path / f"tls/{name}.key").write_bytes(pki.key_pem(key))
    for file in ("east/token", "metrics/token", "redis-password"):
        (tmp_path / file).write_text("t")
    for file in ("west.kubeconfig", "webhook.kubeconfig"):
        (tmp_path / file).write_text(KUBECONFIG)
    (tmp_path / "users.csv").write_text('hush,alice,1,"dev,ops"\n')
    (tmp_path / "jwks.json").write_bytes((CONTRACT.parent / "cases/jwks/good.json").read_bytes())
    path = tmp_path / "mcproxy.yaml"
    path.write_bytes(CONTRACT.read_bytes())
    return path


def test_only_what_is_not_supported_yet_is_refused(contract: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(str(contract), environ={}, now=NOW)
    assert [str(problem) for problem in caught.value.problems if "not supported yet" not in problem.what] == []
    assert sorted(problem.key for problem in caught.value.problems) == NOT_BUILT


def test_what_it_shows_without_using_it_is_warned_of(contract: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(str(contract), environ={}, now=NOW)
    assert [problem.key for problem in caught.value.warnings] == [
        "daemon.sharedState",
        "clusters[0].frontProxy",
        "authentication[0].tokenReview.cluster",
        "authentication[0].oidc[0].caFile",
        "authorization[1]",
        "authorization[1].rules[0].resources",
        "flowControls[2]",
    ]
