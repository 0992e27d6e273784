"""An attacker at the hub, whom the edge has dialled: it gets what the edge's authorization gives to hubs."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import ssl
import time
from collections.abc import Iterator

import pytest
from h2.exceptions import ProtocolError

from tests.e2e.processes import wait_until
from tests.e2e.tunnel_site import EDGE, LastingDaemon, TunnelSite
from tests.security.tunnel_attackers import EvilHub, Streams
from tests.simulated_cluster.control_client import is_proxys_own
from tests.soak.invariants import bugs
from tests.support.ports import reserved_port

MEGABYTE = 1 << 20
RULES = """\
      - {{verbs: [get, list], apiGroups: [""], resources: [pods]}}
"""
NARROW = (
    EDGE.replace('      - {{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}\n', RULES)
    .replace('      - {{verbs: [get], nonResourceURLs: ["*"]}}\n', "")
    .replace("drainTimeout: 3s", "drainTimeout: 1s")
)
LISTENER = """\
listeners:
  - {{name: local, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}}}
"""
SERVER = """\
servers:
  - {{name: admin, listeners: [local], serverNames: [admin.test], default: true, backend: {{cluster: local}},
     authentication: admins}}
"""
TWO_SERVERS = (
    NARROW.replace("listeners:\n", LISTENER, 1)
    .replace("clusters:\n", "certificates: [{{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}]\nclusters:\n", 1)
    .replace("authentication:\n", "authentication:\n  - {{name: admins, tokenFile: admins.csv}}\n", 1)
    .replace("servers:\n", SERVER, 1)
)
"""The edge has a server of its own beside that for the hub, without authorization."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TunnelSite]:
    site = TunnelSite(tmp_path_factory.mktemp("deceived"))
    try:
        yield site.start(connected=False)
    finally:
        site.stop()


