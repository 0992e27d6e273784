"""What operators see of a tunnel at both ends: status, metrics, readiness, and `check --connect`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.processes import Daemon, mcproxy, wait_until
from tests.e2e.tunnel_site import TunnelSite
from tests.support.ports import reserved_port


class ObservedSite(TunnelSite):
    """A hub and an edge with Admin listeners."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.admin = {"hub": reserved_port(), "edge": reserved_port()}

    def _with_admin(self, config: str, end: str) -> str:
        listener = f'listeners:\n  - {{name: admin, serves: Admin, bind: "127.0.0.1:{self.admin[end]}"}}\n'
        assert config.count("listeners:\n") == 1
        return config.replace("listeners:\n", listener)

    def hub_config(self, *arguments: Any) -> str:
        return self._with_admin(super().hub_config(*arguments), "hub")

    def edge_config(self, **changes: str) -> str:
        return self._with_admin(super().edge_config(**changes), "edge")

    def get(self, end: str, path: str) -> tuple[int, str]:
        """Ask the Admin listener of one end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin[end], timeout=30)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def tunnels(self, end: str) -> dict[str, dict[str, Any]]:
        """The section `tunnels` of one end, by name."""
        return {each["name"]: each for each in json.loads(self.get(end, "/status")[1])["tunnels"]}

    def metrics(self, end: str) -> dict[tuple[str, ...], float]:
        """The values of metrics of tunnels, by name and the values of labels in their order."""
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(self.get(end, "/metrics")[1])
            for sample in family.samples
            if sample.name.startswith("mcproxy_tunnel")
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedSite]:
    site = ObservedSite(tmp_path_factory.mktemp("observed"))
    try:
        yield site.start()
    finally:
        site.stop()


def ends(site: ObservedSite) -> tuple[Daemon, Daemon]:
    assert site.hub is not None
    assert site.edge is not None
    return site.hub, site.edge


def test_both_ends_show_the_tunnel_with_its_round_trip(site: ObservedSite) -> None:
    url = f"https://127.0.0.1:{site.port}"
    assert site.ask("/version").status == 200
    hub, edge = site.tunnels("hub"), site.tunnels("edge")["site-a"]
    assert (hub["site-a"]["role"], hub["site-a"]["connected"], hub["site-a"]["cause"]) == ("hub", True, None)
    [peer] = hub["site-a"]["peers"]
    assert peer["peer"] == "127.0.0.1"
    assert 0 < peer["rttSeconds"] < 5
    assert hub["site-a"]["connections"]["HTTP/2.0"] >= 1
    assert (hub["site-b"]["connected"], hub["site-b"]["cause"]) == (False, "no edge has connected since the start")
    assert (edge["role"], edge["listener"], edge["connected"]) == ("edge", "hub", True)
    [link] = edge["hubs"]
    assert (link["url"], link["connected"], link["cause"]) == (url, True, None)
    assert 0 < link["rttSeconds"] < 5
    assert link["connections"] == edge["connections"]["HTTP/2.0"] == hub["site-a"]["connections"]["HTTP/2.0"]
    status = json.loads(site.get("hub", "/status")[1])
    (public,) = [each for each in status["listeners"] if each["name"] == "public"]
    assert public["handshakes"] == 0  # connections of tunnels are none
    (servers,) = [each for each in status["servers"] if each["name"] == "tunnels"]
    assert servers["backend"] == {"tunnels": ["site-a", "site-b"]}


def test_metrics_of_both_ends(site: ObservedSite) -> None:
    hub, edge, url = site.metrics("hub"), site.metrics("edge"), f"https://127.0.0.1:{site.port}"
    assert hub["mcproxy_tunnel_connected", "site-a", "127.0.0.1"] == 1
    assert hub["mcproxy_tunnel_connected", "site-b", ""] == 0
    assert hub["mcproxy_tunnel_connections", "site-a", "HTTP/2.0"] >= 1
    assert hub["mcproxy_tunnel_dials_total", "site-a", "ok"] >= 1
    assert hub["mcproxy_tunnel_rtt_seconds", "site-a", "127.0.0.1"] > 0
    assert edge["mcproxy_tunnel_connected", "site-a", url] == 1
    assert edge["mcproxy_tunnel_rtt_seconds", "site-a", url] > 0
    assert edge["mcproxy_tunnel_connections", "site-a", "HTTP/2.0"] >= 1


def test_the_page_has_a_view_of_tunnels(site: ObservedSite) -> None:
    status, page = site.get("edge", "/?view=tunnels")
    assert status == 200
    assert f"127.0.0.1:{site.port}" in page.replace("<wbr>", "")


def test_a_check_asks_the_hub_and_does_not_take_the_daemons_place(site: ObservedSite) -> None:
    hub, edge = ends(site)
    before = site.tunnels("hub")["site-a"]
    done = mcproxy("check", "--connect", str(edge.file))
    assert done.returncode == 0, done.stderr
    assert "chain and name are good, would accept tunnel site-a" in done.stdout
    after = site.tunnels("hub")["site-a"]
    assert (after["peers"][0]["instance"], after["since"]) == (before["peers"][0]["instance"], before["since"])
    assert not hub.all_lines("tunnel_refused")
    assert not any(name == "mcproxy_tunnel_refused_total" for name, *_ in site.metrics("hub"))
    at_hub = mcproxy("check", "--connect", str(hub.file))
    assert "endpoint a is behind tunnel site-a, which only the running daemon has" in at_hub.stderr


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ("serverName: tunnels.test", "serverName: other.test", "`dial.serverName`"),
        ("serverName: tunnels.test", "serverName: localhost", "answers 401"),
        ("tunnel: site-a", "tunnel: site-b", "`users` of tunnel site-b"),
        ("../hub/ca.crt", "../hub/clients.crt", "`dial.tls.caFile`"),
    ],
    ids=["name", "server", "user", "authority"],
)
def test_a_check_says_what_is_wrong(site: ObservedSite, was: str, now: str, words: str) -> None:
    _, edge = ends(site)
    config = TunnelSite.edge_config(site)  # without the Admin listener, whose address is taken
    assert was in config
    file = edge.directory / "variant.yaml"
    file.write_text(config.replace(was, now))
    done = mcproxy("check", "--connect", str(file))
    assert done.returncode == 1, done.stderr
    assert f"listener hub: hub https://127.0.0.1:{site.port}: " in done.stderr
    assert words in done.stderr


def test_a_hub_that_is_away_is_shown_and_fails_readiness_of_an_edge_with_nothing_else(site: ObservedSite) -> None:
    hub, edge = ends(site)
    assert site.get("edge", "/readyz")[0] == 200
    hub.stop()
    wait_until("the edge has lost the hub", lambda: not site.tunnels("edge")["site-a"]["connected"])
    status, text = site.get("edge", "/readyz?verbose")
    assert (status, "[-]listener/hub failed" in text) == (500, True)
    done = mcproxy("status", "-c", str(edge.file))
    assert done.returncode == 3
    assert "broken: tunnel site-a of listener hub: no hub is connected" in done.stdout
    assert site.metrics("edge")["mcproxy_tunnel_connected", "site-a", f"https://127.0.0.1:{site.port}"] == 0
    hub.start()
    wait_until("the edge is connected", lambda: site.tunnels("edge")["site-a"]["connected"])
    assert site.get("edge", "/readyz")[0] == 200


def test_an_edge_that_is_away_is_shown_at_the_hub(site: ObservedSite) -> None:
    hub, edge = ends(site)
    wait_until("the hub has the edge", lambda: site.tunnels("hub")["site-a"]["connected"])
    edge.stop()
    wait_until("the hub has lost the edge", lambda: not site.tunnels("hub")["site-a"]["connected"])
    assert site.tunnels("hub")["site-a"]["cause"] == "the edge has closed the control connection"
    assert site.metrics("hub")["mcproxy_tunnel_connected", "site-a", ""] == 0
    done = mcproxy("status", "endpoints", "tunnels", "-c", str(hub.file))
    assert done.returncode == 3
    assert "cluster site-a has no endpoint that is ready: no tunnel site-a is connected since" in done.stdout
    assert hub.lines("tunnel_down", "tunnel=site-a")
    edge.start()
    wait_until("the hub has the edge again", lambda: site.tunnels("hub")["site-a"]["connected"])
