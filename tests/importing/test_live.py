"""Objects read from an API by the real kubernetes package."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcproxy.cli.main import main
from mcproxy.importing import live
from mcproxy.importing.objects import UnusableError
from tests.importing.builders import karmada_cluster, karmada_secret, registry, upstream_cluster

UPSTREAM = ("proxy.kubegateway.io", "v1alpha1", "upstreamclusters")
PATH = "/apis/proxy.kubegateway.io/v1alpha1/upstreamclusters"


class API(ThreadingHTTPServer):
    """A small API: lists by path, in pages of two, objects by path, and whatever else as bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.raw: dict[str, bytes] = {}
        self.status: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    server: API

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.server.asked.append((parts.path, self.headers.get("Authorization", "")))
        status, answer = self.server.status.get(parts.path, 200), b"{}"
        if parts.path in self.server.raw:
            answer = self.server.raw[parts.path]
        elif parts.path in self.server.lists:
            start = int(query.get("continue", 0))
            found = self.server.lists[parts.path]
            following = {"continue": str(start + 2)} if start + 2 < len(found) else {}
            answer = json.dumps({"kind": "List", "metadata": following, "items": found[start : start + 2]}).encode()
        elif parts.path in self.server.objects:
            answer = json.dumps(self.server.objects[parts.path]).encode()
        else:
            status = 404
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def api() -> Iterator[API]:
    with API() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def kubeconfig(api: API, tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "none",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "operator"}}],
        "contexts": [{"name": "gateway", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return str(path)


def test_upstream_clusters_come_in_pages(
    api: API, kubeconfig: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"c{number}.example.com" for number in range(5)]
    api.lists[PATH] = [upstream_cluster(name) for name in names]
    output = tmp_path / "out" / "mcproxy.yaml"
    output.parent.mkdir()
    command = ["import", "upstreamcluster", "--live", "--kubeconfig", kubeconfig, "--context", "gateway"]
    assert main([*command, "--output", str(output)]) == 0
    assert [path for path, _ in api.asked] == [PATH] * 3
    assert {authorization for _, authorization in api.asked} == {"Bearer operator"}
    assert output.read_text().count("backend:") == 5
    assert main(["check", "-q", "--offline", str(output)]) == 0
    assert "very-secret" not in capsys.readouterr().err


def test_karmada_comes_with_its_secrets(api: API, kubeconfig: str, tmp_path: Path) -> None:
    api.lists["/apis/cluster.karmada.io/v1alpha1/clusters"] = [karmada_cluster("east"), karmada_cluster("west")]
    api.lists["/apis/search.karmada.io/v1alpha1/resourceregistries"] = [
        registry("r", {"apiVersion": "v1", "kind": "Pod"})
    ]
    secret = karmada_secret("east")
    del secret["kind"], secret["apiVersion"]  # as the API answers a client that names them itself
    api.objects["/api/v1/namespaces/karmada-cluster/secrets/east"] = secret
    output = tmp_path / "fleet.yaml"
    command = ["import", "resourceregistry", "--live", "--kubeconfig", kubeconfig, "--context", "gateway"]
    assert main([*command, "--output", str(output)]) == 3  # west has no Secret
    text = output.read_text()
    assert "Cluster west: left out: spec.secretRef: the Secret karmada-cluster/west is not there" in text
    assert "resource: pods" in text
    assert (tmp_path / "fleet-files" / "east_token").read_bytes() == b"very-secret-token"


@pytest.mark.parametrize(("status", "advice"), [(403, "whose user may do that"), (404, "is this the right context?")])
def test_a_refusal_has_advice(
    api: API, kubeconfig: str, capsys: pytest.CaptureFixture[str], status: int, advice: str
) -> None:
    api.status[PATH] = status
    api.lists[PATH] = []
    assert main(["import", "upstreamcluster", "--live", "--kubeconfig", kubeconfig, "--context", "gateway"]) == 1
    assert advice in capsys.readouterr().err


def test_a_context_that_is_not_there(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "upstreamcluster", "--live", "--kubeconfig", kubeconfig, "--context", "x"]) == 1
    assert "the kubeconfig cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    "raw",
    [b"hello", b"[]", b"[" * 200_000, b'{"items": [7]}', b'{"items": [], "metadata": {"continue": "on"}}', b"{}" * 9],
    ids=["text", "list", "deep", "no object", "endless", "more"],
)
def test_an_answer_that_is_no_list_is_refused(api: API, kubeconfig: str, raw: bytes) -> None:
    api.raw[PATH] = raw
    with pytest.raises(UnusableError):
        live.read(kubeconfig, "gateway", [UPSTREAM])


def test_an_answer_has_a_bound(api: API, kubeconfig: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MAX_PAGE", 1000)
    api.raw[PATH] = b'{"items": [], "x": "' + b"x" * 1000 + b'"}'
    with pytest.raises(UnusableError, match="is larger than"):
        live.read(kubeconfig, "gateway", [UPSTREAM])


def test_without_the_package_the_remedy_is_said(
    kubeconfig: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert main(["import", "upstreamcluster", "--live", "--kubeconfig", kubeconfig]) == 1
    assert "pip install 'mcproxy[import]'" in capsys.readouterr().err
