"""The ConfigMap that API servers read, over the wire: the backend's with the front proxy of ours over it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubesim.auth.certificates import Authority
from mcproxy.config import model
from mcproxy.config.model import PEMFile, UpstreamIdentity
from tests.proxy.harness import NAME, Client, Harness, always, cluster, config, get
from tests.proxy.test_aggregate_requests import Fleet
from tests.proxy.test_api_service_objects import FORBIDDEN, MISSING, answer
from tests.proxy.test_api_service_watch import Watched, lines

CONFIG_MAPS = b"/api/v1/namespaces/kube-system/configmaps"
PATH = CONFIG_MAPS + b"/extension-apiserver-authentication"
SELECTED = CONFIG_MAPS + b"?fieldSelector=metadata.name%3Dextension-apiserver-authentication"
THEIRS = {"requestheader-client-ca-file": "theirs", "requestheader-allowed-names": "[]", "client-ca-file": "clients"}
GO = b"Accept: application/vnd.kubernetes.protobuf,application/json"


def config_map(version: str = "5") -> dict[str, Any]:
    metadata = {
        "name": "extension-apiserver-authentication",
        "namespace": "kube-system",
        "resourceVersion": version,
    }
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": THEIRS}


class Bench:
    def __init__(self, harness: Harness, tmp_path: Path) -> None:
        self.harness = harness
        self.backend = Watched()
        self.backend.answers = {
            PATH.decode(): (200, config_map()),
            CONFIG_MAPS.decode(): (
                200,
                {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "77"},
                 "items": [config_map()]},
            ),
        }  # fmt: skip
        self.core, self.zoo = harness.upstream(), harness.upstream()
        self.core.reply = self.backend
        self.zoo.reply = always(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        self.authority = Authority("front proxies")
        self.tmp_path = tmp_path

    def backend_of(self) -> tuple[model.Backend, list[model.ClusterConfig], dict[str, Any]]:
        """Return the server's backend, the clusters that it has beside east, and what else is to be configured."""
        return model.ClusterBackend("east"), [], {}

    async def serve(self, name: str = "mcproxy", identity: UpstreamIdentity = UpstreamIdentity.REQUEST_HEADER) -> None:
        certificate, key = self.authority.client(name).write(self.tmp_path, name)
        chain = Path(certificate).read_bytes() + self.authority.pem
        front = model.FrontProxy(PEMFile(str(certificate), chain), PEMFile(str(key), Path(key).read_bytes()))
        backend, clusters, more = self.backend_of()
        server = model.Server(
            name="main",
            listeners=("tls",),
            server_names=(NAME,),
            backend=backend,
            api_services=(model.APIService(group="zoo.io", version="v1", cluster="zoo", authority="east"),),
        )
        zoo = replace(cluster(self.zoo.endpoint(), name="zoo"), identity=identity, front_proxy=front)
        await self.harness.serve(config([cluster(self.core.endpoint()), zoo, *clusters], (server,), **more))

    async def get(self, *request: Any, **how: Any) -> tuple[int, dict[str, str], Any]:
        return await answer(self.harness, get(*request, **how))

    async def watch(self, query: bytes = b"") -> Client:
        client = await self.harness.asks(get(SELECTED + b"&watch=1" + query, GO))
        await self.harness.until(lambda: b"\r\n\r\n" in client.received, "the watch")
        return client


