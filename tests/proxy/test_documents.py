"""Discovery of a server of one cluster with API services, over the wire: who answers, for whom, and over reloads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.config.model import UpstreamIdentity
from mcproxy.kube.discovery import AGGREGATED_MEDIA_TYPE
from tests.dispatch.builders import policy, rule
from tests.proxy.harness import Client, Harness, Upstream, UpstreamEnd, cluster, config, get, reviewing
from tests.proxy.test_api_services import ALICE, BOB, OTHER, SERVICE, USERS

AGGREGATED = b"Accept: " + AGGREGATED_MEDIA_TYPE.encode()


def document(*group_versions: str) -> dict[str, Any]:
    """An APIGroupDiscoveryList."""
    items = []
    for group_version in group_versions:
        group, _, version = group_version.rpartition("/")
        things = {
            "resource": "things",
            "responseKind": {"kind": "Thing"},
            "scope": "Namespaced",
            "singularResource": "thing",
        }
        versions = [{"version": version, "resources": [{**things, "verbs": ["get", "list"]}], "freshness": "Current"}]
        items.append({"metadata": {"name": group}, "versions": versions})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}


def serving(documents: dict[str, Any], clients: list[str]) -> Callable[[UpstreamEnd], None]:
    """A `reply` that answers GETs by path, others with {}; `clients` gets the paths of requests of clients."""

    def answer(end: UpstreamEnd) -> None:
        while b"\r\n\r\n" in end.received:
            head, _, end.received = end.received.partition(b"\r\n\r\n")
            path = head.split(b" ")[1].decode().partition("?")[0]
            if b"\r\nX-Forwarded-For: " in head:
                clients.append(path)
            body = json.dumps(documents.get(path, {})).encode()
            kind = AGGREGATED_MEDIA_TYPE if path in ("/api", "/apis") else "application/json"
            end.send(
                b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
                % (kind.encode(), len(body), body)
            )

    return answer


class Site:
    """A server of cluster east with API services in metrics and other."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.forwarded: list[str] = []
        self.identities = {"metrics": UpstreamIdentity.REQUEST_HEADER, "other": UpstreamIdentity.REQUEST_HEADER}
        self.allowed: Callable[[dict[str, Any]], bool] = lambda _: True
        self.documents: dict[str, dict[str, Any]] = {
            "east": {"/api": document("/v1"), "/apis": document("apps/v1", "metrics.k8s.io/v1beta1")},
            "metrics": {"/apis": document("metrics.k8s.io/v1beta1")},
            "other": {"/apis": document("other.example.com/v1", "apps/v1")},
            "west": {"/api": document("/v1"), "/apis": document("west.example.com/v1")},
        }
        self.upstreams: dict[str, Upstream] = {}
        for name, documents in self.documents.items():
            upstream = self.upstreams[name] = harness.upstream()
            upstream.reply = reviewing(serving(documents, self.forwarded), lambda spec: self.allowed(spec))

    async def serve(self, *services: model.APIService, **server: Any) -> None:
        clusters = [
            cluster(upstream.endpoint(), name=name, identity=self.identities.get(name, UpstreamIdentity.IMPERSONATE))
            for name, upstream in self.upstreams.items()
        ]
        usual = model.Server(
            name="main",
            listeners=("tls",),
            default=True,
            backend=model.ClusterBackend("east"),
            authentication="users",
            api_services=services or (SERVICE, OTHER),
        )
        await self.harness.serve(config(clusters, [replace(usual, **server)], authentication=(USERS,)))

    async def get(self, target: bytes, *fields: bytes) -> tuple[int, Any]:
        client: Client = await self.harness.asks(get(target, *(fields or (ALICE,)), b"Connection: close"))
        await self.harness.until(lambda: client.over, "the answer")
        status, _, body = client.answer()
        try:
            return status, json.loads(body)
        except ValueError:
            return status, body

    async def groups(self, user: bytes = ALICE) -> dict[str, str]:
        """The groups in discovery with the freshness of their first version."""
        _, found = await self.get(b"/apis", user, AGGREGATED)
        return {item["metadata"]["name"]: item["versions"][0]["freshness"] for item in found.get("items", ())}

    async def known(self, **groups: str) -> None:
        """Wait until discovery has these groups."""
        wanted = {name.replace("_", "."): freshness for name, freshness in groups.items()}
        deadline = self.harness.reactor.seconds() + 60
        while (found := await self.groups()) != wanted:
            assert self.harness.reactor.seconds() < deadline, found


