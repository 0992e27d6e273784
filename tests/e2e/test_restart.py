"""A restart under clients that hold leases, watches, exec and `kubectl logs -f`: cheaper than a crash."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Client, lines_of
from tests.e2e.processes import TIMEOUT, Daemon, Kubectl, mcproxy, wait_until
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER
from tests.support.ports import reserved_port

DRAIN = 60.0
WATCHES = 16
CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: {drain:.0f}s}}
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: east
    endpoints: [{{url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
servers:
  - {{name: east, default: true, authentication: none, backend: {{cluster: east}}}}
"""
)
CONFIGMAPS = "/api/v1/namespaces/demo/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/demo/leases"


class Lease:
    """A client that renews a lease all the time, each time on the kept connection if that is still open."""

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._name = name
        self._stopping = threading.Event()
        self.renewed: list[float] = []
        self.failures: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Lease:
        with Client(self._address) as client:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15},
            }
            answer = client.request("POST", LEASES, [("Content-Type", "application/json")], json.dumps(body).encode())
            assert answer.status in (201, 409), answer
        self._thread.start()
        wait_until("the first renewals", lambda: len(self.renewed) > 3)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        client: Client | None = None
        while not self._stopping.is_set():
            try:
                client = client or Client(self._address)
                body = json.dumps({"spec": {"leaseTransitions": len(self.renewed)}}).encode()
                patch = [("Content-Type", "application/merge-patch+json")]
                answer = client.request("PATCH", f"{LEASES}/{self._name}", patch, body)
                assert answer.status == 200, answer
                self.renewed.append(time.monotonic())
                if answer.header("connection") == "close":
                    client.close()
                    client = None
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                if client is not None:
                    client.close()
                client = None
            time.sleep(0.02)
        if client is not None:
            client.close()

    @property
    def longest_gap(self) -> float:
        """Seconds."""
        times = list(self.renewed)
        return max(later - earlier for earlier, later in pairwise(times))


class Watch:
    """A client that follows all changes and resumes as an informer does; `unclean` has the ends that cost a relist."""

    def __init__(self, address: Address, version: str) -> None:
        self._address = address
        self._version = version
        self.seen: list[str] = []
        self.unclean: list[str] = []
        self.clean_ends = 0
        self.refused = 0
        self._over = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._over:
            try:
                client = Client(self._address)
            except OSError:
                self.refused += 1
                time.sleep(0.05)
                continue
            try:
                self._follow(client)
            except (OSError, http.client.HTTPException) as error:
                self.unclean.append(f"{type(error).__name__}: {error}")
            finally:
                client.close()
            time.sleep(0.02)

    def _follow(self, client: Client) -> None:
        response = client.begin("GET", f"{CONFIGMAPS}?watch=1&resourceVersion={self._version}")
        if response.status != 200:
            self.unclean.append(f"status {response.status}")
            return
        for line in lines_of(response):
            metadata = json.loads(line)["object"]["metadata"]
            self._version = metadata["resourceVersion"]
            self.seen.append(metadata["name"])
            if metadata["name"] == "the-end":
                self._over = True
                return
        self.clean_ends += 1


