"""A day of an operator: clusters that die and come back, stops, rubbish on the port, sockets of all kinds."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Answer, Client, ask, lines_of
from tests.e2e.processes import TIMEOUT, Daemon, mcproxy, wait_until
from tests.simulated_cluster.control_client import ControlClient, header_values
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: {drain}s}}
listeners:
  - {{name: public, bind: "{bind}", tls: {{certificates: [proxy]}}, limits: {{handshakeTimeout: 5s, headTimeout: 5s}}}}
  - name: balanced
    bind: "127.0.0.1:{balanced}"
    proxyProtocol: {{from: [127.0.0.0/8]}}
    limits: {{handshakeTimeout: 5s}}
    tls: {{certificates: [proxy]}}
  - {{name: local, bind: "unix:{directory}/api.sock"}}
certificates:
  - {{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}
clusters:
  - name: east
    endpoints:
      - {{name: a, url: "{a}"}}
      - {{name: b, url: "{b}"}}
    tls: {{caFile: "{ca}"}}
    credentials: {{certFile: "{certificate}", keyFile: "{key}"}}
    identity: Proxy
    healthCheck: {{interval: 300ms, timeout: 3s, unhealthyAfter: 2}}
    connections: {{connectTimeout: 3s, responseTimeout: 5s}}
servers:
  - {{name: east, default: true, authentication: none, backend: {{cluster: east}}}}
logging: {{access: {{file: access.log}}}}
"""
PODS = "/api/v1/namespaces/demo/pods"
WATCH = "/api/v1/namespaces/demo/configmaps?watch=true"


class Site:
    """A cluster of two endpoints and what a proxy before it needs; each test starts its own daemon."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = SimulatedClusterProcess("east", options=("--endpoints", "2"), directory=directory / "cluster")
        self.authority = Authority("site CA")
        self.context = ssl.create_default_context(cadata=self.authority.pem.decode())

    @property
    def control(self) -> ControlClient:
        return ControlClient(self.cluster.control_url)

    def daemon(self, directory: Path, *, drain: int = 5, bind: str = "") -> SiteDaemon:
        self.authority.server(["127.0.0.1", "localhost"]).write(directory, "proxy")
        return SiteDaemon(self, directory, drain, bind)


class SiteDaemon(Daemon):
    """A daemon before the site's cluster."""

    def __init__(self, site: Site, directory: Path, drain: int, bind: str) -> None:
        self.port, self.balanced_port = reserved_port(), reserved_port()
        admin = site.cluster.user("admin")
        super().__init__(
            directory,
            CONFIG.format(
                bind=bind or f"127.0.0.1:{self.port}",
                balanced=self.balanced_port,
                directory=directory,
                drain=drain,
                a=site.cluster.urls[0],
                b=site.cluster.urls[1],
                ca=site.cluster.ca,
                certificate=admin.certificate,
                key=admin.key,
            ),
        )
        self.address = Address(self.port, site.context)

    def start(self) -> SiteDaemon:
        super().start()
        self.wait_for("takes requests", count=2)
        return self

    def __enter__(self) -> SiteDaemon:
        return self.start()

    def get(self, path: str = PODS) -> Answer:
        return ask(self.address, path)

    def knows_its_rights(self) -> bool:
        """Whether it has asked the cluster which rights it has itself, as it does once."""
        clusters = self.command_answer({"command": "status"})["clusters"]
        return None not in [each["rightsMissing"] for each in clusters]

    def finds_all_well(self) -> bool:
        """Whether both endpoints take requests, as far as it has seen."""
        states = [line for line in self.lines("cluster=east") if "event=endpoint_" in line]
        last = {name: line for line in states for name in ("a", "b") if f"endpoint={name}" in line}
        return len(last) == 2 and all("takes requests" in line for line in last.values())


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.cluster.start()
        yield site
    finally:
        site.cluster.cleanup()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    """The site, made whole again after the test."""
    yield shared_site
    shared_site.control.clear_faults()
    for index, endpoint in enumerate(shared_site.control.stats()["endpoints"]):
        if endpoint["state"] == "stopped":
            shared_site.control.start_endpoint(index)
        elif endpoint["state"] != "serving":
            shared_site.control.resume_endpoint(index)


@pytest.fixture(scope="module")
def shared_daemon(shared_site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteDaemon]:
    with shared_site.daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        yield daemon


@pytest.fixture
def daemon(site: Site, shared_daemon: SiteDaemon) -> SiteDaemon:
    """One daemon for all tests that leave it, and its endpoints, as they were."""
    wait_until("both endpoints take requests", shared_daemon.finds_all_well)
    return shared_daemon


