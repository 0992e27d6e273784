"""The scale subresource: the replicas of any scalable object as a Scale."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from kubesim.apimachinery import jsonpath
from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.status import Cause, bad_request, invalid
from kubesim.handlers import representation, write_options
from kubesim.patch import patches
from kubesim.printing import cells
from kubesim.registry import hooks, objects
from kubesim.request import negotiation
from kubesim.request.call import Call

JSONDict = dict[str, Any]
SCALE = ResourceInfo(
    group="autoscaling",
    version="v1",
    kind="Scale",
    plural="scales",
    singular="scale",
    namespaced=True,
    verbs=("get", "update", "patch"),
)
"""The resource by which patches of the subresource are applied; nothing is stored under it."""


def get(resource: ResourceInfo, obj: Mapping[str, Any]) -> JSONDict:
    """Return the Scale of an object."""
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    declared = _declared(resource)
    if declared is not None:
        wanted = _first(obj, declared.get("specReplicasPath", ""), 0)
        current = _first(obj, declared.get("statusReplicasPath", ""), 0)
        selector = str(_first(obj, declared.get("labelSelectorPath", ""), ""))
    else:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        wanted, current = spec.get("replicas", 0), status.get("replicas", 0)
        selector = _selector(spec.get("selector") or {})
    shown: JSONDict = {"replicas": current}
    if selector:
        shown["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": wanted} if wanted or declared is None else {},
        "status": shown,
    }


def update(resource: ResourceInfo, obj: Mapping[str, Any], scale: Mapping[str, Any]) -> JSONDict:
    """Return a copy of an object with the replicas of `scale`, and its resourceVersion if set. Raises APIError 422."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    metadata = scale.get("metadata") or {}
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise bad_request(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal '
            f"{type(replicas).__name__} into Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if replicas < 0:
        text = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = Cause("FieldValueInvalid", text, "spec.replicas")
        raise invalid("autoscaling", "Scale", metadata.get("name", ""), [cause])
    new = copy.deepcopy(dict(obj))
    if metadata.get("resourceVersion"):
        new["metadata"]["resourceVersion"] = metadata["resourceVersion"]
    path = (_declared(resource) or {}).get("specReplicasPath", ".spec.replicas")
    *parents, last = path.strip(".").split(".")
    place = new
    for key in parents:
        place = place.setdefault(key, {})
    place[last] = replicas
    return new


def _declared(resource: ResourceInfo) -> JSONDict | None:
    """Return the paths that a CRD declares; None for a built-in resource."""
    if resource.crd_version is None:
        return None
    found: JSONDict = (resource.crd_version.get("subresources") or {}).get("scale") or {}
    return found


def _first(obj: Mapping[str, Any], path: str, default: Any) -> Any:
    return next(iter(jsonpath.find(obj, path)), default) if path else default


def _selector(selector: Mapping[str, Any]) -> str:
    expressions = "matchLabels" in selector or "matchExpressions" in selector
    text = cells.selector(selector) if expressions else cells.labels(selector)
    return "" if text == cells.NONE else text


async def handle(call: Call) -> web.StreamResponse:
    """Serve GET, PUT and PATCH. Raises APIError."""
    accepted = negotiation.negotiate(call)
    resource, info, method = call.target, call.info, call.request.method
    current = objects.get(call.cluster, resource, info.namespace, info.name)
    if method == "GET":
        return representation.answer(call, get(resource, current), accepted)
    write = write_options.write_options(call.query, "PatchOptions" if method == "PATCH" else "UpdateOptions")
    if method == "PATCH":
        scale = patches.apply_patch(
            get(resource, current),
            await negotiation.read_body(call),
            call.request.headers.get("Content-Type", ""),
            resource=SCALE,
            field_manager=write.field_manager,
            force=True,
            now=call.cluster.timestamp(),
        )
    else:
        scale = await negotiation.read_object(call, kind="Scale")
    new = objects.update(
        call.cluster,
        resource,
        info.namespace,
        info.name,
        update(resource, current, scale),
        subresource="scale",
        manager=write.field_manager or call.request.headers.get("User-Agent", "").partition("/")[0],
        dry_run=write.dry_run,
        patch=True,
    )
    if not write.dry_run:
        hooks.after_write(call.cluster, resource, new)
    return representation.answer(call, get(resource, new), accepted)