ALL = {"apps": "Current", "metrics_k8s_io": "Current", "other_example_com": "Current"}


@pytest.fixture
def site(harness: Harness) -> Site:
    return Site(harness)


class TestDocuments:
    async def test_are_of_the_backend_and_of_the_api_services(self, site: Site) -> None:
        await site.serve()
        await site.known(**ALL)
        assert (await site.get(b"/apis/other.example.com"))[1]["preferredVersion"]["version"] == "v1"
        assert (await site.get(b"/api"))[1]["versions"] == ["v1"]
        assert (await site.get(b"/apis/no.example.com"))[0] == 404
        assert site.forwarded == []

    async def test_of_a_group_version_are_its_owners_own(self, site: Site) -> None:
        await site.serve()
        for path in (b"/apis/apps/v1", b"/apis/metrics.k8s.io/v1beta1", b"/api/v1", b"/version"):
            await site.get(path)
        assert site.forwarded == ["/apis/apps/v1", "/apis/metrics.k8s.io/v1beta1", "/api/v1", "/version"]

    async def test_of_a_server_without_api_services_are_the_backends_own(self, site: Site) -> None:
        await site.serve(SERVICE)
        await site.serve(api_services=())
        await site.get(b"/apis")
        assert site.forwarded == ["/apis"]

    async def test_of_a_backend_that_alone_knows_who_asks_are_its_own(self, site: Site) -> None:
        site.identities["east"] = UpstreamIdentity.PASSTHROUGH
        await site.serve(authentication=None)
        await site.get(b"/apis")
        assert site.forwarded == ["/apis"]

    async def test_follow_a_reload(self, site: Site) -> None:
        await site.serve(SERVICE)
        await site.known(apps="Current", metrics_k8s_io="Current")
        begun = site.harness.reactor.seconds()
        await site.serve(SERVICE, OTHER)
        await site.known(**ALL)
        await site.serve(OTHER)
        await site.known(**ALL)  # the group is the backend's again
        assert site.harness.reactor.seconds() - begun < 25  # 2 s on a machine that is not busy
        await site.serve(api_services=())

    async def test_of_a_policys_backend_are_its_own(self, site: Site) -> None:
        west = policy("west", rule(users=("alice",), non_resource_urls=("*",)), backend=model.ClusterBackend("west"))
        rest = policy("rest", rule(non_resource_urls=("*",)))
        await site.serve(dispatch=(west, rest))
        await site.known(west_example_com="Current", metrics_k8s_io="Current", other_example_com="Current")
        assert "apps" in await site.groups(BOB)


class TestVisibility:
    async def test_who_may_not_get_the_document_is_refused(self, site: Site) -> None:
        site.allowed = lambda spec: spec["user"] != "alice"
        await site.serve()
        status, body = await site.get(b"/apis")
        assert (status, body["reason"]) == (403, "Forbidden")
        assert (await site.get(b"/apis", BOB))[0] == 200

    async def test_what_a_user_may_not_get_is_not_shown(self, site: Site) -> None:
        site.allowed = lambda spec: (
            spec["user"] == "bob" or spec["nonResourceAttributes"]["path"] in ("/apis", "/apis/other.example.com/v1")
        )
        await site.serve()
        await site.known(apps="Current", other_example_com="Current")
        assert "metrics.k8s.io" in await site.groups(BOB)

    async def test_nobody_learns_anything_without_a_credential(self, site: Site) -> None:
        await site.serve()
        assert (await site.get(b"/apis", b"Authorization: Bearer none"))[0] == 401
