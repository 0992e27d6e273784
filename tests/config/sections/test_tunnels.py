"""Tunnels as they are read: of a hub, its endpoints and servers, and the listeners of an edge that dial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.config.config_changes import changes
from mcproxy.config.load import load
from mcproxy.config.loaded import Loaded
from mcproxy.config.problem import ConfigErrors
from mcproxy.config.urls import AddressError, is_open, parse_hub
from tests.config.pki import NOW

HUB = """
version: 1
listeners: [{name: public, bind: "127.0.0.1:6443"}]
tunnels:
  - {name: site-a, users: [edge, "system:serviceaccount:a:b"], maxConnections: 5}
  - {name: site-b, users: [edge]}
authentication: [{name: edges, tokenFile: tokens/good.csv}]
servers:
  - {name: all, serverNames: [all.example], authentication: edges, backend: {tunnels: "*"}}
  - {name: one, serverNames: [one.example], authentication: edges, backend: {tunnels: [site-b]}}
  - {name: site, default: true, authentication: none, backend: {clusters: "*"}}
clusters:
  - name: site
    identity: RequestHeader
    endpoints: [{tunnel: site-a, path: /clusters/k3s/}, {name: b, tunnel: site-b, weight: 3, disabled: true}]
  - {name: mixed, identity: Passthrough, endpoints: [{tunnel: site-a}, {url: "https://10.0.0.1"}]}
"""
EDGE = """
version: 1
listeners:
  - name: hub
    dial:
      tunnel: site-a
      urls: ["HTTPS://Hub-1.example", "https://[FD00::1]:6443"]
      serverName: Tunnels.example.
      tls: {caFile: ca.crt, certFile: client.crt, keyFile: client.key}
      proxy: {url: "http://proxy.example:3128", user: edge, passwordFile: token}
      keepAlive: 30s
      maxConnections: 7
  - {name: least, dial: {tunnel: site-b, urls: ["https://hub.example"], tls: {caFile: ca.crt},
     credentials: {tokenFile: token}}}
  - {name: local, bind: "127.0.0.1:6443"}
clusters: [{name: site, endpoints: [{url: "https://10.0.0.1"}], credentials: {token: t}}]
authentication: [{name: hubs, requestHeader: {listeners: [hub, least], hubUser: mcproxy-hub}}]
authorization: [{name: some, rules: [{verbs: [get], apiGroups: [""], resources: [pods]}]}]
servers:
  - {name: site, listeners: [hub], backend: {cluster: site}, authentication: hubs, authorization: some}
  - {name: other, listeners: [least], backend: {cluster: site}, authentication: hubs, authorization: some}
  - {name: here, default: true, backend: {cluster: site}, authentication: none}
