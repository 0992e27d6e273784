"""Ingresses and services of Kubernetes and Karmada become the file's own, and what does not is named with its place."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.cli.main import main
from mcproxy.config.load import load
from mcproxy.config.model import Affinity, BackendProtocol, Config, Strategy
from mcproxy.services.ingress.router import Router, routes_of
from tests.config import pki

MANIFESTS = Path(__file__).with_name("manifests")
CLUSTERS = """
version: 1
include: [imported.yaml]
clusters:
  - {name: member1, endpoints: [{url: "https://10.0.0.1"}], credentials: {token: t}}
  - {name: member2, endpoints: [{url: "https://10.0.0.2"}], credentials: {token: t}}
  - {name: member3, endpoints: [{url: "https://10.0.0.3"}], credentials: {token: t}}
"""


def secret(name: str, *names: str, namespace: str = "shop") -> str:
    certificate, key = pki.make(name, names=names)
    data = {"tls.crt": pki.cert_pem(certificate), "tls.key": pki.key_pem(key)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": namespace},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
    )


class Imported:
    """What a run of the command wrote and said."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.output = folder / "imported.yaml"
        self.status = main(["import", "ingress", *arguments, "--output", str(self.output), "--force"])
        said = capsys.readouterr().err
        self.said = [line.removeprefix("mcproxy import: ").replace(f"{MANIFESTS}/", "") for line in said.splitlines()]
        self._folder = folder

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.output.read_text())
        return found

    def loaded(self) -> Config:
        (self._folder / "mcproxy.yaml").write_text(CLUSTERS)
        return load(str(self._folder / "mcproxy.yaml"), environ={}).config


def targets(config: Config, listener: str, *requests: str) -> list[str]:
    """Return which service and port each request gets."""
    router = Router((route, route) for route in routes_of(one for one in config.ingresses if listener in one.listeners))
    found = []
    for request in requests:
        host, _, path = request.partition("/")
        route = router.find(host.encode(), f"/{path}".encode())
        backend = route[0].shares[0][0] if route is not None else None
        found.append("none" if backend is None else f"{backend.namespace}/{backend.service}:{backend.port}")
    return found


def test_ingresses_of_nginx_are_routed_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "secret.yaml").write_text(secret("shop-tls", "shop.example.com", "www.shop.example.com"))
    made = Imported(
        tmp_path, capsys, str(MANIFESTS / "shop.yaml"), str(tmp_path / "secret.yaml"),
        "--cluster", "member1", "--cluster", "member2",
    )  # fmt: skip
    assert made.status == 3
    config = made.loaded()
    assert [each.name for each in config.listeners] == ["web", "web-tls"]
    assert config.listeners[1].tls is not None
    assert config.listeners[1].tls.hosts == (
        ("shop.example.com", "shop.shop-tls"),
        ("www.shop.example.com", "shop.shop-tls"),
    )
    assert targets(
        config, "web-tls", "shop.example.com/", "shop.example.com/api/v1", "shop.example.com/apis",
        "shop.example.com/healthz", "www.shop.example.com/healthz", "a.grpc.example.com/pkg.Service/Method",
        "admin.example.com/", "assets.example.com/x", "unknown.test/",
    ) == [
        "shop/frontend:http", "shop/api:8080", "shop/frontend:http", "shop/frontend:80", "shop/frontend:80",
        "shop/cart:50051", "default/pages:80", "default/pages:80", "default/pages:80",
    ]  # fmt: skip
    frontend = config.ingresses[0]
    backend = frontend.rules[0].paths[0].backend
    assert frontend.redirect_to_tls
    assert backend is not None
    assert backend.clusters == ("member1", "member2")
    assert backend.affinity is Affinity.COOKIE
    assert (backend.connect_timeout, backend.response_timeout, backend.read_timeout) == (10.0, 3600.0, 3600.0)
    assert backend.cookie is not None
    assert backend.cookie.name == "route"
    filters = frontend.rules[0].paths[0].filters
    assert filters is not None
    assert filters.body_bytes == 50 * 1024 * 1024
    grpc = config.ingresses[1].rules[0].paths[0].backend
    assert grpc is not None
    assert (grpc.protocol, grpc.strategy, grpc.retries) == (BackendProtocol.GRPC, Strategy.LEAST_REQUESTS, 2)


