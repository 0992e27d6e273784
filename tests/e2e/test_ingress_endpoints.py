"""Endpoints of an ingress over two clusters, with two workers: what they know while the keeper or a cluster is away."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import signal
import ssl
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.control_client import send_command
from tests.e2e.processes import TIMEOUT, Daemon, wait_until
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 2s, workers: 2, stateDir: state}}
listeners:
  - {{name: web, bind: "127.0.0.1:{port}", serves: Ingress}}
  - {{name: api, bind: "127.0.0.1:0"}}
clusters:
{clusters}
aggregates:
  - name: fleet
    clusters: [east, west]
    cache: {{resources: [{{group: discovery.k8s.io, version: v1, resource: endpointslices}}]}}
servers:
  - {{name: fleet, listeners: [api], authentication: none, backend: {{aggregate: fleet}}}}
ingresses:
  - name: web
    listeners: [web]
    rules:
      - paths:
          - path: /
            pathType: Prefix
            backend: {{namespace: default, service: web, port: 80, clusters: [east, west], allowedCIDRs: [127.0.0.0/8]}}
          - path: /sticky
            pathType: Prefix
            backend:
              namespace: default
              service: web
              port: 80
              clusters: [east, west]
              allowedCIDRs: [127.0.0.0/8]
              affinity: Cookie
"""
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


class Pod:
    """An HTTP server that says its name."""

    def __init__(self, name: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = name.encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        options = ("--loopback-endpoints",)
        self.clusters = {
            name: SimulatedClusterProcess(name, options=options, directory=directory / name)
            for name in ("east", "west")
        }
        self.port = reserved_port()
        self.pods = {name: Pod(name) for name in ("east-1", "east-2", "west-1")}
        self._daemon: Daemon | None = None

    def start(self) -> None:
        for cluster in self.clusters.values():
            cluster.spawn()
        for name, cluster in self.clusters.items():
            cluster.wait_ready()
            self.write(name, "/api/v1/namespaces/default/services", service())
            self.write(name, SLICES, self.slice(f"{name}-1"))
        self.start_daemon()

    def start_daemon(self) -> None:
        self._daemon = Daemon(self.directory, self.config()).start()

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    def config(self) -> str:
        clusters = "\n".join(
            f'  - {{name: {name}, endpoints: [{{url: "{cluster.urls[0]}"}}], tls: {{caFile: "{cluster.ca}"}}, '
            "credentials: {token: admin-test-token}, healthCheck: {interval: 1s, timeout: 3s}}"
            for name, cluster in self.clusters.items()
        )
        return CONFIG.format(port=self.port, clusters=clusters)

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        for cluster in self.clusters.values():
            cluster.cleanup()
        for pod in self.pods.values():
            pod.stop()

    def slice(self, *pods: str) -> dict[str, Any]:
        """The one slice of a cluster, with a port of its own for each pod: they share an address."""
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}] if pods else [],
            "ports": [{"name": "http", "port": self.pods[name].port} for name in pods],
        }

    def write(self, name: str, path: str, found: dict[str, Any], method: str = "POST") -> None:
        """Write an object to a cluster, past the proxy."""
        cluster = self.clusters[name]
        request = urllib.request.Request(cluster.urls[0] + path, json.dumps(found).encode(), method=method)
        request.add_header("Authorization", "Bearer admin-test-token")
        request.add_header("Content-Type", "application/json")
        context = ssl.create_default_context(cafile=cluster.ca)
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            answer.read()

    def have(self, cluster: str, *pods: str) -> None:
        """Change which endpoints the service has in a cluster."""
        self.write(cluster, f"{SLICES}/web-1", self.slice(*pods), method="PUT")

    def control(self, name: str) -> ControlClient:
        return ControlClient(self.clusters[name].control_url)

    def ask(self) -> str:
        """Send one request over a new connection; return which pod answered, the status, or why none did."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=60) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.code)
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"

    def sticky(self, cookie: str) -> tuple[str, str]:
        """Send a request with a cookie; return which pod answered, and the cookie that it set."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/sticky")
        if cookie:
            request.add_header("Cookie", cookie)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode(), (answer.headers["Set-Cookie"] or "").partition(";")[0]

    def answers(self, number: int = 24) -> set[str]:
        return set(Counter(self.ask() for _ in range(number)))

    def until(self, *pods: str) -> None:
        """Wait until these pods, and no others, answer."""
        wait_until(f"answers of {pods}", lambda: self.answers() == set(pods))

    def status(self) -> dict[str, Any]:
        return send_command(str(self.directory / "control.sock"), {"command": "status"}, 60.0)

    def pid(self, name: str) -> int:
        """Return the number of a process; 0 while there is none of that name."""
        return next((int(each["pid"]) for each in self.status()["processes"] if each["name"] == name), 0)

    def replace_worker(self) -> None:
        """Kill worker-0, and wait until its successor serves."""
        ready = ('msg="a process is ready"', "process=worker-0")
        worker, count = self.pid("worker-0"), len(self.daemon.all_lines(*ready))
        os.kill(worker, signal.SIGKILL)
        wait_until("the successor of worker-0", lambda: self.pid("worker-0") not in (0, worker))
        self.daemon.wait_for(*ready, count=count + 1)

    def stale(self) -> dict[str, int]:
        """Return how many backends of each cluster are stale; nothing while the keeper does not answer."""
        return {each["cluster"]: each["stale"] for each in self.status().get("serviceEndpoints", ())}


def service() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    }


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("ingress"))
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.fixture
def site(clusters: Site) -> Site:
    for name in ("east", "west"):
        clusters.have(name, f"{name}-1")
    clusters.until("east-1", "west-1")
    return clusters


