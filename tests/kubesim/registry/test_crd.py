"""CustomResourceDefinitions: served after their create; a delete removes objects and ends watches."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from kubesim.cluster import SimulatedCluster
from tests.kubesim.conftest import Lab
from tests.kubesim.golden import seeding
from tests.kubesim.raw_client import Target, chunks, fetch, open_request

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TEMPS = "/apis/tmp.example.com/v1/namespaces/demo/temps"
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "temps.tmp.example.com"},
    "spec": {
        "group": "tmp.example.com",
        "names": {"plural": "temps", "kind": "Temp"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}],
    },
}


async def _post(target: Target, path: str, obj: dict[str, Any]) -> int:
    headers = [("Content-Type", "application/json")]
    return (await fetch(target, "POST", path, headers, json.dumps(obj).encode())).status


async def _life(target: Target) -> tuple[list[int], list[str], list[str]]:
    codes = [(await fetch(target, "GET", TEMPS)).status, await _post(target, CRDS, CRD)]
    codes.append((await fetch(target, "GET", TEMPS)).status)
    temp = {"apiVersion": "tmp.example.com/v1", "kind": "Temp", "metadata": {"name": "t1"}}
    codes.append(await _post(target, TEMPS, temp))
    groups = json.loads((await fetch(target, "GET", "/apis")).text())["groups"]
    watch = await open_request(target, "GET", TEMPS + "?watch=true", [], None)
    codes.append((await fetch(target, "DELETE", f"{CRDS}/temps.tmp.example.com")).status)
    lines = b"".join([chunk async for chunk in chunks(watch)]).splitlines()
    watch.close()
    codes.append((await fetch(target, "GET", TEMPS)).status)
    return codes, [json.loads(line)["type"] for line in lines], [group["name"] for group in groups]


def test_a_crd_is_served_and_its_deletion_ends_watches(lab: Lab) -> None:
    cluster: SimulatedCluster = seeding.base("east")
    target = lab.serve(cluster)("admin")
    codes, events, groups = lab.run(asyncio.wait_for(_life(target), 60))
    assert codes == [404, 201, 200, 201, 200, 404]
    assert events == ["ADDED", "DELETED"]
    assert "tmp.example.com" in groups


async def _changes(target: Target) -> list[str]:
    """Change a definition's columns, then only its labels; return the types of the events of a watch of each time."""
    await _post(target, CRDS, CRD)
    watch = await open_request(target, "GET", TEMPS + "?watch=true&timeoutSeconds=60", [], None)
    column = {"name": "Size", "type": "string", "jsonPath": ".spec.size"}
    version = {**CRD["spec"]["versions"][0], "additionalPrinterColumns": [column]}  # type: ignore[index]
    headers = [("Content-Type", "application/merge-patch+json")]
    for patch in ({"spec": {"versions": [version]}}, {"metadata": {"labels": {"a": "b"}}}):
        path = f"{CRDS}/temps.tmp.example.com"
        assert (await fetch(target, "PATCH", path, headers, json.dumps(patch).encode())).status == 200
    async for _ in chunks(watch):
        raise AssertionError("there is no event")
    watch.close()
    table = [("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")]
    query = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    watch = await open_request(target, "GET", TEMPS + query + "&timeoutSeconds=60", table, None)
    first = json.loads(await anext(aiter(chunks(watch))))
    watch.close()
    assert first["type"] == "BOOKMARK"
    return [definition["name"] for definition in first["object"]["columnDefinitions"]]


def test_a_changed_definition_ends_watches_and_the_bookmark_of_a_watch_list_of_nothing_has_the_columns(
    lab: Lab,
) -> None:
    target = lab.serve(seeding.base("east"))("admin")
    assert lab.run(asyncio.wait_for(_changes(target), 60)) == ["Name", "Size"]
