"""The replay of each folder of recordings: selection, order, and state of the cluster."""

from __future__ import annotations

import copy
import json
from typing import Any

from kubesim.cluster import ClusterOptions, SimulatedCluster
from kubesim.faults import Fault
from kubesim.handlers import openapi
from kubesim.registry import objects, patches
from tests.kubesim.golden import golden_files, seeding, users

JSONDict = dict[str, Any]

FOLDERS = (
    "errors",
    "get",
    "list",
    "paging",
    "rv",
    "selectors",
    "discovery",
    "table",
    "partialmeta",
    "probes",
    "gzip",
    "openapi",
    "aggregated-down",
    "expired",
    "crd",
    "writes",
    "auth",
    "impersonation",
    "impersonation-legacy",
    "frontproxy",
    "kubelet",
)
READ_FOLDERS = frozenset({"list", "paging", "selectors", "get", "table", "partialmeta"})
EXACT_REVISIONS = READ_FOLDERS
"""Folders whose resourceVersions and continue tokens must be the recorded ones."""

ORDER: dict[str, tuple[str, ...]] = {
    "errors": ("200-put-without-rv", "409-apply-conflict"),
    "writes": (
        "create-configmap",
        "create-generatename",
        "create-yaml",
        "create-dryrun",
        "create-dryrun-then-get",
        "create-accept-table",
        "create-accept-partialmeta",
        "update-put",
        "update-put-no-change",
        "update-put-dryrun",
        "patch-merge",
        "patch-json",
        "patch-no-op",
        "patch-strategic",
        "patch-strategic-delete",
        "patch-apply-create",
        "patch-apply-update",
        "patch-apply-force",
        "patch-apply-cbor",
        "patch-apply-cr",
        "patch-merge-cr",
        "put-creates-lease",
        "status-put-widget",
        "main-put-ignores-status",
        "scale-get",
        "scale-put",
        "scale-put-stale",
        "scale-patch",
        "scale-get-cr",
        "binding",
        "binding-again",
        "eviction-404",
        "eviction-dryrun",
        "eviction",
        "eviction-429-pdb-not-observed",
        "eviction-429-pdb",
        "ephemeralcontainers",
        "resize",
        "delete-pod-graceful",
        "delete-pod-graceful-again",
        "delete-pod-force",
        "delete-pod-no-node",
        "delete-configmap",
        "delete-with-options-body",
        "delete-dryrun",
        "delete-cr",
        "delete-foreground",
        "delete-orphan",
        "delete-background",
        "delete-finalizer",
        "delete-namespace",
        "delete-namespace-2",
        "create-in-terminating-namespace",
        "namespace-finalize",
        "deletecollection-dryrun",
        "deletecollection",
        "deletecollection-empty",
        "deletecollection-namespaces",
        "service-create",
        "service-ip-taken",
        "service-delete",
        "quota-403",
        "patch-accept-partialmeta",
        "status-patch-deployment",
        "status-patch-422",
        "delete-202-orphandependents-false",
    ),
}


OWN_HASH = ("openapi/v3-apps-v1-304",)
"""Requests for a document under its current hash, which is that of our document."""

EXCLUDED: dict[str, str] = {
    "kubelet/up-log-follow": "follows without end; what it shows is in test_streams.py",
    "kubelet/down-log-follow": "follows without end, as the kubelet of the simulated cluster is always up",
}
"""Recordings that are not replayed, with the reason."""

LAST: dict[str, tuple[str, ...]] = {
    "errors": ("201-no-kind",),
    "kubelet": ("service-proxy-no-endpoints-object",),
}


def ordered(folder: str) -> list[str]:
    """Return the recordings of a folder in the order of their replay."""
    rank = {f"{folder}/{name}": index for index, name in enumerate(ORDER.get(folder, ()))}
    rank.update({f"{folder}/{name}": 1000 + index for index, name in enumerate(LAST.get(folder, ()))})
    found = [name for name in golden_files.names(folder) if name not in EXCLUDED]
    return sorted(found, key=lambda name: (rank.get(name, 999), name))


