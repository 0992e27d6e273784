"""Admin listeners of a daemon with two workers: figures are of all processes, and no answer has a secret."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mcproxy.config.dump import as_text
from mcproxy.config.load import load
from tests.e2e.processes import Daemon, wait_until
from tests.e2e.small_cluster import SmallCluster
from tests.support.ports import reserved_port

SECRETS = ("east-secret-token", "clients-secret-token", "plugins-secret", "querys-secret")

WATCHES = 40
"""So many that the kernel, which gives each connection to a worker at random, leaves none without."""

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, workers: {workers}, shutdownDelay: 60s, drainTimeout: 1s}}
listeners:
  - {{name: api, bind: "127.0.0.1:{api}"}}
  - {{name: admin, serves: Admin, bind: "127.0.0.1:{admin}"}}
  - name: scraped
    serves: Admin
    bind: "unix:{directory}/admin.sock"
    authentication: users
    authorization: scrapers
authentication:
  - {{name: users, tokenFile: users.csv}}
authorization:
  - {{name: scrapers, rules: [{{users: [prometheus], verbs: [get], nonResourceURLs: [/metrics]}}]}}
clusters:
  - name: east
    endpoints: [{{name: a, url: "{url}"}}]
    credentials: {{token: east-secret-token}}
    identity: Impersonate
    healthCheck: {{interval: 500ms}}
  - name: west
    endpoints: [{{name: a, url: "http://127.0.0.1:1"}}]
    credentials: {{exec: {{command: /bin/true, args: [plugins-secret], env: {{TOKEN: plugins-secret}}}}}}
    identity: Impersonate
servers:
  - {{name: main, default: true, backend: {{cluster: east}}, authentication: users, accessLog: false}}
  - {{name: west, serverNames: [west.test], backend: {{cluster: west}}, authentication: users}}
"""


class Site:
    """A daemon in front of a small cluster."""

    def __init__(self, directory: Path, cluster: SmallCluster, workers: int) -> None:
        (directory / "users.csv").write_text("clients-secret-token,alice,,\nscrapers-token,prometheus,,\n")
        self.api, self.admin = reserved_port(), reserved_port()
        config = CONFIG.format(workers=workers, api=self.api, admin=self.admin, url=cluster.url, directory=directory)
        self.daemon = Daemon(directory, config)
        self.directory = directory

    def ask(self, path: str, port: int = 0, **headers: str) -> tuple[int, bytes]:
        """Ask the Admin listener, or another port, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.admin, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def json(self, path: str) -> Any:
        status, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def text(self, path: str) -> str:
        status, body = self.ask(path)
        assert status == 200, body
        return body.decode()

    def watch(self) -> socket.socket:
        """Open a watch with secrets in it; it is open when this returns."""
        connection = socket.create_connection(("127.0.0.1", self.api), 20)
        connection.sendall(
            b"GET /api/v1/namespaces/demo/pods?watch=true&token=querys-secret&labelSelector=querys-secret HTTP/1.1\r\n"
            b"Host: x\r\nAuthorization: Bearer clients-secret-token\r\n\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
        return connection


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with SmallCluster() as cluster:
        site = Site(tmp_path_factory.mktemp("admin"), cluster, workers=2)
        with site.daemon:
            yield site


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The daemon runs, whatever the test before has done to it."""
    if shared_site.daemon.process.poll() is not None:
        shared_site.daemon.start()
    shared_site.daemon.wait_for("takes requests")
    return shared_site


@pytest.mark.slow
def test_requests_in_flight_are_those_of_all_workers(site: Site) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(WATCHES):
            opened.enter_context(site.watch())
        document = site.json("/debug/requests")
        assert (document["total"], len(document["requests"]), document["missing"]) == (WATCHES, WATCHES, [])
        assert {each["process"] for each in document["requests"]} == {"worker-0", "worker-1"}
        [known] = {
            tuple(each[key] for key in ("user", "server", "cluster", "endpoint", "verb", "state"))
            for each in document["requests"]
        }
        assert known == ("alice", "main", "east", "a", "watch", "responding")
        table = site.text("/debug/requests?format=table").splitlines()
        assert len(table) == WATCHES + 2
        assert f"{WATCHES} in flight" in table[-1]
        assert site.json("/status")["open"] == WATCHES


