"""No more descriptors, a full disk: the daemon says so, serves what it can, and goes on when there is room again.

The limits are those of the running process (prlimit(2)): it gets EMFILE at the end of its descriptors, and EFBIG, which
is handled as ENOSPC is, where a file would grow beyond RLIMIT_FSIZE.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.processes import Daemon, wait_until
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, stateDir: "{directory}/state"}}
listeners: [{{name: local, bind: "127.0.0.1:{port}"}}]
clusters:
  - name: east
    endpoints: [{{url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
servers:
  - {{name: plain, default: true, authentication: none, backend: {{cluster: east}}}}
  - {{name: fleet, serverNames: [fleet.test], authentication: none, authorization: all, backend: {{aggregate: fleet}}}}
authorization: [{{name: all, rules: [{{users: ["*"], verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}]}}]
aggregates:
  - name: fleet
    clusters: [east]
    reads: {{authorize: Server}}
    cache: {{resources: [{{group: "", version: v1, resource: configmaps}}]}}
logging: {{access: {{file: access.log}}}}
"""


class Proxy(Daemon):
    """A daemon of one process, on a plain loopback port."""

    def __init__(self, directory: Path, cluster: SimulatedClusterProcess) -> None:
        self.port = reserved_port()
        self.access_log = directory / "access.log"
        super().__init__(directory, CONFIG.format(directory=directory, port=self.port, url=cluster.url, ca=cluster.ca))

    def get(self, path: str = "/version", host: str = "localhost", timeout: float = 60.0) -> int:
        """Return the status of a GET on a connection of its own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout) as client:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while data := client.recv(65536):
                answer += data
        return int(answer.split()[1])

    @contextmanager
    def limited(self, which: int, soft: int) -> Iterator[None]:
        """Limit the running process."""
        before = resource.prlimit(self.process.pid, which)
        resource.prlimit(self.process.pid, which, (soft, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self.process.pid, which, before)

    @property
    def descriptors(self) -> set[int]:
        return {int(name) for name in os.listdir(f"/proc/{self.process.pid}/fd")}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    directory = tmp_path_factory.mktemp("proxy")
    with SimulatedClusterProcess("east", directory=directory / "east") as cluster:
        proxy = Proxy(directory, cluster)
        with proxy:
            yield proxy


@pytest.mark.slow
def test_without_descriptors_it_accepts_again_as_soon_as_there_are_some(proxy: Proxy) -> None:
    assert proxy.get() == 200
    with contextlib.ExitStack() as clients, proxy.limited(resource.RLIMIT_NOFILE, max(proxy.descriptors) + 8):
        for _ in range(40):
            clients.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 60))
        proxy.wait_for("listener_accept_failed")
        (line,) = proxy.lines("listener_accept_failed")
        assert "too many open files" in line.lower()
    wait_until("it serves", lambda: proxy.get() == 200)  # checks of the cluster may have failed meanwhile
    assert len(proxy.lines("listener_accept_failed")) == 1
    wait_until("what they had is free", lambda: len(proxy.descriptors) < 40)


def test_a_request_without_a_descriptor_for_its_cluster_is_refused_and_the_next_one_served(proxy: Proxy) -> None:
    for _ in range(2):
        assert proxy.get() == 200
    with socket.create_connection(("127.0.0.1", proxy.port), 60) as client:
        wait_until("it is accepted", lambda: bool(client.getpeername()))
        client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        with proxy.limited(resource.RLIMIT_NOFILE, 3):
            client.sendall(b"GET /api/v1/namespaces?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.sendall(b"")
            assert client.recv(1)
    wait_until("it serves", lambda: proxy.get() == 200)
    assert proxy.process.poll() is None


def test_a_log_without_a_descriptor_keeps_its_file(proxy: Proxy) -> None:
    proxy.get("/version?before")
    with proxy.limited(resource.RLIMIT_NOFILE, 3):
        proxy.signal(signal.SIGUSR1)
        proxy.wait_for("log_files_reopened" if proxy.lines("event=log_files_reopened") else "reopen")
    proxy.get("/version?after")
    wait_until("the line is written", lambda: "?after" in proxy.access_log.read_text())


def test_a_full_disk_stops_neither_requests_nor_the_daemon(proxy: Proxy) -> None:
    # Without descriptors checks of the cluster failed, too.
    wait_until("it serves", lambda: proxy.get() == proxy.get("/api/v1/configmaps", host="fleet.test") == 200)
    for _ in range(100):  # the access log becomes longer than the daemon's own, which has room then
        assert proxy.get("/version?" + 200 * "x") == 200
    wait_until("lines are written", lambda: proxy.access_log.stat().st_size > proxy.log_file.stat().st_size + 10_000)
    with proxy.limited(resource.RLIMIT_FSIZE, proxy.access_log.stat().st_size + 100):
        for number in range(20):
            assert proxy.get(f"/version?full{number}") == 200
            assert proxy.get("/api/v1/configmaps", host="fleet.test") == 200
        wait_until("the loss is told", lambda: "file too large" in proxy.log.lower())
    assert proxy.get("/version?room") == 200
    wait_until("lines are written again", lambda: "?room" in proxy.access_log.read_text())
    broken = [line for line in proxy.access_log.read_text().splitlines() if not _is_json(line)]
    assert len(broken) <= 1, "the line that was cut short has a line of its own"
    saved = proxy.directory / "state"
    os.kill(proxy.process.pid, signal.SIGTERM)
    assert proxy.end() == 0
    assert any(path.is_file() for path in saved.rglob("*"))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("hard", [2000, 1024])
def test_the_soft_limit_is_raised_to_the_hard_one(hard: int) -> None:
    code = (
        "import resource; from mcproxy.daemon.process_setup import raise_descriptor_limit; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {hard})); print(raise_descriptor_limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == hard
