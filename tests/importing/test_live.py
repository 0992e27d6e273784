"""Objects read from an API by the real kubernetes package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.cli.main import main
from mcproxy.importing import live_cluster
from mcproxy.importing.object_files import UnusableError
from tests.importing.api import API, serving, write_kubeconfig
from tests.importing.builders import karmada_cluster, karmada_secret, registry, upstream_cluster

UPSTREAM = ("proxy.kubegateway.io", "v1alpha1", "upstreamclusters")
PATH = "/apis/proxy.kubegateway.io/v1alpha1/upstreamclusters"


@pytest.fixture
def api() -> Iterator[API]:
    with serving() as server:
        yield server


@pytest.fixture
def kubeconfig(api: API, tmp_path: Path) -> str:
    return write_kubeconfig(tmp_path / "kubeconfig", api, "gateway")


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
        live_cluster.read(kubeconfig, "gateway", [UPSTREAM])


def test_an_answer_has_a_bound(api: API, kubeconfig: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_cluster, "_MAX_PAGE", 1000)
    api.raw[PATH] = b'{"items": [], "x": "' + b"x" * 1000 + b'"}'
    with pytest.raises(UnusableError, match="is larger than"):
        live_cluster.read(kubeconfig, "gateway", [UPSTREAM])


def test_without_the_package_the_remedy_is_said(
    kubeconfig: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert main(["import", "upstreamcluster", "--live", "--kubeconfig", kubeconfig]) == 1
    assert "requirements/all.lock" in capsys.readouterr().err
