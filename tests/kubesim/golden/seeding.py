"""Seeds a simulated cluster with the state of the recorded one.

Objects are taken from the recordings: the lists of `list/` with their uids and resourceVersions, and objects of single
folders.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

from kubesim.apimachinery import resources
from kubesim.apimachinery.user import User
from kubesim.auth import rbac
from kubesim.cluster import ClusterOptions, SimulatedCluster
from kubesim.registry import crd, objects
from kubesim.workloads import populate
from tests.kubesim.golden.golden_files import load, names

JSONDict = dict[str, Any]

REVISIONS = {"east": 363, "west": 358}
"""The resourceVersion of both clusters when the lists were recorded."""
NOW = datetime(2026, 11, 21, 9, 38, 2, tzinfo=UTC)


def listed(cluster: str) -> list[JSONDict]:
    """Return every object of the recorded lists, by resourceVersion, with apiVersion and kind."""
    found: dict[str, JSONDict] = {}
    extra = ["gzip/list-over-128KiB-identity"] if cluster == "east" else []
    for name in [*names(f"list/{cluster}"), *extra]:
        body = load(name)["response"].get("body", "")
        if not body.startswith("{"):
            continue
        content = json.loads(body)
        if not content["kind"].endswith("List"):
            continue
        for item in content["items"]:
            whole = {
                "kind": content["kind"].removesuffix("List"),
                "apiVersion": content["apiVersion"],
                **item,
            }
            if whole["apiVersion"] in SKIPPED_VERSIONS:
                continue
            key = f"{whole['kind']}/{item['metadata'].get('namespace')}/{item['metadata']['name']}"
            found[key] = whole
    return sorted(found.values(), key=lambda item: int(item["metadata"]["resourceVersion"]))


SKIPPED_VERSIONS = frozenset({"events.k8s.io/v1", "autoscaling/v1", "example.com/v1alpha1"})
"""Versions whose objects are in another list in their stored form."""


def put(cluster: SimulatedCluster, obj: JSONDict, *, revision: int | None = None) -> JSONDict:
    """Store an object without changes."""
    group, _, version = obj["apiVersion"].rpartition("/")
    resource = cluster.resources.by_kind(group, version, obj["kind"])
    assert resource is not None, obj["kind"]
    stored = cluster.store.put(resource.storage, resources.to_storage(resource, obj), revision=revision)
    if resource.storage == crd.STORAGE:
        crd.sync(cluster, stored)
    return stored


def base(name: str, *, revision: int | None = None) -> SimulatedCluster:
    """Return a cluster with the objects of the recorded lists."""
    options = ClusterOptions(
        anonymous_auth=name == "east", too_large_wait_seconds=0.05, default_watch_seconds=(600.0, 600.0)
    )
    cluster = SimulatedCluster(name, options=options, now=lambda: NOW, rng=random.Random(1))
    cluster.tokens["alice-test-token"] = User("alice", "alice-uid", ("dev",))
    rbac.add_default_roles(cluster)
    for plural, obj in populate.rights():
        obj["metadata"]["uid"] = f"uid-of-{obj['metadata']['name']}"
        cluster.store.put((populate.RBAC, plural), obj)
    for obj in listed(name):
        put(cluster, obj, revision=int(obj["metadata"]["resourceVersion"]))
    cluster.store.revision = revision or REVISIONS[name]
    return cluster


def create(cluster: SimulatedCluster, obj: JSONDict, **more: Any) -> JSONDict:
    """Create an object as a client would."""
    group, _, version = obj["apiVersion"].rpartition("/")
    resource = cluster.resources.by_kind(group, version, obj["kind"])
    assert resource is not None, obj["kind"]
    return objects.create(cluster, resource, obj["metadata"].get("namespace", ""), obj, **more)
