"""kubectl against the discovery of two simulated clusters: what only one of them has is listed, explained and valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure

from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.discovery.merge_cache import VisibleClusters
from mcproxy.aggregate.discovery.responses import send_page_not_found
from mcproxy.aggregate.view.scope import Scope
from mcproxy.config import model
from mcproxy.config.model.aggregates import Aggregate, Cache, CachedResource, UnavailableMembers
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange
from mcproxy.http.server_factory import ServerFactory
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from tests.aggregate.discovery.stage import CREATE_ANYWHERE, Request
from tests.aggregate.reflector.harness import Site, crd, send
from tests.e2e.conftest import kubectl as kubectl_fixture
from tests.e2e.processes import Kubectl
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

kubectl = kubectl_fixture
GROUP_VERSIONS = [("", "v1"), ("apps", "v1"), ("example.com", "v1"), ("west.example.com", "v1")]


def gizmos(group: str) -> dict[str, Any]:
    """A definition with a schema."""
    definition = crd("gizmos", "Gizmo", group)
    weight = {"type": "integer", "description": "How heavy it is."}
    spec = {"type": "object", "description": "What is wanted.", "properties": {"weight": weight}}
    schema = {"type": "object", "description": "Gizmo turns.", "properties": {"spec": spec}}
    definition["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    definition["spec"]["names"]["shortNames"] = ["gz"] if group == "west.example.com" else ["gx"]
    return definition


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[SimulatedClusterProcess, SimulatedClusterProcess]]:
    options = ("--no-controllers",)
    with (
        SimulatedClusterProcess("east", options=options) as east,
        SimulatedClusterProcess("west", options=options) as west,
    ):
        for group in ("west.example.com", "example.com"):
            status, _ = send(west, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", gizmos(group))
            assert status == 201
        yield east, west


class Front:
    """An aggregate's discovery on a port, without TLS and authentication; other paths are 404."""

    def __init__(self, reactor: Any, site: Site, members: dict[str, Any]) -> None:
        def in_thread(function: Callable[..., Any], *args: Any) -> Deferred[Any]:
            return deferToThreadPool(reactor, reactor.getThreadPool(), function, *args)

        resources = tuple(
            CachedResource(group=group, version=version, resource="*") for group, version in GROUP_VERSIONS
        )
        self._config = Aggregate(
            name="fleet", clusters=tuple(members), cache=Cache(resources=resources), create=CREATE_ANYWHERE
        )
        self.discovery = AggregateDiscovery(reactor, in_thread)
        self._members = members
        self.update(UnavailableMembers.STALE)
        self.paths: list[str] = []
        self.port = reserved_port()
        factory = ServerFactory(Deadlines(reactor), model.Limits(), self._handle, lambda *_: (b"", b""))
        self._listener = Listener(reactor, factory, ListenerSettings(), model.TCPBind("127.0.0.1", self.port))
        self._listener.start()

    def update(self, unavailable: UnavailableMembers) -> None:
        config = replace(self._config, unavailable=unavailable)
        self.discovery.update(config, self._members, Scope(config.cache.resources))

    def _handle(self, exchange: Exchange) -> None:
        request = Request(exchange, tuple(self._members))
        self.paths.append(exchange.head.target.decode())

        def done(served: bool | Failure) -> None:
            if isinstance(served, Failure):
                served.raiseException()
            if not served:
                send_page_not_found(request)

        work: Deferred[Any] = Deferred.fromCoroutine(self.discovery.serve(request, VisibleClusters(request.members)))
        work.addBoth(done)

    def close(self) -> None:
        self.discovery.stop()
        self._listener.stop_accepting()
        for stream in tuple(self._listener):
            stream.abortConnection()


@pytest.fixture
def site(reactor: Any) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture
def front(
    reactor: Any, site: Site, clusters: tuple[SimulatedClusterProcess, SimulatedClusterProcess]
) -> Iterator[Front]:
    members = {process.name: site.member(process) for process in clusters}
    for member in members.values():
        member.start()
    front = Front(reactor, site, members)
    yield front
    front.close()


