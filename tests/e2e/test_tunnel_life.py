"""Reads through a tunnel go on over upgrades, reloads and new certificates, and soon again after each loss."""

from __future__ import annotations

import collections
import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from kubesim.auth.certificates import Authority
from tests.consistency.relay import Connection, Relay, Relays
from tests.e2e.processes import mcproxy, wait_until
from tests.e2e.tunnel_load import Reads
from tests.e2e.tunnel_site import LastingDaemon, TunnelSite
from tests.soak.invariants import bugs

PROCESSES = [
    pytest.param((1, 1), id="one-process"),
    pytest.param((3, 2), id="workers", marks=pytest.mark.slow),
]
FURTHER = """\
  - name: further
    endpoints: [{{url: "https://127.0.0.1:9"}}]
    tls: {{insecureSkipVerify: true}}
    identity: Passthrough
authentication:
"""


@pytest.fixture(scope="module")
def relays() -> Iterator[Relays]:
    with Relays() as relays:
        yield relays


@pytest.fixture(scope="module", params=PROCESSES)
def site(
    request: pytest.FixtureRequest, relays: Relays, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TunnelSite]:
    hub, edge = request.param
    site = TunnelSite(tmp_path_factory.mktemp("site"), hub_workers=hub, edge_workers=edge)
    relay_of[site] = relays.relay(site.port)
    site.edge_url = f"https://127.0.0.1:{relay_of[site].port}"
    try:
        yield site.start()
    finally:
        site.stop()


relay_of: dict[TunnelSite, Relay] = {}
"""The relay between edge and hub of a site."""


@pytest.fixture(autouse=True)
def _whole(site: TunnelSite) -> Iterator[None]:
    """Each test begins with a tunnel that is there, and leaves no bug in a log."""
    wait_until("the tunnel", lambda: site.is_connected() and site.ask("/version").status == 200)
    yield
    for daemon in (site.hub, site.edge):
        assert bugs(daemon.log) == []


def reload(daemon: LastingDaemon) -> None:
    done = daemon.reload_quickly()
    assert done["ok"], done


def reset_all(relay: Relay) -> None:
    def reset(found: list[Connection]) -> None:
        for one in found:
            one.reset()

    relay.act(reset)


# -- no failed read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["hub", "edge"])
def test_an_upgrade_fails_no_read(site: TunnelSite, end: str) -> None:
    daemon: LastingDaemon = getattr(site, end)
    before = set(daemon.pids.values())
    with Reads(site) as reads:
        done = mcproxy("upgrade", "-c", str(daemon.file))
        assert done.returncode == 0, done.stderr
        daemon.end()
        reads.goes_on()
    assert reads.failures == []
    assert not before & set(daemon.pids.values())


@pytest.mark.parametrize("end", ["hub", "edge"])
def test_reloads_fail_no_read(site: TunnelSite, end: str) -> None:
    daemon: LastingDaemon = getattr(site, end)
    former = daemon.file.read_text()
    further = former.replace("authentication:\n", FURTHER.replace("{{", "{").replace("}}", "}"), 1)
    assert further != former
    with Reads(site) as reads:
        daemon.file.write_text(further)
        reload(daemon)
        reads.goes_on()
        daemon.file.write_text(former)
        count = len(daemon.lines("reloaded"))
        os.kill(daemon.first, signal.SIGHUP)
        wait_until("the reload", lambda: len(daemon.lines("reloaded")) > count)
        reads.goes_on()
        keep_alive = former.replace(
            "      serverName: tunnels.test\n", "      serverName: tunnels.test\n      keepAlive: 10s\n"
        )
        weights = former.replace("tunnel: site-a}", "tunnel: site-a, weight: 3}")
        daemon.file.write_text(weights if end == "hub" else keep_alive)
        assert daemon.file.read_text() != former
        reload(daemon)
        reads.goes_on()
        daemon.file.write_text(former)
        reload(daemon)
        reads.goes_on()
    assert reads.failures == []


def test_new_certificates_and_cas_fail_no_read_and_need_no_restart(site: TunnelSite) -> None:
    """The usual order: both CAs are trusted, then the certificate is replaced, then the former CA is not trusted."""
    hubs, edges = Authority("second hub CA"), Authority("second CA of edges")
    started = site.hub.pids, site.edge.pids
    with Reads(site) as reads:
        site.trusted = site.hubs.pem + hubs.pem
        for trusted in (site.trusted, hubs.pem):
            (site.hub_directory / "ca.crt").write_bytes(trusted)
            reload(site.edge)
            hubs.server(["127.0.0.1", "localhost", "tunnels.test"]).write(site.hub_directory, "proxy")
            reload(site.hub)
            reads.goes_on()
        site.hubs, site.trusted = hubs, hubs.pem
        for trusted in (site.edges.pem + edges.pem, edges.pem):
            (site.hub_directory / "edges.crt").write_bytes(trusted)
            reload(site.hub)
            edges.client("edge-site-a").write(site.edge_directory, "edge-site-a")
            reload(site.edge)
            reads.goes_on()
        site.edges = edges
        assert reads.failures == []
        reset_all(relay_of[site])
        wait_until("the tunnel", lambda: site.is_connected())
        reads.goes_on()
    assert (site.hub.pids, site.edge.pids) == started


