"""Two simulated clusters behind a proxy, with a kubeconfig that has a context for each route to them."""

from __future__ import annotations

import json
import ssl
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address
from tests.e2e.processes import Daemon, Kubectl
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER, kubeconfig_of
from tests.support.ports import reserved_port

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: east
    endpoints:
      - {{name: a, url: "{east_a}"}}
      - {{name: b, url: "{east_b}"}}
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
  - name: west
    kubeconfig: {{file: "{west_kubeconfig}", context: west}}
    identity: Proxy
  - name: own
    endpoints: [{{name: a, url: "{east_a}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Passthrough
servers:
  - {{name: all, default: true, backend: {{clusters: [east, west, own]}}}}
  - {{name: east, serverNames: [east.e2e.test], backend: {{cluster: east}}}}
  - {{name: own, serverNames: ["*.own.e2e.test"], backend: {{cluster: own}}}}
logging: {{access: {{file: access.log}}}}
"""
)


@dataclass(frozen=True)
class Route:
    """One route to a cluster, for clients other than kubectl."""

    name: str
    address: Address
    path: str
    """The prefix of the API paths."""
    token: str

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.address.port}{self.path}"


class Environment:
    """The clusters `east` (two endpoints) and `west`, and the proxy; start and stop it once for many tests."""

    def __init__(self, directory: Path, *, options: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.east = SimulatedClusterProcess(
            "east", options=("--endpoints", "2", *options), directory=directory / "east"
        )
        self.west = SimulatedClusterProcess("west", options=options, directory=directory / "west")
        self.port = reserved_port()
        self.authority = Authority("e2e CA")
        self.ca = directory / "ca.crt"
        self.home = directory / "home"
        self._daemon: Daemon | None = None

    def start(self) -> Environment:
        for cluster in (self.east, self.west):
            cluster.spawn()
        self.write_certificate()
        self.ca.write_bytes(self.authority.pem)
        self.home.mkdir()
        for cluster in (self.east, self.west):
            cluster.wait_ready()
        self._daemon = Daemon(self.directory, self.config()).start()
        self._daemon.wait_for("takes requests", count=4)  # all endpoints were found healthy
        self.kubeconfig = self.directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        return self

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        self.east.cleanup()
        self.west.cleanup()

    def write_certificate(self) -> None:
        """Make the proxy's certificate anew, by the same CA."""
        names = ["127.0.0.1", "localhost", "east.e2e.test", "*.own.e2e.test"]
        self.authority.server(names).write(self.directory, "proxy")

    def config(self, template: str = CONFIG) -> str:
        """The configuration, filled in."""
        return template.format(
            port=self.port,
            east_a=self.east.urls[0],
            east_b=self.east.urls[1],
            east_ca=self.east.ca,
            west_kubeconfig=self.west.kubeconfig,
        )

    def control(self, name: str = "east") -> ControlClient:
        return ControlClient((self.east if name == "east" else self.west).control_url)

    def route(self, name: str) -> Route:
        """direct, path, name, west, own (path form, the client's own token), own-name."""
        mine = ssl.create_default_context(cadata=self.authority.pem.decode())
        theirs = ssl.create_default_context(cafile=self.east.ca)
        ways = {
            "direct": (Address(self.east.ports[0], theirs), "", "admin-test-token"),
            "path": (Address(self.port, mine), "/clusters/east", ""),
            "name": (Address(self.port, mine, "east.e2e.test"), "", ""),
            "west": (Address(self.port, mine), "/clusters/west", ""),
            "own": (Address(self.port, mine), "/clusters/own", "alice-test-token"),
            "own-name": (Address(self.port, mine, "a.own.e2e.test"), "", "alice-test-token"),
            "direct-alice": (Address(self.east.ports[0], theirs), "", "alice-test-token"),
        }
        address, path, token = ways[name]
        return Route(name, address, path, token)

    def _kubeconfig(self) -> dict[str, Any]:
        clusters, users, contexts = [], [], []
        for name in ("direct", "direct-alice", "path", "name", "west", "own", "own-name"):
            route = self.route(name)
            ca = self.east.ca if name.startswith("direct") else str(self.ca)
            cluster = {"server": route.server, "certificate-authority": ca}
            if route.address.server_name:
                cluster["tls-server-name"] = route.address.server_name
            clusters.append({"name": name, "cluster": cluster})
            users.append({"name": name, "user": {"token": route.token or "to-be-ignored"}})
            contexts.append({"name": name, "context": {"cluster": name, "user": name, "namespace": "demo"}})
        return kubeconfig_of(
            clusters,
            users,
            contexts,
            "path",
        )

    def kubectl(self, program: str, route: str) -> Kubectl:
        return Kubectl(program, str(self.kubeconfig), route, self.home)


def query(**values: object) -> str:
    """`?a=1&b=2`."""
    return "?" + urllib.parse.urlencode(values)