@pytest.fixture
def run(reactor: Any, front: Front, kubectl: str, tmp_path: Path) -> Callable[..., Deferred[str]]:
    """Run kubectl while the reactor goes on; gives what it printed."""
    config = tmp_path / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fleet", "cluster": {"server": f"http://127.0.0.1:{front.port}"}}],
        "contexts": [{"name": "fleet", "context": {"cluster": "fleet", "user": ""}}],
    }
    config.write_text(json.dumps(content))
    program = Kubectl(kubectl, str(config), "fleet", tmp_path / "home")

    def run(*arguments: str, stdin: str = "") -> Deferred[str]:
        return deferToThreadPool(reactor, reactor.getThreadPool(), lambda: program.good(*arguments, stdin=stdin))

    return run


async def test_api_resources(run: Callable[..., Deferred[str]]) -> None:
    names = (await run("api-resources", "-o", "name")).split()
    assert {"pods", "deployments.apps", "widgets.example.com", "gizmos.example.com", "gizmos.west.example.com"} <= set(
        names
    )
    assert len(names) == len(set(names))
    assert "jobs.batch" not in names  # neither in scope, nor is there a primary
    wide = await run("api-resources", "--api-group", "west.example.com", "-o", "wide", "--no-headers")
    assert wide.split()[:5] == ["gizmos", "gz", "west.example.com/v1", "true", "Gizmo"]
    assert {"create", "delete", "get", "list", "watch"} <= set(wide.split()[5].split(","))


async def test_api_versions(run: Callable[..., Deferred[str]]) -> None:
    assert (await run("api-versions")).split() == ["apps/v1", "example.com/v1", "v1", "west.example.com/v1"]


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("gizmos.west.example.com.spec.weight", "How heavy it is."),  # only one member has the group
        ("gx.spec.weight", "How heavy it is."),  # and this one: the group-version is described by both together
        ("widgets.spec.color", "What it looks like."),
        ("deployment.spec.replicas", "Number of desired pods."),
        ("pods.spec.nodeName", "NodeName"),
    ],
)
async def test_explain(run: Callable[..., Deferred[str]], front: Front, what: str, shown: str) -> None:
    assert shown.lower() in (await run("explain", what)).lower()
    documents = [path for path in front.paths if path.startswith("/openapi/v3/")]
    assert len(documents) == 1  # its hash was right the first time


async def test_explain_finds_no_field_that_is_not_there(run: Callable[..., Deferred[str]]) -> None:
    with pytest.raises(AssertionError, match="does not exist"):
        await run("explain", "gizmos.west.example.com.spec.nothing")


async def test_validation(run: Callable[..., Deferred[str]], front: Front) -> None:
    """kubectl reads in the document whether the server validates fields (the parameter fieldValidation)."""
    gizmo = {"apiVersion": "west.example.com/v1", "kind": "Gizmo", "metadata": {"name": "one"}, "spec": {"weight": 7}}
    arguments = ("create", "--dry-run=client", "--validate=true", "-o", "name", "-f", "-")
    assert await run(*arguments, stdin=json.dumps(gizmo)) == "gizmo.west.example.com/one\n"
    assert [path for path in front.paths if path.startswith("/openapi/v3/apis/west.example.com/v1?hash=")]


async def test_version_and_probes(run: Callable[..., Deferred[str]]) -> None:
    assert "gitVersion" in json.loads(await run("version", "-o", "json"))["serverVersion"]
    text = await run("get", "--raw", "/readyz?verbose")
    assert text == "[+]ping ok\n[+]cluster/east ok\n[+]cluster/west ok\nreadyz check passed\n"


async def test_a_definition_that_comes_is_listed(
    run: Callable[..., Deferred[str]],
    front: Front,
    site: Site,
    clusters: tuple[SimulatedClusterProcess, SimulatedClusterProcess],
) -> None:
    assert "things.example.com" not in await run("api-resources", "-o", "name")
    status, _ = send(
        clusters[0], "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd("things", "Thing")
    )
    assert status == 201
    for member in site.members:
        await member.discovery.refresh()
    assert "things.example.com" in await run("api-resources", "-o", "name")
    assert "KIND:" in await run("explain", "things")


async def test_a_member_that_is_away(run: Callable[..., Deferred[str]], front: Front, site: Site) -> None:
    """client-go takes no resource of a stale group-version; so what is served from cache must not be stale."""
    assert "gizmos.west.example.com" in await run("api-resources", "-o", "name")
    west = site.members[1].discovery
    west.stop()
    west.fresh = False
    front.update(UnavailableMembers.PARTIAL)
    assert "gizmos.west.example.com" not in await run("api-resources", "-o", "name")
    front.update(UnavailableMembers.STALE)
    assert "gizmos.west.example.com" in await run("api-resources", "-o", "name")