def certificate(auth: str | None) -> str:
    """Return the user of a recording's client certificate; "" for none."""
    for user in ("admin", "alice", "mcproxy", "front-proxy"):
        if auth and (f"CN={user}" in auth or (user == "front-proxy" and auth.startswith("front-proxy"))):
            return user
    return ""


def _config_map(name: str, data: JSONDict | None = None, **metadata: Any) -> JSONDict:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "demo", **metadata},
        "data": data or {},
    }


def _before_delete(name: str) -> JSONDict:
    """Return an object as it was before the recorded delete returned it."""
    found: JSONDict = json.loads(golden_files.load(name)["response"]["body"])
    metadata = found["metadata"]
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        metadata.pop(key, None)
    held = [item for item in metadata.pop("finalizers", []) if item.startswith("example.com")]
    if held:
        metadata["finalizers"] = held
    if "generation" in metadata:
        metadata["generation"] -= 1
    return found


def seed(folder: str, name: str) -> SimulatedCluster:
    """Return a cluster in the state of the recording of a folder."""
    cluster = seeding.base(name)
    if folder == "impersonation-legacy":
        cluster.options = ClusterOptions(anonymous_auth=name == "east", constrained_impersonation=False)
    if folder in users.FOLDERS:
        users.add(cluster)
    if name == "east" and folder in SEEDS:
        SEEDS[folder](cluster)
    return cluster


def _seed_errors(cluster: SimulatedCluster) -> None:
    seeding.create(cluster, _config_map("conf", {"a": "1"}))


def _apply_as_one(cluster: SimulatedCluster) -> None:
    """Apply the fields of another manager to the ConfigMap of the folder errors."""
    resource = objects.served_resource(cluster, "", "configmaps")
    body = json.dumps(_config_map("conf", {"b": "1"})).encode()
    current = objects.get(cluster, resource, "demo", "conf")
    applied = patches.apply_patch(
        current,
        body,
        patches.APPLY_PATCH,
        resource=resource,
        field_manager="one",
        force=False,
        now=cluster.timestamp(),
    )
    objects.update(cluster, resource, "demo", "conf", applied, operation="Apply", patch=True)


def _tick(cluster: SimulatedCluster) -> None:
    """Make the change of a ConfigMap between the recordings of two folders."""
    resource = objects.served_resource(cluster, "", "configmaps")
    new = copy.deepcopy(objects.get(cluster, resource, "demo", "app-config"))
    new["data"]["tick"] = "1"
    objects.update(cluster, resource, "demo", "app-config", new)


def _seed_gzip(cluster: SimulatedCluster) -> None:
    for number in range(60):
        big = _config_map(f"big-{number}", {"k": "x" * 3000})
        big["metadata"]["namespace"] = "only-east"
        seeding.create(cluster, big)


def _seed_writes(cluster: SimulatedCluster) -> None:
    for name in ("del-1", "del-2"):
        seeding.create(cluster, _config_map(name))
    for name in ("foreground", "orphan", "finalizer", "202-orphandependents-false"):
        seeding.put(cluster, _before_delete(f"writes/delete-{name}"))
    background = _before_delete("writes/delete-foreground")
    background["metadata"]["name"] = "d-bg"
    seeding.put(cluster, background)
    for name in ("ev-1", "ev-2"):
        pod = _before_delete("writes/delete-pod-graceful")
        pod["metadata"]["name"] = name
        seeding.put(cluster, pod)
    pod = _before_delete("writes/delete-pod-no-node")
    pod["spec"].pop("nodeName", None)
    seeding.put(cluster, pod)
    seeding.create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "quota"}})
    seeding.create(
        cluster,
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q", "namespace": "quota"},
            "spec": {"hard": {"configmaps": "1"}},
        },
    )
    seeding.put(cluster, copy.deepcopy(BUDGET))
    one = _config_map("one")
    one["metadata"]["namespace"] = "quota"
    seeding.create(cluster, one)


