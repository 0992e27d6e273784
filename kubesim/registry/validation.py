"""Validation of objects: names, immutable fields and the most common errors, with Kubernetes' messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.selectors import selects
from kubesim.apimachinery.status import (
    StatusCause,
    field_duplicate,
    field_forbidden,
    field_invalid,
    field_required,
    field_too_long,
)
from kubesim.cluster import SimulatedCluster
from kubesim.registry import schema_validation, services
from kubesim.registry.services import LABEL, LABEL_HELP

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
SUBDOMAIN_HELP = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_NAMES = frozenset({("", "namespaces"), ("", "services")})
"""Resources whose names are one DNS label."""
PATH_NAMES = frozenset({"rbac.authorization.k8s.io"})
"""Groups whose names are path segments, with few restrictions."""
MEBIBYTE = 1048576
MAX_ANNOTATIONS = 256 << 10
TEMPLATED = frozenset(
    {("apps", "deployments"), ("apps", "replicasets"), ("apps", "statefulsets"), ("apps", "daemonsets")}
)


def validate_create(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict) -> None:
    """Raises APIError 422."""
    _refuse(resource, obj, [*_name(resource, obj), *_metadata(obj), *_content(cluster, resource, obj)])


def validate_update(cluster: SimulatedCluster, resource: ResourceInfo, old: JSONDict, new: JSONDict) -> None:
    """Raises APIError 422."""
    _refuse(resource, new, [*_metadata(new), *_content(cluster, resource, new), *_immutable(resource, old, new)])


def validate_resize(resource: ResourceInfo, old: JSONDict) -> None:
    """Validate a resize of a pod: its kubelet must report the resources of running containers. Raises APIError 422.

    Source: isPodResizeRequestSupported in pkg/apis/core/validation.
    """
    states = (old.get("status") or {}).get("containerStatuses") or ()
    running = next((item for item in states if (item.get("state") or {}).get("running") is not None), None)
    if running is not None and running.get("resources") is None:
        _refuse(resource, old, [field_forbidden("spec", "Pod running on node without support for resize")])


def validate_status(resource: ResourceInfo, new: JSONDict) -> None:
    """Raises APIError 422."""
    if not resource.builtin:
        causes = schema_validation.validate(resource, new)
        _refuse(resource, new, [_within_status(cause) for cause in causes])
    if (resource.group, resource.plural) not in TEMPLATED:
        return
    state = new.get("status") or {}
    available, ready = state.get("availableReplicas", 0), state.get("readyReplicas", 0)
    if available > ready:
        cause = field_invalid("status.availableReplicas", available, "cannot be greater than readyReplicas")
        _refuse(resource, new, [cause])


def _within_status(cause: StatusCause) -> StatusCause:
    """Return a cause in the form for /status, which an API server validates without the rest of the object."""
    below = cause.field.removeprefix("status.")
    return replace(cause, message=cause.message.replace(f"{cause.field} in body", f"{below} in body"))


def _refuse(resource: ResourceInfo, obj: JSONDict, causes: list[StatusCause]) -> None:
    if causes:
        raise status.invalid(resource.group, resource.kind, obj["metadata"].get("name", ""), causes)


def _name(resource: ResourceInfo, obj: JSONDict) -> list[StatusCause]:
    name = obj["metadata"].get("name", "")
    if not name:
        return [field_required("metadata.name", "name or generateName is required")]
    if resource.group in PATH_NAMES:
        return []
    label = (resource.group, resource.plural) in LABEL_NAMES
    most = 63 if label else 253
    if len(name) > most:
        return [field_invalid("metadata.name", name, f"must be no more than {most} characters")]
    if (LABEL if label else SUBDOMAIN).match(name):
        return []
    return [field_invalid("metadata.name", name, LABEL_HELP if label else SUBDOMAIN_HELP)]


def _content(cluster: SimulatedCluster, resource: ResourceInfo, obj: JSONDict) -> list[StatusCause]:
    """Return the errors in an object's content."""
    if not resource.builtin:
        return schema_validation.validate(resource, obj)
    key = (resource.group, resource.plural)
    if key == ("", "configmaps"):
        values = [*(obj.get("data") or {}).values(), *(obj.get("binaryData") or {}).values()]
        if sum(len(str(value).encode()) for value in values) > MEBIBYTE:
            return [field_too_long("[]", MEBIBYTE)]
    if key == ("", "pods"):
        return _containers(obj.get("spec") or {}, "spec")
    if key in TEMPLATED:
        return _workload(obj)
    return services.content(key, obj, loopback=cluster.options.loopback_endpoints)


