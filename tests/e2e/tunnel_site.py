"""A hub, and the edge of a site whose cluster cannot be dialled: two daemons as operators would run them."""

from __future__ import annotations

import json
import ssl
import subprocess
from pathlib import Path
from typing import Self

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address, Answer, Client
from tests.e2e.processes import Daemon, Kubectl, mcproxy, wait_until
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
EDGE = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 3s, workers: {workers}}}
listeners:
  - name: hub
    dial:
      tunnel: {tunnel}
      urls: [{urls}]
      serverName: tunnels.test
      tls: {{caFile: ../hub/ca.crt, certFile: {user}.crt, keyFile: {user}.key}}
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


class TunnelSite:
    """Start it once for several tests."""

    def __init__(self, directory: Path, *, hub_workers: int = 1, edge_workers: int = 1) -> None:
        self.directory = directory
        self.hub_workers, self.edge_workers = hub_workers, edge_workers
        self.cluster = SimulatedClusterProcess("site-a", directory=directory / "site-a")
        self.port = reserved_port()
        self.hubs = Authority("hub CA")
        self.users, self.edges = Authority("users"), Authority("edges")
        self.hub_directory, self.edge_directory = directory / "hub", directory / "edge"
        self.hub: Daemon | None = None
        self.edge: Daemon | None = None

    def start(self) -> Self:
        self.cluster.spawn()
        for folder in (self.hub_directory, self.edge_directory):
            folder.mkdir()
        self.hubs.server(["127.0.0.1", "localhost", "tunnels.test"]).write(self.hub_directory, "proxy")
        (self.hub_directory / "ca.crt").write_bytes(self.hubs.pem)
        (self.hub_directory / "clients.crt").write_bytes(self.users.pem)
        (self.hub_directory / "edges.crt").write_bytes(self.edges.pem)
        for user in ("edge-site-a", "edge-site-b"):
            self.edges.client(user).write(self.edge_directory, user)
        self.users.client("alice", ["dev"]).write(self.directory, "alice")
        self.cluster.wait_ready()
        ControlClient(self.cluster.control_url)
        self.hub = Daemon(self.hub_directory, self.hub_config()).start()
        self.edge = Daemon(self.edge_directory, self.edge_config()).start()
        self.hub.wait_for("takes requests")
        return self

    def hub_config(self, template: str = HUB) -> str:
        return template.format(port=self.port, workers=self.hub_workers)

    def edge_config(self, *, urls: str = "", tunnel: str = "site-a", user: str = "edge-site-a", dial: str = "") -> str:
        return EDGE.format(
            tunnel=tunnel,
            user=user,
            urls=urls or f'"https://127.0.0.1:{self.port}"',
            cluster=self.cluster.urls[0],
            ca=self.cluster.ca,
            workers=self.edge_workers,
            dial=dial,
        )

    @property
    def context(self) -> ssl.SSLContext:
        """For a client of the hub: alice."""
        context = ssl.create_default_context(cadata=self.hubs.pem.decode())
        context.load_cert_chain(self.directory / "alice.crt", self.directory / "alice.key")
        return context

    def client(self) -> Client:
        return Client(Address(self.port, self.context))

    def ask(self, target: str, method: str = "GET") -> Answer:
        client = self.client()
        try:
            return client.request(method, f"/clusters/site-a{target}")
        finally:
            client.close()

    def kubeconfig(self) -> Path:
        file = self.directory / "kubeconfig"
        server = f"https://127.0.0.1:{self.port}/clusters/site-a"
        cluster = {"server": server, "certificate-authority": str(self.hub_directory / "ca.crt")}
        user = {
            "client-certificate": str(self.directory / "alice.crt"),
            "client-key": str(self.directory / "alice.key"),
        }
        file.write_text(
            json.dumps(
                kubeconfig_of(
                    [{"name": "hub", "cluster": cluster}],
                    [{"name": "alice", "user": user}],
                    [{"name": "hub", "context": {"cluster": "hub", "user": "alice", "namespace": "demo"}}],
                    "hub",
                )
            )
        )
        return file

    def stop(self) -> None:
        for daemon in (self.edge, self.hub):
            if daemon is not None:
                daemon.stop()
        self.cluster.cleanup()


__all__ = ["Kubectl", "TunnelSite", "mcproxy", "subprocess", "wait_until"]
