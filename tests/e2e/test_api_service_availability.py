"""An API server behind a daemon with workers comes and goes: what kubectl sees of it, and that nothing else notices."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubesim.auth.certificates import Authority
from tests.apiserver.process import APIServerProcess
from tests.e2e.processes import Daemon, Kubectl, mcproxy, wait_until
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER
from tests.support.ports import reserved_port

GROUP = "zoo.example.com"
OURS = f"v1alpha1.{GROUP}"
CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 2s, workers: 2}}
"""
    + PUBLIC_LISTENER
    + """\
authentication:
  - {{name: users, tokenFile: users.csv, allowSystemNames: true}}
clusters:
  - name: east
    endpoints: [{{name: a, url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: admin-test-token}}
  - name: zoo
    endpoints: [{{name: a, url: "{zoo}"}}]
    tls: {{caFile: "{zoo_ca}"}}
    identity: RequestHeader
    frontProxy: {{certFile: "{front}.crt", keyFile: "{front}.key"}}
    healthCheck: {{path: /readyz}}
servers:
  - name: east
    default: true
    authentication: users
    backend: {{cluster: east}}
    apiServices:
      - {{group: {group}, version: v1alpha1, cluster: zoo}}
"""
)


class Site:
    def __init__(self, directory: Path, kubectl: str) -> None:
        self.directory = directory
        self.east = SimulatedClusterProcess("east", directory=directory / "east")
        self.zoo = APIServerProcess(GROUP, directory / "zoo")
        self.port = reserved_port()
        authority = Authority("e2e CA")
        authority.server(["127.0.0.1", "localhost"]).write(directory, "proxy")
        (directory / "users.csv").write_text("admin,admin,1,system:masters\nnobody,nobody,2\n")
        (directory / "users.csv").chmod(0o600)
        self.east.start()
        self.zoo.start()
        front = str(self.zoo.front_proxy[0] if isinstance(self.zoo.front_proxy, tuple) else self.zoo.front_proxy)
        self.config = CONFIG.format(
            port=self.port,
            east=self.east.urls[0],
            east_ca=self.east.ca,
            zoo=self.zoo.url,
            zoo_ca=self.zoo.ca,
            front=front.removesuffix(".crt"),
            group=GROUP,
        )
        self.daemon = Daemon(directory, self.config).start()
        (directory / "home").mkdir()
        self.kubeconfig = directory / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "east", "cluster": cluster}],
                    "users": [{"name": name, "user": {"token": name}} for name in ("admin", "nobody")],
                    "contexts": [
                        {"name": name, "context": {"cluster": "east", "user": name}} for name in ("admin", "nobody")
                    ],
                }
            )
        )
        self.kubectl = self.as_user(kubectl, "admin")
        self.nobody = self.as_user(kubectl, "nobody")

    def as_user(self, kubectl: str, name: str) -> Kubectl:
        return Kubectl(kubectl, str(self.kubeconfig), name, self.directory / "home")

    def available(self) -> str:
        row = self.kubectl.good("get", "apiservices", OURS, "--no-headers").split()
        assert row[:2] == [OURS, "mcproxy/zoo"]
        return " ".join(row[2:-1])

    def condition(self) -> dict[str, Any]:
        found = json.loads(self.kubectl.good("get", "apiservices", OURS, "-o", "json"))
        condition: dict[str, Any] = found["status"]["conditions"][0]
        return condition

    def status(self) -> dict[str, Any]:
        printed = mcproxy("status", "-c", str(self.daemon.file), "-o", "json")
        assert printed.stdout, printed.stderr
        found: dict[str, Any] = json.loads(printed.stdout)
        return found

    def keeper(self) -> int:
        """The process id of the keeper, 0 while there is none."""
        return next((each["pid"] for each in self.status()["processes"] if each["role"] == "keeper"), 0)

    def stop(self) -> None:
        self.daemon.stop()
        self.zoo.stop()
        self.east.cleanup()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kubectl: str) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("availability"), kubectl)
    wait_until("the API service is available", lambda: made.available() == "True")
    yield made
    made.stop()


@pytest.mark.slow
def test_kubectl_lists_it_with_the_clusters_own(site: Site) -> None:
    lines = site.kubectl.good("get", "apiservices").splitlines()
    assert lines[0].split() == ["NAME", "SERVICE", "AVAILABLE", "AGE"]
    rows = {line.split()[0]: line.split()[1:3] for line in lines[1:]}
    assert rows[OURS] == ["mcproxy/zoo", "True"]
    assert list(rows) == sorted(rows)
    selected = site.kubectl.good("get", "apiservices", "-l", "app.kubernetes.io/managed-by=mcproxy", "-o", "name")
    assert selected.split() == [f"apiservice.apiregistration.k8s.io/{OURS}"]


def test_a_user_whom_the_cluster_refuses_is_refused_whatever_the_name(site: Site) -> None:
    for name in (OURS, "v1.apps", "v9.none.example.com"):
        assert "Forbidden" in site.nobody("get", "apiservices", name).stderr
    for name in (OURS, "v9.none.example.com"):
        assert "Forbidden" in site.nobody("delete", "apiservices", name).stderr


def test_it_is_read_only(site: Site) -> None:
    for arguments in (
        ("delete", "apiservices", OURS),
        ("label", "apiservices", OURS, "a=b"),
        ("patch", "apiservices", OURS, "--type=merge", "-p", "{}"),
    ):
        result = site.kubectl(*arguments)
        assert result.status != 0
        assert "apiServices of server east" in result.stderr


@pytest.mark.slow
def test_it_goes_and_comes_back_and_nothing_else_notices(site: Site) -> None:
    path = f"/apis/{GROUP}/v1alpha1"
    since = site.condition()["lastTransitionTime"]
    assert site.kubectl("get", "--raw", path).status == 0
    site.zoo.stop()
    wait_until("it is unavailable", lambda: site.available().startswith("False"))
    refused = site.kubectl("get", "--raw", path).stderr
    assert "ServiceUnavailable" in refused or "unavailable" in refused
    assert site.kubectl.good("get", "namespaces", "-o", "name")
    (figure,) = site.status()["apiServices"]
    assert (figure["name"], figure["available"], figure["usedBy"]) == (OURS, "False", ["east"])
    site.zoo.start()
    wait_until("it is available again", lambda: site.available() == "True")
    assert site.condition()["lastTransitionTime"] >= since
    assert site.kubectl("get", "--raw", path).status == 0


def test_workers_keep_what_they_know_while_the_keeper_is_replaced(site: Site) -> None:
    keeper = site.keeper()
    before = site.condition()
    os.kill(keeper, signal.SIGKILL)
    assert site.available() == "True"
    wait_until("another keeper", lambda: site.keeper() not in (0, keeper))
    assert site.condition() == before


@pytest.mark.slow
def test_kubectl_watches_it(site: Site) -> None:
    with site.kubectl.begin("get", "apiservices", "-w", "--no-headers") as watching:
        watching.wait_for(OURS)
        site.zoo.stop()
        watching.wait_for("False (")
        site.zoo.start()
    wait_until("it is available again", lambda: site.available() == "True")
