"""`mcproxy rbac --apiservice`: asked of the API server by the front proxy's certificate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mcproxy.cli.main import main
from tests.simulated_cluster.process import SimulatedClusterProcess

CONFIG = """
version: 1
listeners: [{{name: local, bind: "127.0.0.1:6443"}}]
clusters:
  - {{name: east, endpoints: [{{url: "https://127.0.0.1:1"}}], credentials: {{token: hush}}}}
  - name: apis
    endpoints: [{{url: "{url}"}}]
    tls: {{caFile: {ca}}}
    identity: RequestHeader
    frontProxy: {{certFile: {certificate}, keyFile: {key}}}
  - {{name: away, endpoints: [{{url: "http://127.0.0.1:1"}}], identity: Passthrough}}
authentication: [{{name: corp, tokenFile: users.csv}}]
servers:
  - name: east
    default: true
    backend: {{cluster: east}}
    authentication: corp
    apiServices:
      - {{group: garden.example.com, version: v1, cluster: apis}}
      - {{group: metrics.k8s.io, version: v1beta1, cluster: apis}}
      - {{group: away.example.com, version: v1, cluster: away}}
"""


@pytest.fixture(scope="module")
def apis() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("apis", options=("--metrics-of", "/nowhere")) as process:
        yield process


@pytest.fixture
def file(apis: SimulatedClusterProcess, tmp_path: Path) -> Path:
    (tmp_path / "users.csv").write_text("secret-of-jane,jane,1\n")
    (tmp_path / "users.csv").chmod(0o600)
    front = apis.front_proxy
    text = CONFIG.format(url=apis.url, ca=apis.ca, certificate=front.certificate, key=front.key)
    (tmp_path / "mcproxy.yaml").write_text(text)
    return tmp_path / "mcproxy.yaml"


def rbac(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command; a process of its own, since it has a reactor."""
    command = [sys.executable, "-m", "mcproxy", "rbac", "-c", str(file), "--apiservice", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_the_api_server_publishes_is_printed(file: Path) -> None:
    done = rbac(file, "garden.example.com/v1", "--user", "system:serviceaccount:green:garden")
    assert (done.returncode, done.stderr) == (0, "")
    view, edit, delegator, reader, informers, following = yaml.safe_load_all(done.stdout)
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["rules"][0]["apiGroups"] == ["garden.example.com"]
    account = {"kind": "ServiceAccount", "namespace": "green", "name": "garden"}
    assert delegator["subjects"] == reader["subjects"] == following["subjects"] == [account]
    assert informers["metadata"]["name"] == following["roleRef"]["name"]


def test_without_any_they_are_made_of_its_discovery(file: Path) -> None:
    done = rbac(file, "metrics.k8s.io/v1beta1")
    assert (done.returncode, done.stderr) == (0, "")
    (view,) = yaml.safe_load_all(done.stdout)
    assert view["metadata"]["name"] == "v1beta1.metrics.k8s.io:view"
    assert view["rules"] == [
        {"apiGroups": ["metrics.k8s.io"], "resources": ["nodes", "pods"], "verbs": ["get", "list"]}
    ]
    assert '# - kind: "ServiceAccount"' in done.stdout


def test_an_api_server_that_is_away_is_told_in_words(file: Path) -> None:
    done = rbac(file, "away.example.com/v1")
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("mcproxy rbac: API service v1.away.example.com, cluster away: 127.0.0.1:1 refused")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("metrics.k8s.io",), "is no GROUP/VERSION such as metrics.k8s.io/v1beta1"),
        (("/v1",), "is no GROUP/VERSION"),
        (("apps/v1",), "has apps/v1 in apiServices; there are: garden.example.com/v1, metrics.k8s.io/v1beta1"),
        (("metrics.k8s.io/v1beta1", "--cluster", "apis"), "--apiservice goes with --user alone"),
        (("metrics.k8s.io/v1beta1", "--service-account"), "--apiservice goes with --user alone"),
    ],
)
def test_wrong_usage_is_told(
    file: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rbac", "-c", str(file), "--apiservice", *options]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