# -- losses -------------------------------------------------------------------------------------------------------


def test_a_killed_edge_is_back_soon_after_its_start(site: TunnelSite) -> None:
    with Reads(site) as reads:
        site.edge.stop()
        wait_until("the loss", lambda: not site.is_connected())
        wait_until(
            "the refusal", lambda: any("no tunnel site-a is connected since" in each[2] for each in reads.failures)
        )
        site.edge.start()
        begun = time.monotonic()
        wait_until("the tunnel", lambda: site.is_connected())
        seconds = reads.resumed_after(begun)
    print(f"reads are back {seconds:.2f} s after the edge is ready")
    assert seconds < 20


def test_a_killed_hub_is_back_soon_after_its_start(site: TunnelSite) -> None:
    with Reads(site) as reads:
        site.hub.restart()
        seconds = reads.resumed_after(time.monotonic())
    print(f"reads are back {seconds:.2f} s after the hub is ready")
    assert seconds < 30


@pytest.mark.parametrize("site", PROCESSES[1:], indirect=True)
@pytest.mark.parametrize("end", ["hub", "edge"])
def test_a_killed_worker_is_replaced(site: TunnelSite, end: str) -> None:
    daemon: LastingDaemon = getattr(site, end)
    workers = {name: pid for name, pid in daemon.pids.items() if name.startswith("worker")}
    assert len(workers) > 1
    wait_until("all control connections", lambda: site.controls() >= site.edge_workers)
    for name, pid in workers.items():
        with Reads(site) as reads:
            begun = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            seconds = reads.resumed_after(begun)
            _wait_for_successor(daemon, name, pid)
            reads.goes_on()
        print(f"{end} {name}: {len(reads.failures)} reads fail, the last ends {seconds:.2f} s after the kill")
        assert seconds < 65  # the delay before an edge dials again grows to a minute with losses in short succession
        if end == "edge":  # GETs are sent again through another worker
            assert [each for each in reads.failures if "RemoteDisconnected" not in each[2]] == []
        wait_until("all control connections", lambda: site.controls() >= site.edge_workers)


def _wait_for_successor(daemon: LastingDaemon, name: str, pid: int) -> None:
    wait_until("its successor", lambda: daemon.pids.get(name) not in (None, pid))


@pytest.mark.slow
def test_connections_that_are_reset_come_back(site: TunnelSite) -> None:
    """An edge that has lost nothing before dials again within half a second; the back-off grows with each loss."""
    site.edge.restart()
    wait_until("the tunnel", lambda: site.is_connected())
    with Reads(site) as reads:
        for limit in (5, 10):
            begun = time.monotonic()
            reset_all(relay_of[site])
            wait_until("the tunnel", lambda: site.is_connected())
            seconds = reads.resumed_after(begun)
            print(f"reads are back {seconds:.2f} s after all connections were reset; {len(reads.failures)} have failed")
            assert seconds < limit


@pytest.mark.slow
def test_a_stopped_edge_is_out_within_25_seconds_and_no_write_succeeds_wrongly(site: TunnelSite) -> None:
    """SIGSTOP: the kernel goes on to acknowledge, and nobody answers."""
    site.edge.signal_all(signal.SIGSTOP)
    begun = time.monotonic()
    statuses: list[int] = []
    try:
        while site.is_connected():
            assert time.monotonic() < begun + 45, "the silent edge is not out"
            with_body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"silent-{len(statuses)}"}}
            with site.client() as client:
                client.socket.settimeout(60)
                path = "/clusters/site-a/api/v1/namespaces/demo/configmaps"
                fields = [("Content-Type", "application/json")]
                statuses.append(client.request("POST", path, fields, json.dumps(with_body).encode()).status)
        out = time.monotonic() - begun
        assert site.ask("/version").status == 503
    finally:
        site.edge.signal_all(signal.SIGCONT)
    begun = time.monotonic()
    wait_until("the tunnel", lambda: site.is_connected() and site.ask("/version").status == 200)
    counts = collections.Counter(statuses)
    print(f"out after {out:.1f} s, back after {time.monotonic() - begun:.2f} s; writes got {counts}")
    assert out < 35
    assert statuses
    assert set(statuses) <= {502, 503, 504}


def test_a_watch_that_is_reset_ends_and_is_resumed(site: TunnelSite) -> None:
    """The watch of a client ends when its connection through the tunnel does, and its next one works soon."""
    path = "/clusters/site-a/api/v1/namespaces/demo/configmaps?watch=true&resourceVersion=0"
    with site.client() as client:
        watch = client.begin("GET", path)
        assert watch.status == 200
        assert watch.readline()
        reset_all(relay_of[site])
        while watch.readline():
            pass
        assert watch.isclosed()  # whole: an informer resumes instead of listing again
    begun = time.monotonic()

    def watches() -> bool:
        with site.client() as again:
            return again.begin("GET", path).status == 200

    wait_until("another watch", watches)
    print(f"a watch is possible {time.monotonic() - begun:.2f} s after the end of the former one")
