"""Packets that are lost on their way between an edge and its hub: the edge is in a network namespace of its own.

Nothing tells either end; what is sent is repeated by the kernel, as over a network that is broken.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.consistency.relay import Relays
from tests.e2e.processes import wait_until
from tests.e2e.tunnel_site import EDGE, HUB, LastingDaemon, TunnelSite
from tests.soak.invariants import bugs

pytestmark = pytest.mark.slow
NOBODY = "02:00:00:00:00:99"
"""The link-layer address of no interface: what is sent to it is dropped without a word."""


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr} (root may make network namespaces)"
    return done.stdout


class Namespace:
    """A network namespace with one pair of interfaces to this one. A context manager."""

    def __init__(self) -> None:
        mark = secrets.token_hex(3)
        self.name, self._host_side, self._inner_side = f"mcp{mark}", f"mch{mark}", f"mcn{mark}"
        net = f"10.213.{int(mark[:2], 16)}"
        self.host, self.inner = f"{net}.1", f"{net}.2"

    def __enter__(self) -> Namespace:
        ip("netns", "add", self.name)
        ip("link", "add", self._host_side, "type", "veth", "peer", "name", self._inner_side, "netns", self.name)
        ip("addr", "add", f"{self.host}/30", "dev", self._host_side)
        ip("link", "set", self._host_side, "up")
        ip("-n", self.name, "addr", "add", f"{self.inner}/30", "dev", self._inner_side)
        ip("-n", self.name, "link", "set", self._inner_side, "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AssertionError, FileNotFoundError):
            ip("link", "del", self._host_side)
        with suppress(AssertionError, FileNotFoundError):
            ip("netns", "del", self.name)

    def drop(self, way: str) -> None:
        """Lose all packets `in` the direction of the namespace, or `out` of it."""
        place, address, interface = self._side(way)
        ip(*place, "neigh", "replace", address, "lladdr", NOBODY, "dev", interface, "nud", "permanent")

    def _side(self, way: str) -> tuple[tuple[str, ...], str, str]:
        """The namespace, the neighbour's address and the interface of the sender."""
        if way == "in":
            return (), self.inner, self._host_side
        return ("-n", self.name), self.host, self._inner_side

    def mend(self) -> None:
        for way in ("in", "out"):
            place, address, interface = self._side(way)
            with suppress(AssertionError):
                ip(*place, "neigh", "del", address, "dev", interface)


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    assert os.geteuid() == 0, "network namespaces need root"
    with Namespace() as found:
        yield found


@pytest.fixture(scope="module")
def site(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TunnelSite]:
    """The edge reaches the hub, and its cluster by a relay; nobody reaches the edge."""

    class Inside(LastingDaemon):
        @property
        def command(self) -> list[str]:
            return ["ip", "netns", "exec", namespace.name, *super().command]

    site = TunnelSite(tmp_path_factory.mktemp("site"))
    site.edge_daemon = Inside
    site.edge_url = f"https://{namespace.host}:{site.port}"
    with Relays() as relays:
        site.cluster.spawn()
        site.cluster.wait_ready()
        cluster = relays.relay(site.cluster.ports[0], host=namespace.host)
        edge = EDGE.replace('url: "{cluster}"', f'url: "https://{namespace.host}:{cluster.port}"')
        edge = edge.replace('tls: {{caFile: "{ca}"}}', 'tls: {{caFile: "{ca}", serverName: localhost}}')
        try:
            yield site.start(HUB.replace("127.0.0.1:{port}", "0.0.0.0:{port}"), template=edge)
        finally:
            site.stop()


@pytest.mark.parametrize("ways", [("in",), ("out",), ("in", "out")], ids="-".join)
def test_lost_packets_take_an_endpoint_out_within_25_seconds(
    site: TunnelSite, namespace: Namespace, ways: tuple[str, ...]
) -> None:
    wait_until("the tunnel", lambda: site.is_connected() and site.ask("/version").status == 200)
    begun = time.monotonic()
    for way in ways:
        namespace.drop(way)
    try:
        wait_until("the loss", lambda: not site.is_connected(), 60)
        out = time.monotonic() - begun
        assert site.ask("/version").status == 503
        site.edge.wait_for("event=tunnel_down")
    finally:
        namespace.mend()
    begun = time.monotonic()
    wait_until("the tunnel", lambda: site.is_connected() and site.ask("/version").status == 200)
    back = time.monotonic() - begun
    print(f"{ways}: out after {out:.1f} s, back {back:.1f} s after the network")
    assert out < 35
    assert back < 75
    assert bugs(site.hub.log + site.edge.log) == []


def test_nobody_dials_the_edge(site: TunnelSite, namespace: Namespace) -> None:
    listening = subprocess.run(
        ["ip", "netns", "exec", namespace.name, "cat", "/proc/net/tcp"], capture_output=True, text=True, check=True
    )
    states = [line.split()[3] for line in listening.stdout.splitlines()[1:]]
    assert states
    assert "0A" not in states, "something listens"
