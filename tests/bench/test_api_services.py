"""What the benchmark of API services serves and configures."""

from __future__ import annotations

from pathlib import Path

from bench.api_services import configuration, documents, processor_time
from mcproxy.config.load import load
from mcproxy.kube.discovery import read_aggregated


def test_its_api_servers_serve_their_own_group() -> None:
    body, _, etag = documents("s1", ["things"])["/apis"]
    (group,) = read_aggregated(body)
    assert group.metadata.name == "s1.bench.example.com"
    assert documents("s1", ["others"])["/apis"][2] != etag


def test_its_configuration_is_right(tmp_path: Path) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text(configuration({"core": 1, "s1": 2, "s2": 3}, 4))
    loaded = load(str(path))
    assert loaded.config is not None
    assert [service.cluster for service in loaded.config.servers[0].api_services] == ["s1", "s2"]


def test_processor_time_is_that_of_a_process() -> None:
    assert processor_time(1) >= 0