def _metadata(obj: JSONDict) -> list[StatusCause]:
    """Return the errors in labels and annotations. Source: apimachinery `validation.ValidateObjectMeta`."""
    causes = []
    metadata = obj["metadata"]
    for key, value in (metadata.get("labels") or {}).items():
        if len(key.rpartition("/")[2]) > 63:
            causes.append(field_invalid("metadata.labels", key, "name part must be no more than 63 bytes"))
        if len(value) > 63:
            causes.append(field_invalid("metadata.labels", value, "must be no more than 63 bytes"))
    annotations = metadata.get("annotations") or {}
    if sum(len(key) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        causes.append(field_too_long("metadata.annotations", MAX_ANNOTATIONS))
    return causes


def _workload(obj: JSONDict) -> list[StatusCause]:
    spec = obj.get("spec") or {}
    causes = []
    if isinstance(spec.get("replicas"), int) and spec["replicas"] < 0:
        causes.append(field_invalid("spec.replicas", spec["replicas"], "must be greater than or equal to 0"))
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selector = spec.get("selector")
    if selector is None:
        causes.append(field_required("spec.selector"))
    elif not selects(selector, labels):
        text = "`selector` does not match template `labels`"
        causes.append(field_invalid("spec.template.metadata.labels", dict(sorted(labels.items())), text))
    return causes + _containers(template.get("spec") or {}, "spec.template.spec")


def _containers(spec: Mapping[str, Any], path: str) -> list[StatusCause]:
    containers = spec.get("containers") or []
    if not containers:
        return [field_required(f"{path}.containers")]
    causes, seen = [], set()
    for at, item in enumerate(containers):
        where = f"{path}.containers[{at}]"
        name = item.get("name", "")
        if not name:
            causes.append(field_required(f"{where}.name"))
        elif not LABEL.match(name):
            causes.append(field_invalid(f"{where}.name", name, LABEL_HELP))
        elif name in seen:
            causes.append(field_duplicate(f"{where}.name", name))
        seen.add(name)
        if not item.get("image"):
            causes.append(field_required(f"{where}.image"))
    return causes


def _immutable(resource: ResourceInfo, old: JSONDict, new: JSONDict) -> list[StatusCause]:
    """Return the errors of changed immutable fields."""
    key = (resource.group, resource.plural)
    if key in (("", "configmaps"), ("", "secrets")) and old.get("immutable"):
        fields = [name for name in ("immutable", "data", "binaryData") if old.get(name) != new.get(name)]
        return [field_forbidden(name, "field is immutable when `immutable` is set") for name in fields]
    before, after = old.get("spec") or {}, new.get("spec") or {}
    if key in TEMPLATED and before.get("selector") != after.get("selector"):
        shown = json.dumps(after.get("selector"), separators=(",", ":"), sort_keys=True)
        return [StatusCause("FieldValueInvalid", f"Invalid value: {shown}: field is immutable", "spec.selector")]
    if key[0] == "rbac.authorization.k8s.io" and old.get("roleRef") != new.get("roleRef"):
        return [field_invalid("roleRef", new.get("roleRef"), "cannot change roleRef")]
    return services.immutable(key, old, new)


def check_quota(cluster: SimulatedCluster, resource: ResourceInfo, namespace: str, name: str) -> None:
    """Check the ResourceQuotas of object counts for a create. Raises APIError 403."""
    if not resource.namespaced:
        return
    keys = (resource.plural, f"count/{resource.qualified}")
    for (place, quota), found in cluster.store.collection(("", "resourcequotas")).objects.items():
        if place != namespace:
            continue
        hard = (found.get("spec") or {}).get("hard") or {}
        for key in keys:
            if key not in hard:
                continue
            used = _used(cluster, resource, namespace, found, key)
            if used + 1 > int(hard[key]):
                text = f"exceeded quota: {quota}, requested: {key}=1, used: {key}={used}, limited: {key}={hard[key]}"
                raise status.forbidden(resource.group, resource.plural, name, text)


def _used(cluster: SimulatedCluster, resource: ResourceInfo, namespace: str, quota: Mapping[str, Any], key: str) -> int:
    """Return the usage in a quota's status, else a count."""
    known = ((quota.get("status") or {}).get("used") or {}).get(key)
    if known is not None:
        return int(known)
    return sum(1 for place, _ in cluster.store.collection(resource.storage).objects if place == namespace)
