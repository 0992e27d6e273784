"""What the benchmark of exported services configures."""

from __future__ import annotations

from pathlib import Path

from bench.services import configuration, objects
from mcproxy.config.load import load


def test_its_configuration_is_right(tmp_path: Path) -> None:
    path = tmp_path / "mcproxy.yaml"
    (tmp_path / "ca.crt").write_text("")
    ready = {"url": "https://127.0.0.1:1", "ca": str(tmp_path / "ca.crt")}
    path.write_text(configuration({"c0": ready, "c1": ready, "c2": ready}, {"s0": "c0", "s1": "c1"}, tmp_path))
    loaded = load(str(path), offline=True)
    assert loaded.config is not None
    assert [(each.from_clusters, each.to) for each in loaded.config.service_exports] == [
        (("c0",), ("c1", "c2")),
        (("c1",), ("c0", "c2")),
    ]


def test_its_objects_are_a_service_and_its_slice() -> None:
    service, endpoints = objects("s0", "10.0.0.1")
    assert service["metadata"]["name"] == endpoints["metadata"]["labels"]["kubernetes.io/service-name"] == "s0"