@pytest.mark.slow
def test_endpoints_of_both_clusters_answer_and_changes_are_followed(site: Site) -> None:
    site.have("east", "east-2")
    site.until("east-2", "west-1")
    site.have("east")
    site.until("west-1")
    wait_until("east has none", lambda: [each["ready"] for each in site.status()["serviceEndpoints"]] == [0, 1])
    assert site.status()["serviceEndpoints"] == [
        {
            "cluster": cluster,
            "backends": 1,
            "unknown": 0,
            "stale": 0,
            "ready": ready,
            "terminating": 0,
            "problems": 0,
            "problemBackends": [],
        }
        for cluster, ready in (("east", 0), ("west", 1))
    ]


@pytest.mark.slow
def test_a_change_of_endpoints_is_routed_by_within_a_second(site: Site) -> None:
    """From the API server's answer to the write, over the keeper's watch, to the last worker."""
    delays, old, new = [], "east-1", "east-2"
    for _ in range(5):
        site.have("east", new)
        written = last = time.monotonic()
        right = 0
        while right < 24:
            asked = time.monotonic()
            found = site.ask()
            assert found in (old, new, "west-1")
            right += 1
            if found == old:  # of one worker at least
                last, right = asked, 0
            assert asked < written + TIMEOUT
        site.until(new, "west-1")
        delays.append(last - written)
        old, new = new, old
    assert statistics.median(delays) < 1, delays


def test_what_an_aggregate_has_cached_is_not_watched_again(site: Site) -> None:
    def watched(resource: str) -> set[str]:
        paths = (str(record["path"]) for record in site.control("east").audit())
        return {path.partition("?")[0] for path in paths if f"/{resource}?" in path and "watch=true" in path}

    assert watched("endpointslices") == {
        "/apis/discovery.k8s.io/v1/endpointslices"
    }  # of all namespaces, the aggregate's
    assert watched("services") == {"/api/v1/namespaces/default/services"}


@pytest.mark.slow
def test_workers_route_by_the_last_table_while_the_keeper_is_away_and_its_successor_goes_on(site: Site) -> None:
    keeper = site.pid("keeper")
    os.kill(keeper, signal.SIGSTOP)
    try:
        site.have("east", "east-2")
        assert site.answers() == {"east-1", "west-1"}
        site.replace_worker()  # its successor knows the table of the supervisor
        found = site.answers()
        # A keeper that stands still is replaced after 10 s, within which a busy machine may not start a worker.
        assert found == {"east-1", "west-1"} or site.pid("keeper") != keeper
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGKILL)
    assert site.answers() <= {"east-1", "east-2", "west-1"}
    site.until("east-2", "west-1")


@pytest.mark.slow
def test_a_keeper_that_starts_while_a_cluster_is_away_takes_no_endpoints_from_the_workers(site: Site) -> None:
    with away(site, "west"):
        os.kill(keeper := site.pid("keeper"), signal.SIGKILL)
        wait_until("the successor of the keeper", lambda: site.pid("keeper") not in (0, keeper))
        site.have("east", "east-2")
        site.until("east-2", "west-1")
        wait_until("west's are known to be old", lambda: site.stale() == {"east": 0, "west": 1})
    wait_until("west to be followed", lambda: site.stale() == {"east": 0, "west": 0})


@pytest.mark.slow
def test_the_last_known_endpoints_are_there_after_a_restart_without_the_cluster(site: Site) -> None:
    with away(site, "west"):
        assert site.answers() == {"east-1", "west-1"}
        site.daemon.signal(signal.SIGTERM)
        site.daemon.end()
        site.start_daemon()
        site.until("east-1", "west-1")
        wait_until("west's are known to be old", lambda: site.stale() == {"east": 0, "west": 1})
    site.have("west", "east-2")
    site.until("east-1", "east-2")


@pytest.mark.slow
def test_all_workers_understand_the_cookie_of_one_and_so_does_the_successor_of_a_worker(site: Site) -> None:
    pod, cookie = site.sticky("")
    assert cookie
    for _ in range(2):
        assert {site.sticky(cookie) for _ in range(16)} == {(pod, "")}
        site.replace_worker()
    site.have("east" if pod == "east-1" else "west")
    other = "west-1" if pod == "east-1" else "east-1"
    site.until(other)
    moved, new = site.sticky(cookie)
    assert moved == other
    assert new not in ("", cookie)


def test_status_shows_rules_and_endpoints(site: Site) -> None:
    site.ask()
    wait_until("it is counted", lambda: site.status()["ingresses"][0]["rules"][0]["requestsTotal"] > 0)
    (ingress,) = site.status()["ingresses"]
    assert [rule["rule"] for rule in ingress["rules"]] == ["*/", "*/sticky"]
    services = {each["cluster"]: each for each in site.status()["ingressServices"]}
    assert {name: each["ready"] for name, each in services.items()} == {"east": 1, "west": 1}


@pytest.mark.slow
def test_a_reload_keeps_the_endpoints_and_forgets_those_of_what_is_gone(site: Site) -> None:
    site.daemon.file.write_text(site.config().replace("clusters: [east, west]", "clusters: [west]"))
    assert site.daemon.reload().returncode == 0
    assert site.answers() == {"west-1"}
    assert [each["cluster"] for each in site.status()["serviceEndpoints"]] == ["west"]
    site.daemon.file.write_text(site.config())
    assert site.daemon.reload().returncode == 0
    site.until("east-1", "west-1")


@contextlib.contextmanager
def away(site: Site, name: str) -> Iterator[None]:
    """Have a cluster answer nothing."""
    site.control(name).stop_endpoint()
    try:
        wait_until(f"{name} to be away", lambda: site.stale().get(name) == 1)
        yield
    finally:
        site.control(name).start_endpoint()
