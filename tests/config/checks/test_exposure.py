"""Names beginning with `system:` in client certificates, where several clusters take them as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.config.load import load
from tests.config import pki
from tests.config.pki import NOW

CONFIG = """
version: 1
listeners: [{{name: a, bind: "unix:{directory}/a.sock"}}]
authentication: [{{name: users, clientCertificates: {{caFile: users.crt{whose}}}}}]
clusters:
  - {{name: east, endpoints: [{{url: "https://e"}}], tls: {{caFile: {east}.crt}}, credentials: {{token: t}}}}
  - {{name: west, endpoints: [{{url: "https://w"}}], tls: {{caFile: {west}.crt}}, credentials: {{token: t}}{identity}}}
  - {{name: north, endpoints: [{{url: "https://n"}}], tls: {{caFile: north.crt}}, credentials: {{token: t}}}}
servers: {servers}
"""
TWO = "[{name: a, default: true, authentication: users, backend: {clusters: [east, west]}}]"
ALL = "[{name: a, default: true, authentication: users, backend: {clusters: [east, west, north]}}]"
UNAUTHENTICATED = """
  - {name: a, serverNames: [a.test], authentication: users, backend: {cluster: east}}
  - {name: b, serverNames: [b.test], authentication: users, backend: {cluster: west}}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in ("users", "east", "west", "north"):
        (tmp_path / f"{name}.crt").write_bytes(pki.cert_pem(pki.make(name)[0]))
    return tmp_path


def told(directory: Path, servers: str, **more: str) -> list[str]:
    """What `check` says of the names."""
    file = directory / "mcproxy.yaml"
    values = {"east": "east", "west": "west", "identity": "", "whose": "", **more}
    file.write_text(CONFIG.format(directory=directory, servers=servers, **values))
    warnings = load(str(file), environ={}, now=NOW).warnings
    return [each.what for each in warnings if each.lint == "shared-system-names"]


@pytest.mark.parametrize("servers", [TWO, UNAUTHENTICATED], ids=["one server", "two servers"])
def test_names_of_an_authority_of_no_cluster_count_in_all(directory: Path, servers: str) -> None:
    (what,) = told(directory, servers)
    assert what == "names beginning with system: in certificates of this authority are valid in clusters east, west"


def test_names_of_an_authority_of_two_clusters_count_in_both(directory: Path) -> None:
    (what,) = told(directory, ALL, east="users", west="users")
    assert what.endswith("are valid in clusters east, west")


def test_names_of_the_authority_of_one_cluster_count_there_alone(directory: Path) -> None:
    assert told(directory, TWO, east="users") == []


def test_a_cluster_may_be_said_to_have_the_authority(directory: Path) -> None:
    assert told(directory, TWO, whose=", clusterCA: east") == []


def test_a_cluster_that_is_told_of_no_users_takes_no_names(directory: Path) -> None:
    assert told(directory, TWO, identity=", identity: Passthrough") == []


def test_users_of_one_cluster_are_nobody_elsewhere(directory: Path) -> None:
    assert told(directory, "[{name: a, default: true, authentication: users, backend: {cluster: east}}]") == []