class OfAggregate(Bench):
    """The same, where the server's backend is an aggregate of east, its primary, and west."""

    def __init__(self, harness: Harness, tmp_path: Path) -> None:
        super().__init__(harness, tmp_path)
        self.fleet = Fleet()
        harness.use_aggregates(self.fleet)
        self.west = harness.upstream()
        self.west.reply = always(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    def backend_of(self) -> tuple[model.AggregateBackendConfig, list[model.ClusterConfig], dict[str, Any]]:
        aggregate = model.Aggregate(name="fleet", clusters=("west", "east"), primary="east")
        west = cluster(self.west.endpoint(), name="west")
        return model.AggregateBackendConfig("fleet", aggregate.clusters, "east"), [west], {"aggregates": (aggregate,)}


@pytest.fixture(params=[Bench, OfAggregate], ids=["cluster", "aggregate"])
def bench(request: pytest.FixtureRequest, harness: Harness, tmp_path: Path) -> Iterator[Bench]:
    bench: Bench = request.param(harness, tmp_path)
    yield bench
    if isinstance(bench, OfAggregate):
        assert all(b"extension-apiserver" not in each.target for each in bench.fleet.handler.requests), "from a cache"
        assert b"extension-apiserver" not in bench.west.received


@pytest.fixture
def alone(harness: Harness, tmp_path: Path) -> Bench:
    """That of a cluster: what an aggregate answers to others is not made here."""
    return Bench(harness, tmp_path)


def is_ours(bench: Bench, found: dict[str, Any], name: str = "mcproxy") -> bool:
    data = found["data"]
    assert data["client-ca-file"] == "clients"
    assert data["requestheader-username-headers"] == '["X-Remote-User"]'
    return bool(
        data["requestheader-client-ca-file"].encode() == bench.authority.pem
        and data["requestheader-allowed-names"] == json.dumps([name])
    )


async def test_a_get_and_a_list_of_it_have_our_front_proxy(bench: Bench) -> None:
    await bench.serve()
    status, fields, found = await bench.get(PATH, GO)
    assert (status, fields["content-type"], is_ours(bench, found)) == (200, "application/json", True)
    assert found["metadata"]["resourceVersion"] == "5"
    status, _, found = await bench.get(SELECTED, GO)
    assert (status, found["metadata"]["resourceVersion"]) == (200, "77")
    assert [is_ours(bench, each) for each in found["items"]] == [True]


async def test_others_are_the_backends_own(alone: Bench) -> None:
    await alone.serve()
    found = await alone.get(CONFIG_MAPS)
    assert found[2]["items"][0]["data"] == THEIRS
    table = b"Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    assert (await alone.get(PATH, table))[2]["data"] == THEIRS  # the backend here makes none
    assert (await alone.get(CONFIG_MAPS + b"/another"))[0] == 404


async def test_without_an_api_service_that_is_told_users_it_is_the_backends(alone: Bench) -> None:
    await alone.serve(identity=UpstreamIdentity.PROXY)
    assert (await alone.get(PATH))[2] == config_map()


@pytest.mark.parametrize("refusal", [FORBIDDEN, MISSING])
async def test_who_may_read_it_is_the_backends_to_say(bench: Bench, refusal: tuple[int, Any]) -> None:
    await bench.serve()
    bench.backend.answers = dict.fromkeys(bench.backend.answers, refusal)
    for target in (PATH, SELECTED):
        status, _, found = await bench.get(target)
        assert (status, found) == refusal
    bench.backend.refusal = refusal
    bench.backend.answers = dict.fromkeys(bench.backend.answers, refusal)
    assert (await bench.get(SELECTED + b"&watch=1&resourceVersion=77"))[0] == 403 or refusal is MISSING


@pytest.mark.parametrize("method", [b"PUT", b"PATCH", b"DELETE"])
async def test_a_write_to_it_is_403_with_the_reason(bench: Bench, method: bytes) -> None:
    await bench.serve()
    bench.backend.asked.clear()
    status, _, found = await bench.get(PATH, b"Content-Length: 2\r\n\r\n{}", method=method)
    assert (status, found["reason"]) == (403, "Forbidden")
    assert "mcproxy puts its front proxies over it" in found["message"]
    assert [each for each in bench.backend.asked if each[0] == method.decode()] == []


async def test_a_watch_has_it_too_and_who_resumes_is_told_what_is_in_force(bench: Bench) -> None:
    await bench.serve()
    first = await bench.watch()
    bench.backend.send({"type": "ADDED", "object": config_map()})
    await bench.harness.until(lambda: len(lines(first)) == 1, "an event")
    assert is_ours(bench, lines(first)[0]["object"])
    await bench.serve("renewed")  # another certificate
    await bench.harness.until(lambda: first.received.endswith(b"0\r\n\r\n"), "the clean end")
    resumed = await bench.watch(b"&resourceVersion=77")
    await bench.harness.until(lambda: len(lines(resumed)) == 1, "an event")
    told = lines(resumed)[0]
    assert (told["type"], told["object"]["metadata"]["resourceVersion"]) == ("MODIFIED", "77")
    assert is_ours(bench, told["object"], "renewed")
    bench.backend.send({"type": "MODIFIED", "object": config_map("80")})
    await bench.harness.until(lambda: len(lines(resumed)) == 2, "an event")
    assert is_ours(bench, lines(resumed)[1]["object"], "renewed")


@pytest.mark.parametrize("version", [b"", b"&resourceVersion=77"])
async def test_a_watch_list_has_it_among_its_initial_events_and_their_end_is_the_backends(
    bench: Bench, version: bytes
) -> None:
    await bench.serve()
    options = b"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true" + version
    client = await bench.watch(options)
    assert bench.backend.asked[-1] == ("WATCH", (SELECTED + b"&watch=1" + options).decode(), "")
    metadata = {"resourceVersion": "77", "annotations": {"k8s.io/initial-events-end": "true"}}
    end = {"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}}
    bench.backend.send({"type": "ADDED", "object": config_map()}, end)
    await bench.harness.until(lambda: len(lines(client)) == 2, "the initial events")
    added, bookmark = lines(client)
    assert (added["type"], is_ours(bench, added["object"])) == ("ADDED", True)
    assert added["object"]["metadata"]["resourceVersion"] == "5"
    assert bookmark == end
    bench.backend.send({"type": "MODIFIED", "object": config_map("80")})
    await bench.harness.until(lambda: len(lines(client)) == 3, "an event")
    assert is_ours(bench, lines(client)[2]["object"])


@pytest.mark.parametrize("body", ["no object", [1]])
async def test_a_backend_that_sends_rubbish_is_502(bench: Bench, body: Any) -> None:
    await bench.serve()
    bench.backend.answers[PATH.decode()] = 200, body
    assert (await bench.get(PATH))[0] == 502