SEEDS = {
    "errors": _seed_errors,
    "gzip": _seed_gzip,
    "writes": _seed_writes,
}


BUDGET: JSONDict = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "prod", "uid": "uid-of-budget", "generation": 1},
    "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}},
}
BUDGET_STATUS = {
    "observedGeneration": 1,
    "disruptionsAllowed": 0,
    "currentHealthy": 3,
    "desiredHealthy": 3,
    "expectedPods": 3,
}


def prepare(name: str, recording: JSONDict, cluster: SimulatedCluster, *, set_revision: bool = True) -> JSONDict:
    """Return the request to send; the cluster gets the state of the recording.

    `set_revision`: also its resourceVersion, which goes back by that where recordings were not made in this order.
    """
    request: JSONDict = copy.deepcopy(recording["request"])
    folder = name.split("/")[0]
    if set_revision and folder in READ_FOLDERS:
        _set_revision(recording, cluster)
    if "body_left_out" in request:
        size = int(request["body_left_out"].split()[0])
        start = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"big"},"data":{"k":"'
        request["body"] = start + "x" * (size - len(start) - 3) + '"}}'
    if folder == "expired":
        cluster.store.revision = 524 if "compacted" in name else 535
    if name.startswith("expired/restarted-"):
        cluster.store.compact()
    if name.startswith("errors/429-"):
        cluster.faults.add(Fault("status", code=429, count=1))
    if name in OWN_HASH:
        own = openapi.openapi_v3_hash(cluster, "apis/apps/v1")
        request["path"] = f"{request['path'].partition('=')[0]}={own}"
    if name == "kubelet/service-proxy-no-endpoints-object":
        cluster.store.delete(("", "endpoints"), "demo", "web")
    if name == "errors/409-apply-conflict":
        _apply_as_one(cluster)
    if name == "writes/patch-accept-partialmeta":
        _tick(cluster)
    if name == "writes/eviction-429-pdb":
        seeding.put(cluster, BUDGET | {"status": BUDGET_STATUS})
    if "body" in request and request["method"] == "PUT":
        request["body"] = _current(name, request, cluster)
        request["headers"] = [pair for pair in request["headers"] if pair[0] != "Content-Length"]
    if folder in users.FOLDERS or recording["auth"] == "bearer ServiceAccount token":
        users.substitute_token(name, request, cluster)
    return request


def _set_revision(recording: JSONDict, cluster: SimulatedCluster) -> None:
    """Set the resourceVersion of recordings that were made before or after the lists."""
    body = recording["response"].get("body") or ""
    path = recording["request"]["path"]
    if not body.startswith("{") or "continue=" in path or "resourceVersion" in path:
        return
    content = json.loads(body)
    if "items" in content or "rows" in content:
        revision = content["metadata"].get("resourceVersion")
        if revision and len(content.get("rows") or ()) != 1:
            cluster.store.revision = int(revision)


def _current(name: str, request: JSONDict, cluster: SimulatedCluster) -> Any:
    """Return a PUT's body with the uid and resourceVersion of our object."""
    body = request["body"]
    content = json.loads(body) if isinstance(body, str) else copy.deepcopy(body)
    parts = request["path"].partition("?")[0].strip("/").split("/")
    metadata = content.get("metadata", {})
    if "uid" not in metadata or "namespaces" not in parts:
        return body
    at = parts.index("namespaces")
    group = parts[1] if parts[0] == "apis" else ""
    resource = objects.served_resource(cluster, group, parts[at + 2])
    stored = cluster.store.get(resource.storage, parts[at + 1], parts[at + 3])
    if stored is not None:
        metadata["uid"] = stored["metadata"]["uid"]
        if "resourceVersion" in metadata and "stale" not in name:
            metadata["resourceVersion"] = stored["metadata"]["resourceVersion"]
    return content
