"""Defaults and server-set fields of built-in kinds, as far as clients rely on them.

`apply` sets what a real apiserver sets when decoding (the sender owns such fields), `fill` what the registry adds later
(without an owner).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.schemas import Schema
from kubesim.cluster import SimulatedCluster
from kubesim.registry import services

KEEPS_STATUS: frozenset[tuple[str, str]] = frozenset({("", "nodes"), ("apiregistration.k8s.io", "apiservices")})
"""Resources with a status subresource whose create keeps the status that was sent."""


def apply(resource: ResourceInfo, obj: JSONDict, old: JSONDict | None = None) -> None:
    """Set the defaults of a versioned object, in place. On an update allocated fields stay as in `old`."""
    if not resource.builtin:
        custom_defaults(schemas.of(resource), obj)
        return
    drop_empty(schemas.of(resource), obj)
    found = DEFAULTS.get((resource.group, resource.plural))
    if found is not None:
        found(obj)
    if old is not None and resource.storage == ("", "services"):
        for key in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if key in old.get("spec", {}):
                obj["spec"].setdefault(key, copy.deepcopy(old["spec"][key]))


def fill(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict, old: JSONDict | None = None) -> None:
    """Set the fields that the server decides and no manager owns (status, allocated addresses), in place.

    Raises APIError 422 when a requested address is in use.
    """
    if old is not None or not resource.builtin:
        return
    key = (resource.group, resource.plural)
    if key == ("", "pods"):
        _fill_pod(obj)
    elif key == ("", "services"):
        services.allocate(cluster, obj)
    elif key == ("batch", "jobs"):
        _fill_job(obj)
    elif key == ("", "namespaces"):
        obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    if key in EMPTY_STATUS and not obj.get("status"):
        obj["status"] = copy.deepcopy(EMPTY_STATUS[key])


EMPTY_STATUS: Mapping[tuple[str, str], JSONDict] = {
    ("", "namespaces"): {"phase": "Active"},
    ("", "services"): {"loadBalancer": {}},
    ("", "persistentvolumeclaims"): {"phase": "Pending"},
    ("", "persistentvolumes"): {"phase": "Pending"},
    ("", "replicationcontrollers"): {"replicas": 0},
    ("", "resourcequotas"): {},
    ("apps", "deployments"): {},
    ("apps", "replicasets"): {"replicas": 0},
    ("apps", "statefulsets"): {"replicas": 0, "availableReplicas": 0},
    ("apps", "daemonsets"): {
        "currentNumberScheduled": 0,
        "numberMisscheduled": 0,
        "desiredNumberScheduled": 0,
        "numberReady": 0,
    },
    ("batch", "jobs"): {},
    ("batch", "cronjobs"): {},
    ("networking.k8s.io", "ingresses"): {"loadBalancer": {}},
    ("policy", "poddisruptionbudgets"): {
        "disruptionsAllowed": 0,
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "expectedPods": 0,
    },
    ("autoscaling", "horizontalpodautoscalers"): {"desiredReplicas": 0, "currentMetrics": None},
    ("certificates.k8s.io", "certificatesigningrequests"): {},
}


def custom_defaults(schema: Schema, value: Any) -> None:
    """Set the defaults of a CRD's schema."""
    if isinstance(value, dict):
        for name, raw in schema.get("properties", {}).items():
            below = schemas.resolve(raw)
            if name not in value and "default" in raw and "$ref" not in raw:
                value[name] = copy.deepcopy(raw["default"])
            if name in value and "$ref" not in raw:
                custom_defaults(below, value[name])
        more = schema.get("additionalProperties")
        if isinstance(more, Mapping):
            for item in value.values():
                custom_defaults(more, item)
    elif isinstance(value, list):
        for item in value:
            custom_defaults(schemas.element(schema), item)


KEPT_NULLS = frozenset({"lastProbeTime", "firstTimestamp", "lastTimestamp", "eventTime", "currentMetrics"})
"""Fields that Go writes even when they are null."""


