"""What a user may not discover in a cluster is not shown to that user, in any form of discovery or OpenAPI."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred

from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.kube.discovery import (
    AGGREGATED_ACCEPT,
    APIGroupDiscovery,
    APIResourceDiscovery,
    APIVersionDiscovery,
    GroupVersionKind,
    ObjectMeta,
)
from mcproxy.upstream.control import ControlResponse
from tests.aggregate.discovery.stage import FakeSource, Response, ask, discovery_of, fleet, now, source

CLUSTERS = ("east", "west", "hub")
"""Two members and the primary, each with a definition of its own."""
V2 = "application/json"


def group(name: str) -> APIGroupDiscovery:
    kind = GroupVersionKind("", "", "Thing")
    verbs = ("create", "delete", "get", "list", "watch")
    things = APIResourceDiscovery("things", kind, "Namespaced", "thing", verbs)
    return APIGroupDiscovery(ObjectMeta(f"{name}.example.com"), (APIVersionDiscovery("v1", (things,)),))


def spec(name: str) -> dict[str, Any]:
    operation = {"responses": {"200": {"schema": {"$ref": f"#/definitions/com.example.{name}.Thing"}}}}
    return {
        "paths": {f"/apis/{name}.example.com/v1/things": {"get": operation}},
        "definitions": {f"com.example.{name}.Thing": {"type": "object", "description": f"only of {name}"}},
    }


def cluster(name: str) -> FakeSource:
    path = f"apis/{name}.example.com/v1"
    index = {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash=H{name}"}}}
    v3 = {"openapi": "3.0.0", "info": {"description": f"only of {name}"}, "paths": {}}
    return source(
        name,
        [group(name)],
        **{
            "/openapi/v3": answer(index),
            f"/openapi/v3/{path}?hash=H{name}": answer(v3),
            "/openapi/v2": answer({"swagger": "2.0", "info": {"title": "Kubernetes"}, **spec(name)}),
        },
    )


def answer(document: Any) -> ControlResponse:
    return ControlResponse(200, ((b"Content-Type", b"application/json"),), json.dumps(document).encode())


@pytest.fixture(params=["a primary that is no member", "a primary that is a member"])
def served(request: pytest.FixtureRequest) -> AggregateDiscovery:
    members = CLUSTERS if request.param.endswith("is a member") else CLUSTERS[:2]
    config = fleet(clusters=members, primary="hub")
    return discovery_of(*map(cluster, CLUSTERS), config=config, in_thread=maybeDeferred)


def get(served: AggregateDiscovery, path: str, shown: Sequence[str], accept: str = "application/json") -> Response:
    return now(ask(served.serve, path, accept, members=shown))


def told(served: AggregateDiscovery, shown: Sequence[str]) -> dict[str, set[str]]:
    """Return the clusters of which each form tells anything to a user who may discover `shown`."""

    def named(text: bytes) -> set[str]:
        return {name for name in CLUSTERS if name.encode() in text}

    def each(template: str) -> set[str]:
        return {name for name in CLUSTERS if get(served, template.format(name), shown).status != 404}

    return {
        "aggregated": named(get(served, "/apis", shown, AGGREGATED_ACCEPT).body),
        "legacy": named(get(served, "/apis", shown).body),
        "group": each("/apis/{}.example.com"),
        "version": each("/apis/{}.example.com/v1"),
        "paths": {name for name in CLUSTERS if f"{name}.example.com".encode() in get(served, "/", shown).body},
        "index": named(get(served, "/openapi/v3", shown).body),
        "v3": each("/openapi/v3/apis/{}.example.com/v1"),
        "v3 by hash": {
            name
            for name in CLUSTERS
            if get(served, f"/openapi/v3/apis/{name}.example.com/v1?hash=H{name}", shown).status == 200
        },
        "v3 by another hash": each("/openapi/v3/apis/{}.example.com/v1?hash=another"),
        "v2": named(_v2(get(served, "/openapi/v2", shown))),
    }


def _v2(response: Response) -> bytes:
    if response.status == 503:
        return b""  # nothing to tell
    assert response.status == 200, response.body
    return gzip.decompress(response.body) if response.header("content-encoding") == "gzip" else response.body


@pytest.mark.parametrize(
    "refused",
    [(), ("west",), ("east",), ("hub",), ("east", "west"), ("east", "hub"), CLUSTERS],
    ids=lambda refused: "refused by " + (", ".join(refused) or "none"),
)
def test_every_form_tells_of_the_clusters_that_allow_it(served: AggregateDiscovery, refused: Sequence[str]) -> None:
    shown = tuple(name for name in CLUSTERS if name not in refused)
    told(served, CLUSTERS)  # what others have asked for before is kept, and not shown
    found = told(served, shown)
    assert found == {form: set(shown) for form in found}
