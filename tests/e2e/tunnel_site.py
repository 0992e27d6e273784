"""A hub, and the edge of a site whose cluster cannot be dialled: two daemons as operators would run them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
from pathlib import Path
from typing import Self

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Answer, Client
from tests.e2e.processes import TIMEOUT, Daemon, Kubectl
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER, kubeconfig_of
from tests.support.ports import reserved_port

HUB = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 3s, workers: {workers}}}
"""
    + PUBLIC_LISTENER
    + """\
tunnels:
  - {{name: site-a, users: [edge-site-a]}}
  - {{name: site-b, users: [edge-site-b]}}
clusters:
  - name: site-a
    endpoints: [{{name: a, tunnel: site-a}}]
    identity: RequestHeader
    healthCheck: {{interval: 1s}}
authentication:
  - {{name: users, clientCertificates: {{caFile: clients.crt}}}}
  - {{name: edges, clientCertificates: {{caFile: edges.crt}}}}
servers:
  - {{name: all, default: true, backend: {{clusters: "*"}}, authentication: users}}
  - {{name: tunnels, serverNames: [tunnels.test], backend: {{tunnels: "*"}}, authentication: edges}}
logging: {{access: {{file: access.log}}}}
"""
)
ROUTES = ("direct", "hub")
"""The contexts of the kubeconfig: past the tunnel, and through it."""
EDGE = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 3s, workers: {workers}}}
listeners:
  - name: hub
    dial:
      tunnel: {tunnel}
      urls: [{urls}]
      serverName: tunnels.test
      tls: {{caFile: ../hub/ca.crt{certificate}}}
{dial}
clusters:
  - name: local
    endpoints: [{{url: "{cluster}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Impersonate
authentication:
  - {{name: from-hub, requestHeader: {{listeners: [hub], hubUser: mcproxy-hub}}}}
authorization:
  - name: what-the-hub-may
    rules:
      - {{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
      - {{verbs: [get], nonResourceURLs: ["*"]}}
servers:
  - {{name: site, listeners: [hub], backend: {{cluster: local}}, authentication: from-hub,
     authorization: what-the-hub-may}}
logging: {{access: {{file: access.log}}}}
"""


ALICE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "alice-of-the-hub"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
}
"""Alice may do all in the cluster, as the user that the edge impersonates and with her token for the cluster itself."""


class LastingDaemon(Daemon):
    """A daemon that may be upgraded and signalled: with all its processes, also when the first one has ended."""

    @property
    def pids(self) -> dict[str, int]:
        """The processes by their names."""
        found = self.command_answer({"command": "status"})["processes"]
        return {str(each["name"]): int(each["pid"]) for each in found}

    @property
    def first(self) -> int:
        """The process that takes signals for all of them."""
        found = self.pids
        return found["supervisor"] if len(found) > 1 else min(found.values())

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all processes of it."""
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(TIMEOUT)

    def restart(self) -> None:
        """Kill it and start it again; its log begins anew."""
        self.stop()
        self.start()


class TunnelSite:
    """Start it once for several tests."""

    cluster_name = "site-a"
    """The cluster of the hub that `ask` asks."""
    edge_daemon: type[LastingDaemon] = LastingDaemon
    edge_url = ""
    """The hub's URL for the edge, if that is not where the hub listens."""

    def __init__(self, directory: Path, *, hub_workers: int = 1, edge_workers: int = 1) -> None:
        self.directory = directory
        self.hub_workers, self.edge_workers = hub_workers, edge_workers
        self._others: list[LastingDaemon] = []
        self.cluster = SimulatedClusterProcess("site-a", directory=directory / "site-a")
        self.port = reserved_port()
        self.hubs = Authority("hub CA")
        self.trusted = self.hubs.pem  # by clients
        self.users, self.edges = Authority("users"), Authority("edges")
        self.hub_directory, self.edge_directory = directory / "hub", directory / "edge"
        self._hub: LastingDaemon | None = None
        self._edge: LastingDaemon | None = None

    @property
    def hub(self) -> LastingDaemon:
        assert self._hub is not None, "the site was not started"
        return self._hub

    @property
    def edge(self) -> LastingDaemon:
        assert self._edge is not None, "the site was not started"
        return self._edge

    @property
    def control(self) -> ControlClient:
        """The control API of the cluster."""
        return ControlClient(self.cluster.control_url)

    def start(self, hub: str = HUB, *, connected: bool = True, **edge: str) -> Self:
        """`hub`: the template of its file; `edge`: settings of `edge_config`; `connected`: wait for the tunnel."""
        if not self.cluster.ready:
            self.cluster.spawn()
        for folder in (self.hub_directory, self.edge_directory):
            folder.mkdir(exist_ok=True)
        self.hubs.server(["127.0.0.1", "localhost", "tunnels.test"]).write(self.hub_directory, "proxy")
        (self.hub_directory / "ca.crt").write_bytes(self.hubs.pem)
        (self.hub_directory / "clients.crt").write_bytes(self.users.pem)
        (self.hub_directory / "edges.crt").write_bytes(self.edges.pem)
        for user in ("edge-site-a", "edge-site-b"):
            self.edges.client(user).write(self.edge_directory, user)
        self.users.client("alice", ["dev"]).write(self.directory, "alice")
        if not self.cluster.ready:
            self.cluster.wait_ready()
        self.control.create([ALICE])
        self._hub = LastingDaemon(self.hub_directory, self.hub_config(hub)).start()
        self._edge = self.edge_daemon(self.edge_directory, self.edge_config(**edge)).start()
        if connected:
            self.hub.wait_for("takes requests")
        return self

    def another(self, directory: Path, config: str, files: Path) -> LastingDaemon:
        """Start one more daemon, which is stopped with the site; it has copies of the `files` of another one."""
        shutil.copytree(files, directory, ignore=shutil.ignore_patterns("*.log", "*.sock", "*.yaml"))
        daemon = LastingDaemon(directory, config)
        self._others.append(daemon)
        return daemon.start()

    def is_connected(self, tunnel: str = "site-a") -> bool:
        """Whether the hub has a control connection."""
        found = self.hub.command_answer({"command": "status"})["tunnels"]
        return any(each["name"] == tunnel and each["connected"] for each in found)

    def controls(self, tunnel: str = "site-a") -> int:
        """The number of control connections at the hub: one for each process of the edge."""
        found = self.hub.command_answer({"command": "status"})["tunnels"]
        return sum(len(each["peers"]) for each in found if each["name"] == tunnel)

    def hub_config(self, template: str = HUB) -> str:
        return template.format(port=self.port, workers=self.hub_workers)

    def edge_config(
        self,
        *,
        urls: str = "",
        tunnel: str = "site-a",
        user: str = "edge-site-a",
        dial: str = "",
        template: str = EDGE,
    ) -> str:
        return template.format(
            tunnel=tunnel,
            certificate=f", certFile: {user}.crt, keyFile: {user}.key" if user else "",
            urls=urls or f'"{self.edge_url or self.url}"',
            cluster=self.cluster.urls[0],
            ca=self.cluster.ca,
            workers=self.edge_workers,
            dial=dial,
        )

    @property
    def url(self) -> str:
        """Where the hub listens."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def context(self) -> ssl.SSLContext:
        """For a client of the hub: alice."""
        context = ssl.create_default_context(cadata=self.trusted.decode())
        context.load_cert_chain(self.directory / "alice.crt", self.directory / "alice.key")
        return context

    def client(self) -> Client:
        return Client(Address(self.port, self.context))

    def ask(self, target: str, method: str = "GET") -> Answer:
        client = self.client()
        try:
            return client.request(method, f"/clusters/{self.cluster_name}{target}")
        finally:
            client.close()

    def kubectl(self, program: str, route: str = "hub") -> Kubectl:
        """kubectl as alice, by a route of `ROUTES`."""
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        return Kubectl(program, str(self.kubeconfig()), route, home)

    def kubeconfig(self) -> Path:
        file = self.directory / "kubeconfig"
        server = f"https://127.0.0.1:{self.port}/clusters/site-a"
        cluster = {"server": server, "certificate-authority": str(self.hub_directory / "ca.crt")}
        direct = {"server": self.cluster.url, "certificate-authority": str(self.cluster.ca)}
        user = {
            "client-certificate": str(self.directory / "alice.crt"),
            "client-key": str(self.directory / "alice.key"),
        }
        file.write_text(
            json.dumps(
                kubeconfig_of(
                    [{"name": "hub", "cluster": cluster}, {"name": "direct", "cluster": direct}],
                    [{"name": "hub", "user": user}, {"name": "direct", "user": {"token": "alice-test-token"}}],
                    [
                        {"name": route, "context": {"cluster": route, "user": route, "namespace": "demo"}}
                        for route in ROUTES
                    ],
                    "hub",
                )
            )
        )
        return file

    def stop(self) -> None:
        for daemon in (*self._others, self._edge, self._hub):
            if daemon is not None:
                daemon.stop()
        self.cluster.cleanup()
