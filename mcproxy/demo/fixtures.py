"""A few hundred objects for a cluster, and the life in them.

`populate` is deterministic: the same name gives the same objects (times apart). `live` keeps things moving until it is
cancelled; `control` only does what controllers and kubelets do, so that what a user creates becomes ready.
"""

from __future__ import annotations

import asyncio
import copy
import random
from datetime import timedelta
from typing import Any

from mcproxy.demo import bustle, controllers, fixture_objects, kubelet, objects, workloads
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.status import APIError

JSONDict = dict[str, Any]
AGE = timedelta(days=9, hours=5)
"""How old a cluster is when it begins."""
PASS_SECONDS = 0.1
"""Between two passes of the controllers while something changes; a new pod needs three to become ready."""
IDLE_SECONDS = 0.5
"""Between two looks at a cluster in which nothing was written."""


def populate(cluster: SimulatedCluster) -> None:
    """Fill a bootstrapped cluster. What exists already is left alone."""
    rng = random.Random(f"fixtures of {cluster.name}")
    kept_random, kept_now = cluster.random, cluster.now
    begin = kept_now() - AGE
    cluster.random, cluster.now = rng, lambda: begin
    try:
        for wanted in fixture_objects.cluster_objects(cluster.name, rng):
            _create(cluster, wanted)
        _ready_nodes(cluster)
        begin += timedelta(hours=2)
        for wanted in (*fixture_objects.workloads(cluster.name, rng), *fixture_objects.extras(cluster.name, rng)):
            _create(cluster, wanted)
        begin += timedelta(minutes=3)
        workloads.settle(cluster)
        _finish(cluster)
        begin = kept_now() - timedelta(minutes=4)
        bustle.first_events(cluster, rng)
    finally:
        cluster.random, cluster.now = kept_random, kept_now


def _create(cluster: SimulatedCluster, wanted: fixture_objects.Wanted) -> None:
    group, plural, obj = wanted
    resource = objects.find(cluster, group, plural)
    namespace = obj["metadata"].get("namespace", "")
    if cluster.store.get(resource.storage, namespace, obj["metadata"]["name"]) is not None:
        return
    made = objects.create(cluster, resource, namespace, obj, manager="kubectl-create")
    controllers.after_write(cluster, resource, made)


def _ready_nodes(cluster: SimulatedCluster) -> None:
    """Conditions and leases of the nodes."""
    leases = objects.find(cluster, "coordination.k8s.io", "leases")
    for (_, name), node in list(cluster.store.collection(kubelet.NODES).objects.items()):
        new = copy.deepcopy(node)
        new.setdefault("status", {})["conditions"] = bustle.node_conditions(cluster.timestamp())
        cluster.store.put(kubelet.NODES, new)
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": bustle.micro_time(cluster)}
        obj = {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec}
        try:
            objects.create(cluster, leases, "kube-node-lease", obj, manager="kubelet")
        except APIError as error:
            if error.reason != "AlreadyExists":
                raise


def _finish(cluster: SimulatedCluster) -> None:
    """Statuses that no controller here writes."""
    for service in list(cluster.store.collection(("", "services")).objects.values()):
        if service["spec"].get("type") == "LoadBalancer":
            ingress = {"loadBalancer": {"ingress": [{"ip": "203.0.113.10", "ipMode": "VIP"}]}}
            cluster.store.put(("", "services"), {**service, "status": ingress})
    for claim in list(cluster.store.collection(("", "persistentvolumeclaims")).objects.values()):
        spec = {**claim["spec"], "volumeName": f"pvc-{claim['metadata']['uid']}"}
        bound = {"phase": "Bound", "accessModes": spec["accessModes"], "capacity": spec["resources"]["requests"]}
        cluster.store.put(("", "persistentvolumeclaims"), {**claim, "spec": spec, "status": bound})
    for (namespace, name), widget in list(cluster.store.collection(("example.com", "widgets")).objects.items()):
        state = {"phase": "Ready", "replicas": widget["spec"].get("replicas", 0)}
        resource = objects.find(cluster, "example.com", "widgets")
        new = {**widget, "metadata": dict(widget["metadata"]), "status": state}
        objects.update(
            cluster, resource, namespace, name, new, subresource="status", manager="widget-operator", patch=True
        )


async def control(cluster: SimulatedCluster) -> None:
    """Do what controllers and kubelets do, until cancelled. Cheap while nothing is written."""
    seen = -1
    while True:
        if cluster.store.revision != seen:
            seen = cluster.store.revision
            workloads.reconcile(cluster)
            await asyncio.sleep(PASS_SECONDS)
        else:
            await asyncio.sleep(IDLE_SECONDS / 5)


async def live(cluster: SimulatedCluster) -> None:
    """Keep things moving until cancelled: the controllers, and now and then a restart, a scaling, an event."""
    rng = random.Random(f"life of {cluster.name}")
    running = asyncio.create_task(control(cluster))
    try:
        while True:
            await asyncio.sleep(1.0)
            bustle.step(cluster, rng)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
