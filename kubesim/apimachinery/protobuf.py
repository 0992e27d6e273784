"""Decodes the few protobuf bodies that kubectl sends into JSON.

kubectl's typed clients POST `application/vnd.kubernetes.protobuf` for some commands (auth can-i, auth whoami, create …)
whatever the server prefers. Bodies are the magic `k8s\\0` and a `runtime.Unknown` message: 1 TypeMeta, 2 raw object,
3 content encoding, 4 content type. Field numbers: the `generated.proto` files of k8s.io/api and apimachinery. A kind
that is not listed here cannot be decoded, and is refused with 415 by the caller.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from mcproxy.kube.protobuf import MAGIC, MalformedProtobuf, values

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MESSAGES = """
TypeMeta: 1 apiVersion, 2 kind
ObjectMeta: 1 name, 2 generateName, 3 namespace, 5 uid, 6 resourceVersion, 7 generation int, 8 creationTimestamp Time,
  11 labels map:string, 12 annotations map:string, 13 ownerReferences []OwnerReference, 14 finalizers []string
OwnerReference: 1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller bool, 7 blockOwnerDeletion bool
ConfigMap: 1 metadata ObjectMeta, 2 data map:string, 3 binaryData map:bytes, 4 immutable bool
Secret: 1 metadata ObjectMeta, 2 data map:bytes, 3 type, 4 stringData map:string, 5 immutable bool
Namespace: 1 metadata ObjectMeta, 2 spec NamespaceSpec
NamespaceSpec: 1 finalizers []string
ServiceAccount: 1 metadata ObjectMeta, 4 automountServiceAccountToken bool
SelfSubjectReview: 1 metadata ObjectMeta
SelfSubjectAccessReview: 1 metadata ObjectMeta, 2 spec AccessSpec
AccessSpec: 1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes PathAttributes
ResourceAttributes: 1 namespace, 2 verb, 3 group, 4 version, 5 resource, 6 subresource, 7 name
PathAttributes: 1 path, 2 verb
SubjectAccessReview: 1 metadata ObjectMeta, 2 spec SubjectAccessSpec
LocalSubjectAccessReview: 1 metadata ObjectMeta, 2 spec SubjectAccessSpec
SubjectAccessSpec: 1 resourceAttributes ResourceAttributes, 2 nonResourceAttributes PathAttributes, 3 user, 4 groups
  []string, 5 extra map:ExtraValue, 6 uid
ExtraValue: 1 items []string
TokenReview: 1 metadata ObjectMeta, 2 spec TokenReviewSpec
TokenReviewSpec: 1 token, 2 audiences []string
SelfSubjectRulesReview: 1 metadata ObjectMeta, 2 spec RulesSpec
RulesSpec: 1 namespace
TokenRequest: 1 metadata ObjectMeta, 2 spec TokenRequestSpec
TokenRequestSpec: 1 audiences []string, 3 boundObjectRef BoundObjectReference, 4 expirationSeconds int
BoundObjectReference: 1 kind, 2 apiVersion, 3 name, 4 uid
HorizontalPodAutoscaler: 1 metadata ObjectMeta, 2 spec AutoscalerSpec
AutoscalerSpec: 1 scaleTargetRef CrossVersionObjectReference, 2 minReplicas int, 3 maxReplicas int, 4
  targetCPUUtilizationPercentage int
HorizontalPodAutoscalerV2: 1 metadata ObjectMeta, 2 spec AutoscalerSpecV2
AutoscalerSpecV2: 1 scaleTargetRef CrossVersionObjectReference, 2 minReplicas int, 3 maxReplicas int, 4 metrics
  []MetricSpec
MetricSpec: 1 type, 4 resource ResourceMetricSource
ResourceMetricSource: 1 name, 2 target MetricTarget
MetricTarget: 1 type, 2 value Quantity, 3 averageValue Quantity, 4 averageUtilization int
CrossVersionObjectReference: 1 kind, 2 name, 3 apiVersion
Deployment: 1 metadata ObjectMeta, 2 spec DeploymentSpec
DeploymentSpec: 1 replicas int, 2 selector LabelSelector, 3 template PodTemplateSpec, 5 minReadySeconds int, 6
  revisionHistoryLimit int, 7 paused bool, 9 progressDeadlineSeconds int
Job: 1 metadata ObjectMeta, 2 spec JobSpec
JobSpec: 1 parallelism int, 2 completions int, 3 activeDeadlineSeconds int, 4 selector LabelSelector, 5 manualSelector
  bool, 6 template PodTemplateSpec, 7 backoffLimit int, 8 ttlSecondsAfterFinished int, 9 completionMode, 10 suspend
  bool, 14 podReplacementPolicy
LabelSelector: 1 matchLabels map:string
PodTemplateSpec: 1 metadata ObjectMeta, 2 spec PodSpec
Pod: 1 metadata ObjectMeta, 2 spec PodSpec
PodSpec: 2 containers []Container, 3 restartPolicy, 4 terminationGracePeriodSeconds int, 5 activeDeadlineSeconds int,
  6 dnsPolicy, 7 nodeSelector map:string, 8 serviceAccountName, 9 serviceAccount, 10 nodeName, 11 hostNetwork bool, 14
  securityContext PodSecurityContext, 16 hostname, 19 schedulerName, 24 priorityClassName