def test_figures_are_sums_of_all_processes(site: Site) -> None:
    before = requests_counted(site)
    for _ in range(20):
        assert site.ask("/api/v1/pods", site.api, Authorization="Bearer clients-secret-token")[0] == 200
    wait_until("counted", lambda: requests_counted(site) - before >= 20)  # some milliseconds later
    assert requests_counted(site) - before == 20
    status = site.json("/status")
    assert {each["name"] for each in status["processes"]} == {"supervisor", "worker-0", "worker-1"}
    assert {each["name"]: each["serves"] for each in status["listeners"]}["admin"] == "Admin"


def requests_counted(site: Site) -> float:
    families = text_string_to_metric_families(site.text("/metrics"))
    samples = [sample for family in families for sample in family.samples]
    counted = (sample for sample in samples if sample.name == "mcproxy_requests_total")
    return sum(sample.value for sample in counted if sample.labels["verb"] == "list")  # watches that end count then


def test_no_answer_has_a_secret(site: Site) -> None:
    with site.watch():
        for path in ("/", "/status", "/config", "/debug/requests", "/debug/requests?format=table", "/metrics"):
            text = site.text(path)
            for secret in SECRETS:
                assert secret not in text, path
        for path in ("/readyz?verbose", "/readyz/cluster/west"):
            assert b"127.0.0.1" not in site.ask(path)[1]


def test_the_configuration_is_what_dump_prints(site: Site) -> None:
    assert site.text("/config") == as_text(load(str(site.daemon.file)).config, "yaml")


def test_a_socket_with_authentication_lets_its_users_in(site: Site) -> None:
    def ask(path: str, token: str) -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(site.directory / "admin.sock"))
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode("ascii")
            )
            return int(connection.recv(100).split(b" ")[1])

    assert ask("/metrics", "scrapers-token") == 200
    assert ask("/config", "scrapers-token") == 403
    assert ask("/metrics", "clients-secret-token") == 403
    assert ask("/metrics", "wrong") == 401


def test_a_refused_reload_is_shown_and_fails_nothing(site: Site) -> None:
    good = site.daemon.file.read_text()
    site.daemon.file.write_text(good.replace("cluster: west", "cluster: wset"))
    try:
        assert site.daemon.reload().returncode != 0
        wait_until("shown", lambda: b"[-]reload not needed: reason withheld" in site.ask("/readyz?verbose")[1])
        assert site.ask("/readyz")[0] == 200
        assert site.json("/status")["lastReload"]["ok"] is False
        assert "wset" in site.text("/")
        site.daemon.file.write_text(good.replace("-secret", "-other-secret"))
        assert site.daemon.reload().returncode == 0
        last = site.json("/status")["lastReload"]
        assert any("clusters" in change for change in last["changes"]), last
        for path in ("/", "/status", "/config"):
            assert "-secret" not in site.text(path), path
    finally:
        site.daemon.file.write_text(good)
    assert site.daemon.reload().returncode == 0
    wait_until("shown", lambda: b"[+]reload ok" in site.ask("/readyz?verbose")[1])


def test_readiness_fails_from_the_beginning_of_a_shutdown(site: Site) -> None:
    assert site.ask("/readyz") == (200, b"ok")
    site.daemon.signal(signal.SIGTERM)
    # Each worker says it of itself, once the supervisor has told it; the kernel gives each connection to any of them.
    wait_until("no worker is ready", lambda: {site.ask("/readyz")[0] for _ in range(WATCHES)} == {500})
    assert b"[-]shutdown failed" in site.ask("/readyz")[1]
    assert site.ask("/livez") == (200, b"ok")
    assert site.ask("/api/v1/pods", site.api, Authorization="Bearer clients-secret-token")[0] == 200
    assert site.json("/status")["state"] == "stopping"
    site.daemon.signal(signal.SIGTERM)
    assert site.daemon.end() == 0
