"""A simulated cluster behind a proxy, with a route for each combination of HTTP versions."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kubesim.auth.certificates import Authority
from tests.e2e.processes import Daemon, Kubectl, wait_until
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import kubeconfig_of
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
listeners:
  - {{name: two, bind: "127.0.0.1:{two}", tls: {{certificates: [proxy]}}}}
  - {{name: one, bind: "127.0.0.1:{one}", tls: {{certificates: [proxy]}}, protocols: [HTTP1]}}
certificates:
  - {{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}
clusters:
  - name: two
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Passthrough
    connections: {{protocol: HTTP2}}
    # A check without an answer in half of this time opens a connection, which is kept; the tests count connections.
    healthCheck: {{interval: 60s, timeout: 60s}}
  - name: one
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Passthrough
    connections: {{protocol: HTTP1}}
servers:
  - {{name: all, default: true, backend: {{clusters: [two, one]}}}}
logging: {{access: {{file: access.log}}}}
"""
ROUTES = ("1-1", "1-2", "2-1", "2-2")
"""The version from the client to the proxy, and from the proxy to the cluster."""
NAMES = {"1": "one", "2": "two"}
USERS = ("admin", "alice")


class HTTP2Routes:
    """The cluster `east` and the proxy; start and stop it once for many tests. Tokens are passed through."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = SimulatedClusterProcess("east", options=("--http2",), directory=directory / "east")
        self.ports = {name: reserved_port() for name in NAMES.values()}
        self.authority = Authority("e2e CA")
        self.ca = directory / "ca.crt"
        self.kubeconfig = directory / "kubeconfig"
        self.home = directory / "home"
        self._daemon: Daemon | None = None

    def start(self) -> HTTP2Routes:
        self.cluster.spawn()
        self.authority.server(["127.0.0.1", "localhost"]).write(self.directory, "proxy")
        self.ca.write_bytes(self.authority.pem)
        self.home.mkdir()
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        self.cluster.wait_ready()
        config = CONFIG.format(url=self.cluster.url, ca=self.cluster.ca, **self.ports)
        self._daemon = Daemon(self.directory, config).start()
        self._daemon.wait_for("takes requests", count=2)
        # It asks once which rights it has, a second later, over a connection that is kept.
        wait_until("its own rights are known", lambda: None not in [each["rightsMissing"] for each in self._clusters()])
        return self

    def _clusters(self) -> list[dict[str, Any]]:
        """The clusters in the daemon's status."""
        clusters: list[dict[str, Any]] = self.daemon.command_answer({"command": "status"})["clusters"]
        return clusters

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        self.cluster.cleanup()

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    @property
    def control(self) -> ControlClient:
        return ControlClient(self.cluster.control_url)

    def base(self, route: str) -> str:
        """The URL of the API of a route, without a slash at its end."""
        client, cluster = route.split("-")
        return f"https://127.0.0.1:{self.ports[NAMES[client]]}/clusters/{NAMES[cluster]}"

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))

    def kubectl(self, program: str, route: str, user: str = "admin") -> Kubectl:
        return Kubectl(program, str(self.kubeconfig), f"{route}-{user}", self.home)

    def protocols(self, mark: int, *, path: str = "") -> set[str]:
        """The versions in which requests came to the cluster since a mark of its audit log."""
        return {record["protocol"] for record in self.control.audit(mark, path=path) if record["user"] in USERS}

    def logged(self, count: int, **fields: object) -> list[dict[str, Any]]:
        """The last `count` lines of the access log with these fields, when all are written."""
        self.daemon.log_is_written()
        lines = [json.loads(line) for line in (self.directory / "access.log").read_text().splitlines()]
        found = [line for line in lines if all(line.get(name) == value for name, value in fields.items())]
        return found[-count:]

    def _kubeconfig(self) -> dict[str, Any]:
        return kubeconfig_of(
            [
                {"name": route, "cluster": {"server": self.base(route), "certificate-authority": str(self.ca)}}
                for route in ROUTES
            ],
            [{"name": user, "user": {"token": f"{user}-test-token"}} for user in USERS],
            [
                {"name": f"{route}-{user}", "context": {"cluster": route, "user": user, "namespace": "demo"}}
                for route in ROUTES
                for user in USERS
            ],
            f"{ROUTES[0]}-{USERS[0]}",
        )


def all_equal(seen: dict[str, Any], routes: Sequence[str] = ROUTES) -> Any:
    """What all routes gave; fails if one gave something else than the first."""
    for route in routes[1:]:
        assert seen[route] == seen[routes[0]], f"{route}: {_difference(seen[routes[0]], seen[route])}"
    return seen[routes[0]]


def _difference(expected: Any, found: Any) -> str:
    """Where two values begin to differ, in their textual forms."""
    left, right = repr(expected), repr(found)
    same = next((index for index, pair in enumerate(zip(left, right, strict=False)) if len({*pair}) > 1), 0)
    start = max(0, same - 60)
    return f"{right[start : start + 300]!r} instead of {left[start : start + 300]!r}"
