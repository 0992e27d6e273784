"""The binding subresource of pods, by which a scheduler assigns a pod to a node."""

from __future__ import annotations

from aiohttp import web

from kubesim.apimachinery.status import success
from kubesim.handlers import write_options
from kubesim.registry import hooks, objects, pod_binding
from kubesim.request import negotiation
from kubesim.request.call import Call


async def handle(call: Call) -> web.StreamResponse:
    """Serve POST. Raises APIError 404, 409, 422."""
    negotiation.negotiate(call)
    cluster, info, resource = call.cluster, call.info, call.target
    sent = await negotiation.read_object(call, kind="Binding")
    dry_run = write_options.write_options(call.query, "CreateOptions").dry_run
    pod = objects.get(cluster, resource, info.namespace, info.name)
    new = pod_binding.bind(cluster, pod, sent.get("target") or {})
    if not dry_run:
        stored = cluster.store.put(resource.storage, new)
        hooks.after_write(cluster, resource, stored)
    return negotiation.respond(call, success(code=201), 201)