def drop_empty(schema: Schema, value: Any) -> None:
    """Remove the fields that Go omits when it writes an object: nulls, and optional empty lists and maps."""
    if isinstance(value, list):
        for item in value:
            drop_empty(schemas.element(schema), item)
    if not isinstance(value, dict) or "properties" not in schema:
        return
    required = schema.get("required", ())
    for key, item in list(value.items()):
        below = schemas.child(schema, key)
        empty = item in ({}, []) and ("items" in below or "additionalProperties" in below)
        if key not in required and (empty or (item is None and key not in KEPT_NULLS)):
            del value[key]
        else:
            drop_empty(below, item)


def _set(value: JSONDict, **defaults: Any) -> None:
    for key, default in defaults.items():
        if value.get(key) is None:
            value[key] = default


def pod_spec(spec: JSONDict, *, in_template: bool = True) -> None:
    """Set the defaults of a pod's spec, in place."""
    _set(
        spec,
        restartPolicy="Always",
        terminationGracePeriodSeconds=30,
        dnsPolicy="ClusterFirst",
        securityContext={},
        schedulerName="default-scheduler",
    )
    if not in_template:
        _set(spec, enableServiceLinks=True)
    if spec.get("serviceAccountName"):
        _set(spec, serviceAccount=spec["serviceAccountName"])
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(key) or ():
            _container(container)


def _container(container: JSONDict) -> None:
    image = str(container.get("image", "")).partition("@")[0].rpartition("/")[2]
    latest = ":" not in image or image.endswith(":latest")
    _set(
        container,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy="Always" if latest else "IfNotPresent",
    )
    for port in container.get("ports") or ():
        _set(port, protocol="TCP")


def _pod(obj: JSONDict) -> None:
    pod_spec(obj.setdefault("spec", {}), in_template=False)


def _template(spec: JSONDict) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