@pytest.fixture(scope="module")
def deceived(site: TunnelSite) -> Iterator[tuple[EvilHub, LastingDaemon]]:
    """A hub of the attacker, and an edge that has dialled it; its authorization lets it read pods alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(site.hub_directory / "proxy.crt", site.hub_directory / "proxy.key")
    with EvilHub(context) as hub:
        config = TWO_SERVERS.format(
            port=reserved_port(),
            tunnel="site-a",
            certificate=", certFile: edge-site-a.crt, keyFile: edge-site-a.key",
            urls=f'"https://127.0.0.1:{hub.port}"',
            cluster=site.cluster.urls[0],
            ca=site.cluster.ca,
            workers=1,
            dial="",
        )
        for name in ("proxy.crt", "proxy.key"):
            shutil.copy(site.hub_directory / name, site.edge_directory)
        admins = site.edge_directory / "admins.csv"
        admins.write_text("admin-of-the-edge,admin,1\n")
        admins.chmod(0o600)
        edge = site.another(site.directory / "deceived", config, site.edge_directory)
        wait_until("the control connection", lambda: bool(hub.controls))
        yield hub, edge


def data_connection(hub: EvilHub) -> Streams:
    """Have the edge dial, with HTTP/2."""
    ticket = f"hub.{secrets.token_hex(16)}"
    found = hub.ask(hub.controls[-1], "POST", "/dial", {"ticket": ticket, "protocol": "h2"})
    assert found[0] == 200, found
    wait_until("the connection", lambda: ticket in hub.data)
    return hub.data[ticket]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/dial", b"", 405),
        ("POST", "/dial", b"rubbish", 400),
        ("POST", "/dial", b"[" * 4000, 400),
        ("POST", "/dial", b"{" + b" " * 5000 + b"}", 413),
        ("POST", "/dial", {"ticket": "a\r\nX-Remote-User: admin", "protocol": "h2"}, 400),
        ("POST", "/dial", {"ticket": "hub." + "0" * 32, "protocol": "ssh"}, 400),
        ("POST", "/dial", {"ticket": 1, "protocol": "h2"}, 400),
        ("POST", "/drain", {"within": -1}, 400),
        ("POST", "/drain", {"within": 1e9}, 400),
        ("POST", "/drain", {"within": True}, 400),
        ("POST", "/drain", b'{"within": NaN}', 400),
        ("POST", "/exec", {"command": "sh"}, 404),
        ("POST", "/dial/../api/v1/pods", {"ticket": "hub." + "0" * 32, "protocol": "h2"}, 404),
        ("GET", "/dial", b"", 405),
        ("GET", "/api/v1/pods", b"", 405),
        ("DELETE", "/dial", b"x", 405),
    ],
)
def test_a_control_connection_takes_dials_and_drains_alone(
    deceived: tuple[EvilHub, LastingDaemon], method: str, path: str, body: bytes, expected: int
) -> None:
    hub, _ = deceived
    before = len(hub.heads)
    assert hub.ask(hub.controls[-1], method, path, body)[0] == expected
    assert len(hub.heads) == before


def test_connect_is_refused_on_both_kinds_of_connections(deceived: tuple[EvilHub, LastingDaemon]) -> None:
    hub, _ = deceived
    for streams in (hub.controls[-1], data_connection(hub)):
        found, _ = hub.outcome(streams, streams.request("CONNECT", "", host="10.0.0.1:22"))
        assert found in (0, 400, 403, 404, 405, 501)


def test_no_request_names_where_the_edge_dials(deceived: tuple[EvilHub, LastingDaemon], site: TunnelSite) -> None:
    hub, _ = deceived
    ticket = f"hub.{secrets.token_hex(16)}"
    mark = site.control.mark()
    body = {"ticket": ticket, "protocol": "h2", "host": "127.0.0.1", "url": site.cluster.urls[0], "port": 22}
    assert hub.ask(hub.controls[-1], "POST", "/dial", body, host="127.0.0.1:22")[0] == 200
    wait_until("the connection to this hub", lambda: ticket in hub.data)
    assert [each for each in site.control.audit(mark) if "mcproxy.io" in each["path"]] == []


def test_a_data_connection_has_what_the_authorization_gives(
    deceived: tuple[EvilHub, LastingDaemon], site: TunnelSite
) -> None:
    hub, _ = deceived
    streams = data_connection(hub)
    pods = "/api/v1/namespaces/demo/pods"
    mark = site.control.mark()
    alice = (("x-remote-user", "alice"), ("x-remote-group", "dev"))
    assert hub.ask(streams, "GET", pods, fields=alice)[0] == 200
    for method, path, fields in (
        ("GET", "/api/v1/namespaces/kube-system/secrets", alice),
        ("POST", f"{pods}/db-0/exec?command=sh", alice),
        ("DELETE", f"{pods}/db-0", alice),
        ("GET", "/version", alice),
        ("GET", "/clusters/local/version", alice),
        ("GET", "/mcproxy.io/v1/tunnels/site-a", alice),
        ("GET", pods + "/../secrets", alice),
        ("GET", "/api/v1/namespaces/demo/secrets", (("x-remote-user", "admin"), ("x-remote-group", "system:masters"))),
        ("GET", pods, (("x-remote-user", "system:admin"),)),
        ("GET", pods, (*alice, ("impersonate-user", "admin"), ("impersonate-group", "system:masters"))),
    ):
        body = b"{}" if method == "POST" else b""
        assert hub.ask(streams, method, path, body, fields=fields)[0] in (0, 400, 401, 403, 404), (method, path, fields)
    masters = (("x-remote-user", "alice"), ("x-remote-group", "system:masters"), ("x-remote-group", "dev"))
    hub.ask(streams, "GET", pods, fields=masters)
    for host in ("admin.test", "127.0.0.1", site.cluster.urls[0].removeprefix("https://")):
        for fields in (alice, (("authorization", "Bearer admin-of-the-edge"),)):
            found, _ = hub.ask(streams, "GET", "/api/v1/namespaces/demo/secrets", fields=fields, host=host)
            assert found in (400, 401, 403, 404, 421), host
    for record in (each for each in site.control.audit(mark, path="/api") if not is_proxys_own(each)):
        assert record["path"].startswith(pods)
        assert record["user"] in ("alice", "mcproxy-hub")
        assert "system:masters" not in record["groups"]


def test_ten_thousand_dials_are_twenty_in_a_second(deceived: tuple[EvilHub, LastingDaemon]) -> None:
    hub, edge = deceived
    before, begun = len(hub.data), time.monotonic()
    memory = edge.memory
    statuses: dict[int, int] = {}
    for _ in range(200):
        control = hub.controls[-1]
        tickets = [f"hub.{secrets.token_hex(16)}" for _ in range(50)]
        streams = [
            control.request("POST", "/dial", json.dumps({"ticket": ticket, "protocol": "h2"}).encode())
            for ticket in tickets
        ]
        for stream in streams:
            found, _ = hub.outcome(control, stream)
            statuses[found] = statuses.get(found, 0) + 1
    seconds = time.monotonic() - begun
    assert set(statuses) <= {200, 429, 503}
    assert len(hub.data) - before <= min(32, 20 + 20 * (seconds + 1))
    assert edge.memory - memory < 30 * MEGABYTE
    for streams_of in list(hub.data.values()):
        streams_of.close()
    wait_until("room", lambda: hub.ask(hub.controls[-1], "GET", "/dial")[0] == 405)


def test_a_hub_that_drains_all_the_time_gets_no_flood_of_connections(deceived: tuple[EvilHub, LastingDaemon]) -> None:
    hub, edge = deceived
    before, begun = len(hub.heads), time.monotonic()
    while time.monotonic() < begun + 2:
        with contextlib.suppress(ProtocolError):  # it is closed after each drain
            hub.ask(hub.controls[-1], "POST", "/drain", {"within": 0})
        time.sleep(0.005)
    seconds, opened = time.monotonic() - begun, len(hub.heads) - before
    assert 1 <= opened <= 2 * seconds + 1
    assert bugs(edge.log) == []
