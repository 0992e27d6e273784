"""Requests of clients through a tunnel: a hub and an edge with real TLS between them."""

from __future__ import annotations

import json

import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.net.alpn import H2, HTTP1_1
from tests.proxy.harness import get
from tests.tunnels.site import TunnelSite, tunnel_endpoint

ALICE = b"Authorization: Bearer alice-token"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_request_reaches_the_site_as_its_user(site: TunnelSite) -> None:
    await site.start()
    status, _, body = await site.ask()
    assert (status, body) == (200, b"{}")
    sent = site.upstream.received.lower()
    assert b"get /api/v1/pods http/1.1" in sent
    assert b"impersonate-user: alice\r\n" in sent
    assert b"authorization: bearer of-the-edge\r\n" in sent
    assert b"alice-token" not in sent, "the hub's clients keep their credentials"
    assert b"x-remote" not in sent
    assert b"x-forwarded-for: 127.0.0.1, 127.0.0.1" in sent, "the client's address, then the hub's"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_requests_of_the_hub_itself_are_its_own(site: TunnelSite) -> None:
    await site.start()
    assert [(each.uri, each.user) for each in site.edge.records] == [("/readyz-check", "mcproxy-hub")]


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_many_requests_share_one_connection(site: TunnelSite) -> None:
    await site.start()
    for _ in range(20):
        assert (await site.ask())[0] == 200
    assert site.state.counts() == {H2: 1}
    assert site.passage.accepted == 2, "the control connection, and one more"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_upgrade_has_a_connection_of_its_own(site: TunnelSite) -> None:
    await site.start()
    site.upstream.reply = lambda end: end.send(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    )
    target = b"/api/v1/namespaces/a/pods/b/exec?command=sh"
    client = await site.hub.asks(get(target, ALICE, b"Connection: Upgrade", b"Upgrade: SPDY/3.1", method=b"POST"))
    await site.hub.until(lambda: b"101" in client.received, "the upgrade")
    end = site.upstream.last
    site.upstream.reply = None
    before, start = len(end.received), len(client.received)
    client.send(b"x" * 200_000)
    await site.hub.until(lambda: len(end.received) - before == 200_000, "what the client sent")
    end.send(b"y" * 300_000)
    await site.hub.until(lambda: len(client.received) - start == 300_000, "what the pod sent")
    assert site.state.counts()[HTTP1_1] == 1
    client.finish()
    await site.hub.until(lambda: end.over, "the end")
    end.finish()
    await site.hub.until(lambda: client.over and not site.state.counts()[HTTP1_1], "the end of both")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_the_path_of_an_endpoint_picks_among_the_clusters_of_the_edge(site: TunnelSite) -> None:
    await site.start()
    await site.hub.service.apply(site.hub_config(endpoints=(tunnel_endpoint(path="/clusters/elsewhere"),)))
    status, _, _ = await site.ask()
    assert status == 200
    assert b"GET /clusters/elsewhere/api/v1/pods" in site.upstream.received, "this edge has one cluster, at its root"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_without_a_tunnel_requests_are_503_with_the_reason(site: TunnelSite) -> None:
    await site.hub.serve(site.hub_config())
    site.hub.service.tunnels._begun_at -= 60.0
    for state in site.hub.service.tunnels.states:
        state._expected_until -= 60.0
    status, fields, body = await site.ask()
    assert status == 503
    assert fields["retry-after"]
    assert "no tunnel site-a is connected since 20" in json.loads(body)["message"]


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_request_right_after_the_start_waits_for_the_tunnel(site: TunnelSite) -> None:
    from tests.tunnels.site import Passage

    await site.hub.serve(site.hub_config())
    client = await site.hub.asks(get(b"/api/v1/pods", ALICE))
    await site.hub.turns(20)
    assert not client.received
    site.passages.append(Passage(site.reactor, site.hub.port()))
    await site.add_edge()
    await site.hub.until(lambda: b"\r\n\r\n" in client.received, "the answer")
    assert client.answer()[0] == 200


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_passed_through_request_without_a_token_is_never_the_hub(site: TunnelSite) -> None:
    """With Passthrough the hub sends the client's own token; the edge authenticates it itself."""
    await site.start()
    await site.hub.service.apply(site.hub_config(identity=model.UpstreamIdentity.PASSTHROUGH))
    await site.edge.service.apply(site.edge_config(tokens={"alice-token": "alice-at-the-edge"}))
    await site.up()
    status, _, _ = await site.ask()
    assert status == 200
    assert b"impersonate-user: alice-at-the-edge\r\n" in site.upstream.received.lower()
    site.upstream.forget()
    await site.edge.service.apply(site.edge_config(tokens={"another-token": "bob"}))
    status, _, _ = await site.ask()
    assert status == 401
    assert b"/api/v1/pods" not in site.upstream.received


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_headers_of_a_client_name_no_user_at_the_edge(site: TunnelSite) -> None:
    await site.start()
    raw = get(b"/api/v1/pods", ALICE, b"X-Remote-User: root", b"X-Remote-Group: system:masters", b"X_Remote_User: root")
    status, _, _ = await site.ask(raw)
    assert status == 200
    sent = site.upstream.received.lower()
    assert b"impersonate-user: alice\r\n" in sent
    assert b"root" not in sent
    assert b"system:masters" not in sent
