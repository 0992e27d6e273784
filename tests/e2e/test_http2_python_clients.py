"""httpx and niquests over both versions, and the kubernetes package beside them, get the same outcome."""

from __future__ import annotations

import gzip
import importlib
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.e2e.http2_clients import CLIENTS, Client, Got, open_client
from tests.e2e.http2_routes import HTTP2Routes, all_equal
from tests.e2e.processes import in_parallel

kubernetes: Any = importlib.import_module("kubernetes")  # it has no types
WAYS = [f"{client}-{cluster}" for client in CLIENTS for cluster in "12"]
DEMO = "/api/v1/namespaces/demo"
MAPS = f"{DEMO}/configmaps"
JSON = {"Content-Type": "application/json"}
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
Everywhere = Callable[..., Any]


def open_routed(name: str, routes: HTTP2Routes, cluster: str, user: str) -> Client:
    """Open a client to the listener that offers both versions; `cluster` is the version of its cluster, "1" or "2"."""
    return open_client(name, routes.base(f"2-{cluster}"), f"{user}-test-token", routes.ca)


@pytest.fixture
def everywhere(http2_routes: HTTP2Routes) -> Everywhere:
    """Run a scenario with each client and to the cluster over each version; gives what all have seen.

    The scenario is given the way's name, to name objects by, which is not compared.
    """

    def compare(scenario: Callable[[Client, str], Any], user: str = "admin") -> Any:
        def seen(way: str) -> Any:
            name, cluster = way.rsplit("-", 1)
            with closing(open_routed(name, http2_routes, cluster, user)) as client:
                found = scenario(client, way)
                assert client.versions == {name[-1]}
                return found

        return all_equal(in_parallel(seen, WAYS), WAYS)

    return compare


def config_map(name: str, size: int = 1) -> bytes:
    content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "x" * size}}
    return json.dumps(content).encode()


@pytest.mark.slow
def test_lists_are_the_same_bytes(everywhere: Everywhere) -> None:
    def scenario(client: Client, way: str) -> list[Got]:
        return [
            client.ask("GET", f"{DEMO}/pods"),
            client.ask("GET", "/api/v1/nodes", TABLE),
            client.ask("GET", "/apis/apps/v1/deployments?limit=3"),
            client.ask("HEAD", "/version"),
        ]

    pods, nodes, page, _ = everywhere(scenario)
    assert json.loads(pods.body)["items"]
    assert json.loads(nodes.body)["kind"] == "Table"
    assert json.loads(page.body)["metadata"]["continue"]


def test_errors_are_the_same_statuses(http2_routes: HTTP2Routes, everywhere: Everywhere) -> None:
    metadata = {"name": "there", "namespace": "demo"}
    http2_routes.control.create([json.loads(config_map("")) | {"metadata": metadata}])

    def scenario(client: Client, way: str) -> list[Got]:
        return [
            client.ask("GET", f"{MAPS}/absent"),
            client.ask("POST", MAPS, JSON, config_map("there")),
            client.ask("POST", MAPS, JSON, b"{"),
            client.ask("GET", "/nope"),
            client.ask("DELETE", "/version"),
        ]

    found = everywhere(scenario)
    assert [each.status for each in found[:4]] == [404, 409, 400, 404]
    assert [json.loads(each.body)["reason"] for each in found[:2]] == ["NotFound", "AlreadyExists"]


def test_what_is_forbidden_is(everywhere: Everywhere) -> None:
    refused = everywhere(lambda client, way: client.ask("GET", f"{DEMO}/secrets"), "alice")
    assert (refused.status, json.loads(refused.body)["reason"]) == (403, "Forbidden")


def test_a_megabyte_both_ways(everywhere: Everywhere) -> None:
    def scenario(client: Client, way: str) -> tuple[int, int, int]:
        created = client.ask("POST", MAPS, JSON, config_map(way, 1_000_000))
        read = client.ask("GET", f"{MAPS}/{way}")
        deleted = client.ask("DELETE", f"{MAPS}/{way}")
        for got in (created, read):
            assert json.loads(got.body)["data"] == {"k": "x" * 1_000_000}
        return created.status, read.status, deleted.status

    assert everywhere(scenario) == (201, 200, 200)


