"""Endpoints' health with real workers: one of them checks, all know, and the log tells it once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.http_client import Client
from tests.e2e.processes import TIMEOUT, wait_until
from tests.e2e.workers.site import Site, WorkersDaemon

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 2s, workers: {workers}}}
listeners: [{{name: public, bind: "{bind}", tls: {{certificates: [proxy]}}}}]
certificates: [{{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}]
clusters:
  - name: east
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
    healthCheck: {{interval: 200ms, timeout: 20s, unhealthyAfter: 2, path: /livez}}
servers: [{{name: api, default: true, authentication: none, backend: {{cluster: east}}}}]
"""


class CheckingDaemon(WorkersDaemon):
    """It checks one cluster often, on a path that nobody else asks for."""

    def config(self) -> str:
        cluster = self.site.clusters["east"]
        return CONFIG.format(workers=self.workers, bind=self.bind, east=cluster.url, east_ca=cluster.ca)

    def endpoint_lines(self) -> list[str]:
        """Return what the log says about the endpoint: "out", "takes requests"."""
        lines = [line for line in self.log_file.read_text().splitlines() if "event=endpoint_" in line]
        return ["out" if "event=endpoint_out" in line else "takes requests" for line in lines]

    def checks(self) -> int:
        """The checks that the cluster has seen."""
        return len(self.site.control("east").audit(path="/livez"))


@pytest.fixture(scope="module")
def daemon(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckingDaemon]:
    daemon = CheckingDaemon(site, tmp_path_factory.mktemp("health"), workers=2)
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        wait_until("the endpoint is ready", lambda: daemon.endpoint_lines() == ["takes requests"])
        yield daemon
        daemon.end_cleanly()
    finally:
        site.control("east").start_endpoint()
        daemon.stop()


def connections(daemon: CheckingDaemon) -> dict[int, Client]:
    """Return a kept connection to each worker, by its pid."""
    found: dict[int, Client] = {}
    for _ in range(100):
        client = Client(daemon.address)
        found.setdefault(daemon.family.owner(daemon.port, client.socket.getsockname()[1], within=TIMEOUT), client)
        if len(found) == daemon.workers:
            break
    assert len(found) == daemon.workers
    return found


def all_serve(clients: dict[int, Client]) -> bool:
    return {client.request("GET", "/version").status for client in clients.values()} == {200}


def knows_it_is_out(client: Client) -> bool:
    """Whether the worker of a connection refuses a request without trying the endpoint."""
    answer = client.request("GET", "/version")
    assert answer.status == 503
    return b"(out for " in answer.body


@pytest.mark.slow
def test_one_worker_checks_and_all_know_and_the_log_says_it_once(site: Site, daemon: CheckingDaemon) -> None:
    clients = connections(daemon)
    assert all_serve(clients)
    begun, before = time.monotonic(), daemon.checks()
    wait_until("thirty checks", lambda: daemon.checks() >= before + 30)
    # Each 200 ms, of which the first may be late; two processes would need half of that.
    assert time.monotonic() - begun > 29 * 0.2 * 0.75, "only one process checks"
    site.control("east").stop_endpoint()
    wait_until("it is out", lambda: daemon.endpoint_lines() == ["takes requests", "out"])
    for client in clients.values():
        wait_until("it knows before it tries", lambda: knows_it_is_out(client))  # noqa: B023
    site.control("east").start_endpoint()
    wait_until("it is back", lambda: daemon.endpoint_lines() == ["takes requests", "out", "takes requests"])
    wait_until("all know", lambda: all_serve(clients))


@pytest.mark.slow
def test_another_worker_checks_when_the_leader_dies_and_no_state_changes(site: Site, daemon: CheckingDaemon) -> None:
    leader, lines = daemon.pid_of("leader"), daemon.endpoint_lines()
    clients = connections(daemon)
    os.kill(leader, signal.SIGKILL)
    before = daemon.checks()
    wait_until("another one checks", lambda: daemon.checks() >= before + 3)
    del clients[leader]
    assert all_serve(clients)
    daemon.wait_until_all_serve(but=frozenset({leader}))
    successor = connections(daemon)
    assert all_serve(successor), "one that starts knows the state before its first request"
    assert daemon.pid_of("leader") in clients
    assert daemon.endpoint_lines() == lines
