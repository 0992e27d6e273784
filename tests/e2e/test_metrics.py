"""/metrics of a real daemon with two workers: sums over processes, which stay when one dies; bounded series."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.e2e.processes import Daemon, wait_until
from tests.e2e.small_cluster import SmallCluster
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{workers: 2, drainTimeout: 1s}}
listeners:
  - {{name: api, bind: "127.0.0.1:{api}"}}
  - {{name: admin, serves: Admin, bind: "127.0.0.1:{admin}"}}
clusters:
  - {{name: c, endpoints: [{{name: a, url: "{url}"}}], identity: Passthrough}}
servers:
  - {{name: east, default: true, backend: {{cluster: c}}}}
"""


@dataclass
class Site:
    daemon: Daemon
    api: int
    admin: int

    def ask(self, path: str = "/api/v1/pods", method: str = "GET") -> int:
        """Send a request on a connection of its own: any of the workers may get it."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.api, timeout=20)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            response.read()
            return response.status

    def text(self, accept: str = "") -> tuple[str, str]:
        """The type and the text of /metrics."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}/metrics", headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.headers["Content-Type"], response.read().decode()

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by those of its labels, in the order of their names."""
        families: Iterable[Metric] = parse_text(self.text()[1])
        return {
            tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }

    def requests(self) -> int:
        return int(sum(self.values("mcproxy_requests_total").values()))

    def pid(self, process: str) -> int:
        lines = self.daemon.lines("event=process_ready") or [""]
        children = Path(f"/proc/{self.daemon.process.pid}/task/{self.daemon.process.pid}/children").read_text()
        for pid in children.split():
            if f"\0{process}\0" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
        raise AssertionError(f"no process {process}: {lines}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    api, admin = reserved_port(), reserved_port()
    with SmallCluster() as cluster:
        config = CONFIG.format(api=api, admin=admin, url=cluster.url)
        with Daemon(tmp_path_factory.mktemp("metrics"), config) as daemon:
            made = Site(daemon, api, admin)
            wait_until("the endpoint is ready", lambda: made.values("mcproxy_endpoint_up") == {("c", "a"): 1.0})
            yield made


@pytest.mark.slow
def test_counts_are_those_of_all_processes_and_stay_when_one_dies(site: Site) -> None:
    before = site.requests()
    for _ in range(40):
        assert site.ask() == 200
    wait_until("counted", lambda: site.requests() >= before + 40)  # some milliseconds later
    assert site.requests() == before + 40
    assert site.values("mcproxy_connections_total")["api",] >= 40
    lagging = {process for _, process in site.values("mcproxy_loop_lag_seconds_bucket")}
    assert {"supervisor", "worker-0", "worker-1"} <= lagging
    assert set(site.values("process_resident_memory_bytes")) == {("supervisor",), ("worker-0",), ("worker-1",)}

    os.kill(site.pid("worker-0"), signal.SIGKILL)
    wait_until("it is replaced", lambda: site.values("mcproxy_process_restarts_total").get(("worker-0",)) == 1)
    assert site.requests() == before + 40
    wait_until("it serves", lambda: serves(site))
    wait_until("counted", lambda: site.requests() > before + 40)


def serves(site: Site) -> bool:
    """Whether a request is answered: a connection may have been queued at the worker that was killed."""
    try:
        return site.ask() == 200
    except (OSError, http.client.HTTPException):
        return False


def test_what_clients_send_makes_no_series(site: Site) -> None:
    site.ask("/apis/apps/v1/deployments")
    words = random.Random(7)
    before = set(site.values("mcproxy_requests_total")) | {("other", "c", "other", "east", "other")}
    parts = ["api", "apis", "v1", "%00", "..", "a" * 300, "é", "pods", "proxy", "{", '"']
    hostile = [
        f"{words.choice(['GET', 'POST', 'BREW', 'get', 'X' * 40])} /{'/'.join(words.choices(parts, k=5))} HTTP/1.1\r\n"
        f"Host: {words.random()}\r\nConnection: close\r\nImpersonate-User: {words.random()}\r\n\r\n"
        for _ in range(100)
    ]
    for request in hostile:
        with socket.create_connection(("127.0.0.1", site.api), timeout=20) as client:
            client.sendall(request.encode())
            while client.recv(65536):
                pass
    series = set(site.values("mcproxy_requests_total"))
    assert len(series) <= len(before) + 40
    text = site.text()[1]
    assert "aaa" not in text
    assert "BREW" not in text
    assert "brew" not in text


def test_openmetrics_is_sent_to_those_who_ask(site: Site) -> None:
    assert site.ask() == 200  # of which there are figures then
    kind, text = site.text("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    names = [family.name for family in parse_openmetrics(text)]  # type: ignore[no-untyped-call]
    assert len(names) == len(set(names)) > 40
    assert site.text()[0].startswith("text/plain; version=0.0.4")
