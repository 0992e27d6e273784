"""Four endpoints of one simulated cluster that die, hang and come back; real TLS, real checks, real time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.daemon.runtime import make_upstream_context
from mcproxy.http.deadlines import Deadlines
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import request_head
from mcproxy.upstream.control_stream import ControlStream
from mcproxy.upstream.endpoint import Endpoint
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

PATIENCE = 60.0  # seconds
CHECK = model.HealthCheck(interval=0.2, timeout=2.0, unhealthy_after=2, healthy_after=1)


@pytest.fixture(scope="module")
def simulated() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=("--endpoints", "4")) as process:
        yield process


class Site:
    """A live cluster over the simulated one."""

    def __init__(self, reactor: Any, simulated: SimulatedClusterProcess, **fields: Any) -> None:
        self.reactor = reactor
        self.control = ControlClient(simulated.control_url)
        self.deadlines = Deadlines(reactor)
        self.shared = make_upstream_context(reactor, self.deadlines, lambda endpoint: None)
        own = simulated.user("mcproxy")
        config = model.ClusterConfig(
            name="east",
            endpoints=tuple(
                model.EndpointConfig(name=f"e{number}", scheme="https", host="127.0.0.1", port=port)
                for number, port in enumerate(simulated.ports)
            ),
            tls=model.ClusterTLS(ca=pem(simulated.ca)),
            credentials=model.Credentials(certificate=pem(own.certificate), key=pem(own.key)),
            health_check=CHECK,
            **fields,
        )
        self.cluster = Cluster.build(config, self.shared)
        self.cluster.start()

    def reload(self, *endpoints: model.EndpointConfig) -> None:
        old = self.cluster
        self.cluster = Cluster.build(replace(old.config, endpoints=endpoints), self.shared, old)
        self.cluster.start()
        old.stop(successor=self.cluster)

    def ready(self) -> list[str]:
        return [endpoint.name for endpoint in self.cluster.endpoints if endpoint.ready]

    def turns(self, count: int) -> list[str]:
        return [endpoint.name if endpoint else "-" for endpoint in (self.cluster.pick() for _ in range(count))]

    async def until(self, condition: Callable[[], bool]) -> None:
        end = self.reactor.seconds() + PATIENCE
        while not condition():
            assert self.reactor.seconds() < end, [endpoint.state_message for endpoint in self.cluster.endpoints]
            await deferLater(self.reactor, 0.02)

    async def ask(self, endpoint: Endpoint, *fields: bytes) -> tuple[int, bytes]:
        """Send a request as requests of clients go, over a connection of its own."""
        stream = await endpoint.pool.open()
        response = ControlStream(stream, endpoint, "", self.reactor.seconds)
        target, lines = b"/api/v1/namespaces/demo/secrets", tuple(each + b"\r\n" for each in fields)
        stream.send_head(request_head("GET"), target, b"x", lines, response, 0.0)
        await response.head()
        return response.status, await response.read_all(1 << 20)

    def close(self) -> None:
        self.cluster.stop()
        self.deadlines.stop()
        self.shared.close()


def pem(path: str) -> model.PEMFile:
    return model.PEMFile(path, Path(path).read_bytes())


@pytest.fixture
def open_site(reactor: Any, simulated: SimulatedClusterProcess) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def make(**fields: Any) -> Site:
        sites.append(Site(reactor, simulated, **fields))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.mark.slow
async def test_endpoints_that_stop_or_hang_go_out_and_come_back(open_site: Callable[..., Site]) -> None:
    site = open_site()
    await site.until(lambda: len(site.ready()) == 4)
    site.control.stop_endpoint(1)
    site.control.hang_endpoint(2)
    await site.until(lambda: site.ready() == ["e0", "e3"])
    assert sorted(site.turns(6)) == ["e0"] * 3 + ["e3"] * 3

    def why() -> str:
        return site.cluster.unavailable_message(site.cluster.subset(["e1", "e2"]))

    # On a busy machine a check of the first may have come too late before it stopped.
    await site.until(lambda: "e1: 127.0.0.1:" in why() and "refused" in why())
    await site.until(lambda: "e2: no connection to e2 within 2 s" in why())
    site.control.start_endpoint(1)
    site.control.resume_endpoint(2)
    await site.until(lambda: len(site.ready()) == 4)
    assert sorted(site.turns(8)) == ["e0", "e0", "e1", "e1", "e2", "e2", "e3", "e3"]


async def test_a_reload_keeps_what_is_known_of_those_that_stay(open_site: Callable[..., Site]) -> None:
    site = open_site()
    a, b, c, d = site.cluster.config.endpoints
    site.control.hang_endpoint(1)
    await site.until(lambda: site.ready() == ["e0", "e2", "e3"])
    try:
        site.reload(b, replace(c, disabled=True), replace(d, name="last", weight=2))
        assert site.ready() == ["last"]  # at once: no check has been made since
        assert site.turns(2) == ["last", "last"]
    finally:
        site.control.resume_endpoint(1)
    site.reload(a, b, c, d)
    await site.until(lambda: len(site.ready()) == 4)


async def test_the_front_proxy_certificate_is_believed_and_control_traffic_needs_no_user(
    open_site: Callable[..., Site], simulated: SimulatedClusterProcess
) -> None:
    front = simulated.front_proxy
    site = open_site(
        identity=model.UpstreamIdentity.REQUEST_HEADER,
        front_proxy=model.FrontProxy(pem(front.certificate), pem(front.key)),
    )
    await site.until(lambda: len(site.ready()) == 4)  # checks show the own certificate: the other one alone is 401
    endpoint = site.cluster.endpoints[0]
    status, body = await site.ask(endpoint, b"X-Remote-User: mallory")
    assert (status, b'User \\"mallory\\"' in body) == (403, True)
    assert (await site.ask(endpoint))[0] == 401


@pytest.mark.parametrize(
    ("identity", "user"),
    [(model.UpstreamIdentity.IMPERSONATE, b"mallory"), (model.UpstreamIdentity.PASSTHROUGH, b"system:anonymous")],
)
async def test_only_the_own_certificate_impersonates(
    open_site: Callable[..., Site], identity: model.UpstreamIdentity, user: bytes
) -> None:
    site = open_site(identity=identity)
    await site.until(lambda: len(site.ready()) == 4)
    status, body = await site.ask(site.cluster.endpoints[0], b"Impersonate-User: mallory")
    assert status == 403
    assert b'User \\"%b\\"' % user in body
