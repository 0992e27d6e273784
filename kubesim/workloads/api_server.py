"""An extension API server: metrics.k8s.io of the nodes and pods of simulated clusters, and a small custom API.

It is a simulated cluster that serves only these. It has the namespaces of the clusters, and publishes the roles that
its custom API needs, as the design proposal "Aggregated API Servers" says.

The clusters whose metrics it serves are polled over HTTP.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
import ssl
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from kubesim.apimachinery.resources import JSONDict, ResourceInfo, Subresource
from kubesim.auth import rbac
from kubesim.cluster import SimulatedCluster
from kubesim.registry import objects
from kubesim.workloads import populate

METRICS = "metrics.k8s.io"
METRICS_VERSIONS = ("v1beta1", "v1")
GARDEN = "garden.example.com"
NODES, PODS = (METRICS, "nodes"), (METRICS, "pods")
PLANTS = (GARDEN, "plants")
NAMESPACES = ("", "namespaces")
WINDOW = "10s"
EVERYBODY = ("system:authenticated", "system:unauthenticated")
RBAC = rbac.GROUP
READ, WRITE = rbac.READ, rbac.WRITE
QUANTITIES: JSONDict = {"type": "object", "additionalProperties": {"type": "string"}}
SAMPLED: JSONDict = {"timestamp": {"type": "string", "format": "date-time"}, "window": {"type": "string"}}
CONTAINER: JSONDict = {"type": "object", "properties": {"name": {"type": "string"}, "usage": QUANTITIES}}
PLANT: JSONDict = {
    "type": "object",
    "description": "A plant in the garden, which grows as long as the demo runs.",
    "properties": {
        "spec": {
            "type": "object",
            "description": "What is planted.",
            "properties": {
                "species": {"type": "string", "description": "What it is."},
                "litres": {"type": "integer", "minimum": 0, "description": "Water for a day; without any it stays."},
            },
        },
        "status": {
            "type": "object",
            "description": "How it does.",
            "properties": {"centimetres": {"type": "integer", "description": "How high it is."}},
        },
    },
}
SPECIES = (("basil", 1), ("fern", 2), ("cactus", 0))


def _version(name: str, schema: JSONDict, *columns: tuple[str, str, str]) -> JSONDict:
    return {
        "name": name,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [{"name": each, "type": kind, "jsonPath": path} for each, kind, path in columns],
    }


def _metrics(
    kind: str, plural: str, *, namespaced: bool, more: JSONDict, columns: tuple[str, str]
) -> tuple[ResourceInfo, ...]:
    """Return a resource in both versions, whose objects are the same."""
    schema = {"type": "object", "properties": {**SAMPLED, **more}}
    shown = (("CPU", "string", columns[0]), ("Memory", "string", columns[1]), ("Window", "string", ".window"))
    return tuple(
        ResourceInfo(
            group=METRICS,
            version=version,
            kind=kind,
            plural=plural,
            singular="",
            namespaced=namespaced,
            verbs=("get", "list"),
            builtin=False,
            list_kind=f"{kind}List",
            storage_version=METRICS_VERSIONS[0],
            crd_version=_version(version, schema, *shown),
        )
        for version in METRICS_VERSIONS
    )


def resources() -> tuple[ResourceInfo, ...]:
    """Return the served resources."""
    plants = ResourceInfo(
        group=GARDEN,
        version="v1",
        kind="Plant",
        plural="plants",
        singular="plant",
        namespaced=True,
        verbs=("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"),
        categories=("garden",),
        subresources=(Subresource("status", "Plant", "", "", ("get", "patch", "update")),),
        builtin=False,
        list_kind="PlantList",
        storage_version="v1",
        crd_version=_version(
            "v1",
            PLANT,
            ("Species", "string", ".spec.species"),
            ("Centimetres", "integer", ".status.centimetres"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    )
    used = (".usage.cpu", ".usage.memory")
    of_pod = (".containers[0].usage.cpu", ".containers[0].usage.memory")
    containers = {"containers": {"type": "array", "items": CONTAINER}}
    return (
        plants,
        *_metrics("NodeMetrics", "nodes", namespaced=False, more={"usage": QUANTITIES}, columns=used),
        *_metrics("PodMetrics", "pods", namespaced=True, more=containers, columns=of_pod),
    )


def templates(group: str) -> JSONDict | None:
    """Return the roles that it publishes at /bootstrap/<group>: those of its custom API, none for the other."""
    if group != GARDEN:
        return None
    aggregate = f"{RBAC}/aggregate-to-"
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            _role("plants-view", READ, {f"{aggregate}{role}": "true" for role in ("view", "edit", "admin")}),
            _role("plants-edit", WRITE, {f"{aggregate}{role}": "true" for role in ("edit", "admin")}),
        ],
    }


def _role(name: str, verbs: list[str], labels: JSONDict) -> JSONDict:
    rules = [{"apiGroups": [GARDEN], "resources": ["plants"], "verbs": verbs}]
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}


def fill(cluster: SimulatedCluster) -> None:
    """Fill a new cluster as this API server, with some plants that all users may read and the demo's groups change."""
    populate.bootstrap(cluster)
    for name, rules, groups, namespace in (
        ("metrics", [(METRICS, ["nodes", "pods"], ["get", "list"])], EVERYBODY, ""),
        ("plants-view", [(GARDEN, ["plants"], READ)], EVERYBODY, ""),
        ("plants-edit", [(GARDEN, ["plants"], WRITE)], ("shop-editors",), "shop"),
        ("plants-admin", [(GARDEN, ["plants", "plants/status"], WRITE)], ("administrators",), ""),
    ):
        _grant(cluster, name, rules, groups, namespace)
    _bind(cluster, "discovery-for-everybody", "system:discovery", EVERYBODY, "")  # clients read what they may list
    cluster.resources.serve_only(resources())
    cluster.state["templates"] = templates
    add_namespaces(cluster, ("shop",))
    plants = objects.served_resource(cluster, *PLANTS)
    for species, litres in SPECIES:
        wanted = {"metadata": {"name": species}, "spec": {"species": species, "litres": litres}}
        objects.create(cluster, plants, "shop", wanted, manager="gardener")


