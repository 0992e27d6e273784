"""The life of a tunnel: loss, silence, replacement, drains, reloads, several hubs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.config import model
from mcproxy.net.alpn import H2
from mcproxy.net.connect_errors import ConnectFailed
from mcproxy.tunnels import backoff, hub, protocol
from tests.proxy.harness import OK, Harness, always, get
from tests.support.logged import captured_logs
from tests.tunnels.site import Passage, TunnelSite


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts and proofs are not waited for as long as in life."""
    monkeypatch.setattr(backoff.Backoff, "after_failure", lambda self, retry_after=0.0: 0.05)
    monkeypatch.setattr(hub, "_PROOF_SECONDS", 0.3)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_cut_tunnel_comes_back(site: TunnelSite) -> None:
    await site.start()
    assert (await site.ask())[0] == 200
    site.passage.cut()
    await site.hub.until(lambda: site.passage.accepted >= 3, "another attempt")
    await site.up()
    assert (await site.ask())[0] == 200


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_without_a_control_connection_an_endpoint_is_out_at_once(site: TunnelSite) -> None:
    await site.start()
    endpoint = site.hub.service.runtime.clusters["site"].endpoints[0]  # type: ignore[union-attr]
    site.passage.refuses = True
    with captured_logs() as logged:
        for control in site.state.controls:
            control.abort("for the test")
        assert not endpoint.ready
    assert "tunnel_down" in [each.get("event") for each in logged]
    status, _, body = await site.ask()
    assert status == 503
    assert "no tunnel site-a is connected since" in json.loads(body)["message"]
    site.passage.refuses = False
    await site.up()
    assert (await site.ask())[0] == 200


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_lost_control_connection_leaves_requests_alone(site: TunnelSite) -> None:
    await site.start()
    site.upstream.reply = None
    client = await site.hub.asks(
        b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: k8s.test\r\nAuthorization: Bearer alice-token\r\n\r\n"
    )
    await site.hub.until(lambda: b"watch=1" in site.upstream.received, "the watch")
    end = site.upstream.last
    end.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n")
    await site.hub.until(lambda: b"{}\n" in client.received, "an event")
    for control in site.state.controls:
        control.abort("for the test")
    await site.hub.turns(20)
    end.send(b'5\r\n{"a"}\r\n0\r\n\r\n')
    await site.hub.until(lambda: b'{"a"}' in client.received, "a later event")
    site.upstream.forget()
    site.upstream.reply = always(OK)
    await site.up()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_silent_edge_is_out_and_so_is_a_silent_hub(site: TunnelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends ask after a silence, also without requests: 15 s and 10 s in life."""
    monkeypatch.setattr(protocol, "HUB_KEEP_ALIVE", 0.3)
    monkeypatch.setattr(protocol, "ANSWER_SECONDS", 0.3)
    await site.start(keep_alive=0.3)
    link = site.edge.service.listeners[0].socket.links[0]  # type: ignore[union-attr]
    await site.hub.turns(400)
    assert site.state.is_up, "an idle tunnel stays"
    assert link.is_up
    site.passage.freeze()
    await site.hub.until(lambda: not site.state.is_up and not link.is_up, "both to notice")
    site.passage.cut()
    site.passage.freeze(False)
    await site.up()
    assert (await site.ask())[0] == 200


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_name_that_is_taken_stays_with_the_edge_that_answers(site: TunnelSite) -> None:
    await site.start()
    with captured_logs() as logged:
        second = await site.add_edge()
        link = second.service.listeners[0].socket.links[0]  # type: ignore[union-attr]
        await site.hub.until(lambda: "409" in link.cause, "the refusal")
        assert 'another edge has the tunnel "site-a", and it answers' in link.cause
    taken = [each for each in logged if each.get("event") == "tunnel_name_taken"]
    assert len(taken) == 2, "a warning at both ends, and not with each attempt"
    assert (await site.ask())[0] == 200


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_edge_that_does_not_answer_loses_its_name(site: TunnelSite) -> None:
    await site.start()
    site.passages.append(Passage(site.reactor, site.hub.port()))
    site.passage.freeze()
    second = await site.add_edge(urls=(site.passages[1].url,))
    link = second.service.listeners[0].socket.links[0]  # type: ignore[union-attr]
    await site.hub.until(lambda: link.is_up, "the second edge")
    await site.up()
    assert (await site.ask())[0] == 200
    assert second.records


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_of_two_edges_that_wait_for_a_dead_one_only_one_gets_its_name(site: TunnelSite) -> None:
    await site.start()
    site.passages.append(Passage(site.reactor, site.hub.port()))
    site.passage.freeze()
    edges = [await site.add_edge(urls=(site.passages[1].url,)) for _ in range(2)]
    links = [edge.service.listeners[0].socket.links[0] for edge in edges]  # type: ignore[union-attr]
    await site.hub.until(lambda: any("409" in link.cause for link in links), "the refusal of one")
    await site.hub.until(lambda: any(link.is_up for link in links), "the other one")
    assert len({control.instance for control in site.state.controls}) == 1
    await site.up()
    assert (await site.ask())[0] == 200


class _Elsewhere:
    """Another process, whose edge `answers`, does not, or of which that is not known; it `meanwhile` does something."""

    def __init__(self, answers: bool | None, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._answers = answers
        self._meanwhile = meanwhile

    def instances(self, tunnel: str) -> list[str]:
        return ["0" * 32]

    async def prove(self, tunnel: str, instance: str) -> bool:
        self._meanwhile()
        if self._answers is None:
            raise ConnectFailed("the process worker-1 does not answer")
        return self._answers


@pytest.mark.parametrize(("answers", "status"), [(None, 503), (True, 409)])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_while_another_process_may_have_an_edge_no_other_one_is_accepted(
    site: TunnelSite, answers: bool | None, status: int
) -> None:
    await site.start()
    tunnels = site.hub.service.tunnels
    for control in list(site.state.controls):
        control.abort("for the test")
    tunnels._others = _Elsewhere(answers)  # type: ignore[assignment]
    with pytest.raises(hub.TunnelRefused) as found:
        await tunnels.claim("site-a", b"f" * 32, "192.0.2.1")
    assert found.value.status == status
    tunnels._others = None


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_edge_that_comes_while_another_process_is_asked_keeps_the_name(site: TunnelSite) -> None:
    await site.start()
    tunnels, state = site.hub.service.tunnels, site.state
    controls, state.controls = state.controls, []
    tunnels._others = _Elsewhere(False, lambda: state.controls.extend(controls))  # type: ignore[assignment]
    with pytest.raises(hub.TunnelRefused) as found:
        await tunnels.claim("site-a", b"f" * 32, "192.0.2.1")
    assert found.value.status == 409
    tunnels._others = None


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_all_connections_of_a_dead_edge_are_asked_at_the_same_time(
    site: TunnelSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start()
    monkeypatch.setattr(hub, "_PROOF_SECONDS", 1.0)
    (control,) = site.state.controls
    site.passage.freeze()
    dead = [control, *(_Dead(site) for _ in range(4))]
    site.state.controls.extend(dead[1:])
    begun = site.reactor.seconds()
    assert not await site.hub.service.tunnels.prove("site-a", "f" * 32)
    assert site.reactor.seconds() - begun < 3
    assert site.state.controls == []


class _Dead:
    """A control connection to an edge that does not answer."""

    instance = b"0" * 32

    def __init__(self, site: TunnelSite) -> None:
        self._site = site
        self.engine = self
        self.last_received = 0.0

    def ask_peer(self) -> None:
        """Ask, and get no answer."""

    def abort(self, cause: str) -> None:
        self._site.state.controls.remove(self)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_of_two_edges_that_two_processes_have_accepted_the_lesser_one_stays(site: TunnelSite) -> None:
    await site.start()
    tunnels = site.hub.service.tunnels
    (control,) = site.state.controls

    class Others:
        instance = ""

        def instances(self, tunnel: str) -> list[str]:
            return [self.instance]

    tunnels._others = others = Others()  # type: ignore[assignment]
    others.instance = "f" * 33
    tunnels.settle("site-a")
    assert control.usable, "it is the lesser one"
    others.instance = ""
    tunnels.settle("site-a")
    assert not control.usable
    tunnels._others = None


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_upgraded_edge_takes_over_without_a_failed_request(site: TunnelSite) -> None:
    instance = "ab" * 16
    await site.hub.serve(site.hub_config())
    site.passages.append(Passage(site.reactor, site.hub.port()))
    await site.add_edge(instance=instance)
    await site.up()
    assert (await site.ask())[0] == 200
    second = await site.add_edge(instance=instance)
    await site.hub.until(lambda: len(site.state.controls) == 2, "both")
    site.edge.service.begin_shutdown()
    for _ in range(10):
        assert (await site.ask())[0] == 200
    site.edge.service.stop_accepting()
    for _ in range(10):
        assert (await site.ask())[0] == 200
    await site.edge.service.finish()
    for _ in range(10):
        assert (await site.ask())[0] == 200
    assert len(site.state.controls) == 1
    assert second.records


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_drained_hub_has_the_edge_dial_anew_first(site: TunnelSite) -> None:
    await site.start()
    first = site.state.controls[0]
    factory = site.hub.service.listeners[0].factory
    site.hub.service.tunnels.drain({factory})
    await site.hub.until(lambda: site.state.controls and site.state.controls[0] is not first, "the new one")
    assert site.state.is_up
    assert (await site.ask())[0] == 200


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_reload_that_takes_a_user_out_ends_the_tunnel(site: TunnelSite) -> None:
    await site.start()
    assert (await site.ask())[0] == 200
    await site.hub.service.apply(site.hub_config(users=("somebody",)))
    await site.hub.until(lambda: not site.state.is_up and not site.state.counts(), "the end")
    assert "its user may not open the tunnel any more" in site.state.cause
    assert (await site.ask())[0] == 503
    await site.hub.service.apply(site.hub_config())
    await site.up()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_reload_that_takes_a_token_out_ends_the_tunnel(site: TunnelSite) -> None:
    await site.start()
    await site.hub.service.apply(site.hub_config(tokens={"alice-token": "alice"}))
    begun = site.hub.reactor.seconds()
    await site.hub.until(lambda: not site.state.is_up, "the end")
    assert site.hub.reactor.seconds() - begun < 5  # by the reload, not by the next check, which comes after 10 s
    assert "its credential is not accepted any more" in site.state.cause
    status, _, _ = await site.ask()
    assert status == 503


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_reload_of_the_edge_changes_its_credential_without_a_gap(site: TunnelSite) -> None:
    await site.start()
    await site.hub.service.apply(site.hub_config(users=("edge-a", "edge-b")))
    await site.edge.service.apply(site.edge_config(token="other-token"))
    for _ in range(20):
        assert (await site.ask())[0] == 200
    await site.hub.until(lambda: len(site.state.controls) == 1, "the end of the former one")
    assert "edge-b" in site.hub.service.tunnels._open.users


async def _refusal_of_another_connection(site: TunnelSite) -> str:
    """Ask for an upgrade, which takes a connection of its own; return the message of the 503."""
    raw = b"GET /api/v1/pods HTTP/1.1\r\nHost: k8s.test\r\nAuthorization: Bearer alice-token\r\n"
    status, _, body = await site.ask(raw + b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
    assert status == 503
    return str(json.loads(body)["message"])


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_edge_at_its_limit_says_so_at_the_hub(site: TunnelSite) -> None:
    await site.start(max_connections=1)
    assert (await site.ask())[0] == 200
    assert "the edge has 1 connections to this hub (dial.maxConnections)" in await _refusal_of_another_connection(site)
    await site.up()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_hub_at_its_limit(site: TunnelSite) -> None:
    await site.start()
    await site.hub.service.apply(site.hub_config(max_connections=1))
    assert (await site.ask())[0] == 200
    assert "tunnel site-a has 1 connections (maxConnections)" in await _refusal_of_another_connection(site)
    await site.up()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_tunnels_do_not_count_as_connections_of_their_client(site: TunnelSite) -> None:
    """Sites can share an address of NAT: at the limit of a client, tunnels are none of its connections."""
    limits = model.Limits(connections_per_client=2)
    await site.hub.serve(site.hub_config(limits=limits))
    site.passages.append(Passage(site.reactor, site.hub.port()))
    await site.add_edge()
    await site.up()
    clients = [await site.hub.client() for _ in range(2)]
    assert (await site.ask())[0] == 200, "takes the place of an idle client, not of the tunnel"
    assert site.state.is_up
    assert site.state.counts() == {H2: 1}
    assert sum(client.over for client in clients) >= 1


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_full_listener_closes_no_connection_of_a_tunnel_for_another_client(site: TunnelSite) -> None:
    await site.hub.serve(site.hub_config(limits=model.Limits(connections=5)))
    site.passages.append(Passage(site.reactor, site.hub.port()))
    await site.add_edge()
    await site.up()
    site.upstream.reply = lambda end: end.send(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
    )
    upgrade = (b"Authorization: Bearer alice-token", b"Connection: Upgrade", b"Upgrade: SPDY/3.1")
    client = await site.hub.asks(get(b"/api/v1/namespaces/a/pods/b/exec?command=sh", *upgrade, method=b"POST"))
    await site.hub.until(lambda: b"101" in client.received, "the upgrade")
    end, site.upstream.reply = site.upstream.last, None
    others = [await site.hub.client() for _ in range(4)]  # control, requests, exec, its client: one place is free
    await site.hub.until(lambda: sum(each.over for each in others) == 3, "the ends of idle clients")
    client.send(b"still there")
    await site.hub.until(lambda: b"still there" in end.received, "what the client sends")
    assert site.state.is_up
    client.abort()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_edge_is_connected_to_every_hub(site: TunnelSite) -> None:
    await site.hub.serve(site.hub_config())
    other = Harness(site.reactor)
    await other.serve(site.hub_config())
    site.passages += [Passage(site.reactor, site.hub.port()), Passage(site.reactor, other.port())]
    with captured_logs() as logged:
        edge = await site.add_edge(urls=tuple(each.url for each in site.passages))
        links = edge.service.listeners[0].socket.links  # type: ignore[union-attr]
        await site.up()
        await site.hub.until(lambda: all(link.is_up for link in links), "both hubs")
        assert "tunnel_partial" not in [each.get("event") for each in logged], "one of them was the first"
        site.passages[1].refuses = True
        site.passages[1].cut()
        await site.hub.until(lambda: not links[1].is_up and links[1].cause, "the loss of one")
        assert (await site.ask())[0] == 200
    partial = [each for each in logged if each.get("event") == "tunnel_partial"]
    assert partial
    assert site.passages[1].url in partial[-1]["cause"]
    await other.close()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_stopped_edge_leaves_at_once(site: TunnelSite) -> None:
    await site.start()
    assert (await site.ask())[0] == 200
    site.edge.service.begin_shutdown()
    site.edge.service.stop_accepting()
    await site.hub.until(lambda: not site.state.is_up, "the end of the tunnel")
    await site.edge.service.finish()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_stopped_hub_says_goodbye(site: TunnelSite) -> None:
    await site.start()
    assert (await site.ask())[0] == 200
    link = site.edge.service.listeners[0].socket.links[0]  # type: ignore[union-attr]
    site.hub.service.begin_shutdown()
    site.hub.service.stop_accepting()
    await site.hub.service.finish()
    await site.hub.until(lambda: not link.is_up, "the end of the tunnel")


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_the_cause_of_an_earlier_end_is_not_that_of_a_later_one(site: TunnelSite) -> None:
    await site.start()
    await site.hub.service.apply(site.hub_config(users=("somebody",)))
    await site.hub.until(lambda: not site.state.is_up, "the end")
    await site.hub.service.apply(site.hub_config())
    await site.up()
    site.passage.refuses = True
    site.passage.cut()
    await site.hub.until(lambda: not site.state.is_up, "another end")
    assert "may not open" not in site.state.cause


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_the_end_of_the_hub_itself_is_no_warning(site: TunnelSite) -> None:
    await site.start()
    with captured_logs() as logged:
        site.hub.service.begin_shutdown()
        site.hub.service.stop_accepting()
        await site.hub.service.finish()
    events = {each.get("event") for each in logged if each.get("listener") != "hub"}
    assert not events & {"tunnel_down", "endpoint_out"}
