"""Endpoints that die, reloads and shutdowns beneath streams of HTTP/2: only what must be lost is."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.http2_client import HTTP2Client
from tests.e2e.http2_site import CONFIG, HTTP2Site
from tests.e2e.http_client import Client
from tests.e2e.processes import wait_until

WATCH = "/clusters/two/api/v1/pods?watch=1"
LAST = 2**31 - 1


CHECKED_SOON = CONFIG.replace("timeout: 60s", "timeout: 3s, unhealthyAfter: 2")


@contextmanager
def running(directory: Path, config: str = CHECKED_SOON) -> Iterator[HTTP2Site]:
    """A cluster of two endpoints; nothing that happens may be a bug."""
    site = HTTP2Site(directory, config, endpoints=2)
    try:
        yield site.start()
        assert site.daemon.lines("bug") == []
    finally:
        site.stop()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HTTP2Site]:
    """For tests that leave it as it was."""
    with running(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def own(tmp_path: Path) -> Iterator[HTTP2Site]:
    """For a test that does not."""
    with running(tmp_path) as site:
        yield site


def emit(site: HTTP2Site, count: int) -> None:
    """The same events come of all endpoints: they are one cluster."""
    for endpoint in site.endpoints:
        if endpoint.running:
            endpoint.emit(count)


def test_a_killed_endpoint_breaks_off_what_it_had_begun_alone_and_its_watches_go_on_elsewhere(own: HTTP2Site) -> None:
    arguments = ("-clients", 3, "-each", 20, "-events", 60, "-resume")
    with own.client("load", "-reads") as load, own.client("watches", *arguments) as watches:
        load.line()
        assert watches.line()["failures"] == []
        emit(own, 10)
        shares = [endpoint.stats()["watches"] for endpoint in own.endpoints]
        assert min(shares) > 0
        own.endpoints[1].stop()
        for _ in range(5):
            emit(own, 10)
            time.sleep(0.1)
        before = own.cluster.stats()["requests"]
        wait_until("reads go on", lambda: own.cluster.stats()["requests"] > before + 200)
        seen = watches.line()
        found = load.finish()
    assert seen["failures"] == []
    assert (seen["complete"], seen["events"]) == (60, 3600)
    assert seen["resumed"] == shares[1]
    # A read is repeated elsewhere, unless the head of its response was there already.
    assert all("INTERNAL_ERROR" in failure for failure in found["failures"])
    assert found["failed"] < 8  # of as many at a time, those that the other endpoint had go on
    assert found["done"] > 100


@pytest.mark.slow
def test_a_reload_under_load_loses_nothing(site: HTTP2Site) -> None:
    arguments = ("-clients", 3, "-each", 20, "-events", site.cluster.stats()["events"] + 40)
    with site.client("load") as load, site.client("watches", *arguments) as watches:
        load.line()
        assert watches.line()["failures"] == []
        for number in range(4):
            site.daemon.file.write_text(site.config().replace("drainTimeout: 5s", f"drainTimeout: {6 + number}s"))
            assert site.daemon.reload().returncode == 0
            emit(site, 10)
            time.sleep(0.1)
        before = site.cluster.stats()["requests"]
        wait_until("reads go on", lambda: site.cluster.stats()["requests"] > before + 200)
        seen = watches.line()
        found = load.finish()
    assert seen["failures"] == []
    assert (seen["complete"], seen["connections"]) == (60, 3)
    assert found["failures"] == []
    assert found["done"] > 100
    assert sum(endpoint.stats()["twice"] for endpoint in site.endpoints) == 0


@pytest.mark.slow
def test_a_shutdown_lets_streams_end_and_a_tunnel_go_on(tmp_path: Path) -> None:
    """The tunnel is HTTP/1.1 and has the drain's time; the watch, which its client resumes, ends when all else has."""
    with running(tmp_path, CHECKED_SOON.replace("drainTimeout: 5s", "drainTimeout: 120s")) as own:
        shuts_down(own)


def shuts_down(own: HTTP2Site) -> None:
    with HTTP2Client(own.address()) as client, Client(own.address("http1")) as tunnel:
        watch = client.ask(WATCH)
        client.until("the watch begins", lambda: watch.status == 200)
        upgrade = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
        response = tunnel.begin("POST", "/clusters/two/api/v1/namespaces/a/pods/b/exec?command=sh", upgrade)
        assert response.status == 101
        own.daemon.signal(signal.SIGTERM)
        own.daemon.wait_for("mcproxy is stopping")
        read = client.ask("/clusters/two/version")  # as `Connection: close` it comes with the next response
        client.until("the read is answered", lambda: read.ended)
        client.until("two GOAWAYs", lambda: len(client.peer.goaways) == 2)
        assert (read.status, client.peer.goaways) == (200, [(LAST, 0), (read.number, 0)])
        assert not watch.over
        assert echoed(tunnel, b"still there") == b"still there"
        tunnel.abort()
        client.until("the watch ends", lambda: watch.ended)
        assert watch.reset is None
        client.until("the connection ends", lambda: client.peer.lost is not None)
    assert own.daemon.end() == 0
    assert own.daemon.lines("mcproxy has stopped", "cut=0")


def echoed(tunnel: Client, data: bytes) -> bytes:
    """What comes back of a tunnel."""
    plain: socket.socket = tunnel.socket
    plain.sendall(data)
    return plain.recv(1 << 10)


@pytest.mark.slow
def test_a_stopped_endpoint_is_out_and_streams_of_the_other_go_on(site: HTTP2Site) -> None:
    """It answers nothing and closes nothing (SIGSTOP): health checks find out, and its watches end to be resumed."""
    arguments = ("-clients", 2, "-each", 10, "-events", site.cluster.stats()["events"] + 20, "-resume")
    with site.client("watches", *arguments) as watches:
        assert watches.line()["failures"] == []
        shares = [endpoint.stats()["watches"] for endpoint in site.endpoints]
        site.endpoints[1].signal(signal.SIGSTOP)
        try:
            site.daemon.wait_for("event=endpoint_out", "cluster=two endpoint=b")
            wait_until("watches move", lambda: site.cluster.stats()["watches"] == sum(shares))
            site.cluster.emit(20)
            seen = watches.line()
        finally:
            site.endpoints[1].signal(signal.SIGCONT)
            site.endpoints[1].emit(20)  # other tests find the same events everywhere
    assert seen["failures"] == []
    assert (seen["complete"], seen["resumed"]) == (20, shares[1])
