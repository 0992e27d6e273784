"""A daemon that speaks HTTP/2, before clusters by Go's net/http over HTTP/2 and over HTTP/1.1."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

from kubesim.auth.certificates import Authority
from tests.e2e.go_program import GoCluster, GoProcess, JSONDict, goclient
from tests.e2e.http_client import Address
from tests.e2e.processes import Daemon
from tests.support.ports import reserved_port

# A check that has no answer in half of its time opens a connection, which is kept: the tests count connections.
CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
listeners:
  - {{name: usual, bind: "127.0.0.1:{usual}", tls: {{certificates: [proxy]}}}}
  - {{name: leaving, bind: "127.0.0.1:{leaving}", tls: {{certificates: [proxy]}}, goawayChance: 0.02}}
  - {{name: few, bind: "127.0.0.1:{few}", tls: {{certificates: [proxy]}}, limits: {{streams: 5}}}}
  - {{name: http1, bind: "127.0.0.1:{http1}", tls: {{certificates: [proxy]}}, protocols: [HTTP1]}}
certificates:
  - {{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}
clusters:
  - name: two
    endpoints: {endpoints}
    tls: {{caFile: ca.crt}}
    credentials: {{token: own-token}}
    identity: Proxy
    healthCheck: {{path: /readyz, interval: 1s, timeout: 60s}}
  - name: one
    endpoints: {endpoints}
    tls: {{caFile: ca.crt}}
    credentials: {{token: own-token}}
    identity: Proxy
    healthCheck: {{path: /readyz, interval: 1s, timeout: 60s}}
    connections: {{protocol: HTTP1}}
servers:
  - {{name: all, default: true, backend: {{clusters: [two, one]}}}}
"""

LISTENERS = ("usual", "leaving", "few", "http1")


class HTTP2Site:
    """A cluster, and the daemon before it: /clusters/two reaches it over HTTP/2, /clusters/one over HTTP/1.1."""

    def __init__(
        self, directory: Path, config: str = CONFIG, *, endpoints: int = 1, program: Path | None = None
    ) -> None:
        self.directory = directory
        self.program = program or goclient()
        self.authority = Authority("e2e CA")
        self.ca = directory / "ca.crt"
        self.ca.write_bytes(self.authority.pem)
        self.authority.server(["127.0.0.1", "localhost"]).write(directory, "proxy")
        self.ports = {name: reserved_port() for name in LISTENERS}
        self._config = config
        pair = directory / "proxy.crt", directory / "proxy.key"
        self.endpoints = [GoCluster(self.program, *pair) for _ in range(endpoints)]
        self.daemon = Daemon(directory, self.config())

    def config(self) -> str:
        endpoints = [{"name": name, "url": each.url} for name, each in zip("abcd", self.endpoints, strict=False)]
        return self._config.format(**self.ports, endpoints=json.dumps(endpoints))

    @property
    def cluster(self) -> GoCluster:
        """The first endpoint."""
        return self.endpoints[0]

    def start(self) -> HTTP2Site:
        self.daemon.start()
        self.daemon.wait_for("takes requests", count=self._config.count("{endpoints}") * len(self.endpoints))
        return self

    def stop(self) -> None:
        self.daemon.stop()
        for endpoint in self.endpoints:
            endpoint.stop()

    def url(self, listener: str = "usual", cluster: str = "two") -> str:
        return f"https://127.0.0.1:{self.ports[listener]}/clusters/{cluster}"

    def address(self, listener: str = "usual") -> Address:
        return Address(self.ports[listener], ssl.create_default_context(cafile=self.ca))

    def client(self, command: str, *arguments: object, listener: str = "usual", cluster: str = "two") -> GoProcess:
        """Start a client of the program."""
        return GoProcess(self.program, command, "-url", self.url(listener, cluster), "-ca", self.ca, *arguments)

    def run(self, command: str, *arguments: object, listener: str = "usual", cluster: str = "two") -> JSONDict:
        """Run a client that ends by itself; nothing of it may fail."""
        with self.client(command, *arguments, listener=listener, cluster=cluster) as client:
            found = client.line()
        assert found["failures"] == []
        return found