@pytest.mark.slow
def test_cluster_that_is_down_is_a_503_that_names_it_and_comes_back_by_itself(site: Site, tmp_path: Path) -> None:
    with site.daemon(tmp_path) as daemon:
        for index in (0, 1):
            site.control.stop_endpoint(index)
        answer = daemon.get()
        assert (answer.status, answer.json["kind"], answer.json["reason"]) == (503, "Status", "ServiceUnavailable")
        assert 'cluster "east"' in answer.json["message"]
        assert "refused" in answer.json["message"]
        assert int(answer.header("Retry-After")) > 0
        for endpoint in ("a", "b"):
            (line, *_) = daemon.wait_for("level=warn", "cluster=east", f"endpoint={endpoint}", "refused")
            assert 'todo="' in line
        assert len(daemon.all_lines("level=warn", "event=endpoint_out")) == 2  # not a line for each check that fails
        # The request was sent at all if a connection of a check was still thought to be open: it gets a line, too.
        assert len(daemon.all_lines("level=warn")) - 2 == len(daemon.lines("event=upstream_no_answer")) <= 1
        for index in (0, 1):
            site.control.start_endpoint(index)
        wait_until("it serves again", lambda: daemon.get().status == 200)
        daemon.wait_for("takes requests", count=3)


@pytest.mark.slow
def test_one_endpoint_of_two_may_go_without_a_failed_request(site: Site, tmp_path: Path) -> None:
    body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "never"}}).encode()
    headers = [("Content-Type", "application/json")]
    with site.daemon(tmp_path) as daemon, Client(daemon.address) as client:
        for round_number in range(6):
            if round_number % 2 == 0:
                site.control.stop_endpoint(round_number // 2 % 2)
            for _ in range(10):
                assert client.request("GET", PODS).status == 200
                target = "/api/v1/namespaces/demo/configmaps?dryRun=All"
                # A POST that may have arrived is not sent twice: only on connections that had no request on the way.
                assert client.request("POST", target, headers, body).status == 201
            if round_number % 2:
                site.control.start_endpoint(round_number // 2 % 2)
                count = 3 + round_number // 2
                daemon.wait_for("takes requests", count=count)


@pytest.mark.slow
@pytest.mark.parametrize("hanging", [1, 2])
def test_endpoints_that_hang_cost_a_connect_timeout_at_most(site: Site, tmp_path: Path, hanging: int) -> None:
    """A stopped process takes TCP connections and says nothing."""
    with site.daemon(tmp_path) as daemon:
        for index in range(hanging):
            site.control.hang_endpoint(index)
            site.control.reset_connections(index)
        begun = time.monotonic()
        answer = daemon.get()
        assert time.monotonic() - begun < 50.0  # the client waits for 60 s
        assert answer.status == (200 if hanging == 1 else 503)
        if hanging == 2:
            assert 'cluster "east"' in answer.json["message"]
            assert "TLS" in answer.json["message"] or "time" in answer.json["message"]


@pytest.mark.slow
def test_answer_that_does_not_come_is_a_504(site: Site, daemon: SiteDaemon) -> None:
    site.control.fault("blackHole", paths=[PODS])
    answer = daemon.get()
    assert (answer.status, answer.json["kind"], answer.json["reason"]) == (504, "Status", "Timeout")
    assert 'cluster "east"' in answer.json["message"]
    (line,) = daemon.wait_for("level=warn", "event=upstream_no_answer", "cluster=east")
    assert 'todo="' in line


@pytest.mark.parametrize("kind", ["garbage", "resetMidHead"])
def test_answer_that_is_broken_is_a_502(site: Site, daemon: SiteDaemon, kind: str) -> None:
    site.control.fault(kind, paths=[PODS])
    answer = daemon.get()
    assert (answer.status, answer.json["kind"]) == (502, "Status")
    site.control.clear_faults()
    assert daemon.get().status == 200


def test_request_that_was_lost_is_repeated_once_if_it_may_be(site: Site, daemon: SiteDaemon) -> None:
    """A GET is, so the client sees nothing; a POST that the cluster may have acted on never is."""
    body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lost"}}).encode()
    collection = "/api/v1/namespaces/demo/configmaps"
    headers = [("Content-Type", "application/json")]
    mark = site.control.mark()
    site.control.fault("resetBeforeHead", paths=[collection], count=1)
    answer = ask(daemon.address, collection, method="POST", headers=headers, body=body)
    assert (answer.status, answer.json["kind"]) == (502, "Status")
    assert len(site.control.audit(mark, path=collection)) == 1
    site.control.fault("resetBeforeHead", paths=[PODS], count=1)
    assert daemon.get().status == 200
    assert len(site.control.audit(mark, path=PODS)) == 2


@pytest.mark.slow
def test_client_that_leaves_takes_its_request_along(site: Site, tmp_path: Path) -> None:
    daemon = site.daemon(tmp_path)
    # No check shall open a connection while they are counted, nor the question for the daemon's own rights.
    daemon.file.write_text(
        daemon.file.read_text().replace("interval: 300ms, timeout: 3s", "interval: 60s, timeout: 60s")
    )
    with daemon:
        wait_until("its own rights are known", daemon.knows_its_rights)
        site.control.fault("blackHole", paths=[PODS])
        before = site.control.stats()["connections"]
        with Client(daemon.address) as client:
            client.send("GET", PODS)
            wait_until("it waits at the cluster", lambda: site.control.stats()["inFlight"] > 0)
        wait_until("the connection is gone", lambda: site.control.stats()["connections"] <= before)
        assert "traceback" not in daemon.log


def test_reader_that_stalls_costs_the_proxy_little_memory(site: Site, tmp_path: Path, daemon: SiteDaemon) -> None:
    """Half a gigabyte of log is on its way, and nobody reads it."""
    annotations = {"mcproxy.example.com/log-bytes": str(512 << 20)}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": tmp_path.name.replace("_", "-"), "namespace": "demo", "annotations": annotations},
        "spec": {"containers": [{"name": "a", "image": "registry.example.com/a:1"}]},
    }
    site.control.create([pod])
    target = f"{PODS}/{pod['metadata']['name']}"  # type: ignore[index]
    with Client(daemon.address) as client:
        wait_until("the pod runs", lambda: daemon.get(target).json["status"].get("phase") == "Running")
        before = daemon.memory
        response = client.begin("GET", f"{target}/log")
        assert response.status == 200
        assert len(response.read(1 << 20)) == 1 << 20
        time.sleep(1.0)  # what would run full does so in this time
        assert daemon.memory - before < 8 << 20
        assert daemon.get("/version").status == 200
        response.close()


@pytest.mark.parametrize("kind", ["resetMidBody", "resetMidChunk", "longContentLength"])
def test_body_that_breaks_off_is_never_taken_for_whole(site: Site, daemon: SiteDaemon, kind: str) -> None:
    site.control.fault(kind, paths=[PODS])
    with pytest.raises((http.client.IncompleteRead, ConnectionError, ssl.SSLError)):
        daemon.get()
    site.control.clear_faults()
    assert daemon.get().status == 200


@pytest.mark.slow
def test_sigterm_finishes_what_is_open_and_ends_with_0(site: Site, tmp_path: Path) -> None:
    with site.daemon(tmp_path, drain=30) as daemon, Client(daemon.address) as watcher, Client(daemon.address) as idle:
        mark = site.control.mark()
        site.control.fault("latency", seconds=0.5, paths=[PODS])
        watch = watcher.begin("GET", WATCH)
        assert idle.request("GET", "/version").status == 200
        answers: list[Answer] = []
        slow = threading.Thread(target=lambda: answers.append(daemon.get()))
        slow.start()
        wait_until("the slow request is there", lambda: site.control.audit(mark, path=PODS) != [])
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("listeners are closed")
        with pytest.raises(ConnectionRefusedError):
            daemon.get("/version")
        events = list(lines_of(watch))
        assert all(event.endswith(b"}\n") for event in events)
        assert watch.isclosed()  # a clean end: an informer resumes
        slow.join(TIMEOUT)
        assert [answer.status for answer in answers] == [200]
        assert daemon.end() == 0
        daemon.wait_for("mcproxy has stopped")


def test_second_sigterm_stops_at_once(site: Site, tmp_path: Path) -> None:
    with site.daemon(tmp_path, drain=60) as daemon, Client(daemon.address) as client:
        upgrade = [
            ("Connection", "Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
        ]
        response = client.begin("POST", f"{PODS}/db-0/exec?command=cat&stdin=true", upgrade, b"")
        assert response.status == 101
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("mcproxy is stopping")
        assert daemon.process.poll() is None
        begun = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
        assert time.monotonic() - begun < 30.0  # of a drain of 60
        assert len(daemon.lines("mcproxy stops at once", "open=1")) == 1


@pytest.mark.slow
def test_killed_daemon_starts_again_on_the_same_addresses(site: Site, tmp_path: Path) -> None:
    with site.daemon(tmp_path) as daemon, Client(daemon.address) as client:
        assert client.request("GET", "/version").status == 200
        daemon.signal(signal.SIGKILL)
        daemon.end()
        daemon.start()
        assert daemon.get().status == 200
        assert daemon.reload().returncode == 0


@pytest.mark.slow
def test_second_daemon_on_the_same_port_logs_why_it_ends(site: Site, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with site.daemon(tmp_path) as daemon:
        other = site.daemon(tmp_path / "other", bind=f"127.0.0.1:{daemon.port}")
        other.spawn()
        assert other.end() == 1
        (line,) = other.lines("level=error")
        assert f"127.0.0.1:{daemon.port}" in line
        assert "in use" in line
        assert 'todo="stop what listens there' in line
        assert "Traceback" not in other.log
        assert daemon.get().status == 200


def rubbish(seed: int) -> list[bytes]:
    chance = random.Random(seed)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(32)
    return [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x00" * 5000,
        chance.randbytes(20000),
        hello,  # half of a ClientHello
        b"\x16\x03\x01\xff\xff" + chance.randbytes(100),
        b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + chance.randbytes(40),  # SSL 2
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"\r\n\r\n\x00\r\nQUIT\n" + chance.randbytes(12),
    ]


def open_for_clients(descriptors: Path, upstream: set[str]) -> int:
    """How many descriptors a process has open, but for connections to the ports `upstream`, which come and go."""
    remote_ports = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        remote_ports[f"socket:[{fields[9]}]"] = str(int(fields[2].rpartition(":")[2], 16))
    count = 0
    for each in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += remote_ports.get(os.readlink(each)) not in upstream
    return count


@pytest.mark.slow
def test_rubbish_on_the_port_ends_and_leaves_nothing(site: Site, daemon: SiteDaemon) -> None:
    assert daemon.get().status == 200
    descriptors = Path(f"/proc/{daemon.process.pid}/fd")
    upstream = {Path(url).name.rpartition(":")[2] for url in site.cluster.urls}
    before = open_for_clients(descriptors, upstream)
    daemon.log_is_written()
    lines = len(daemon.log.splitlines())
    connections = []
    for port in (daemon.port, daemon.balanced_port):
        for data in rubbish(port % 2):
            connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
            connection.sendall(data)
            connections.append(connection)
    with daemon.address.connect() as inside:  # TLS, and no HTTP within
        inside.sendall(rubbish(3)[5])
        inside.settimeout(TIMEOUT)
        assert inside.recv(65536).startswith(b"HTTP/1.1 400 ")
    assert daemon.get().status == 200
    for connection in connections:  # each is ended by the proxy, after its handshake timeout at the latest
        connection.settimeout(TIMEOUT)
        try:
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass
        connection.close()
    wait_until("all descriptors are back", lambda: open_for_clients(descriptors, upstream) <= before)
    daemon.log_is_written()
    assert "Traceback" not in daemon.log
    assert "level=error" not in daemon.log
    told = [line for line in daemon.log.splitlines()[lines:] if "event=endpoint_" not in line]
    assert len(told) < 20  # of 22: a scanner must not fill the disk


@pytest.mark.slow
def test_wrong_file_has_the_errors_of_check_in_reload_and_log(site: Site, tmp_path: Path) -> None:
    with site.daemon(tmp_path) as daemon:
        good = daemon.file.read_text()
        wrong = good.replace("backend: {cluster: east}", "backend: {cluster: north}") + "nonsense: true\nlisteners: 3\n"
        daemon.file.write_text(wrong.replace("identity: Proxy", "identity: Prox"))
        checked = mcproxy("check", "-c", str(daemon.file))
        told = [line for line in checked.stderr.splitlines() if line.startswith(str(daemon.file))]
        assert checked.returncode == 78
        assert len(told) >= 2
        reloaded = daemon.reload()
        assert reloaded.returncode == 78
        assert [line for line in reloaded.stderr.splitlines() if line.startswith(str(daemon.file))] == told
        logged = daemon.wait_for("level=error", "configuration error", count=len(told))
        for problem, line in zip(told, logged, strict=True):
            assert json.dumps(problem)[1:-1] in line
        (refused,) = daemon.wait_for("reload refused; the old configuration stays in force")
        assert 'todo="correct the errors in the lines before this one, then reload again"' in refused
        assert daemon.get().status == 200
        daemon.file.write_text(good)
        assert daemon.reload().returncode == 0


@pytest.mark.slow
def test_systemd_passes_a_socket_and_no_client_waits_in_vain(site: Site, tmp_path: Path) -> None:
    """A client that came before the daemon is served by it, and one that comes while it restarts."""
    with socket.create_server(("127.0.0.1", 0)) as handed:
        port = handed.getsockname()[1]
        daemon = site.daemon(tmp_path, bind="systemd:api")
        address = Address(port, site.context)
        hand_over = (
            f"import os, sys; os.dup2({handed.fileno()}, 3); "
            "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='api'); "
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", hand_over, *daemon.command]
        try:
            for _ in range(2):
                answers: list[Answer] = []
                early = threading.Thread(target=lambda: answers.append(ask(address, "/version")))  # noqa: B023
                early.start()
                daemon.spawn(command, pass_fds=(handed.fileno(),))
                early.join(TIMEOUT)
                assert [answer.status for answer in answers] == [200]
                daemon.signal(signal.SIGTERM)
                assert daemon.end() == 0
        finally:
            daemon.stop()


def proxied(port: int, header: bytes, context: ssl.SSLContext) -> int:
    """Ask for the pods behind a PROXY protocol header; gives the status."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as plain:
        plain.sendall(header)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(f"GET {PODS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            response = http.client.HTTPResponse(connection)
            response.begin()
            response.read()
            return response.status


@pytest.mark.parametrize(
    ("header", "client"),
    [
        (b"PROXY TCP4 203.0.113.7 127.0.0.1 5555 6443\r\n", "203.0.113.7"),
        (b"PROXY TCP6 2001:db8::7 ::1 5555 6443\r\n", "2001:db8::7"),
        (
            b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"
            + bytes([198, 51, 100, 9, 127, 0, 0, 1])
            + struct.pack("!HH", 1, 2),
            "198.51.100.9",
        ),
    ],
    ids=["v1-tcp4", "v1-tcp6", "v2-tcp4"],
)
def test_proxy_protocol_has_the_clients_address(site: Site, daemon: SiteDaemon, header: bytes, client: str) -> None:
    mark = site.control.mark()
    assert proxied(daemon.balanced_port, header, site.context) == 200
    (record,) = site.control.audit(mark, path=PODS)
    assert header_values(record, "X-Forwarded-For") == [client]
    access = daemon.directory / "access.log"
    wait_until("it is in the access log", lambda: f'"client":"{client}"' in access.read_text())
    with pytest.raises((ConnectionError, ssl.SSLError)):
        proxied(daemon.balanced_port, b"", site.context)
    with pytest.raises((ConnectionError, ssl.SSLError)):
        proxied(daemon.port, header, site.context)


def test_unix_socket_is_served_to_curl(site: Site, tmp_path: Path) -> None:
    curl = shutil.which("curl")
    assert curl is not None, "install curl and put it on PATH"
    with site.daemon(tmp_path) as daemon:
        mark = site.control.mark()
        command = [curl, "-sS", "--unix-socket", str(tmp_path / "api.sock"), f"http://anything{PODS}"]
        done = subprocess.run(command, capture_output=True, timeout=30, check=True)
        assert json.loads(done.stdout)["kind"] == "PodList"
        (record,) = site.control.audit(mark, path=PODS)
        assert header_values(record, "X-Forwarded-For") == []
        assert header_values(record, "X-Forwarded-Proto") == ["http"]
        assert os.stat(tmp_path / "api.sock").st_mode & 0o077 == 0
        access = tmp_path / "access.log"
        wait_until("it is in the access log", lambda: '"client":"unix:"' in access.read_text())
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
        assert not (tmp_path / "api.sock").exists()


def test_listener_that_goes_ends_after_its_watches_had_time(site: Site, tmp_path: Path) -> None:
    with site.daemon(tmp_path, drain=2) as daemon, Client(daemon.address) as watcher:
        watch = watcher.begin("GET", WATCH)
        moved = reserved_port()
        daemon.file.write_text(daemon.file.read_text().replace(f"127.0.0.1:{daemon.port}", f"127.0.0.1:{moved}"))
        begun = time.monotonic()
        assert daemon.reload().returncode == 0
        with pytest.raises(ConnectionRefusedError):
            daemon.get()
        assert ask(Address(moved, site.context), PODS).status == 200
        assert all(line.endswith(b"}\n") for line in lines_of(watch))
        assert watch.isclosed()
        assert time.monotonic() - begun < TIMEOUT
        assert ask(Address(moved, site.context), PODS).status == 200


def test_check_of_a_running_daemons_file_finds_its_own_addresses_in_use_no_error(daemon: SiteDaemon) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mcproxy", "check", "-c", str(daemon.file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
