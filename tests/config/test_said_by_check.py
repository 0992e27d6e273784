"""What a file says that nobody can mean: includes without files, URLs with paths, others' objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors
from mcproxy.config.reading.include import kubernetes_object

URL = """\
version: 1
clusters: [{{name: a, identity: Passthrough, endpoints: [{{url: "https://10.0.0.1{}"}}]}}]
"""


def found(file: Path, text: str) -> tuple[list[str], list[str]]:
    """Return the names of the warnings, and the notes."""
    file.write_text(text)
    loaded = load(str(file), environ={})
    return [str(each.lint) for each in loaded.warnings], [each.what for each in loaded.notes]


def test_an_include_that_matches_nothing_is_a_warning_and_in_an_empty_folder_a_note(tmp_path: Path) -> None:
    file = tmp_path / "mcproxy.yaml"
    text = "version: 1\ninclude: [conf.d/*.yaml]\n"
    assert "include-nothing" in found(file, text)[0]  # there is no folder
    (tmp_path / "conf.d").mkdir()
    assert "include-nothing" not in found(file, text)[0]
    assert found(file, text)[1] == [f"no file matches {tmp_path}/conf.d/*.yaml: the folder is empty"]
    (tmp_path / "conf.d/.hidden.yaml").touch()
    assert "include-nothing" not in found(file, text)[0]
    (tmp_path / "conf.d/east.yml").touch()
    assert "include-nothing" in found(file, text)[0]
    assert "include-nothing" in found(file, text.replace("conf.d/", "none/*/"))[0]
    assert "include-nothing" not in found(file, text.rstrip() + "  # mcproxy: allow include-nothing\n")[0]
    (tmp_path / "conf.d/west.yaml").write_text("version: 1\n")
    assert "include-nothing" not in found(file, text)[0]


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("", False),
        ("/", False),
        ("/k8s/clusters/c-m-1", False),
        ("/clusters/east", False),
        ("/api", True),
        ("/apis/", True),
        ("/readyz", True),
        ("/foo", True),
    ],
)
def test_the_path_of_an_endpoint_is_a_warning_but_where_a_gateway_has_one_cluster(
    tmp_path: Path, path: str, told: bool
) -> None:
    assert ("url-path" in found(tmp_path / "f.yaml", URL.format(path))[0]) is told


@pytest.mark.parametrize(("path", "told"), [("/api", True), ("/k8s/clusters/c-1", False), ("", False)])
def test_so_is_that_of_a_kubeconfig(tmp_path: Path, path: str, told: bool) -> None:
    (tmp_path / "k").write_text(
        f'clusters: [{{name: c, cluster: {{server: "https://10.0.0.1{path}"}}}}]\n'
        "users: [{name: u, user: {token: t}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n"
    )
    text = "version: 1\nclusters: [{name: a, kubeconfig: {file: k}}]\n"
    assert ("url-path" in found(tmp_path / "f.yaml", text)[0]) is told


OBJECT = "apiVersion: {}\nkind: {}\nmetadata: {{name: a}}\nspec: {{}}\n"


@pytest.mark.parametrize(
    ("text", "kind", "command"),
    [
        (OBJECT.format("proxy.kubegateway.io/v1alpha1", "UpstreamCluster"), "UpstreamCluster", "upstreamcluster"),
        (OBJECT.format("search.karmada.io/v1alpha1", "ResourceRegistry"), "ResourceRegistry", "resourceregistry"),
        (OBJECT.format("cluster.karmada.io/v1alpha1", "Cluster"), "Cluster", "resourceregistry"),
        ("apiVersion: v1\nclusters: []\nkind: Config\n", "Config", "kubeconfig"),
        (
            "---\napiVersion: v1\nkind: Secret\n---\napiVersion: x/v1\nkind: UpstreamCluster\n",
            "UpstreamCluster",
            "upst",
        ),
        (
            json.dumps(
                {"apiVersion": "v1", "items": [{"apiVersion": "a/b", "kind": "UpstreamCluster"}], "kind": "List"},
                indent=2,
            ),
            "UpstreamCluster",
            "upstreamcluster",
        ),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {}\n", "ConfigMap", ""),
    ],
)
def test_an_object_of_kubernetes_is_told_about_import(tmp_path: Path, text: str, kind: str, command: str) -> None:
    file = tmp_path / "o.yaml"
    file.write_text(text)
    with pytest.raises(ConfigErrors) as caught:
        load(str(file), environ={})
    (problem,) = caught.value.problems
    assert f"kind {kind}" in problem.what
    assert (f"`mcproxy import {command}" in (problem.right or "")) is bool(command)


def test_a_configuration_with_a_kind_or_an_api_version_somewhere_is_none() -> None:
    text = b"version: 1\nclusters:\n  - name: a\n    kind: Foo\napiVersion: v1\n"
    assert kubernetes_object(text) is None
    assert kubernetes_object(b"listeners: []\n") is None
    assert kubernetes_object(b"") is None
