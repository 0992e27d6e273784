"""Non-resource paths: health checks, /version, /metrics and the list of paths at /."""

from __future__ import annotations

import functools
import json
from importlib import resources as package_files

from aiohttp import web

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import JSONDict
from kubesim.request import negotiation
from kubesim.request.call import Call
from mcproxy.kube import healthz, media_types

TEXT = "text/plain; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
NOSNIFF = {"X-Content-Type-Options": "nosniff"}
ROLES_HOOK = "poststarthook/rbac/bootstrap-roles"
"""The check that fails while an endpoint is starting."""


@functools.cache
def recorded() -> JSONDict:
    """Return the names of checks, the paths and the version document of a recorded apiserver."""
    content: JSONDict = json.loads((package_files.files("kubesim") / "data" / "nonresource.json").read_text())
    return content


def handle(call: Call) -> web.StreamResponse | None:
    """Answer a path of this module; return None for any other. Raises APIError 404, 405."""
    path = call.info.path
    first, _, rest = path.strip("/").partition("/")
    if first in ("healthz", "livez", "readyz"):
        return _health(call, first, rest)
    if path in ("/version", "/version/"):
        if call.request.method != "GET":
            raise status.method_not_allowed()
        return _document(call, recorded()["version"])
    if path == "/metrics":
        return _metrics(call)
    if first == "bootstrap":
        return _template(call, rest)
    if path == "/":
        return _document(call, {"paths": _paths(call)})
    return None


def _document(call: Call, content: JSONDict) -> web.StreamResponse:
    body = json.dumps(content, indent=2).encode()
    return negotiation.finish(call.request, body, media_types.JSON, 200, negotiation.base_headers(call))


def _template(call: Call, group: str) -> web.StreamResponse | None:
    """Answer with the roles that an API server publishes ("Aggregated API Servers"); a kube-apiserver has none."""
    templates = call.cluster.state.get("templates")
    found = None if templates is None else templates(group)
    return None if found is None else _document(call, found)


def _health(call: Call, kind: str, check: str) -> web.StreamResponse:
    unready: tuple[str, ...] = call.cluster.state.get("unready", ())
    failing = {*unready, *((ROLES_HOOK,) if call.starting else ())}
    checks = [healthz.Check(name, "not finished" if name in failing else "") for name in (*recorded()[kind], *unready)]
    headers = negotiation.base_headers(call)
    if not check:
        code, text = healthz.answer(kind, checks, healthz.parse_query(call.request.query_string.encode()))
        return negotiation.finish(call.request, text.encode(), TEXT, code, headers | NOSNIFF)
    found = healthz.answer_one(check, checks)
    if found is None:
        raise status.page_not_found()
    code, text = found
    return negotiation.finish(call.request, text.encode(), TEXT, code, headers if code == 200 else headers | NOSNIFF)


def _metrics(call: Call) -> web.StreamResponse:
    """Answer with a few of a real apiserver's metrics."""
    lines = ["# HELP apiserver_storage_objects Number of stored objects.", "# TYPE apiserver_storage_objects gauge"]
    watches = ["# HELP apiserver_longrunning_requests Open watches.", "# TYPE apiserver_longrunning_requests gauge"]
    for (group, plural), collection in sorted(call.cluster.store.collections().items()):
        name = f"{plural}.{group}" if group else plural
        lines.append(f'apiserver_storage_objects{{resource="{name}"}} {len(collection.objects)}')
        watches.append(
            f'apiserver_longrunning_requests{{group="{group}",resource="{plural}",verb="WATCH"}} {collection.watchers}'
        )
    body = "\n".join([*lines, *watches, ""]).encode()
    return negotiation.finish(call.request, body, METRICS_TYPE, 200, negotiation.base_headers(call))


def _paths(call: Call) -> list[str]:
    content = recorded()
    found = {*content["paths"], "/api", "/apis", "/apis/", "/api/v1"}
    for kind in ("healthz", "livez", "readyz"):
        found.update(f"/{kind}/{name}" for name in content[kind])
    registry = call.cluster.resources
    for group in registry.groups():
        if group:
            found.add(f"/apis/{group}")
            found.update(f"/apis/{group}/{version}" for version in registry.versions(group))
    return sorted(found)
