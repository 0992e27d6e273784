"""Settings of tunnels that do not work, and limits: what stays connected meanwhile, and what ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubesim.auth.certificates import Authority
from tests.e2e.processes import Kubectl
from tests.e2e.tunnel_site import TunnelSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[TunnelSite]:
    site = TunnelSite(tmp_path)
    try:
        yield site.start()
    finally:
        site.stop()


def reload_edge(site: TunnelSite, text: str) -> None:
    assert site.edge is not None
    site.edge.file.write_text(text)
    assert site.edge.reload().returncode == 0


def test_after_settings_that_did_not_work_no_former_connection_is_left(site: TunnelSite) -> None:
    assert site.hub is not None
    assert site.edge is not None
    (site.edge_directory / "other.crt").write_bytes(Authority("other").pem)
    reload_edge(site, site.edge_config().replace("../hub/ca.crt", "other.crt"))
    site.edge.wait_for("event=tunnel_dial_failed", "is not trusted", "`dial.tls.caFile`")
    reload_edge(site, site.edge_config().replace("serverName: tunnels.test", "serverName: tunnels.wrong"))
    site.edge.wait_for("event=tunnel_dial_failed", "is not for tunnels.wrong", "`dial.serverName`")
    assert site.ask("/version").status == 200  # by the connection from before
    reload_edge(site, site.edge_config(urls='"https://127.0.0.1:1"'))
    site.hub.wait_for("event=tunnel_down")  # the hub is not among the URLs any more


def test_a_site_at_its_limit_of_connections_stays_in_service(site: TunnelSite) -> None:
    assert site.hub is not None
    assert site.edge is not None
    text = site.hub_config()
    users = "users: [edge-site-a]"
    assert users in text
    site.hub.file.write_text(text.replace(users, f"{users}, maxConnections: 1"))
    assert site.hub.reload().returncode == 0
    assert site.ask("/version").status == 200  # over the one connection, which is HTTP/2
    answer = json.loads(site.ask("/api/v1/namespaces/demo/pods?limit=1").body)
    pod = answer["items"][0]["metadata"]["name"]
    kubectl = Kubectl("kubectl", str(site.kubeconfig()), "hub", site.directory)
    refused = kubectl("exec", pod, "--", "hostname")  # it needs a connection of its own
    assert refused.status != 0
    site.hub.wait_for("event=tunnel_dial_failed", "tunnel site-a has 1 connections (maxConnections)")
    for _ in range(3):
        assert site.ask("/version").status == 200
    assert site.hub.all_lines("event=endpoint_out") == []