def _deployment(obj: JSONDict) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    _set(spec, replicas=1, strategy={}, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = spec["strategy"]
    _set(strategy, type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        _set(strategy, rollingUpdate={})
        _set(strategy["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")


def _replica_set(obj: JSONDict) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    _set(spec, replicas=1)


def _stateful_set(obj: JSONDict) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    _set(
        spec,
        replicas=1,
        podManagementPolicy="OrderedReady",
        updateStrategy={},
        revisionHistoryLimit=10,
        persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"},
    )
    _set(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _set(spec["updateStrategy"], rollingUpdate={})
        _set(spec["updateStrategy"]["rollingUpdate"], partition=0)


def _daemon_set(obj: JSONDict) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    _set(spec, updateStrategy={}, revisionHistoryLimit=10)
    _set(spec["updateStrategy"], type="RollingUpdate")
    if spec["updateStrategy"]["type"] == "RollingUpdate":
        _set(spec["updateStrategy"], rollingUpdate={})
        _set(spec["updateStrategy"]["rollingUpdate"], maxUnavailable=1, maxSurge=0)


def _job_spec(spec: JSONDict) -> None:
    _template(spec)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    _set(spec, parallelism=1, backoffLimit=6, completionMode="NonIndexed", suspend=False)
    _set(spec, podReplacementPolicy="TerminatingOrFailed")


def _job(obj: JSONDict) -> None:
    _job_spec(obj.setdefault("spec", {}))


def _cron_job(obj: JSONDict) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    template = spec.setdefault("jobTemplate", {})
    template.setdefault("metadata", {})
    pod_template = template.setdefault("spec", {}).setdefault("template", {})
    pod_template.setdefault("metadata", {})
    pod_spec(pod_template.setdefault("spec", {}))


def _service(obj: JSONDict) -> None:
    spec = obj.setdefault("spec", {})
    _set(spec, type="ClusterIP", sessionAffinity="None")
    for port in spec.get("ports") or ():
        _set(port, protocol="TCP", targetPort=port.get("port"))
    if spec["type"] != "ExternalName":
        _set(spec, internalTrafficPolicy="Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer"):
        _set(spec, externalTrafficPolicy="Cluster")
    if spec["type"] == "LoadBalancer":
        _set(spec, allocateLoadBalancerNodePorts=True)


def _namespace(obj: JSONDict) -> None:
    metadata = obj["metadata"]
    if metadata.get("name"):
        metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}


def _secret(obj: JSONDict) -> None:
    _set(obj, type="Opaque")
    for key, value in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = services.base64_text(value)


def _claim(obj: JSONDict) -> None:
    _set(obj.setdefault("spec", {}), volumeMode="Filesystem")


def _storage_class(obj: JSONDict) -> None:
    _set(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _priority_class(obj: JSONDict) -> None:
    _set(obj, preemptionPolicy="PreemptLowerPriority")


def _binding(obj: JSONDict) -> None:
    group = "rbac.authorization.k8s.io"
    _set(obj.setdefault("roleRef", {}), apiGroup=group)
    for subject in obj.get("subjects") or ():
        if subject.get("kind") in ("User", "Group"):
            _set(subject, apiGroup=group)


def _autoscaler(obj: JSONDict) -> None:
    _set(obj.setdefault("spec", {}), minReplicas=1)


def _definition(obj: JSONDict) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    _set(names, singular=kind.lower(), listKind=f"{kind}List")
    _set(spec, conversion={"strategy": "None"}, scope="Namespaced")


def _events(obj: JSONDict) -> None:
    _set(obj, reportingComponent="", reportingInstance="")
    for key in ("firstTimestamp", "lastTimestamp", "eventTime"):
        obj.setdefault(key, None)
    obj.setdefault("source", {})


DEFAULTS: Mapping[tuple[str, str], Callable[[JSONDict], None]] = {
    ("", "pods"): _pod,
    ("", "services"): _service,
    ("", "namespaces"): _namespace,
    ("", "secrets"): _secret,
    ("", "persistentvolumeclaims"): _claim,
    ("", "replicationcontrollers"): _replica_set,
    ("", "events"): _events,
    ("apps", "deployments"): _deployment,
    ("apps", "replicasets"): _replica_set,
    ("apps", "statefulsets"): _stateful_set,
    ("apps", "daemonsets"): _daemon_set,
    ("batch", "jobs"): _job,
    ("batch", "cronjobs"): _cron_job,
    ("storage.k8s.io", "storageclasses"): _storage_class,
    ("scheduling.k8s.io", "priorityclasses"): _priority_class,
    ("rbac.authorization.k8s.io", "rolebindings"): _binding,
    ("rbac.authorization.k8s.io", "clusterrolebindings"): _binding,
    ("autoscaling", "horizontalpodautoscalers"): _autoscaler,
    ("apiextensions.k8s.io", "customresourcedefinitions"): _definition,
}


def _fill_pod(obj: JSONDict) -> None:
    spec = obj["spec"]
    for key in ("not-ready", "unreachable"):
        toleration = {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 300,
        }
        if not any(item.get("key") in (toleration["key"], None) for item in spec.get("tolerations") or ()):
            spec.setdefault("tolerations", []).append(toleration)
    _set(spec, priority=0, preemptionPolicy="PreemptLowerPriority")
    if not obj.get("status"):
        obj["status"] = {"phase": "Pending", "qosClass": quality(spec)}


def quality(spec: Mapping[str, Any]) -> str:
    """Return a pod's quality-of-service class."""
    containers: Iterable[JSONDict] = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    amounts = [item.get("resources") or {} for item in containers]
    if not any(item.get("requests") or item.get("limits") for item in amounts):
        return "BestEffort"
    for item in amounts:
        limits, requests = item.get("limits") or {}, item.get("requests") or {}
        if not {"cpu", "memory"} <= set(limits) or any(requests.get(key, limits[key]) != limits[key] for key in limits):
            return "Burstable"
    return "Guaranteed"


def _fill_job(obj: JSONDict) -> None:
    uid, name = obj["metadata"].get("uid", ""), obj["metadata"]["name"]
    spec = obj["spec"]
    if not spec.get("manualSelector") and not spec.get("selector"):
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        own = {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": name,
            "controller-uid": uid,
            "job-name": name,
        }
        labels = spec["template"]["metadata"].get("labels") or {}
        spec["template"]["metadata"]["labels"] = {**labels, **own}
