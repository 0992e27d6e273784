"""What client-go's informers ask, as recorded from client-go 0.34, gets the same bytes through the proxy as directly.

The paths and headers are those of the recordings; resource versions are put in as an informer would.
"""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.environment import Environment, Route
from tests.e2e.http_client import Client, lines_of

ROUTES = ("direct", "path", "name")
JSON = "application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf,application/json"
METADATA = (
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
)
WATCH_LIST = "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&"
WIDGETS = "/apis/example.com/v1/widgets"
CONFIGMAPS = "/api/v1/namespaces/demo/configmaps"
NAMES = (f"informed-{number}" for number in itertools.count())

WATCHLISTS = {
    "dynamic": (WIDGETS, "timeoutSeconds=518&watch=true", JSON),
    "metadata": ("/api/v1/configmaps", "timeout=6m43s&timeoutSeconds=403&watch=true", METADATA),
    "typed-default": (CONFIGMAPS, "timeout=8m9s&timeoutSeconds=489&watch=true", PROTOBUF),
    "typed-json": (CONFIGMAPS, "timeout=6m59s&timeoutSeconds=419&watch=true", JSON),
}
LISTS = {
    "dynamic": (WIDGETS, "timeoutSeconds=574&watch=true", JSON),
    "typed-default": (CONFIGMAPS, "timeout=6m43s&timeoutSeconds=403&watch=true", PROTOBUF),
    "typed-json": (CONFIGMAPS, "timeout=7m38s&timeoutSeconds=458&watch=true", JSON),
}


def headers(route: Route, accept: str) -> list[tuple[str, str]]:
    return [
        ("User-Agent", "informertrace/v0.0.0"),
        ("Accept", accept),
        ("Authorization", f"Bearer {route.token or 'none'}"),
        ("Accept-Encoding", "gzip"),
    ]


def fields(response: http.client.HTTPResponse) -> list[tuple[str, str]]:
    """The response's headers in any order, but for those that differ from one answer to the next."""
    return sorted((name, value) for name, value in response.getheaders() if name.lower() not in ("audit-id", "date"))


def read_until(response: http.client.HTTPResponse, text: bytes) -> bytes:
    """Read a stream up to the end of the line that has `text`."""
    data = b""
    while text not in data or not data.endswith(b"\n"):
        piece = response.read1()
        assert piece, f"the stream ended: {data[-2000:]!r}"
        data += piece
    return data


def change(environment: Environment, path: str) -> None:
    """Create, change and delete an object of the kind that is watched."""
    route = environment.route("direct")
    name = next(NAMES)
    kind, place = ("Widget", "example.com/v1") if path == WIDGETS else ("ConfigMap", "v1")
    obj = {"apiVersion": place, "kind": kind, "metadata": {"name": name}}
    obj |= {"spec": {"color": "red", "size": 1}} if kind == "Widget" else {"data": {"a": "1"}}
    collection = "/apis/example.com/v1/namespaces/demo/widgets" if kind == "Widget" else CONFIGMAPS
    head = [*headers(route, JSON), ("Content-Type", JSON)]
    patch = [*headers(route, JSON), ("Content-Type", "application/merge-patch+json")]
    with Client(route.address) as client:
        assert client.request("POST", collection, head, json.dumps(obj).encode()).status == 201
        labels = b'{"metadata": {"labels": {"a": "b"}}}'
        assert client.request("PATCH", f"{collection}/{name}", patch, labels).status == 200
        assert client.request("DELETE", f"{collection}/{name}", headers(route, JSON)).status == 200


def watch_everywhere(environment: Environment, path: str, query: str, accept: str) -> Iterator[tuple[str, bytes]]:
    """Watch by all routes at a time while an object is created, changed and deleted; return (route, its events)."""
    with ExitStack() as clients:
        responses = {}
        for name in ROUTES:
            route = environment.route(name)
            client = clients.enter_context(Client(route.address))
            responses[name] = client.begin("GET", f"{route.path}{path}?{query}", headers(route, accept))
        for response in responses.values():
            assert response.status == 200
            assert fields(response) == fields(responses["direct"])
            clients.callback(response.close)
        change(environment, path)
        for name, response in responses.items():
            yield name, read_until(response, b"DELETED")