"""


def read(folder: Path, text: str, *, offline: bool = False) -> Loaded:
    file = folder / "tunnels-test.yaml"
    file.write_text(text)
    return load(str(file), environ={}, now=NOW, offline=offline)


def test_the_hubs_end(folder: Path) -> None:
    loaded = read(folder, HUB)
    assert loaded.warnings == ()
    config = loaded.config
    assert config.tunnels == (
        model.Tunnel(name="site-a", users=("edge", "system:serviceaccount:a:b"), max_connections=5),
        model.Tunnel(name="site-b", users=("edge",), max_connections=32),
    )
    assert [server.backend for server in config.servers] == [
        model.TunnelsBackend(("site-a", "site-b")),
        model.TunnelsBackend(("site-b",)),
        model.ClustersBackend(("site", "mixed")),
    ]
    site, mixed = config.clusters
    assert site.endpoints == (
        model.EndpointConfig(
            name="tunnel:site-a/clusters/k3s",
            scheme="tunnel",
            host="site-a",
            port=0,
            path="/clusters/k3s",
            tunnel="site-a",
        ),
        model.EndpointConfig(
            name="b", scheme="tunnel", host="site-b", port=0, tunnel="site-b", weight=3, disabled=True
        ),
    )
    assert [endpoint.url for endpoint in site.endpoints] == ["tunnel:site-a/clusters/k3s", "tunnel:site-b"]
    assert (site.is_behind_tunnels, mixed.is_behind_tunnels) == (True, False)


def test_the_edges_end(folder: Path) -> None:
    loaded = read(folder, EDGE)
    assert loaded.warnings == ()
    config = loaded.config
    hub, least = config.listeners[:2]
    assert hub.dial == model.Dial(
        tunnel="site-a",
        urls=("https://hub-1.example:443", "https://[fd00::1]:6443"),
        server_name="tunnels.example",
        tls=model.DialTLS(
            ca=pem(folder / "ca.crt"), certificate=pem(folder / "client.crt"), key=pem(folder / "client.key")
        ),
        proxy=hub.dial.proxy if hub.dial is not None else None,
        keep_alive=30.0,
        max_connections=7,
    )
    assert hub.dial is not None
    assert hub.dial.proxy is not None
    assert hub.dial.proxy.password_file == str(folder / "token")
    assert least.dial == model.Dial(
        tunnel="site-b",
        urls=("https://hub.example:443",),
        tls=model.DialTLS(ca=pem(folder / "ca.crt")),
        credentials=model.DialCredentials(token_file=str(folder / "token")),
    )
    assert [listener.address for listener in config.listeners] == ["dial:site-a", "dial:site-b", "127.0.0.1:6443"]
    assert [is_open(listener.bind) for listener in config.listeners] == [True, True, False]
    for listener in (hub, least):
        assert (listener.bind, listener.tls) == (None, None)
        assert listener.protocols == (model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1)
    # A server that names no listeners is not on those that dial.
    assert [server.listeners for server in config.servers] == [("hub",), ("least",), ("local",)]
    assert config.authentication[0].request_header == model.RequestHeader(
        listeners=("hub", "least"), hub_user="mcproxy-hub"
    )


def pem(file: Path) -> model.PEMFile:
    return model.PEMFile(str(file), file.read_bytes())


def test_tunnels_may_be_in_an_included_file(folder: Path) -> None:
    (folder / "tunnels-included.yaml").write_text("tunnels: [{name: site-c, users: [edge]}]\n")
    text = HUB.replace("version: 1", "version: 1\ninclude: [tunnels-included.yaml]")
    config = read(folder, text.replace("{tunnel: site-a},", "{tunnel: site-c},")).config
    assert {tunnel.name for tunnel in config.tunnels} == {"site-a", "site-b", "site-c"}
    assert config.clusters[1].endpoints[0].tunnel == "site-c"


@pytest.mark.parametrize("text", [HUB, EDGE])
def test_offline_no_other_file_is_needed(tmp_path: Path, text: str) -> None:
    assert len(read(tmp_path, text, offline=True).config.clusters[0].endpoints) > 0


def test_a_tunnel_of_a_variable_is_assumed_offline(tmp_path: Path) -> None:
    text = HUB.replace("{tunnel: site-a},", '{tunnel: "${SITE}"},')
    assert read(tmp_path, text, offline=True).config.clusters[1].endpoints[0].tunnel is not None


def test_allowed_names_of_the_system_may_be_the_hubs(folder: Path) -> None:
    text = EDGE.replace("hubUser: mcproxy-hub}", "hubUser: system:hub}")
    with pytest.raises(ConfigErrors, match="names that begin with system: are not accepted from here"):
        read(folder, text)
    header = read(folder, text.replace("system:hub}", "system:hub}, allowSystemNames: true")).config.authentication[0]
    assert header.request_header is not None
    assert header.request_header.hub_user == "system:hub"


def test_the_location_of_a_tunnel_is_known(folder: Path) -> None:
    location = read(folder, HUB).location("tunnels", "site-b", "users")
    assert location is not None
    assert (location.key, location.mark.line) == ("tunnels[1].users", 6)


def test_a_reload_says_what_changes(folder: Path) -> None:
    old = read(folder, HUB).config
    new = read(
        folder, HUB.replace("[edge]}", "[edge, other]}").replace("maxConnections: 5", "maxConnections: 6")
    ).config
    assert [str(change) for change in changes(old, new)] == [
        "changed tunnels[site-a].maxConnections: 5 -> 6",
        'changed tunnels[site-b].users: ["edge"] -> ["edge", "other"]',
    ]
    without = replace(old, tunnels=old.tunnels[:1])
    assert [str(change) for change in changes(old, without)] == ["removed tunnels[site-b]"]
    edge = read(folder, EDGE).config
    hub = edge.listeners[0]
    assert hub.dial is not None
    tls = replace(hub.dial.tls, certificate=model.PEMFile(str(folder / "client.crt"), b"new"))
    renewed = replace(edge, listeners=(replace(hub, dial=replace(hub.dial, tls=tls)), *edge.listeners[1:]))
    assert [str(change) for change in changes(edge, renewed)] == [
        f"changed listeners[hub]: other contents of {folder}/client.crt"
    ]
    moved = read(folder, EDGE.replace('"https://hub.example"', '"https://hub.example:6443"')).config
    assert [str(change) for change in changes(edge, moved)] == [
        'changed listeners[least].dial.urls: ["https://hub.example:443"] -> ["https://hub.example:6443"]'
    ]


REVIEWING = """
  - {name: asked, serverNames: [asked.example], authentication: reviewed, backend: {cluster: CLUSTER}}
"""


@pytest.mark.parametrize(("cluster", "fails"), [("site", False), ("mixed", True)])
def test_reviews_behind_a_tunnel_need_no_credentials(folder: Path, cluster: str, *, fails: bool) -> None:
    text = HUB.replace(
        "tokenFile: tokens/good.csv}]", "tokenFile: tokens/good.csv}, {name: reviewed, tokenReview: {}}]"
    )
    text = text.replace("clusters:\n", REVIEWING.replace("CLUSTER", cluster).lstrip("\n") + "clusters:\n")
    if fails:
        with pytest.raises(ConfigErrors, match=f"asks cluster {cluster}, which has no credentials"):
            read(folder, text)
    else:
        assert read(folder, text).warnings == ()


_PART = st.text("abAZ019.-:/[]@?#% ", max_size=12)


@given(st.one_of(st.text(max_size=30), st.builds("https://{}{}".format, _PART, _PART)))
def test_the_url_of_a_hub_is_refused_or_has_one_form(text: str) -> None:
    try:
        url = parse_hub(text)
    except AddressError:
        return
    assert url.startswith("https://")
    assert url == url.lower()
    assert url.rpartition(":")[2].isdigit()
    assert parse_hub(url) == url
