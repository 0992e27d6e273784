"""CustomResourceDefinitions: served after their create; a delete removes objects and ends watches."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mcproxy.demo.cluster import SimulatedCluster
from tests.demo.conftest import Lab
from tests.demo.golden import seeding
from tests.demo.raw_client import Target, chunks, fetch, open_request

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
    codes, events, groups = lab.run(asyncio.wait_for(_life(target), 5))
    assert codes == [404, 201, 200, 201, 200, 404]
    assert events == ["ADDED", "DELETED"]
    assert "tmp.example.com" in groups
