"""Subresources with handlers of their own: scale of any scalable object, binding and eviction (KEP-85) of pods."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.selectors import selects
from kubesim.apimachinery.status import (
    APIError,
    StatusCause,
    StatusError,
    bad_request,
    field_invalid,
    internal_error,
    invalid,
    success,
)
from kubesim.handlers import write_requests
from kubesim.printing import cells, tables
from kubesim.registry import crd, deletion, objects, patches
from kubesim.request import negotiation
from kubesim.request.call import Call

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


def scale_of(resource: ResourceInfo, obj: Mapping[str, Any]) -> JSONDict:
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


def with_scale(resource: ResourceInfo, obj: Mapping[str, Any], scale: Mapping[str, Any]) -> JSONDict:
    """Return a copy of an object with the replicas of `scale`, and its resourceVersion if set. Raises APIError 422."""
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    metadata = scale.get("metadata") or {}
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise bad_request(
            'Scale in version "v1" cannot be handled as a Scale: json: cannot unmarshal '
            f"{type(replicas).__name__} into Go struct field ScaleSpec.spec.replicas of type int32"
        )
    if replicas < 0:
        cause = field_invalid("spec.replicas", replicas, "must be greater than or equal to 0")
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
    return next(iter(tables.json_path(obj, path)), default) if path else default


def _selector(selector: Mapping[str, Any]) -> str:
    expressions = "matchLabels" in selector or "matchExpressions" in selector
    text = cells.selector(selector) if expressions else cells.labels(selector)
    return "" if text == cells.NONE else text


async def handle_scale(call: Call) -> web.StreamResponse:
    """Serve GET, PUT and PATCH. Raises APIError."""
    accepted = negotiation.negotiate(call)
    resource, info, method = call.target, call.info, call.request.method
    current = objects.get(call.cluster, resource, info.namespace, info.name)
    if method == "GET":
        return negotiation.answer(call, scale_of(resource, current), accepted)
    write = write_requests.write_options(call.query, "PatchOptions" if method == "PATCH" else "UpdateOptions")
    if method == "PATCH":
        scale = patches.apply_patch(
            scale_of(resource, current),
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
        with_scale(resource, current, scale),
        subresource="scale",
        manager=write.field_manager or call.request.headers.get("User-Agent", "").partition("/")[0],
        dry_run=write.dry_run,
        patch=True,
    )
    if not write.dry_run:
        crd.after_write(call.cluster, resource, new)
    return negotiation.answer(call, scale_of(resource, new), accepted)


async def handle_binding(call: Call) -> web.StreamResponse:
    """Serve POST. Raises APIError 404, 409, 422."""
    negotiation.negotiate(call)
    cluster, info, resource = call.cluster, call.info, call.target
    sent = await negotiation.read_object(call, kind="Binding")
    dry_run = write_requests.write_options(call.query, "CreateOptions").dry_run
    pod = objects.get(cluster, resource, info.namespace, info.name)
    new = objects.bind_pod(cluster, pod, sent.get("target") or {})
    if not dry_run:
        stored = cluster.store.put(resource.storage, new)
        crd.after_write(cluster, resource, stored)
    return negotiation.respond(call, success(code=201), 201)


REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."
BUDGETS = ("policy", "poddisruptionbudgets")


def evict(pod: Mapping[str, Any], budgets: Iterable[JSONDict], now: str) -> JSONDict | None:
    """Return the budget as it is after the eviction, None when no budget applies. Raises APIError 429, 500."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed", "Pending") or pod["metadata"].get("deletionTimestamp"):
        return None
    matching = [budget for budget in budgets if _selects((budget.get("spec") or {}).get("selector"), pod)]
    if len(matching) > 1:
        raise internal_error(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    if not matching:
        return None
    budget = copy.deepcopy(matching[0])
    name, state = budget["metadata"]["name"], budget.setdefault("status", {})
    if state.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        raise _refused(f"The disruption budget {name} is still being processed by the server.", retry_after=10)
    healthy, needed = state.get("currentHealthy", 0), state.get("desiredHealthy", 0)
    if not objects.is_ready(pod) and healthy >= needed > 0:
        return None
    if state.get("disruptionsAllowed", 0) < 1:
        raise _refused(f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently")
    state["disruptionsAllowed"] -= 1
    state["disruptedPods"] = {**(state.get("disruptedPods") or {}), pod["metadata"]["name"]: now}
    return budget


def _refused(text: str, *, retry_after: int = 0) -> StatusError:
    details: JSONDict = {"causes": [StatusCause("DisruptionBudget", text).as_dict()]}
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    headers = [("Retry-After", str(retry_after))] if retry_after else []
    return APIError(429, "TooManyRequests", REFUSAL, details, headers=headers)


def _selects(selector: Mapping[str, Any] | None, pod: Mapping[str, Any]) -> bool:
    """Return whether a budget's LabelSelector matches; an absent one matches nothing, an empty one everything."""
    if selector is None:
        return False
    return selects(selector, pod["metadata"].get("labels") or {})


async def handle_eviction(call: Call) -> web.StreamResponse:
    """Serve POST. Raises APIError 404, 429."""
    negotiation.negotiate(call)
    cluster, info, resource = call.cluster, call.info, call.target
    sent = await negotiation.read_object(call, kind="Eviction")
    wanted = sent.get("deleteOptions") or {}
    dry_run = write_requests.write_options(call.query, "CreateOptions").dry_run or bool(wanted.get("dryRun"))
    pod = objects.get(cluster, resource, info.namespace, info.name)
    found = cluster.store.collection(BUDGETS).objects
    budgets = [budget for (namespace, _), budget in found.items() if namespace == info.namespace]
    budget = evict(pod, budgets, cluster.timestamp())
    if not dry_run:
        if budget is not None:
            cluster.store.put(BUDGETS, budget)
        wanted_deletion = deletion.DeleteOptions(grace=wanted.get("gracePeriodSeconds"))
        done = deletion.delete(cluster, resource, info.namespace, info.name, wanted_deletion)
        crd.after_delete(cluster, resource, done, wanted_deletion)
    return negotiation.respond(call, success(code=201), 201)
