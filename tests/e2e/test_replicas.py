"""Two replicas of the daemon, one of them with workers, that share a limit in a Redis."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.e2e.processes import Daemon, mcproxy, wait_until
from tests.support.redis_server import RedisServer

QPS, BURST = 30, 12
MEMBERS = "{mcproxy:bulk:bucket:All}:members"
CONFIG = """
version: 1
daemon:
  controlSocket: control.sock
  workers: {workers}
  sharedState: {{redis: {{url: "unix://{redis}", passwordFile: ../password}}}}
listeners: [{{name: a, bind: "unix:{socket}"}}]
clusters: [{{name: c, endpoints: [{{url: "http://127.0.0.1:{port}"}}], identity: Passthrough, flowControls: [bulk]}}]
flowControls: [{{name: bulk, type: TokenBucket, qps: {qps}, burst: 12, shared: true}}]
servers: [{{name: s, default: true, backend: {{cluster: c}}}}]
"""


class Answer200(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Load(threading.Thread):
    """Requests over one connection, one after the other, as fast as `rate` a second, until `stop`."""

    def __init__(self, path: Path, rate: float) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.connect(str(path))
        self._pause = 1 / rate
        self.statuses: dict[int, int] = {}
        self.going = True
        self.start()

    def run(self) -> None:
        while self.going:
            self._connection.request("GET", "/version")
            response = self._connection.getresponse()
            response.read()
            self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
            time.sleep(self._pause)
        self._connection.close()

    @property
    def admitted(self) -> int:
        return self.statuses.get(200, 0)

    def stop(self) -> None:
        self.going = False
        self.join()


class Site:
    def __init__(self, folder: Path) -> None:
        (folder / "password").write_text("first\n")
        (folder / "password").chmod(0o600)
        self.folder = folder
        self.start_redis("first")
        self.upstream = ThreadingHTTPServer(("127.0.0.1", 0), Answer200)
        threading.Thread(target=self.upstream.serve_forever, daemon=True).start()
        self.daemons: list[Daemon] = []
        for name, workers in (("one", 1), ("two", 2)):
            (folder / name).mkdir()
            self.daemons.append(Daemon(folder / name, self.config(folder / name, workers)))

    def config(self, folder: Path, workers: int, qps: int = QPS) -> str:
        return CONFIG.format(
            workers=workers, redis=self.redis.socket, socket=folder / "s", port=self.upstream.server_port, qps=qps
        )

    def start_redis(self, password: str) -> None:
        """Start it with a state that is old: of a new one, nobody would get more than it has for some seconds."""
        self.redis = RedisServer(self.folder, "--requirepass", password).start()
        with self.redis.client(password=password) as client:
            client.hset(MEMBERS, "#born", 1)

    def members(self, password: str = "first") -> int:
        with self.redis.client(password=password) as client:
            return sum(not field.startswith("#") for field in client.hkeys(MEMBERS))

    def leases_last(self) -> float:
        """Return for how many seconds what all members have got lasts from now on, if Redis answers no more."""
        with self.redis.client(password="first") as client:
            entries = [value for field, value in client.hgetall(MEMBERS).items() if not field.startswith("#")]
            seconds, microseconds = client.time()
        return float(min(int(entry.split()[0]) for entry in entries) / 1000 - seconds - microseconds / 1e6)

    def load(self, *rates: float) -> list[Load]:
        return [Load(self.folder / name / "s", rate) for name, rate in zip(("one", "two"), rates, strict=True)]

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.stop()
        self.upstream.shutdown()
        self.upstream.server_close()
        self.redis.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def rate(loads: list[Load], seconds: float) -> float:
    """Measure what is admitted a second."""
    before, begun = sum(load.admitted for load in loads), time.monotonic()
    time.sleep(seconds)
    return (sum(load.admitted for load in loads) - before) / (time.monotonic() - begun)


@pytest.mark.slow
def test_replicas_share_a_limit_and_survive_their_redis(site: Site) -> None:
    for daemon in site.daemons:
        daemon.spawn()
    one, two = site.daemons
    for daemon in site.daemons:
        daemon.wait_for('msg="mcproxy is ready"')
    assert mcproxy("check", "-c", str(one.file)).returncode == 0
    wait_until("both are members", lambda: site.members() == 2)
    loads = site.load(400, 400)
    wait_until("the limit is admitted, and no more", lambda: 0.85 * QPS < rate(loads, 1.5) < 1.2 * QPS)

    # Redis is started again with another password, which the daemons get by a reload: nobody notices.
    begun, last = time.monotonic(), site.leases_last()
    site.redis.stop()
    site.start_redis("second")
    wait_until("the limit is admitted, and no more", lambda: 0.8 * QPS < rate(loads, 1.5) < 1.2 * QPS)
    (site.folder / "password").write_text("second\n")
    for daemon in (one, two):
        assert daemon.reload().returncode == 0
    wait_until("both are members", lambda: site.members("second") == 2)
    # What the daemons had has lasted until now, unless the machine was busy. One second less: a lease begins when it
    # is asked for, on the way to Redis, and the last answer may not have come any more.
    in_time = time.monotonic() - begun < last - 1.0

    # Another limit at one of them: the lower one holds, and both say so.
    two.file.write_text(site.config(two.directory, 2, QPS // 2))
    assert two.reload().returncode == 0
    for daemon in (one, two):
        daemon.wait_for("replicas have different limits", "flowControl=bulk")
    for load in loads:
        load.stop()
        assert set(load.statuses) == {200, 429}
    for daemon in (one, two):
        daemon.process.terminate()
    for daemon in (one, two):
        assert daemon.end() == 0
        assert daemon.lines("the shared state is unavailable") == [] or not in_time
    assert site.members("second") == 0
