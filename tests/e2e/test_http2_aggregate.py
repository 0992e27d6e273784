"""An aggregate of clusters that speak HTTP/2 answers over HTTP/2 with the same bytes as over HTTP/1.1."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.aggregate_environment import CLUSTERS, AggregateEnvironment
from tests.e2e.http2_clients import Client, Got, open_client
from tests.e2e.http2_routes import all_equal
from tests.e2e.processes import wait_until

WAYS = ("httpx-1", "httpx-2", "niquests-2")
MAPS = "/api/v1/configmaps"
BIG = 700_000
AGE = re.compile(rb'"[\dsmhd]+"\]')
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
WATCH_LIST = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
Everywhere = Callable[[Callable[[Client], Any]], Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AggregateEnvironment]:
    """The aggregate, with three large ConfigMaps in each cluster."""
    environment = AggregateEnvironment(tmp_path_factory.mktemp("http2-fleet"), options=("--http2", "--no-controllers"))
    try:
        environment.start()
        for cluster in CLUSTERS:
            environment.control(cluster).create(config_map(f"big-{number}", BIG) for number in range(3))
        with closing(client_of(environment, "httpx-1")) as client:
            wait_until("the caches have all", lambda: client.ask("GET", MAPS).body.count(b'"name":"big-') == 6)
        yield environment
    finally:
        environment.stop()


def config_map(name: str, size: int) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "demo"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "x" * size}}


def ageless(got: Got) -> Got:
    """Leave out how old the objects of a Table are."""
    return replace(got, body=AGE.sub(b'"age"]', got.body))


def client_of(site: AggregateEnvironment, way: str) -> Client:
    return open_client(way, f"https://127.0.0.1:{site.port}", "admin", site.ca)


@pytest.fixture
def everywhere(site: AggregateEnvironment) -> Everywhere:
    """Do the same with each client; gives what all have seen."""

    def compare(scenario: Callable[[Client], Any]) -> Any:
        seen = {}
        for way in WAYS:
            with closing(client_of(site, way)) as client:
                seen[way] = scenario(client)
                assert client.versions == {way[-1]}
        return all_equal(seen, WAYS)

    return compare


@pytest.mark.parametrize("way", WAYS)
def test_a_write_goes_to_its_cluster_over_http2(site: AggregateEnvironment, way: str) -> None:
    content = config_map(f"written-{way}", 100_000)
    content["metadata"]["labels"] = {"mcproxy.io/cluster": "west"}
    control, path = site.control("west"), "/api/v1/namespaces/demo/configmaps"
    mark = control.mark()
    with closing(client_of(site, way)) as client:
        created = client.ask("POST", path, {"Content-Type": "application/json"}, json.dumps(content).encode())
        deleted = client.ask("DELETE", f"{path}/written-{way}")
    assert (created.status, deleted.status) == (201, 200)
    assert json.loads(created.body)["data"] == content["data"]
    records = [record for record in control.audit(mark, path=path) if record["method"] != "GET"]
    assert [(record["method"], record["protocol"]) for record in records] == [
        ("POST", "HTTP/2.0"),
        ("DELETE", "HTTP/2.0"),
    ]
    assert control.http2_stats()["protocolErrors"] == []


@pytest.mark.parametrize("accept", ["application/json", TABLE, METADATA], ids=["objects", "table", "metadata"])
def test_a_list_of_megabytes(everywhere: Everywhere, accept: str) -> None:
    got: Got = everywhere(lambda client: ageless(client.ask("GET", MAPS, {"Accept": accept})))
    assert got.status == 200
    assert (len(got.body) > 6 * BIG) is (accept == "application/json")
    assert len(json.loads(got.body).get("items") or json.loads(got.body)["rows"]) > 6


def test_a_list_in_pages_and_one_that_is_compressed(everywhere: Everywhere) -> None:
    def scenario(client: Client) -> list[Any]:
        first = client.ask("GET", f"{MAPS}?limit=4")
        token = json.loads(first.body)["metadata"]["continue"]
        packed = client.ask("GET", MAPS, {"Accept-Encoding": "gzip"})
        assert packed.header("content-encoding") == "gzip"
        return [first, client.ask("GET", f"{MAPS}?limit=4&continue={token}"), gzip.decompress(packed.body)]

    first, second, packed = everywhere(scenario)
    names = [item["metadata"]["name"] for page in (first, second) for item in json.loads(page.body)["items"]]
    assert len(names) == 8
    assert len(packed) > 6 * BIG


def test_errors(everywhere: Everywhere) -> None:
    def scenario(client: Client) -> list[Got]:
        return [client.ask("GET", f"/api/v1/namespaces/demo/{what}/absent") for what in ("pods", "nonsense")] + [
            client.ask("GET", f"{MAPS}?resourceVersion=abc")
        ]

    assert [got.status for got in everywhere(scenario)] == [404, 404, 400]


@pytest.mark.parametrize("accept", ["application/json", TABLE], ids=["objects", "table"])
def test_a_watch_list_up_to_its_bookmark(everywhere: Everywhere, accept: str) -> None:
    def scenario(client: Client) -> list[bytes]:
        lines = []
        events = client.lines(f"{MAPS}?{WATCH_LIST}", {"Accept": accept})
        for line in events:
            lines.append(AGE.sub(b'"age"]', line))
            if json.loads(line)["type"] == "BOOKMARK":
                break
        events.close()  # type: ignore[attr-defined]
        assert client.ask("GET", "/version").status == 200
        return lines

    *added, bookmark = everywhere(scenario)
    assert {json.loads(line)["type"] for line in added} == {"ADDED"}
    assert len(added) > 6
    assert b"k8s.io/initial-events-end" in bookmark


def test_a_watch_that_is_resumed(site: AggregateEnvironment, everywhere: Everywhere) -> None:
    """What has changed since a version that all know."""
    with closing(client_of(site, "httpx-2")) as client:
        version = json.loads(client.ask("GET", f"{MAPS}?limit=1").body)["metadata"]["resourceVersion"]
    for cluster in CLUSTERS:
        site.control(cluster).create([config_map("resumed", BIG)])

    def scenario(client: Client) -> list[bytes]:
        query = f"watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Dresumed"
        events = client.lines(f"{MAPS}?{query}")
        found = sorted(next(events) for _ in CLUSTERS)  # in which order the two clusters' come is chance
        events.close()  # type: ignore[attr-defined]
        return [json.dumps(json.loads(line)["object"]["data"]).encode() + line[-200:] for line in found]

    assert len(everywhere(scenario)) == 2