def test_gzip_is_the_clusters(http2_routes: HTTP2Routes, everywhere: Everywhere) -> None:
    metadata = {"name": "zipped", "namespace": "default"}
    http2_routes.control.create([json.loads(config_map("", 200_000)) | {"metadata": metadata}])
    path = "/api/v1/namespaces/default/configmaps/zipped"
    got = everywhere(lambda client, way: client.ask("GET", path, {"Accept-Encoding": "gzip"}))
    assert got.header("content-encoding") == "gzip"
    assert json.loads(gzip.decompress(got.body))["data"] == {"k": "x" * 200_000}


def test_watches_give_events_as_they_come_until_they_are_closed(everywhere: Everywhere) -> None:
    def scenario(client: Client, way: str) -> list[tuple[str, Any]]:
        revision = json.loads(client.ask("GET", f"{MAPS}?limit=1").body)["metadata"]["resourceVersion"]
        query = f"watch=1&resourceVersion={revision}&fieldSelector=metadata.name%3Dwatched-{way}"
        events = client.lines(f"{MAPS}?{query}")
        client.ask("POST", MAPS, JSON, config_map(f"watched-{way}"))
        seen = [json.loads(next(events))]
        client.ask("DELETE", f"{MAPS}/watched-{way}")
        seen.append(json.loads(next(events)))
        events.close()  # type: ignore[attr-defined]
        assert client.ask("GET", "/version").status == 200
        return [(each["type"], each["object"]["data"]) for each in seen]

    assert everywhere(scenario) == [("ADDED", {"k": "x"}), ("DELETED", {"k": "x"})]


def test_many_requests_at_once_get_their_own_answers(everywhere: Everywhere) -> None:
    def scenario(client: Client, way: str) -> list[tuple[str, str]]:
        pods = [item["metadata"]["name"] for item in json.loads(client.ask("GET", f"{DEMO}/pods").body)["items"]]
        bodies = client.many([f"{DEMO}/pods/{name}" for name in pods] * 3)
        return list(zip(pods * 3, (json.loads(body)["metadata"]["name"] for body in bodies), strict=True))

    found = everywhere(scenario)
    assert len(found) >= 30
    assert all(asked == got for asked, got in found)


def essence(pod: dict[str, Any]) -> list[Any]:
    metadata = pod["metadata"]
    return [metadata[key] for key in ("name", "uid", "resourceVersion", "labels", "ownerReferences") if key in metadata]


def test_the_kubernetes_package_reads_the_same(http2_routes: HTTP2Routes) -> None:
    config = kubernetes.client.Configuration(host=http2_routes.base("2-2"))
    config.ssl_ca_cert = str(http2_routes.ca)
    config.api_key["authorization"] = "Bearer alice-test-token"
    with (
        kubernetes.client.ApiClient(config) as api,
        closing(open_routed("httpx-2", http2_routes, "2", "alice")) as beside,
    ):
        core = kubernetes.client.CoreV1Api(api)
        pods = api.sanitize_for_serialization(core.list_namespaced_pod("demo").items)
        expected = json.loads(beside.ask("GET", f"{DEMO}/pods").body)["items"]
        assert [essence(pod) for pod in pods] == [essence(item) for item in expected]
        with pytest.raises(kubernetes.client.ApiException) as refused:
            core.list_namespaced_secret("demo")
        assert refused.value.status == 403
        assert json.loads(refused.value.body) == json.loads(beside.ask("GET", f"{DEMO}/secrets").body)
        events = kubernetes.watch.Watch().stream(
            core.list_namespaced_pod, "demo", resource_version="0", timeout_seconds=1
        )
        assert sorted(event["object"].metadata.name for event in events) == [
            item["metadata"]["name"] for item in expected
        ]
