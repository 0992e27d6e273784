"""The eviction subresource of pods: a delete that PodDisruptionBudgets may refuse (KEP-85)."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from kubesim.apimachinery.label_selectors import selects
from kubesim.apimachinery.status import APIError, Cause, internal_error, success
from kubesim.handlers import write_options
from kubesim.registry import deletion, hooks, objects
from kubesim.request import negotiation
from kubesim.request.call import Call

JSONDict = dict[str, Any]
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
    if not _ready(pod) and healthy >= needed > 0:
        return None
    if state.get("disruptionsAllowed", 0) < 1:
        raise _refused(f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently")
    state["disruptionsAllowed"] -= 1
    state["disruptedPods"] = {**(state.get("disruptedPods") or {}), pod["metadata"]["name"]: now}
    return budget


def _refused(text: str, *, retry_after: int = 0) -> APIError:
    details: JSONDict = {"causes": [Cause("DisruptionBudget", text).as_dict()]}
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    headers = [("Retry-After", str(retry_after))] if retry_after else []
    return APIError(429, "TooManyRequests", REFUSAL, details, headers=headers)


def _ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _selects(selector: Mapping[str, Any] | None, pod: Mapping[str, Any]) -> bool:
    """Return whether a budget's LabelSelector matches; an absent one matches nothing, an empty one everything."""
    if selector is None:
        return False
    return selects(selector, pod["metadata"].get("labels") or {})


async def handle(call: Call) -> web.StreamResponse:
    """Serve POST. Raises APIError 404, 429."""
    negotiation.negotiate(call)
    cluster, info, resource = call.cluster, call.info, call.target
    sent = await negotiation.read_object(call, kind="Eviction")
    wanted = sent.get("deleteOptions") or {}
    dry_run = write_options.write_options(call.query, "CreateOptions").dry_run or bool(wanted.get("dryRun"))
    pod = objects.get(cluster, resource, info.namespace, info.name)
    found = cluster.store.collection(BUDGETS).objects
    budgets = [budget for (namespace, _), budget in found.items() if namespace == info.namespace]
    budget = evict(pod, budgets, cluster.timestamp())
    if not dry_run:
        if budget is not None:
            cluster.store.put(BUDGETS, budget)
        wanted_deletion = deletion.DeleteOptions(grace=wanted.get("gracePeriodSeconds"))
        done = deletion.delete(cluster, resource, info.namespace, info.name, wanted_deletion)
        hooks.after_delete(cluster, resource, done, wanted_deletion)
    return negotiation.respond(call, success(code=201), 201)