def _grant(
    cluster: SimulatedCluster,
    name: str,
    rules: Iterable[tuple[str, list[str], list[str]]],
    groups: Iterable[str],
    namespace: str,
) -> None:
    whole = [{"apiGroups": [group], "resources": plurals, "verbs": verbs} for group, plurals, verbs in rules]
    cluster.store.put((RBAC, "clusterroles"), {"metadata": {"name": name}, "rules": whole})
    _bind(cluster, name, name, groups, namespace)


def _bind(cluster: SimulatedCluster, name: str, role: str, groups: Iterable[str], namespace: str) -> None:
    binding: JSONDict = {
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "subjects": [{"kind": "Group", "apiGroup": RBAC, "name": group} for group in groups],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
    }
    cluster.store.put((RBAC, "rolebindings" if namespace else "clusterrolebindings"), binding)


def add_namespaces(cluster: SimulatedCluster, names: Iterable[str]) -> None:
    """Add these namespaces, as a real API server does that watches those of its cluster."""
    for name in names:
        if cluster.store.get(NAMESPACES, "", name) is None:
            cluster.store.put(NAMESPACES, {"metadata": {"name": name}, "status": {"phase": "Active"}})


def sample(cluster: SimulatedCluster, nodes: Iterable[JSONDict], pods: Iterable[JSONDict]) -> None:
    """Store the usage of these nodes and running pods, and drop that of others."""
    now = cluster.now()
    head = {"timestamp": cluster.timestamp(), "window": WINDOW}
    found: dict[tuple[str, str], dict[tuple[str, str], JSONDict]] = {NODES: {}, PODS: {}}
    for node in nodes:
        name = node["metadata"]["name"]
        usage = _usage(name, now.timestamp(), milli=(250, 900), mebi=(1500, 2500))
        metadata = {"name": name, "labels": node["metadata"].get("labels") or {}}
        found[NODES]["", name] = {**_typed("NodeMetrics", metadata, cluster), **head, "usage": usage}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") != "Running":
            continue
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "labels") if key in pod["metadata"]}
        containers = [
            {
                "name": container["name"],
                "usage": _usage(f"{metadata['name']}/{container['name']}", now.timestamp(), (2, 90), (20, 200)),
            }
            for container in pod["spec"]["containers"]
        ]
        content = {**_typed("PodMetrics", metadata, cluster), **head, "containers": containers}
        found[PODS][metadata["namespace"], metadata["name"]] = content
    for storage, sampled in found.items():
        for namespace, name in list(cluster.store.collection(storage).objects):
            if (namespace, name) not in sampled:
                cluster.store.delete(storage, namespace, name)
        for content in sampled.values():
            cluster.store.put(storage, content)
    cluster.store.compact()


