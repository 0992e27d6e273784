"""`via: PortForward` to pods of a simulated cluster, with two workers and the rights that `mcproxy rbac` prints."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Daemon, mcproxy, wait_until
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 2s, workers: 2}}
listeners: [{{name: web, bind: "127.0.0.1:{port}", serves: Ingress}}]
clusters:
  - name: east
    endpoints: [{{url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: mcproxy-test-token}}
ingresses:
  - name: web
    defaultBackend: {{namespace: demo, service: web, port: http, clusters: [east], via: PortForward, retries: 0}}
"""


class Site:
    def __init__(self, directory: Path, kubectl: str) -> None:
        self.cluster = SimulatedClusterProcess("east", directory=directory / "east")
        self.port = reserved_port()
        self.directory = directory
        self._kubectl = kubectl
        self._daemon: Daemon | None = None

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    def start(self) -> None:
        self.cluster.spawn()
        self.cluster.wait_ready()
        text = CONFIG.format(port=self.port, url=self.cluster.url, ca=self.cluster.ca)
        (self.directory / "mcproxy.yaml").write_text(text)
        self.kubectl("apply", "--validate=false", "-f", "-", stdin=self.rights())
        self._daemon = Daemon(self.directory, text).start()

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        self.cluster.cleanup()

    def rights(self) -> str:
        shown = mcproxy("rbac", "-c", str(self.directory / "mcproxy.yaml"), "--cluster", "east", "--user", "mcproxy")
        assert shown.returncode == 0, shown.stderr
        return shown.stdout

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        command = [self._kubectl, "--kubeconfig", self.cluster.kubeconfig, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, path: str = "/") -> tuple[int, dict[str, Any]]:
        """Send a request over a connection of its own; return the status, and what the pod says."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kubectl: str) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("forward"), kubectl)
    try:
        site.start()
        yield site
    finally:
        site.stop()


def test_all_pods_answer_through_the_cluster(site: Site) -> None:
    wait_until("an answer", lambda: site.ask()[0] == 200)
    found = [site.ask(f"/a/{number}") for number in range(24)]
    assert {status for status, _ in found} == {200}
    assert {page["path"] for _, page in found} == {f"/a/{number}" for number in range(24)}
    assert {(page["namespace"], page["port"]) for _, page in found} == {("demo", 8080)}
    assert len({page["pod"] for _, page in found}) == 3
    served = site.daemon.command_answer({"command": "status"})["ingressServices"]
    assert [(each["via"], each["ready"]) for each in served] == [("PortForward", 3)]


@pytest.mark.slow
def test_pods_that_come_and_go_are_followed(site: Site) -> None:
    wait_until("an answer", lambda: site.ask()[0] == 200)
    before = {page["pod"] for _, page in (site.ask() for _ in range(24))}
    gone = min(before)
    site.kubectl("delete", "pod", "-n", "demo", gone, "--wait=false")
    wait_until(
        "only the others and the new one answer",
        lambda: gone not in (now := {site.ask()[1].get("pod", "") for _ in range(12)}) and len(now) == 3,
    )


def test_explain_names_the_way_and_the_pods_of_the_running_daemon(site: Site) -> None:
    wait_until("an answer", lambda: site.ask()[0] == 200)
    url = f"http://web.example.com:{site.port}/"
    shown = mcproxy("check", str(site.daemon.file), "--explain", "GET", url)
    assert shown.returncode == 0, shown.stderr
    assert "forwarded by the clusters' API servers" in shown.stdout
    [now] = [line for line in shown.stdout.splitlines() if line.startswith("now")]
    assert now.count(":8080") == 3


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["get", "create"])
def test_each_right_is_needed(site: Site, verb: str) -> None:
    """A simulated cluster is one of Kubernetes 1.36: a WebSocket takes `get` and `create`."""
    wait_until("an answer", lambda: site.ask()[0] == 200)
    text = site.rights()
    roles = json.loads(site.kubectl("get", "role", "-n", "demo", "-o", "json"))["items"]
    [found] = [each for each in roles if any("pods/portforward" in rule["resources"] for rule in each["rules"])]
    kept = [
        {**rule, "verbs": [each for each in rule["verbs"] if each != verb]}
        if "pods/portforward" in rule["resources"]
        else rule
        for rule in found["rules"]
    ]
    site.kubectl("apply", "--validate=false", "-f", "-", stdin=json.dumps({**found, "rules": kept}))
    try:
        for pod in json.loads(site.kubectl("get", "pods", "-n", "demo", "-l", "app=web", "-o", "json"))["items"]:
            site.kubectl("delete", "pod", "-n", "demo", pod["metadata"]["name"], "--wait=false")  # its connections too
        wait_until("it is refused", lambda: {site.ask()[0] for _ in range(6)} == {502})
        assert any("403" in line and "portforward" in line for line in site.daemon.all_lines("pods"))
    finally:
        site.kubectl("apply", "--validate=false", "-f", "-", stdin=text)
    wait_until("it is let through again", lambda: {site.ask()[0] for _ in range(6)} == {200})
