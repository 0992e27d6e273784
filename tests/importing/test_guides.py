"""The commands of the two guides of migration, in their order, on objects as they would be there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.cli.main import build_parser, main
from tests.importing.api import serving, write_kubeconfig
from tests.importing.builders import ca, karmada_cluster, karmada_secret, pair, registry, upstream_cluster
from tests.support.ports import reserved_port

DOCS = Path(__file__).parents[2] / "docs"
CUSTOM = {
    "upstreamclusters": "/apis/proxy.kubegateway.io/v1alpha1/upstreamclusters",
    "clusters": "/apis/cluster.karmada.io/v1alpha1/clusters",
    "resourceregistries": "/apis/search.karmada.io/v1alpha1/resourceregistries",
}
OBJECTS: dict[str, list[dict[str, Any]]] = {
    "upstreamclusters": [upstream_cluster("east.example.com")],
    "clusters": [karmada_cluster("member1")],
    "resourceregistries": [registry("all", {"apiVersion": "v1", "kind": "Pod"})],
    "secrets": [karmada_secret("member1")],
}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with what the guides take to be there, and a control plane that --live reads."""
    (tmp_path / "tls").mkdir()
    chain, key = pair("fleet.example.com")
    for name, data in (("fleet.crt", chain + ca()), ("fleet.key", key)):
        (tmp_path / "tls" / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    with serving() as api:
        api.lists = {path: OBJECTS[plural] for plural, path in CUSTOM.items()}
        api.objects = {"/api/v1/namespaces/karmada-cluster/secrets/member1": OBJECTS["secrets"][0]}
        path = write_kubeconfig(tmp_path / "kubeconfig", api, "gateway", "karmada-apiserver")
        monkeypatch.setenv("KUBECONFIG", path)
        yield


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", (DOCS / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def run(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "kubectl":
        assert words[-4:-1] == ["-o", "yaml", ">"]
        plurals = words[words.index("get") + 1].split(",")
        items = [each for plural in plurals for each in OBJECTS[plural]]
        Path(words[-1]).write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
        return
    assert words[0] == "mcproxy"
    if words[1] == "run":
        build_parser("run").parse_args(words[1:])
        return
    if words[1] == "import":  # each of them is a way to begin
        output = Path(words[words.index("--output") + 1])
        output.unlink(missing_ok=True)
        shutil.rmtree(f"{output.stem}-files", ignore_errors=True)
    assert main(words[1:]) == 0, command
    if words[1] == "import":
        output.write_text(output.read_text().replace("0.0.0.0:6443", f"127.0.0.1:{reserved_port()}"))


@pytest.mark.parametrize("page", ["migrate-kubegateway.md", "migrate-karmada.md"])
def test_commands(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (server,) = blocks(page, "yaml") or [""]
    if server:
        server = server.replace("0.0.0.0:6443", f"127.0.0.1:{reserved_port()}")
        Path("mcproxy.yaml").write_text(f"version: 1\ninclude: [fleet.yaml]\n{server}")
    commands = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert len(commands) >= 6
    for command in commands:
        run(command)
        captured = capsys.readouterr()
        assert "very-secret" not in captured.err + captured.out
    assert os.stat("mcproxy.yaml").st_size