class Site:
    """A cluster, and daemons before it with one configuration."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = SimulatedClusterProcess("east", directory=directory / "cluster")
        self.cluster.start()
        authority = Authority("restart CA")
        authority.server(["127.0.0.1"]).write(directory, "proxy")
        (directory / "ca.crt").write_bytes(authority.pem)
        self.port = reserved_port()
        self.address = Address(self.port, ssl.create_default_context(cadata=authority.pem.decode()))
        self.control = ControlClient(self.cluster.control_url)
        self.drain = DRAIN
        self._daemons: list[Daemon] = []

    def daemon(self) -> Daemon:
        config = CONFIG.format(port=self.port, url=self.cluster.url, ca=self.cluster.ca, drain=self.drain)
        daemon = Daemon(self.directory, config)
        daemon.log_file = self.directory / f"mcproxy-{len(self._daemons)}.log"
        self._daemons.append(daemon)
        return daemon

    def serving(self) -> tuple[Daemon, float]:
        """A daemon that serves, and how long its start took (seconds)."""
        daemon = self.daemon()
        begun = time.monotonic()
        daemon.start()
        took = time.monotonic() - begun
        daemon.wait_for("takes requests")
        return daemon, took

    def watches(self) -> list[Watch]:
        with Client(self.address) as client:
            version = client.request("GET", CONFIGMAPS).json["metadata"]["resourceVersion"]
        watches = [Watch(self.address, version) for _ in range(WATCHES)]
        self.create("first")
        wait_until("all watches", lambda: all(watch.seen for watch in watches))
        return watches

    def create(self, name: str) -> None:
        metadata = {"name": name, "namespace": "demo"}
        self.control.create([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}])

    def finish(self, watches: list[Watch]) -> None:
        """End the watches; all have seen all, and none was ended in an unclean way."""
        self.create("the-end")
        for watch in watches:
            watch.thread.join(TIMEOUT)
        assert {tuple(watch.seen) for watch in watches} == {("first", "meanwhile", "the-end")}
        assert [watch.unclean for watch in watches] == [[]] * WATCHES

    def forget(self) -> None:
        self.drain = DRAIN
        for daemon in self._daemons:
            daemon.stop()
        for name in ("first", "meanwhile", "the-end"):
            with Client(Address(self.cluster.ports[0], ssl.create_default_context(cafile=self.cluster.ca))) as client:
                client.request("DELETE", f"{CONFIGMAPS}/{name}", [("Authorization", "Bearer admin-test-token")])

    def kubectl(self, program: str) -> Kubectl:
        kubeconfig = self.directory / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.directory / "ca.crt")}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": "unused"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "demo"}}],
        }
        kubeconfig.write_text(json.dumps(content))
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        return Kubectl(program, str(kubeconfig), "it", home)


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("restart"))
    try:
        yield site
    finally:
        site.cluster.cleanup()


@pytest.fixture
def site(shared_site: Site) -> Iterator[Site]:
    try:
        yield shared_site
    finally:
        shared_site.forget()


@pytest.mark.slow
def test_without_tunnels_a_restart_takes_as_long_as_a_start(site: Site) -> None:
    daemon, start = site.serving()
    watches = site.watches()
    with Lease(site.address, "restart") as lease:
        daemon.signal(signal.SIGTERM)
        stopped = time.monotonic()
        assert daemon.end() == 0
        stop = time.monotonic() - stopped
        site.create("meanwhile")
        _, again = site.serving()
        renewals = len(lease.renewed)
        wait_until("renewals by the successor", lambda: len(lease.renewed) > renewals + 3)
    site.finish(watches)
    assert all(watch.clean_ends == 1 for watch in watches)
    assert stop < DRAIN - 1.0  # the machine may be busy
    assert lease.longest_gap < stop + again + 3 * max(start, 1.0)
    (last,) = daemon.lines("mcproxy has stopped")
    assert last.endswith("cut=0")
    assert daemon.log.splitlines()[-1] == last


@pytest.mark.slow
def test_tunnels_have_their_time_all_else_is_served_and_the_successor_waits(site: Site, kubectl: str) -> None:
    run = site.kubectl(kubectl)
    daemon, start = site.serving()
    site.drain = drain = 10.0 + 5 * round(start + 0.5)  # seconds: the successor has to be there in this time
    successor = site.daemon()
    assert daemon.reload().returncode == 0
    watches = site.watches()
    with (
        Lease(site.address, "drain") as lease,
        run.begin("exec", "-i", "db-0", "--", "cat") as shell,
        run.begin("logs", "-f", "db-1", "--tail=1") as logs,
    ):
        shell.write(b"one\n")
        shell.wait_for("one")
        site.control.append_log("demo", "db-1", "before the stop\n")
        logs.wait_for("before the stop")
        daemon.signal(signal.SIGTERM)
        stopped = time.monotonic()
        daemon.wait_for("mcproxy is stopping")
        successor.spawn()
        successor.wait_for("waiting for the previous daemon to shut down")
        refused = run("exec", "db-0", "--", "hostname")
        assert refused.status != 0
        assert "shutting down" in refused.stderr
        while time.monotonic() < stopped + 4:
            renewals = len(lease.renewed)
            wait_until("renewals during the drain", lambda count=renewals: len(lease.renewed) > count + 3)  # type: ignore[misc]
            assert run("get", "pods").status == 0
        assert lease.failures == []
        assert all(watch.clean_ends == 0 for watch in watches)
        shell.write(b"two\n")
        shell.wait_for("two")
        site.control.append_log("demo", "db-1", "during the stop\n")
        logs.wait_for("during the stop")
        assert time.monotonic() < stopped + drain, "the machine is too busy for this test"
        site.create("meanwhile")
        daemon.wait_for("listeners are closed")
        closed = time.monotonic()
        assert closed >= stopped + drain
        assert logs.process.wait(TIMEOUT) != 0
        shell.process.wait(TIMEOUT)
        assert daemon.end() == 0
        successor.wait_for('msg="mcproxy is ready"')
        serves = time.monotonic()
        renewals = len(lease.renewed)
        wait_until("renewals by the successor", lambda: len(lease.renewed) > renewals + 3)
    assert lease.longest_gap < serves - closed + 3 * max(start, 1.0)
    site.finish(watches)
    (last,) = daemon.lines("mcproxy has stopped")
    assert "cut=2 cutTunnels=1 cutLogs=1" in last or "cut=2 cutLogs=1 cutTunnels=1" in last


def test_a_tunnel_that_ends_by_itself_ends_the_drain(site: Site, kubectl: str) -> None:
    daemon, _ = site.serving()
    with site.kubectl(kubectl).begin("exec", "-i", "db-0", "--", "cat") as shell:
        shell.write(b"one\n")
        shell.wait_for("one")
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("mcproxy is stopping")
        begun = time.monotonic()
        assert shell.finish().status == 0
        assert daemon.end() == 0
        assert time.monotonic() - begun < DRAIN
    assert daemon.lines("mcproxy has stopped", "cut=0")


@pytest.mark.slow
def test_a_reload_prints_what_it_changes_and_finds_a_daemon_whose_control_socket_it_moves(site: Site) -> None:
    daemon, _ = site.serving()
    before = daemon.file.read_text()
    try:
        assert "no changes" in mcproxy("check", "-c", str(daemon.file), "--diff").stdout
        changed = before.replace("control.sock", "moved.sock").replace("drainTimeout: 60s", "drainTimeout: 61s")
        daemon.file.write_text(changed.replace("name: east, default: true", "name: other, default: true"))
        expected = [
            f"changed daemon.controlSocket: {site.directory}/control.sock -> {site.directory}/moved.sock",
            "changed daemon.drainTimeout: 1m -> 1m1s",
            "removed servers[east]",
            "added servers[other]",
        ]
        told = mcproxy("check", "-c", str(daemon.file), "--diff")
        assert (told.returncode, [line.strip() for line in told.stdout.splitlines()]) == (0, expected)
        assert not (site.directory / "moved.sock").exists()
        done = daemon.reload()
        assert done.returncode == 0, done
        assert [line.strip() for line in done.stdout.splitlines()[1:]] == expected
        (line,) = daemon.wait_for("configuration reloaded")
        assert "added=servers[other] removed=servers[east] changed=daemon" in line
        assert daemon.reload().stdout.splitlines()[1:] == ["  no changes"]
        assert not (site.directory / "control.sock").exists()
    finally:
        daemon.file.write_text(before)
