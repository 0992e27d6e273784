"""Karmada's ServiceExport and ServiceImport, with the policies that say which clusters have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcproxy.config import model
from tests.importing.ingress.test_import_ingress import Imported

EXPORT = "{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ServiceExport, metadata: {name: serve, namespace: demo}}"
IMPORT = """\
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceImport
metadata: {name: serve, namespace: demo}
spec: {type: ClusterSetIP, ports: [{name: http, port: 80, protocol: TCP}]}
"""


def policy(kind: str, clusters: str, *, scope: str = "", select: str = "name: serve", **more: str) -> str:
    namespace = more.get("namespace", "demo")
    metadata = f"{{name: p-{kind.lower()}" + ("}" if scope else f", namespace: {namespace}}}")
    return f"""\
apiVersion: policy.karmada.io/v1alpha1
kind: {scope}PropagationPolicy
metadata: {metadata}
spec:
  resourceSelectors: [{{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: {kind}, {select}}}]
  placement: {{clusterAffinity: {clusters}}}
"""


NAMED = policy("ServiceExport", "{clusterNames: [member1]}")
OTHER = policy("ServiceExport", "{clusterNames: [member1]}", namespace="other")


def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str], *documents: str, **options: Any) -> Imported:
    (tmp_path / "k.yaml").write_text("\n---\n".join(documents))
    clusters = [word for name in options.get("clusters", ()) for word in ("--cluster", name)]
    return Imported(tmp_path, capsys, str(tmp_path / "k.yaml"), *clusters)


def test_the_policies_say_where_it_is_exported_and_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = imported(
        tmp_path,
        capsys,
        EXPORT,
        IMPORT,
        policy("ServiceExport", "{clusterNames: [member1, member2]}"),
        policy("ServiceImport", "{clusterNames: [member3]}", scope="Cluster", select="namespace: demo"),
    )
    [export] = made.loaded().service_exports
    assert (export.service, export.from_clusters, export.to) == ("serve", ("member1", "member2"), ("member3",))
    assert export.made_as is model.ExportAs.DERIVED
    assert export.type is model.ExportType.CLUSTER_SET_IP
    assert [(port.name, port.port, port.protocol) for port in export.ports] == [("http", 80, "TCP")]
    assert made.status == 0


def test_an_affinity_without_names_is_all_clusters_but_those_that_it_excludes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = imported(
        tmp_path,
        capsys,
        EXPORT,
        IMPORT,
        policy("ServiceExport", "{clusterNames: [member1]}"),
        policy("ServiceImport", "{exclude: [member1]}"),
        clusters=("member1", "member2", "member3"),
    )
    [export] = made.loaded().service_exports
    assert export.to == ("member2", "member3")


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([NAMED], "no policy propagates ServiceImport demo/serve: add its PropagationPolicy"),
        (
            [NAMED, policy("ServiceImport", "{labelSelector: {matchLabels: {a: b}}}")],
            "which clusters this selects is not known without Karmada: write clusterNames",
        ),
        (
            [policy("ServiceExport", "{clusterNames: [member1]}", select="labelSelector: {matchLabels: {a: b}}")],
            "what it selects is not known: name the objects",
        ),
        ([OTHER], "no policy propagates ServiceExport demo/serve"),
    ],
)
def test_nothing_is_guessed(
    documents: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingress = (
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, namespace: b}, spec: {rules: [{http: "
        "{paths: [{path: /, pathType: Prefix, backend: {service: {name: c, port: {number: 1}}}}]}}]}}"
    )
    made = imported(tmp_path, capsys, EXPORT, IMPORT, ingress, *documents, clusters=("member1", "member2"))
    assert not made.loaded().service_exports
    assert any("ServiceImport demo/serve" in line and said in line for line in made.said)
    assert made.status == 3
