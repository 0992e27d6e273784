"""The order of fields in Go's output, for common kinds: lists of fields as in the API's Go types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubesim.apimachinery.resources import ResourceInfo

JSONDict = dict[str, Any]


POD_SPEC = [
    "volumes",
    "initContainers",
    "containers",
    "ephemeralContainers",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "dnsPolicy",
    "nodeSelector",
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "nodeName",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "securityContext",
    "imagePullSecrets",
    "hostname",
    "subdomain",
    "affinity",
    "schedulerName",
    "tolerations",
    "hostAliases",
    "priorityClassName",
    "priority",
    "dnsConfig",
    "readinessGates",
    "runtimeClassName",
    "enableServiceLinks",
    "preemptionPolicy",
    "overhead",
    "topologySpreadConstraints",
    "setHostnameAsFQDN",
    "os",
    "hostUsers",
    "schedulingGates",
    "resourceClaims",
    "resources",
]
CONTAINER = [
    "name",
    "image",
    "command",
    "args",
    "workingDir",
    "ports",
    "envFrom",
    "env",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "volumeMounts",
    "volumeDevices",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "securityContext",
    "stdin",
    "stdinOnce",
    "tty",
    "targetContainerName",
]
PORT = ["name", "hostPort", "containerPort", "protocol", "hostIP"]
SERVICE_PORT = ["name", "protocol", "appProtocol", "port", "targetPort", "nodePort"]
SPECS: Mapping[tuple[str, str], list[str]] = {
    ("apps", "deployments"): [
        "replicas",
        "selector",
        "template",
        "strategy",
        "minReadySeconds",
        "revisionHistoryLimit",
        "paused",
        "progressDeadlineSeconds",
    ],
    ("apps", "replicasets"): ["replicas", "minReadySeconds", "selector", "template"],
    ("", "replicationcontrollers"): ["replicas", "minReadySeconds", "selector", "template"],
    ("apps", "statefulsets"): [
        "replicas",
        "selector",
        "template",
        "volumeClaimTemplates",
        "serviceName",
        "podManagementPolicy",
        "updateStrategy",
        "revisionHistoryLimit",
        "minReadySeconds",
        "persistentVolumeClaimRetentionPolicy",
        "ordinals",
    ],
    ("apps", "daemonsets"): ["selector", "template", "updateStrategy", "minReadySeconds", "revisionHistoryLimit"],
    ("batch", "jobs"): [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "podFailurePolicy",
        "successPolicy",
        "backoffLimit",
        "selector",
        "manualSelector",
        "template",
        "ttlSecondsAfterFinished",
        "completionMode",
        "suspend",
        "podReplacementPolicy",
    ],
    ("", "services"): [
        "ports",
        "selector",
        "clusterIP",
        "clusterIPs",
        "type",
        "externalIPs",
        "sessionAffinity",
        "loadBalancerIP",
        "loadBalancerSourceRanges",
        "externalName",
        "externalTrafficPolicy",
        "healthCheckNodePort",
        "publishNotReadyAddresses",
        "sessionAffinityConfig",
        "ipFamilies",
        "ipFamilyPolicy",
        "allocateLoadBalancerNodePorts",
        "loadBalancerClass",
        "internalTrafficPolicy",
    ],
    ("", "pods"): POD_SPEC,
}


def sort_fields(resource: ResourceInfo, obj: JSONDict) -> None:
    """Sort fields in Go's order, in place: kind, apiVersion, metadata and spec first, status last."""
    sort_keys(obj, ["kind", "apiVersion", "metadata", "spec"], last="status")
    key = (resource.group, resource.plural)
    spec = obj.get("spec")
    if key not in SPECS or not isinstance(spec, dict):
        return
    sort_keys(spec, SPECS[key])
    if key == ("", "pods"):
        pod_spec(spec)
    elif key == ("", "services"):
        for port in spec.get("ports") or ():
            sort_keys(port, SERVICE_PORT)
    elif isinstance((spec.get("template") or {}).get("spec"), dict):
        sort_keys(spec["template"], ["metadata", "spec"])
        sort_keys(spec["template"]["spec"], POD_SPEC)
        pod_spec(spec["template"]["spec"])


def pod_spec(spec: JSONDict) -> None:
    """Sort the containers of a pod's spec."""
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(kind) or ():
            sort_keys(container, CONTAINER)
            for port in container.get("ports") or ():
                sort_keys(port, PORT)


def sort_keys(value: JSONDict, first: list[str], *, last: str = "") -> None:
    """Reorder a dict in place: known keys as given, others after them in their order."""
    known = {key: value[key] for key in first if key in value}
    rest = {key: item for key, item in value.items() if key not in known and key != last}
    end = {last: value[last]} if last in value else {}
    value.clear()
    value.update({**known, **rest, **end})