def _typed(kind: str, metadata: Mapping[str, Any], cluster: SimulatedCluster) -> JSONDict:
    whole = {**metadata, "creationTimestamp": cluster.timestamp()}
    return {"kind": kind, "apiVersion": f"{METRICS}/{METRICS_VERSIONS[0]}", "metadata": whole}


def _usage(name: str, seconds: float, milli: tuple[int, int], mebi: tuple[int, int]) -> JSONDict:
    """Return quantities that rise and fall between bounds within half a minute, in a phase of the name."""
    phase = zlib.crc32(name.encode()) / 2**32
    level = 0.5 + 0.5 * math.sin(2 * math.pi * (seconds / 30 + phase))
    cpu = milli[0] + (milli[1] - milli[0]) * level * (0.3 + 0.7 * phase)
    memory = mebi[0] + (mebi[1] - mebi[0]) * (0.8 * phase + 0.2 * level)
    return {"cpu": f"{int(cpu * 1e6)}n", "memory": f"{int(memory * 1024)}Ki"}


def grow(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Let one of the plants that have water grow."""
    thirsty_not = [each for each in cluster.store.collection(PLANTS).objects.values() if _litres(each) > 0]
    if not thirsty_not:
        return
    plant = copy.deepcopy(rng.choice(thirsty_not))
    height = int((plant.get("status") or {}).get("centimetres") or 0)
    plant["status"] = {"centimetres": height + rng.randint(1, 3)}
    cluster.store.put(PLANTS, plant)


def _litres(plant: JSONDict) -> int:
    litres = (plant.get("spec") or {}).get("litres")
    return litres if isinstance(litres, int) else 0


FIRST_SECONDS = 0.1
"""Seconds between attempts until all clusters have answered once: they start at the same time."""
SAMPLE_SECONDS = 2.0
GROWTH_SECONDS = 1.0
READY_HOOK = "metric-storage-ready"
"""The check of /readyz that fails until there are metrics, by the name in metrics-server."""


async def follow(cluster: SimulatedCluster, directories: Sequence[Path]) -> None:
    """Keep metrics of the simulated clusters with these directories, and let plants grow, until cancelled."""
    rng = random.Random(f"life of {cluster.name}")
    growing = asyncio.create_task(_grow(cluster, rng))
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                await asyncio.sleep(SAMPLE_SECONDS if await _sample(cluster, session, directories) else FIRST_SECONDS)
    finally:
        growing.cancel()
        await asyncio.gather(growing, return_exceptions=True)


async def _grow(cluster: SimulatedCluster, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(GROWTH_SECONDS)
        grow(cluster, rng)


async def _sample(cluster: SimulatedCluster, session: aiohttp.ClientSession, directories: Sequence[Path]) -> bool:
    """Return whether all clusters have answered; else the known state is kept."""
    found: dict[str, list[JSONDict]] = {"namespaces": [], "nodes": [], "pods": []}
    try:
        for directory in directories:
            url, context = _access(directory)
            for plural, items in found.items():
                async with session.get(f"{url}/api/v1/{plural}", ssl=context) as response:
                    response.raise_for_status()
                    items += (await response.json())["items"]
    except (TimeoutError, OSError, ValueError, KeyError, aiohttp.ClientError):
        return False
    add_namespaces(cluster, (each["metadata"]["name"] for each in found["namespaces"]))
    sample(cluster, found["nodes"], found["pods"])
    cluster.state["unready"] = ()
    return True


def _access(directory: Path) -> tuple[str, ssl.SSLContext]:
    """Return the URL of a cluster and the TLS context with its administrator's certificate."""
    kubeconfig = json.loads((directory / "kubeconfig").read_text())
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
    return str(kubeconfig["clusters"][0]["cluster"]["server"]), context
