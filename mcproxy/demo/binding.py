"""The binding subresource of pods: how a scheduler says where a pod is to run."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from mcproxy.demo import controllers, negotiate, objects, options, topology
from mcproxy.demo.call import Call
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.status import Cause, conflict, invalid, success

JSONDict = dict[str, Any]


def bind(cluster: SimulatedCluster, pod: Mapping[str, Any], target: Mapping[str, Any]) -> JSONDict:
    """The pod bound to the node that a Binding's target names. Raises APIError 409, 422."""
    name = pod["metadata"]["name"]
    node = target.get("name")
    if not node:
        cause = Cause("FieldValueRequired", "Required value", "target.name")
        raise invalid("", "Binding", name, [cause])
    bound = (pod.get("spec") or {}).get("nodeName")
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if bound:
        raise conflict("", "pods/binding", name, f'pod {name} is already assigned to node "{bound}"')
    new = copy.deepcopy(dict(pod))
    new["spec"]["nodeName"] = node
    topology.label(cluster, new, node)
    state = new.setdefault("status", {})
    others = [item for item in state.get("conditions") or () if item.get("type") != "PodScheduled"]
    now = cluster.timestamp()
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    state["conditions"] = [*others, scheduled]
    return new


async def handle(call: Call) -> web.StreamResponse:
    """Serve POST. Raises APIError 404, 409, 422."""
    negotiate.negotiate(call)
    cluster, info, resource = call.cluster, call.info, call.target
    sent = await negotiate.read_object(call, kind="Binding")
    dry_run = options.write_options(call.query, "CreateOptions").dry_run
    pod = objects.get(cluster, resource, info.namespace, info.name)
    new = bind(cluster, pod, sent.get("target") or {})
    if not dry_run:
        stored = cluster.store.put(resource.storage, new)
        controllers.after_write(cluster, resource, stored)
    return negotiate.respond(call, success(code=201), 201)
