"""Fills a cluster with a few hundred objects, and keeps them changing.

`populate` is deterministic: the same cluster name gives the same objects, apart from times. `run_controllers` runs the
controllers and kubelets, so that objects of users become ready; `run_activity` also makes changes itself.

Activity is events, leases, restarts, a Deployment that is scaled, a ConfigMap that counts seconds.

`bootstrap` makes the objects of a fresh cluster: system namespaces, the kubernetes Service, RBAC roles. `add_rights`
adds the rights of the users: alice reads pods in the namespace demo, mcproxy impersonates and creates reviews, as in
the recorded cluster; admin needs none, because it is a member of system:masters.
"""

from __future__ import annotations

import asyncio
import copy
import random
from datetime import timedelta

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.status import StatusError
from kubesim.auth import rbac
from kubesim.cluster import SimulatedCluster
from kubesim.registry import crd, objects
from kubesim.workloads import controllers, demo_objects, kubelet

LEASES = ("coordination.k8s.io", "leases")
MAX_EVENTS = 200
"""The number of events kept; a real cluster keeps them for an hour."""
PROBLEMS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


def micro_time(cluster: SimulatedCluster) -> str:
    """Return the time as MicroTime."""
    return cluster.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def node_conditions(now: str) -> list[JSONDict]:
    """Return the conditions of a healthy node."""
    return [
        {
            "type": kind,
            "status": status,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }
        for kind, status, reason, message in PROBLEMS
    ]


def record_event(
    cluster: SimulatedCluster,
    obj: JSONDict,
    reason: str,
    message: str,
    *,
    kind: str = "Normal",
    source: str = "kubelet",
) -> None:
    """Record an event about an object; the oldest are removed beyond MAX_EVENTS."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace") or "default"
    now = cluster.timestamp()
    about = {
        "kind": obj["kind"],
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata["uid"],
        "apiVersion": obj["apiVersion"],
        "resourceVersion": metadata["resourceVersion"],
    }
    entry = {
        "metadata": {"name": f"{metadata['name']}.{cluster.random.getrandbits(64):016x}", "namespace": namespace},
        "involvedObject": {key: value for key, value in about.items() if value},
        "reason": reason,
        "message": message,
        "source": {"component": source},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": kind,
        "eventTime": None,
        "reportingComponent": source,
        "reportingInstance": "",
    }
    resource = objects.served_resource(cluster, "", "events")
    try:
        objects.create(cluster, resource, namespace, entry, manager=source)
    except StatusError:
        return
    kept = cluster.store.collection(resource.storage).objects
    if len(kept) > MAX_EVENTS:
        place, name = next(iter(kept))
        cluster.store.delete(resource.storage, place, name)


def record_start_events(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Record the start events of pods."""
    pods = list(cluster.store.collection(kubelet.PODS).objects.values())
    for pod in rng.sample(pods, min(20, len(pods))):
        metadata = pod["metadata"]
        where = f"{metadata['namespace']}/{metadata['name']}"
        container = pod["spec"]["containers"][0]
        assigned = f"Successfully assigned {where} to {pod['spec'].get('nodeName', '')}"
        record_event(cluster, pod, "Scheduled", assigned, source="default-scheduler")
        record_event(cluster, pod, "Pulled", f'Container image "{container["image"]}" already present on machine')
        record_event(cluster, pod, "Started", f"Started container {container['name']}")


def tick(cluster: SimulatedCluster, rng: random.Random) -> None:
    """Make the changes of one second."""
    kept = cluster.state.setdefault("activity", {"ticks": 0})
    kept["ticks"] = tick = kept["ticks"] + 1
    _count(cluster, tick)
    if tick % 10 == 0:
        _renew_leases(cluster)
    if tick % 7 == 0:
        _event(cluster, rng)
    if tick % 20 == 0:
        _restart(cluster, rng)
    if tick % 45 == 0:
        _scale(cluster)


def _count(cluster: SimulatedCluster, tick: int) -> None:
    """Update a ConfigMap that changes every second, which is simple to watch."""
    resource = objects.served_resource(cluster, "", "configmaps")
    data = {"count": str(tick), "time": cluster.timestamp()}
    current = cluster.store.get(resource.storage, "default", "tick")
    if current is None:
        obj = {"metadata": {"name": "tick", "namespace": "default"}, "data": data}
        objects.create(cluster, resource, "default", obj, manager="demo")
        return
    new = {**current, "metadata": dict(current["metadata"]), "data": data}
    objects.update(cluster, resource, "default", "tick", new, manager="demo", patch=True)