def test_what_is_not_carried_over_is_named_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Imported(tmp_path, capsys, str(MANIFESTS / "shop.yaml"), "--cluster", "member1")
    annotation = "metadata.annotations"
    assert made.said[:-1] == [
        "shop.yaml:78:9: Ingress shop/admin: "
        f'{annotation}["nginx.ingress.kubernetes.io/auth-url"]: left out: nginx.ingress.kubernetes.io/auth-url '
        "restricts requests, and mcproxy has nothing like it for an ingress",
        f'shop.yaml:15:5: Ingress shop/frontend: {annotation}["cert-manager.io/cluster-issuer"]: '
        "cert-manager.io/cluster-issuer is not carried over",
        "shop.yaml:27:3: Ingress shop/frontend: spec.ingressClassName: is not carried over: the ingress is on the "
        "listeners that it names",
        "shop.yaml:29:7: Ingress shop/frontend: spec.tls[0]: is not carried over, so these hosts are served "
        "without TLS: the Secret shop/shop-tls is not there; add it to the files",
        "shop.yaml:38:13: Ingress shop/frontend: spec.rules[0].http.paths[1]: ImplementationSpecific is carried over "
        "as Prefix, as ingress-nginx has it",
        f'shop.yaml:66:9: Ingress shop/grpc: {annotation}["nginx.ingress.kubernetes.io/load-balance"]: ewma is carried '
        "over as LeastRequests, which is like it",
        f'shop.yaml:90:9: Ingress shop/rewritten: {annotation}["nginx.ingress.kubernetes.io/use-regex"]: is carried '
        "over for the paths of this object; case counts in them",
        "shop.yaml:105:17: Ingress default/fallback: spec.rules[0].http.paths[0].backend: is not carried over: it is "
        "no service",
        "shop.yaml:106:11: Ingress default/fallback: spec.rules[1]: has no http, so its host is for the default "
        "backend, as any other is",
    ]
    assert made.status == 3
    comments = [line for line in made.output.read_text().splitlines() if line.startswith("#")]
    assert any("shop/admin" in line for line in comments)
    assert [each.name for each in made.loaded().listeners] == ["web"]  # nothing has a certificate


def test_karmada_says_itself_which_clusters_have_a_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Imported(tmp_path, capsys, str(MANIFESTS / "karmada.yaml"), "--cluster", "member1", "--cluster", "member3")
    config = made.loaded()
    exports = [(each.name, each.service, each.from_clusters, each.to) for each in config.service_exports]
    assert exports == [
        ("demo.serve", "serve", ("member1", "member2"), ("member3",)),
        ("demo.everywhere", "everywhere", ("member1", "member3"), ("member1", "member3")),
    ]
    assert [(port.name, port.port) for port in config.service_exports[0].ports] == [("http", 80)]
    [ingress] = config.ingresses
    assert [path.backend and path.backend.clusters for path in ingress.rules[0].paths] == [
        ("member1", "member2"),
        ("member1", "member3"),
    ]
    said = "\n".join(made.said)
    assert "karmada.yaml:15:8: MultiClusterService demo/everywhere: spec.types: LoadBalancer is not carried" in said
    assert "MultiClusterService demo/lb: left out: it is not CrossCluster" in said
    assert "ServiceExport demo/serve: left out: serviceDiscovery: {enabled: true} follows it" in said
    assert {each.made_as.value for each in config.service_exports} == {
        "SameName"
    }  # Karmada's has the service's own name
    assert made.status == 3


def test_listeners_of_the_operators_own_file_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "i.yaml").write_text(
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, namespace: b}, spec: {rules: [{http: "
        "{paths: [{path: /, pathType: Prefix, backend: {service: {name: c, port: {number: 1}}}}]}}]}}"
    )
    made = Imported(tmp_path, capsys, str(tmp_path / "i.yaml"), "--cluster", "member1", "--listener", "front")
    assert made.status == 0
    assert list(made.document) == ["version", "ingresses"]
    assert made.document["ingresses"][0]["listeners"] == ["front"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "f.yaml:1"),
        ("[1]", "is not a Kubernetes object"),
        ("{apiVersion: networking.k8s.io/v1, kind: Ingress}", "a Ingress has no metadata.name"),
        ("{apiVersion: v1, kind: Pod, metadata: {name: a}}", "there is no Ingress, MultiClusterIngress"),
        (
            "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: {rules: {}}}",
            "spec.rules: left out: is not a list",
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: {defaultBackend: "
            "{service: {name: c, port: {number: 1}}}}}",
            "nothing says which clusters have the service c: give --cluster NAME",
        ),
        (
            "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, annotations: "
            "{traefik.ingress.kubernetes.io/router.middlewares: x}}, spec: {}}",
            "restricts requests",
        ),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    (tmp_path / "f.yaml").write_text(text)
    made = Imported(tmp_path, capsys, str(tmp_path / "f.yaml"))
    assert said in "\n".join(made.said)
    assert made.status == 78
    assert not made.output.exists()


def test_an_object_that_the_loader_refuses_leaves_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = "{name: %s, namespace: b}, spec: {rules: [{host: %s, http: {paths: [{path: /, pathType: Prefix, backend: "
    one = "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: " + one
    one += "{service: {name: c, port: {number: 1}}}}]}}]}}"
    objects = (one % each for each in (("a", "x.test"), ("d", "x.test"), ("e", "10.1.1.1")))
    (tmp_path / "f.yaml").write_text("\n---\n".join(objects))
    made = Imported(tmp_path, capsys, str(tmp_path / "f.yaml"), "--cluster", "member1")
    assert made.status == 3
    assert [each["name"] for each in made.document["ingresses"]] == ["b.a"]
    said = "\n".join(made.said)
    assert "f.yaml:3:1: Ingress b/d: left out: " in said
    assert "f.yaml:5:1: Ingress b/e: left out: " in said


def test_secrets_go_to_files_of_this_user_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(secret("shop-tls", "shop.example.com", "www.shop.example.com"))
    Imported(tmp_path, capsys, str(MANIFESTS / "shop.yaml"), str(tmp_path / "s.yaml"), "--cluster", "member1")
    files = sorted((tmp_path / "imported-files").iterdir())
    assert [file.name for file in files] == ["shop.shop-tls_tls.crt", "shop.shop-tls_tls.key"]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