@pytest.mark.parametrize("informer", WATCHLISTS)
def test_watch_list_gives_objects_bookmark_and_changes(environment: Environment, informer: str) -> None:
    path, query, accept = WATCHLISTS[informer]
    seen = dict(watch_everywhere(environment, path, WATCH_LIST + query, accept))
    assert seen["path"] == seen["direct"]
    assert seen["name"] == seen["direct"]
    assert seen["direct"].index(b"k8s.io/initial-events-end") < seen["direct"].index(b"MODIFIED")
    if accept == JSON:
        kinds = [json.loads(line)["type"] for line in seen["direct"].splitlines()]
        assert kinds[-4:] == ["BOOKMARK", "ADDED", "MODIFIED", "DELETED"]
        assert kinds[0] == "ADDED"


@pytest.mark.parametrize("informer", LISTS)
def test_list_and_watch_from_its_version_misses_nothing(environment: Environment, informer: str) -> None:
    path, query, accept = LISTS[informer]
    lists = {}
    for name in ROUTES:
        route = environment.route(name)
        with Client(route.address) as client:
            response = client.begin("GET", f"{route.path}{path}?limit=500&resourceVersion=0", headers(route, accept))
            lists[name] = (response.status, fields(response), response.read())
    assert lists["path"] == lists["name"] == lists["direct"]
    assert lists["direct"][0] == 200
    version = environment.control().stats()["revision"]
    since = f"allowWatchBookmarks=true&resourceVersion={version}&{query}"
    seen = dict(watch_everywhere(environment, path, since, accept))
    assert seen["path"] == seen["name"] == seen["direct"]
    assert seen["direct"].count(b"ADDED") == 1


def test_watch_list_of_all_pods_starts_with_all_of_them(environment: Environment) -> None:
    query = WATCH_LIST + "timeout=7m42s&timeoutSeconds=462&watch=true"
    seen = []
    for name in ROUTES:
        route = environment.route(name)
        with Client(route.address) as client:
            response = client.begin("GET", f"{route.path}/api/v1/pods?{query}", headers(route, PROTOBUF))
            seen.append((fields(response), read_until(response, b"k8s.io/initial-events-end")))
            response.close()
    assert seen[1] == seen[2] == seen[0]
    assert seen[0][1].count(b"ADDED") > 20


def test_watch_ends_whole_when_its_time_is_over(environment: Environment) -> None:
    """An informer resumes after a clean end; it lists anew after a broken one."""
    query = WATCH_LIST + "timeoutSeconds=1&watch=true"
    ended = []
    with ExitStack() as clients:
        watches = []
        for route in map(environment.route, ROUTES):
            client = clients.enter_context(Client(route.address))
            response = client.begin("GET", f"{route.path}{CONFIGMAPS}?{query}", headers(route, JSON))
            watches.append((route, client, response))
        for route, client, response in watches:
            ended.append(list(lines_of(response)))
            assert response.isclosed()
            again = client.request("GET", f"{route.path}/version", headers(route, JSON))
            assert again.status == 200  # on the same connection
    assert ended[1] == ended[2] == ended[0]


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", [0, 1])
def test_watch_of_a_dying_endpoint_ends_between_events(disturbed: Environment, endpoint: int) -> None:
    """Nothing was lost, so the proxy ends the stream cleanly and the informer resumes instead of listing anew."""
    route = disturbed.route("path")
    control = disturbed.control()
    mark = control.mark()
    with ExitStack() as clients:
        responses = []
        for _ in range(2):  # round robin: one of them is on each endpoint
            client = clients.enter_context(Client(route.address))
            query = "watch=true&resourceVersion=0"
            responses.append(client.begin("GET", f"{route.path}{CONFIGMAPS}?{query}", headers(route, JSON)))
            clients.callback(responses[-1].close)
            responses[-1].readline()
        places = [record["endpoint"] for record in control.audit(mark, path=CONFIGMAPS)]
        assert sorted(places) == [0, 1]
        control.reset_connections(endpoint)
        died, lives = (responses[places.index(which)] for which in (endpoint, 1 - endpoint))
        lines = list(lines_of(died))
        assert died.isclosed()
        assert all(line.endswith(b"}\n") for line in lines)
        change(disturbed, CONFIGMAPS)
        read_until(lives, b"DELETED")


def test_bookmarks_come_through_while_nothing_happens(disturbed: Environment) -> None:
    for name in ("path", "name"):
        route = disturbed.route(name)
        version = disturbed.control().stats()["revision"]
        query = f"allowWatchBookmarks=true&resourceVersion={version}&watch=true&timeoutSeconds=300"
        with Client(route.address) as client:
            response = client.begin("GET", f"{route.path}{WIDGETS}?{query}", headers(route, JSON))
            kinds = [json.loads(line)["type"] for line in itertools.islice(lines_of(response), 2)]
            response.close()
        assert kinds == ["BOOKMARK", "BOOKMARK"]
