"""A simulated cluster in its own process."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path

import pytest

from kubesim.apimachinery.user import User
from kubesim.auth import rbac
from kubesim.request.call import request_info
from kubesim.server import serve
from tests.simulated_cluster.process import SimulatedClusterProcess


def _get(
    cluster: SimulatedClusterProcess, url: str, user: str, body: dict[str, object] | None = None
) -> dict[str, object]:
    """GET, or POST with a body."""
    context = ssl.create_default_context(cafile=cluster.ca)
    pair = cluster.user(user)
    context.load_cert_chain(pair.certificate, pair.key)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        content: dict[str, object] = json.load(answer)
    return content


def test_every_endpoint_serves_the_same_cluster(tmp_path: Path) -> None:
    cluster = SimulatedClusterProcess("east", options=("--endpoints", "2", "--empty"), directory=tmp_path)
    with cluster:
        answers = [_get(cluster, f"{url}/api/v1/namespaces/default", "admin") for url in cluster.urls]
        records = cluster.control("/audit")["records"]
    assert len(answers) == 2
    assert answers[0] == answers[1]
    assert {record["endpoint"] for record in records} == {0, 1}
    assert {record["user"] for record in records} == {"admin"}


def test_sigterm_ends_it_with_status_0(tmp_path: Path) -> None:
    cluster = SimulatedClusterProcess("east", options=("--empty",), directory=tmp_path).start()
    assert cluster.stop() == 0


def test_a_cluster_that_is_killed_and_started_with_its_data_is_the_same(tmp_path: Path) -> None:
    options = ("--empty", "--data", str(tmp_path / "data"))
    cluster = SimulatedClusterProcess("east", options=options, directory=tmp_path).start()
    ca, path = Path(cluster.ca).read_bytes(), "/apis/example.com/v1/namespaces/default/widgets"
    crd: dict[str, object] = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    widget: dict[str, object] = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    _get(cluster, cluster.url + definitions, "admin", crd)
    _get(cluster, cluster.url + path, "admin", widget)
    before = _get(cluster, cluster.url + path, "admin")
    cluster.kill()
    with cluster:
        assert Path(cluster.ca).read_bytes() == ca
        assert _get(cluster, cluster.url + path, "admin") == before


@pytest.mark.parametrize("options", [(), ("--empty",)], ids=["with objects", "empty"])
def test_the_users_have_the_rights_of_the_recorded_cluster(options: tuple[str, ...]) -> None:
    cluster = serve.make_cluster(serve.arguments(["--name", "east", "--dir", ".", *options]))

    def may(user: str, method: str, path: str) -> bool:
        info = request_info(method, path, {})
        return rbac.decide(cluster, User(user), rbac.Attributes.of(info)).allowed

    assert may("alice", "GET", "/api/v1/namespaces/demo/pods/p/log")
    assert may("alice", "PATCH", "/apis/apps/v1/namespaces/demo/deployments/web")
    assert not may("alice", "GET", "/api/v1/namespaces/demo/secrets")
    assert not may("alice", "GET", "/api/v1/namespaces/default/pods")
    assert may("mcproxy", "POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert may("mcproxy", "GET", "/metrics")
    assert not may("mcproxy", "GET", "/api/v1/pods")