def _renew_leases(cluster: SimulatedCluster) -> None:
    resource = objects.served_resource(cluster, *LEASES)
    for (namespace, name), lease in list(cluster.store.collection(LEASES).objects.items()):
        if namespace != "kube-node-lease":
            continue
        new = copy.deepcopy(lease)
        new["spec"]["renewTime"] = micro_time(cluster)
        objects.update(cluster, resource, namespace, name, new, manager="kubelet", patch=True)


def _running(cluster: SimulatedCluster) -> list[JSONDict]:
    """Return ready pods of the fixtures, without pods that a user created."""
    return [
        pod
        for pod in cluster.store.collection(kubelet.PODS).objects.values()
        if pod["metadata"]["namespace"] in ("shop", "monitoring") and objects.is_ready(pod)
    ]


def _event(cluster: SimulatedCluster, rng: random.Random) -> None:
    pods = _running(cluster)
    if pods:
        pod = rng.choice(pods)
        text = "Readiness probe failed: HTTP probe failed with statuscode: 503"
        record_event(cluster, pod, "Unhealthy", text, kind="Warning")


def _restart(cluster: SimulatedCluster, rng: random.Random) -> None:
    pods = _running(cluster)
    if not pods:
        return
    pod = rng.choice(pods)
    status = copy.deepcopy(pod["status"])
    now = cluster.timestamp()
    container = status["containerStatuses"][0]
    started = (container["state"].get("running") or {}).get("startedAt", now)
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": started, "finishedAt": now}
    container["lastState"] = {"terminated": ended}
    container["state"] = {"running": {"startedAt": now}}
    container["restartCount"] += 1
    stored = kubelet.write_status(cluster, pod, status)
    record_event(cluster, stored, "Started", f"Started container {container['name']}")


def _scale(cluster: SimulatedCluster) -> None:
    """Scale the Deployment shop/search from two replicas to four, or back."""
    found = cluster.store.get(controllers.DEPLOYMENTS, "shop", "search")
    if found is not None:
        wanted = 4 if found["spec"]["replicas"] <= 2 else 2
        controllers.scale(cluster, controllers.DEPLOYMENTS, found, wanted)
        text = f"Scaled up replica set to {wanted}" if wanted == 4 else f"Scaled down replica set to {wanted}"
        record_event(cluster, found, "ScalingReplicaSet", text, source="deployment-controller")


AGE = timedelta(days=9, hours=5)
"""The age of a cluster at its start."""
PASS_SECONDS = 0.1
"""Seconds between two passes of the controllers while something changes; a new pod is ready after three."""
IDLE_SECONDS = 0.5
"""Seconds between two checks whether anything was written."""


def populate(cluster: SimulatedCluster) -> None:
    """Fill a bootstrapped cluster. Existing objects are not changed."""
    rng = random.Random(f"fixtures of {cluster.name}")
    kept_random, kept_now = cluster.random, cluster.now
    begin = kept_now() - AGE
    cluster.random, cluster.now = rng, lambda: begin
    try:
        for wanted in demo_objects.cluster_objects(cluster.name, rng, cluster.pod_network):
            _create(cluster, wanted)
        _ready_nodes(cluster)
        begin += timedelta(hours=2)
        for wanted in (*demo_objects.workloads(cluster.name, rng), *demo_objects.extras(cluster.name, rng)):
            _create(cluster, wanted)
        begin += timedelta(minutes=3)
        controllers.reconcile_until_stable(cluster)
        _finish(cluster)
        begin = kept_now() - timedelta(minutes=4)
        record_start_events(cluster, rng)
    finally:
        cluster.random, cluster.now = kept_random, kept_now


def _create(cluster: SimulatedCluster, wanted: demo_objects.Wanted) -> None:
    group, plural, obj = wanted
    resource = objects.served_resource(cluster, group, plural)
    namespace = obj["metadata"].get("namespace", "")
    if cluster.store.get(resource.storage, namespace, obj["metadata"]["name"]) is not None:
        return
    made = objects.create(cluster, resource, namespace, obj, manager="kubectl-create")
    crd.after_write(cluster, resource, made)


def _ready_nodes(cluster: SimulatedCluster) -> None:
    """Write the conditions and leases of the nodes."""
    leases = objects.served_resource(cluster, "coordination.k8s.io", "leases")
    for (_, name), node in list(cluster.store.collection(kubelet.NODES).objects.items()):
        new = copy.deepcopy(node)
        new.setdefault("status", {})["conditions"] = node_conditions(cluster.timestamp())
        cluster.store.put(kubelet.NODES, new)
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micro_time(cluster)}
        obj = {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec}
        try:
            objects.create(cluster, leases, "kube-node-lease", obj, manager="kubelet")
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise


def _finish(cluster: SimulatedCluster) -> None:
    """Write the statuses that no simulated controller writes."""
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
        resource = objects.served_resource(cluster, "example.com", "widgets")
        new = {**widget, "metadata": dict(widget["metadata"]), "status": state}
        objects.update(
            cluster, resource, namespace, name, new, subresource="status", manager="widget-operator", patch=True
        )


async def run_controllers(cluster: SimulatedCluster) -> None:
    """Run the controllers and kubelets until cancelled. Cheap while nothing is written."""
    seen = -1
    while True:
        if cluster.store.revision != seen:
            seen = cluster.store.revision
            controllers.reconcile(cluster)
            await asyncio.sleep(PASS_SECONDS)
        else:
            await asyncio.sleep(IDLE_SECONDS / 5)


async def run_activity(cluster: SimulatedCluster) -> None:
    """Run the controllers, and make restarts, scalings and events, until cancelled."""
    rng = random.Random(f"life of {cluster.name}")
    running = asyncio.create_task(run_controllers(cluster))
    try:
        while True:
            await asyncio.sleep(1.0)
            tick(cluster, rng)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", "default")
SERVICE: JSONDict = {
    "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
    "spec": {
        "type": "ClusterIP",
        "clusterIP": "10.96.0.1",
        "clusterIPs": ["10.96.0.1"],
        "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": 6443}],
    },
}


def bootstrap(cluster: SimulatedCluster) -> None:
    """Store the objects of a fresh cluster."""
    namespaces = objects.served_resource(cluster, "", "namespaces")
    for name in NAMESPACES:
        objects.create(cluster, namespaces, "", {"metadata": {"name": name}}, manager="kube-apiserver")
    accounts = objects.served_resource(cluster, "", "serviceaccounts")
    for name in NAMESPACES:
        objects.create(cluster, accounts, name, {"metadata": {"name": "default"}}, manager="kube-controller-manager")
    objects.create(
        cluster, objects.served_resource(cluster, "", "services"), "default", SERVICE, manager="kube-apiserver"
    )
    rbac.add_default_roles(cluster)


RBAC = "rbac.authorization.k8s.io"
NAMESPACE = "demo"

POD_READER: list[JSONDict] = [
    {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["web"], "verbs": ["get", "patch"]},
]
PROXY: list[JSONDict] = [
    {"apiGroups": [""], "resources": ["users", "groups", "serviceaccounts"], "verbs": ["impersonate"]},
    {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["uids", "userextras/scopes", "userextras/mcproxy.example.com/origin"],
        "verbs": ["impersonate"],
    },
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    {"nonResourceURLs": ["*"], "verbs": ["get"]},
]


def _binding(name: str, namespace: str, role_kind: str, role: str, user: str) -> JSONDict:
    return {
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "subjects": [{"kind": "User", "apiGroup": RBAC, "name": user}],
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
    }


def rights() -> list[tuple[str, JSONDict]]:
    """Return (plural, object) of the roles and bindings."""
    return [
        ("roles", {"metadata": {"name": "pod-reader", "namespace": NAMESPACE}, "rules": POD_READER}),
        ("rolebindings", _binding("alice-pod-reader", NAMESPACE, "Role", "pod-reader", "alice")),
        ("clusterroles", {"metadata": {"name": "mcproxy"}, "rules": PROXY}),
        ("clusterrolebindings", _binding("mcproxy", "", "ClusterRole", "mcproxy", "mcproxy")),
    ]


def add_rights(cluster: SimulatedCluster) -> None:
    """Store roles and bindings, and the namespace if it does not exist."""
    if cluster.store.get(("", "namespaces"), "", NAMESPACE) is None:
        namespaces, accounts = (
            objects.served_resource(cluster, "", plural) for plural in ("namespaces", "serviceaccounts")
        )
        objects.create(cluster, namespaces, "", {"metadata": {"name": NAMESPACE}}, manager="kubectl-create")
        default = {"metadata": {"name": "default"}}
        objects.create(cluster, accounts, NAMESPACE, default, manager="kube-controller-manager")
    for plural, obj in rights():
        resource = objects.served_resource(cluster, RBAC, plural)
        objects.create(cluster, resource, obj["metadata"].get("namespace", ""), obj, manager="kubectl-create")
