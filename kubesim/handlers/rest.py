"""The verbs on resources: get, list, watch, create, update, patch, delete, deletecollection.

They connect HTTP with `registry.objects`, `storage.lists` and `storage.watch`; subresources with handlers of their own
are looked up here.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import ResourceInfo
from kubesim.auth import rbac
from kubesim.handlers import write_requests
from kubesim.handlers.watch import serve_watch
from kubesim.registry import crd, deletion, objects, patches
from kubesim.request import negotiation
from kubesim.request.call import Call
from kubesim.storage import list_watch
from mcproxy.kube import list_options

Handler = Callable[[Call], Awaitable[web.StreamResponse]]

HANDLERS = {
    "exec": "kubesim.streaming.handler:handle",
    "attach": "kubesim.streaming.handler:handle",
    "portforward": "kubesim.streaming.handler:handle",
    "log": "kubesim.streaming.logs:handle",
    "proxy": "kubesim.streaming.pod_proxy:handle",
    "token": "kubesim.auth.reviews:handle_token",
    "scale": "kubesim.handlers.subresources:handle_scale",
    "eviction": "kubesim.handlers.subresources:handle_eviction",
    "binding": "kubesim.handlers.subresources:handle_binding",
}
"""Subresources with a handler of their own; loaded when first used."""

REVIEWS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})
"""Groups of reviews, which are answered and not stored."""

OBJECT_SUBRESOURCES = frozenset({"status", "finalize", "ephemeralcontainers", "resize", "approval"})
"""Subresources that write a part of the object itself."""

VERB_OF = {
    "GET": ("get", "list"),
    "POST": ("create", "create"),
    "PUT": ("update", ""),
    "PATCH": ("patch", ""),
    "DELETE": ("delete", "deletecollection"),
}


def load(spec: str) -> Handler:
    """Return the function that `module:name` names."""
    module, _, name = spec.partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)
    return handler


async def handle(call: Call) -> web.StreamResponse:
    """Serve a resource request. Raises APIError."""
    resource = _resource(call)
    call.resource = resource
    info = call.info
    if warning := (resource.crd_version or {}).get("deprecated") and _deprecation(resource):
        call.warnings.append(str(warning))
    if info.subresource:
        return await _subresource(call, resource)
    if resource.group in REVIEWS and call.request.method == "POST":
        return await load("kubesim.auth.reviews:handle")(call)
    _check_verb(call, resource)
    if info.verb == "watch" or info.deprecated_watch:
        return await serve_watch(call)
    return await VERBS[info.verb](call)


def _deprecation(resource: ResourceInfo) -> str:
    declared = (resource.crd_version or {}).get("deprecationWarning")
    return declared or f"{resource.group_version} {resource.kind} is deprecated"


def _resource(call: Call) -> ResourceInfo:
    """Return the resource of a path. Raises APIError 404 in one of its two forms."""
    info = call.info
    registry = call.cluster.resources
    found = registry.get(info.group, info.version, info.resource)
    unknown = registry.is_builtin_group(info.group) or not info.group
    missing = status.no_such_resource() if unknown else status.page_not_found()
    if found is None or (len(info.parts) > 3 and info.subresource != "proxy"):
        raise missing
    if found.namespaced:
        in_place = bool(info.namespace) or not info.path_name
    else:
        in_place = not info.namespace or info.resource == "namespaces"
    if not in_place:
        raise missing
    return found


def _check_verb(call: Call, resource: ResourceInfo) -> None:
    info = call.info
    method = call.request.method
    named, collective = VERB_OF.get(method, ("", ""))
    verb = named if info.path_name else collective
    if method == "POST" and info.path_name and resource.builtin:
        verb = ""
    if not verb or verb not in resource.verbs:
        raise status.method_not_allowed()
    if verb == "create" and resource.namespaced and not info.namespace:
        raise status.method_not_allowed()
    if verb == "deletecollection" and resource.namespaced and not info.namespace and resource.builtin:
        raise status.method_not_allowed()


async def _subresource(call: Call, resource: ResourceInfo) -> web.StreamResponse:
    info = call.info
    known = resource.subresource(info.subresource)
    if known is None:
        raise status.no_such_resource() if resource.builtin else status.page_not_found()
    verbs = {"GET": "get", "PUT": "update", "PATCH": "patch", "POST": "create", "DELETE": "delete"}
    if spec := HANDLERS.get(info.subresource):
        if info.subresource in ("scale", "eviction", "binding", "token"):
            _check_subresource_verb(known.verbs, verbs.get(call.request.method, ""))
        return await load(spec)(call)
    if info.subresource not in OBJECT_SUBRESOURCES:
        raise status.no_such_resource()
    _check_subresource_verb(known.verbs, verbs.get(call.request.method, ""))
    return await VERBS[verbs[call.request.method]](call)


def _check_subresource_verb(served: tuple[str, ...], verb: str) -> None:
    if verb not in served:
        raise status.method_not_allowed()


async def _get(call: Call) -> web.StreamResponse:
    accepted = negotiation.negotiate(call)
    await list_watch.wait_for(call.cluster.store, list_watch.wanted_revision(call.query.get("resourceVersion", "")))
    found = objects.get(call.cluster, call.target, call.info.namespace, call.info.name)
    return negotiation.answer(call, found, accepted)


async def _list(call: Call) -> web.StreamResponse:
    accepted = negotiation.negotiate(call, listing=True)
    wanted = list_options.parse(call.query)
    page = await list_watch.list_page(call.cluster.store, call.target, call.info.scope, wanted)
    return negotiation.answer_list(call, page, accepted)


async def _create(call: Call) -> web.StreamResponse:
    resource = call.target
    accepted = negotiation.negotiate(call)
    write = write_requests.write_options(call.query, "CreateOptions")
    obj = await write_requests.read(call, write)
    if call.info.path_name:
        obj.setdefault("metadata", {})["name"] = call.info.path_name
    created = objects.create(
        call.cluster, resource, call.info.namespace, obj, manager=_manager(call, write), dry_run=write.dry_run
    )
    if not write.dry_run:
        crd.after_write(call.cluster, resource, created)
        created = objects.get(call.cluster, resource, call.info.namespace, created["metadata"]["name"])
    return negotiation.answer(call, created, accepted, 201)


def _manager(call: Call, write: write_requests.WriteOptions) -> str:
    """Return the field manager: the parameter, else the part of the User-Agent before its slash."""
    if write.field_manager:
        return write.field_manager
    return call.request.headers.get("User-Agent", "").partition("/")[0] or "unknown"


async def _update(call: Call) -> web.StreamResponse:
    resource, info = call.target, call.info
    accepted = negotiation.negotiate(call)
    write = write_requests.write_options(call.query, "UpdateOptions")
    obj = await write_requests.read(call, write)
    sent_name = (obj.get("metadata") or {}).get("name")
    if sent_name and sent_name != info.name:
        raise status.bad_request(
            f"the name of the object ({sent_name}) does not match the name on the URL ({info.name})"
        )
    obj.setdefault("metadata", {})["name"] = info.name
    manager = _manager(call, write)
    try:
        objects.get(call.cluster, resource, info.namespace, info.name)
    except status.StatusError:
        if resource.qualified not in objects.CREATE_ON_UPDATE or info.subresource:
            raise
        uid = obj["metadata"].get("uid")
        if uid:
            text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
            raise status.conflict(resource.group, resource.plural, info.name, text) from None
        created = objects.create(call.cluster, resource, info.namespace, obj, manager=manager, dry_run=write.dry_run)
        return negotiation.answer(call, created, accepted, 201)
    updated = objects.update(
        call.cluster,
        resource,
        info.namespace,
        info.name,
        obj,
        subresource=info.subresource,
        manager=manager,
        dry_run=write.dry_run,
    )
    if not write.dry_run:
        crd.after_write(call.cluster, resource, updated)
    return negotiation.answer(call, updated, accepted)


async def _patch(call: Call) -> web.StreamResponse:
    resource, info = call.target, call.info
    accepted = negotiation.negotiate(call)
    content_type = call.request.headers.get("Content-Type", "")
    kind = patches.check_media_type(content_type, resource)
    applying = kind == patches.APPLY_PATCH
    write = write_requests.write_options(call.query, "PatchOptions", applying=applying)
    body = await negotiation.read_body(call)
    stored = call.cluster.store.get(resource.storage, info.namespace if resource.namespaced else "", info.name)
    if stored is None and (not applying or info.subresource):
        raise status.not_found(resource.group, resource.plural, info.name)
    current = None if stored is None else objects.get(call.cluster, resource, info.namespace, info.name)
    patched = patches.apply_patch(
        current,
        body,
        content_type,
        resource=resource,
        field_manager=write.field_manager,
        force=write.force,
        now=call.cluster.timestamp(),
        subresource=info.subresource,
    )
    write_requests.check_patched(call, write, body, kind, patched)
    operation = "Apply" if applying else "Update"
    if current is None:
        uid = patched.setdefault("metadata", {}).get("uid")
        if uid:
            text = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise status.conflict(resource.group, resource.plural, info.name, text)
        patched["metadata"]["name"] = info.name
        # Last, as in apiserver's patch handler: the patch itself was authorized before.
        rbac.check(call.cluster, call.user, replace(rbac.Attributes.of(info), verb="create"))
        result = objects.create(
            call.cluster,
            resource,
            info.namespace,
            patched,
            manager=write.field_manager,
            dry_run=write.dry_run,
            operation=operation,
        )
    else:
        result = objects.update(
            call.cluster,
            resource,
            info.namespace,
            info.name,
            patched,
            subresource=info.subresource,
            manager=_manager(call, write),
            dry_run=write.dry_run,
            operation=operation,
            patch=True,
        )
    if not write.dry_run:
        crd.after_write(call.cluster, resource, result)
    return negotiation.answer(call, result, accepted, 201 if current is None else 200)


async def _delete(call: Call) -> web.StreamResponse:
    resource, info = call.target, call.info
    accepted = negotiation.negotiate(call)
    wanted, dry_run = await write_requests.delete_options(call)
    done = deletion.delete(call.cluster, resource, info.namespace, info.name, wanted, dry_run=dry_run)
    if not dry_run:
        crd.after_delete(call.cluster, resource, done, wanted)
    if done.whole:
        code = 202 if not done.gone and wanted.orphan_dependents is False else 200
        return negotiation.answer(call, done.object, accepted, code)
    details = status.details(info.name, resource.group, resource.plural, uid=done.object["metadata"]["uid"])
    return negotiation.respond(call, status.success(details), negotiation.OK)


async def _delete_collection(call: Call) -> web.StreamResponse:
    resource, info = call.target, call.info
    accepted = negotiation.negotiate(call, listing=True)
    wanted, dry_run = await write_requests.delete_options(call)
    page = await list_watch.list_page(call.cluster.store, resource, info.scope, list_options.parse(call.query))
    for item in page.items:
        metadata = item["metadata"]
        done = deletion.delete(
            call.cluster, resource, metadata.get("namespace", ""), metadata["name"], wanted, dry_run=dry_run
        )
        if not dry_run:
            crd.after_delete(call.cluster, resource, done, wanted)
    return negotiation.answer_list(call, page, accepted)


VERBS: dict[str, Handler] = {
    "get": _get,
    "list": _list,
    "create": _create,
    "update": _update,
    "patch": _patch,
    "delete": _delete,
    "deletecollection": _delete_collection,
}