PodSecurityContext: 2 runAsUser int, 3 runAsNonRoot bool, 5 fsGroup int
Container: 1 name, 2 image, 3 command []string, 4 args []string, 5 workingDir, 6 ports []ContainerPort, 7 env
  []EnvVar, 8 resources ResourceRequirements, 13 terminationMessagePath, 14 imagePullPolicy, 16 stdin bool, 18 tty
  bool, 20 terminationMessagePolicy
ResourceRequirements: 1 limits map:Quantity, 2 requests map:Quantity
Quantity: 1 string
ContainerPort: 1 name, 3 containerPort int, 4 protocol
EnvVar: 1 name, 2 value
Service: 1 metadata ObjectMeta, 2 spec ServiceSpec
ServiceSpec: 1 ports []ServicePort, 2 selector map:string, 3 clusterIP, 4 type, 10 externalName
ServicePort: 1 name, 2 protocol, 3 port int, 4 targetPort IntOrString, 5 nodePort int
Role: 1 metadata ObjectMeta, 2 rules []PolicyRule
ClusterRole: 1 metadata ObjectMeta, 2 rules []PolicyRule
PolicyRule: 1 verbs []string, 2 apiGroups []string, 3 resources []string, 4 resourceNames []string, 5 nonResourceURLs
  []string
RoleBinding: 1 metadata ObjectMeta, 2 subjects []Subject, 3 roleRef RoleRef
ClusterRoleBinding: 1 metadata ObjectMeta, 2 subjects []Subject, 3 roleRef RoleRef
Subject: 1 kind, 2 apiGroup, 3 name, 4 namespace
RoleRef: 1 apiGroup, 2 kind, 3 name
DeleteOptions: 1 gracePeriodSeconds int, 2 preconditions Preconditions, 3 orphanDependents bool, 4 propagationPolicy,
  5 dryRun []string
Preconditions: 1 uid, 2 resourceVersion
"""
"""Fields of messages: number, JSON name, type; types: int, bool, bytes, a message, []type, map:type, else string."""


def _schemas() -> dict[str, dict[int, tuple[str, str]]]:
    """Return {message: {field number: (JSON name, type)}}."""
    found: dict[str, dict[int, tuple[str, str]]] = {}
    for line in _MESSAGES.replace("\n  ", " ").strip().splitlines():
        name, _, fields = line.partition(": ")
        split = [field.split() for field in fields.split(", ")]
        found[name] = {int(number): (key, kind[0] if kind else "string") for number, key, *kind in split}
    return found


SCHEMAS = _schemas()

OTHER_VERSIONS: dict[tuple[str, str], str] = {
    ("autoscaling/v2", "HorizontalPodAutoscaler"): "HorizontalPodAutoscalerV2"
}
"""The messages of kinds that have other fields in this version."""


class Undecodable(Exception):
    """The body is not Kubernetes protobuf, or its kind is not listed here."""


def decode(body: bytes) -> JSONDict:
    """Return a body as JSON. Raises `Undecodable`."""
    if not body.startswith(MAGIC):
        raise Undecodable("not a k8s protobuf body")
    type_meta: JSONDict = {}
    raw = b""
    try:
        for number, value in values(body[len(MAGIC) :]):
            if number == 1 and isinstance(value, bytes):
                type_meta = _message("TypeMeta", value)
            elif number == 2 and isinstance(value, bytes):
                raw = value
        api_version, kind = type_meta.get("apiVersion", ""), type_meta.get("kind", "")
        schema = OTHER_VERSIONS.get((api_version, kind), kind)
        if schema not in SCHEMAS:
            raise Undecodable(f"no schema for {api_version} {kind}")
        return {"kind": kind, "apiVersion": api_version, **_message(schema, raw)}
    except (MalformedProtobuf, UnicodeDecodeError, OverflowError) as error:
        raise Undecodable(str(error)) from error


def _message(schema: str, data: bytes) -> JSONDict:
    fields = SCHEMAS[schema]
    out: JSONDict = {}
    for number, value in values(data):
        if number not in fields:
            continue
        name, kind = fields[number]
        if kind.startswith("[]"):
            out.setdefault(name, []).append(_value(kind[2:], value))
        elif kind.startswith("map:"):
            entry = dict(values(value)) if isinstance(value, bytes) else {}
            key = _value("string", entry.get(1, b""))
            out.setdefault(name, {})[key] = _value(kind[4:], entry.get(2, b""))
        else:
            decoded = _value(kind, value)
            if decoded not in ("", None):
                out[name] = decoded
    return out


def _value(kind: str, value: int | bytes) -> Any:
    if isinstance(value, int) != (kind in ("int", "bool")):
        raise Undecodable(f"a field of type {kind} in the wrong wire type")
    if kind == "bool":
        return bool(value)
    if isinstance(value, int):
        return value - (1 << 64) if value >= 1 << 63 else value
    if kind == "string":
        return value.decode()
    if kind == "bytes":
        return base64.b64encode(value).decode()
    if kind == "Time":
        return _time(dict(values(value)).get(1))
    if kind == "IntOrString":
        parts = dict(values(value))
        return _value("string", parts.get(3, b"")) if parts.get(1) else parts.get(2, 0)
    if kind == "ExtraValue":
        return _message(kind, value).get("items", [])
    if kind == "Quantity":
        return _message(kind, value).get("string", "0")
    return _message(kind, value)


def _time(seconds: int | bytes | None) -> str | None:
    """Format Unix seconds as the API writes times; None for none."""
    if not isinstance(seconds, int):
        return None
    return (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
