"""Go's net/http, of which client-go and kube-apiserver are made, with a tunnel between client and cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.http2_site import HTTP2Site
from tests.e2e.processes import Daemon, wait_until

HUB = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
listeners:
  - {{name: usual, bind: "127.0.0.1:{usual}", tls: {{certificates: [proxy]}}}}
certificates:
  - {{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}
tunnels:
  - {{name: site, users: [edge]}}
clusters:
  - name: tunnel
    endpoints: [{{name: a, tunnel: site}}]
    identity: RequestHeader
    healthCheck: {{path: /readyz, interval: 1s, timeout: 60s}}
authentication:
  - {{name: clients, tokenFile: clients.csv, anonymous: {{enabled: true}}}}
  - {{name: edges, tokenFile: edges.csv}}
servers:
  - {{name: all, default: true, backend: {{clusters: [tunnel]}}, authentication: clients}}
  - {{name: tunnels, serverNames: [localhost], backend: {{tunnels: "*"}}, authentication: edges}}
"""
EDGE = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
listeners:
  - name: hub
    dial:
      tunnel: site
      urls: ["https://127.0.0.1:{usual}"]
      serverName: localhost
      tls: {{caFile: ../ca.crt}}
      credentials: {{tokenFile: token}}
clusters:
  - name: local
    endpoints: {endpoints}
    tls: {{caFile: ../ca.crt}}
    credentials: {{token: own-token}}
    identity: Proxy
    healthCheck: {{path: /readyz, interval: 1s, timeout: 60s}}
authentication:
  - name: from-hub
    requestHeader: {{listeners: [hub], hubUser: hub}}
    anonymous: {{enabled: true}}
authorization:
  - name: all
    rules:
      - {{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
      - {{verbs: ["*"], nonResourceURLs: ["*"]}}
servers:
  - {{name: site, listeners: [hub], backend: {{cluster: local}}, authentication: from-hub, authorization: all}}
"""
MEGABYTE = 1 << 20


class TunnelGoSite(HTTP2Site):
    """The cluster is behind an edge of its own."""

    def __init__(self, directory: Path) -> None:
        (directory / "edges.csv").write_text("edge-token,edge,edge\n")
        (directory / "clients.csv").write_text("go-test-token,client,client\n")
        super().__init__(directory, HUB)
        folder = directory / "edge"
        folder.mkdir()
        (folder / "token").write_text("edge-token")
        endpoints = json.dumps([{"name": "a", "url": self.cluster.url}])
        self.edge = Daemon(folder, EDGE.format(**self.ports, endpoints=endpoints))

    def start(self) -> TunnelGoSite:
        self.daemon.start()
        self.edge.start()
        self.daemon.wait_for("takes requests")
        return self

    def stop(self) -> None:
        self.edge.stop()
        super().stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TunnelGoSite]:
    site = TunnelGoSite(tmp_path_factory.mktemp("site"))
    try:
        yield site.start()
    finally:
        site.stop()


@pytest.fixture(autouse=True)
def nothing_is_left(site: TunnelGoSite) -> Iterator[None]:
    """Whatever clients do, nothing is under way at the cluster when they have ended, and nothing was a bug."""
    yield
    wait_until("the cluster's requests end", lambda: site.cluster.stats()["inFlight"] == 0)
    assert site.daemon.lines("bug") == site.edge.lines("bug") == []


def test_downloads_at_the_same_time_share_a_small_window(site: TunnelGoSite) -> None:
    arguments = ("-connection-window", 64 << 10, "-bytes", 2 * MEGABYTE, "-count", 8)
    found = site.run("download", *arguments, cluster="tunnel")
    assert found["errors"] == {}


def test_an_upload_keeps_every_byte(site: TunnelGoSite) -> None:
    found = site.run("upload", "-bytes", 8 * MEGABYTE, cluster="tunnel")
    seen = found["seen"]
    assert (seen["bytes"], seen["sum"]) == (8 * MEGABYTE, found["sum"])


def test_200_watches_and_lists_get_every_event(site: TunnelGoSite) -> None:
    events = site.cluster.stats()["events"] + 50
    arguments = ("-clients", 1, "-each", 200, "-events", events, "-lists")
    with site.client("watches", *arguments, cluster="tunnel") as client:
        assert client.line()["failures"] == []
        for _ in range(10):
            site.cluster.emit(5)
        found = client.line()
    assert found["failures"] == []
