"""What stands between an edge and its hubs: HTTP proxies, balancers, several hubs; and two edges of one cluster."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consistency.relay import Connection, Relays
from tests.e2e.http_client import Address, ask
from tests.e2e.processes import wait_until
from tests.e2e.tunnel_load import Reads
from tests.e2e.tunnel_site import HUB, TunnelSite
from tests.support.connect_proxy import ConnectProxy
from tests.support.ports import reserved_port

TOKENS = """\
  - {{name: edges, tokenFile: edges.csv}}
"""
TWO = HUB.replace(
    "clusters:\n",
    """\
  - {{name: site-a-2, users: [edge-site-a]}}
clusters:
  - name: both
    endpoints: [{{name: a, tunnel: site-a}}, {{name: b, tunnel: site-a-2}}]
    identity: RequestHeader
    healthCheck: {{interval: 1s}}
""",
    1,
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[TunnelSite]:
    site = TunnelSite(tmp_path)
    try:
        yield site
    finally:
        site.stop()


def is_served(site: TunnelSite) -> bool:
    return site.is_connected() and site.ask("/version").status == 200


# -- HTTP proxies ---------------------------------------------------------------------------------------------------


def dial_proxy(proxy: ConnectProxy) -> str:
    return f"      proxy: {{url: {proxy.url}, user: edge, passwordFile: proxy-password}}"


def test_an_edge_dials_through_a_proxy_with_its_password(site: TunnelSite) -> None:
    site.edge_directory.mkdir(parents=True)
    password = site.edge_directory / "proxy-password"
    password.write_text("wrong")
    password.chmod(0o600)
    with ConnectProxy(credentials=("edge", "right")) as proxy:
        site.start(dial=dial_proxy(proxy), connected=False)
        (line,) = site.edge.wait_for("407", "event=tunnel_dial_failed")
        assert "`dial.proxy`" in line
        assert not site.is_connected()
        (there,) = [
            each for each in site.edge.command_answer({"command": "status"})["tunnels"] if each["role"] == "edge"
        ]
        assert "407" in there["hubs"][0]["cause"]
        assert "right" not in site.edge.log
        password.write_text("right")
        assert site.edge.reload_quickly()["ok"]
        wait_until("the tunnel", lambda: is_served(site))
        assert set(proxy.opened) == {f"127.0.0.1:{site.port}"}
        proxy.drop_connections()
        wait_until("another tunnel", lambda: is_served(site))
        port = proxy.port
    wait_until("the loss", lambda: not site.is_connected())
    begun = time.monotonic()
    with ConnectProxy(credentials=("edge", "right"), port=port):
        wait_until("the tunnel by the proxy that is back", lambda: is_served(site))
        print(f"back {time.monotonic() - begun:.2f} s after the proxy")


# -- bearer tokens --------------------------------------------------------------------------------------------------


def test_an_edge_with_a_bearer_token_follows_its_file(site: TunnelSite) -> None:
    site.edge_directory.mkdir(parents=True)
    site.hub_directory.mkdir(parents=True)
    hub_tokens, token = site.hub_directory / "edges.csv", site.edge_directory / "token"
    hub_tokens.write_text("first-token,edge-site-a,1\n")
    token.write_text("first-token")
    for file in (hub_tokens, token):
        file.chmod(0o600)
    former = "  - {{name: edges, clientCertificates: {{caFile: edges.crt}}}}\n"
    assert former in HUB
    site.start(HUB.replace(former, TOKENS), dial="      credentials: {tokenFile: token}", user="")
    assert is_served(site)
    with Reads(site) as reads:
        hub_tokens.write_text("first-token,edge-site-a,1\nsecond-token,edge-site-a,1\n")
        assert site.hub.reload_quickly()["ok"]
        token.write_text("second-token")
        reads.goes_on()
        assert reads.failures == []
        hub_tokens.write_text("second-token,edge-site-a,1\n")
        assert site.hub.reload_quickly()["ok"]
        wait_until("the tunnel with the new token", lambda: is_served(site))
        seconds = reads.resumed_after(time.monotonic())
        print(
            f"{len(reads.failures)} reads fail when the former token is removed, {reads.failures[:2]}; {seconds:.2f} s"
        )
    hub_tokens.write_text("third-token,edge-site-a,1\n")
    assert site.hub.reload_quickly()["ok"]
    wait_until("the end of a tunnel whose token is not accepted any more", lambda: not site.is_connected())
    (line, *_) = site.edge.wait_for("event=tunnel_refused")
    assert "the hub answers 401" in line
    assert "second-token" not in site.edge.log + site.hub.log


# -- balancers ------------------------------------------------------------------------------------------------------

NGINX = """\
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {hub}/proxy.crt;
    ssl_certificate_key {hub}/proxy.key;
    location / {{
      proxy_pass https://127.0.0.1:{target};
      proxy_ssl_name tunnels.test;
      proxy_ssl_server_name on;
      proxy_set_header Host tunnels.test;
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection "upgrade";
      proxy_read_timeout 1h;
    }}
  }}
}}
"""


def test_a_tunnel_passes_through_nginx(site: TunnelSite, kubectl: str) -> None:
    """An L7 balancer ends TLS, so the edge has a bearer token."""
    nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if nginx is None:
        pytest.fail("this test runs nginx: install it (`.ci/tools nginx` does, if it may)")
    site.edge_directory.mkdir(parents=True)
    site.hub_directory.mkdir(parents=True)
    for file in (site.hub_directory / "edges.csv", site.edge_directory / "token"):
        file.write_text("the-token" + (",edge-site-a,1\n" if file.suffix else ""))
        file.chmod(0o600)
    port, folder = reserved_port(), site.directory / "nginx"
    folder.mkdir()
    site.edge_url = f"https://127.0.0.1:{port}"
    former = "  - {{name: edges, clientCertificates: {{caFile: edges.crt}}}}\n"
    site.start(HUB.replace(former, TOKENS), dial="      credentials: {tokenFile: token}", user="", connected=False)
    text = NGINX.format(folder=folder, port=port, hub=site.hub_directory, target=site.port)
    (folder / "nginx.conf").write_text(text)
    process = subprocess.Popen([nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "log")])
    try:
        wait_until("the tunnel", lambda: is_served(site))
        run = site.kubectl(kubectl)
        assert run("exec", "-i", "db-0", "--", "cat", stdin="through nginx").stdout == "through nginx"
        assert "pod/db-0" in run.good("get", "pods", "-o", "name")
    finally:
        process.terminate()
        process.wait(60)


# -- several hubs and edges -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_hub_has_a_tunnel_of_its_own(site: TunnelSite) -> None:
    ports = [reserved_port(), reserved_port()]
    site.port = ports[0]
    urls = ", ".join(f'"https://127.0.0.1:{port}"' for port in ports)
    site.start(urls=urls)
    (line, *_) = site.edge.wait_for("event=tunnel_partial")
    assert f"https://127.0.0.1:{ports[1]}" in line
    site.port = ports[1]
    config = site.hub_config()
    site.port = ports[0]
    second = site.another(site.directory / "hub-2", config, site.hub_directory)
    address = Address(ports[1], site.context)

    def second_serves() -> bool:
        return ask(address, "/clusters/site-a/version").status == 200

    wait_until("the second hub", second_serves)
    with Reads(site) as reads:
        second.stop()
        reads.goes_on(50)
        begun = time.monotonic()
        second.start()
        wait_until("the second hub again", second_serves)
        print(f"the second hub serves {time.monotonic() - begun:.2f} s after its start")
    assert reads.failures == [], "the other hub was not concerned"


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["killed", "frozen"])
def test_two_edges_of_a_cluster_stand_in_for_each_other(site: TunnelSite, loss: str) -> None:
    with Relays() as relays:
        relay = relays.relay(site.port)
        site.start(TWO)
        second = site.another(
            site.directory / "edge-2",
            site.edge_config(tunnel="site-a-2", urls=f'"https://127.0.0.1:{relay.port}"'),
            site.edge_directory,
        )
        site.cluster_name = "both"
        wait_until("both", lambda: site.is_connected("site-a-2") and len(_ready(site)) == 2)
        with Reads(site) as reads:
            if loss == "killed":
                second.stop()
                wait_until("the loss", lambda: not site.is_connected("site-a-2"))
            else:

                def freeze(found: list[Connection]) -> None:
                    for one in found:
                        one.hold(1e9)

                relay.act(freeze)
                wait_until("the loss", lambda: _ready(site) == ["a"])
            reads.goes_on(50)
            relay.heal()
        if loss == "killed":
            assert reads.failures == []
            second.start()
        slowest = max((seconds for _, seconds, _ in reads.failures), default=0.0)
        print(f"{loss}: {len(reads.succeeded)} reads, {len(reads.failures)} failures {reads.failures[:2]}, {slowest}")
        wait_until("both again", lambda: _ready(site) == ["a", "b"])


def _ready(site: TunnelSite) -> list[str]:
    (cluster,) = [each for each in site.hub.command_answer({"command": "status"})["clusters"] if each["name"] == "both"]
    return sorted(each["name"] for each in cluster["endpoints"] if each["ready"])
