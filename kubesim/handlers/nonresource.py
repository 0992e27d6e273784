"""Non-resource paths: discovery documents, health checks, /version, /metrics and the list of paths at /.

Discovery is legacy and aggregated. Source: KEP-3352, and the recorded documents for the order of entries.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from importlib import resources as package_files

from aiohttp import web

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.cluster import SimulatedCluster
from kubesim.request import negotiation
from kubesim.request.call import Call
from mcproxy.kube import healthz, media_types
from mcproxy.kube.media_types import Clause

TEXT = "text/plain; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
NOSNIFF = {"X-Content-Type-Options": "nosniff"}
ROLES_HOOK = "poststarthook/rbac/bootstrap-roles"
"""The check that fails while an endpoint is starting."""


_DISCOVERY = re.compile(r"/api/[^/]+/?|/apis/[^/]+(/[^/]+)?/?")


@functools.cache
def recorded() -> JSONDict:
    """Return the names of checks, the paths and the version document of a recorded apiserver."""
    content: JSONDict = json.loads((package_files.files("kubesim") / "data" / "nonresource.json").read_text())
    return content


def handle(call: Call) -> web.StreamResponse | None:
    """Answer a path of this module; return None for any other. Raises APIError 404, 405."""
    path = call.info.path
    if path.rstrip("/") in ("/api", "/apis"):
        return _serve_root(call)
    if _DISCOVERY.fullmatch(path):
        return _serve_group(call)
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


AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
STORED_AS = {("apiextensions.k8s.io", "customresourcedefinitions"): "apiextensions.k8s.io/v1beta1"}
NEVER_STORED = frozenset({"componentstatuses"})


def core_versions(host: str) -> JSONDict:
    """GET /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    }


def group_list(cluster: SimulatedCluster) -> JSONDict:
    """GET /apis."""
    registry = cluster.resources
    groups = [group for group in registry.groups() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(cluster, group) for group in groups]}


def _group(cluster: SimulatedCluster, group: str) -> JSONDict:
    versions = [{"groupVersion": f"{group}/{name}", "version": name} for name in cluster.resources.versions(group)]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def group(cluster: SimulatedCluster, name: str) -> JSONDict:
    """GET /apis/<group>. Raises the plain 404."""
    if not cluster.resources.versions(name):
        raise status.page_not_found()
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(cluster, name)}


def resource_list(cluster: SimulatedCluster, group_name: str, version: str) -> JSONDict:
    """GET /api/v1 or /apis/<group>/<version>. Raises either 404."""
    registry = cluster.resources
    found = registry.resources(group_name, version)
    if not found:
        if registry.is_builtin_group(group_name):
            raise status.no_such_resource()
        raise status.page_not_found()
    entries = [entry for info in found for entry in _entries(info)]
    if found[0].builtin:
        entries.sort(key=lambda entry: str(entry["name"]))
    head: JSONDict = {"kind": "APIResourceList"}
    if group_name:
        head["apiVersion"] = "v1"
    return {**head, "groupVersion": found[0].group_version, "resources": entries}


def _entries(info: ResourceInfo) -> list[JSONDict]:
    main: JSONDict = {
        "name": info.plural,
        "singularName": info.singular,
        "namespaced": info.namespaced,
        "kind": info.kind,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        main["shortNames"] = list(info.short_names)
    if info.categories:
        main["categories"] = list(info.categories)
    if "list" in info.verbs and info.plural not in NEVER_STORED:
        main["storageVersionHash"] = storage_version_hash(info)
    entries = [main]
    for sub in info.subresources:
        entry: JSONDict = {"name": f"{info.plural}/{sub.name}", "singularName": "", "namespaced": info.namespaced}
        if sub.version:
            entry.update({"group": sub.group, "version": sub.version} if sub.group else {"version": sub.version})
        entries.append({**entry, "kind": sub.kind, "verbs": list(sub.verbs)})
    return entries


def storage_version_hash(info: ResourceInfo) -> str:
    """Return the storageVersionHash (apiserver `discovery.StorageVersionHash`)."""
    group_version = f"{info.group}/{info.storage_version or info.version}"
    group_version = STORED_AS.get((info.group, info.plural), group_version)
    digest = hashlib.sha256(f"{group_version}/{info.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def aggregated(cluster: SimulatedCluster, *, core: bool) -> JSONDict:
    """The APIGroupDiscoveryList of /api or /apis."""
    registry = cluster.resources
    names = [""] if core else [name for name in registry.groups() if name]
    builtin = [name for name in names if registry.is_builtin_group(name)]
    custom = sorted(name for name in names if not registry.is_builtin_group(name))
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [_aggregated_group(cluster, name) for name in (*builtin, *custom)],
    }


def _aggregated_group(cluster: SimulatedCluster, name: str) -> JSONDict:
    registry = cluster.resources
    return {
        "metadata": {"name": name} if name else {},
        "versions": [
            {
                "version": version,
                "resources": [_aggregated_resource(info) for info in registry.resources(name, version)],
                "freshness": "Current",
            }
            for version in registry.versions(name)
        ],
    }


def _aggregated_resource(info: ResourceInfo) -> JSONDict:
    group_name, version = ("", "") if info.builtin else (info.group, info.version)
    entry: JSONDict = {
        "resource": info.plural,
        "responseKind": {"group": group_name, "version": version, "kind": info.kind},
        "scope": "Namespaced" if info.namespaced else "Cluster",
        "singularResource": info.singular,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        entry["shortNames"] = list(info.short_names)
    if info.categories:
        entry["categories"] = list(info.categories)
    if info.subresources:
        entry["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {"group": sub.group or group_name, "version": sub.version or version, "kind": sub.kind},
                "verbs": list(sub.verbs),
            }
            for sub in info.subresources
        ]
    return entry


def _wanted(clause: Clause) -> str:
    """Return "aggregated", "legacy" or "" (not served) for one entry of an Accept header."""
    if not clause.params.get("as"):
        served = any(media_types.matches(media_type, clause.media_type) for media_type in media_types.CUSTOM_TYPES)
        return "legacy" if served else ""
    is_v2 = clause.params.get("g") == "apidiscovery.k8s.io" and clause.params.get("v") == "v2"
    wanted = is_v2 and clause.params["as"] == "APIGroupDiscoveryList"
    return "aggregated" if wanted and media_types.matches(media_types.JSON, clause.media_type) else ""


def _serve_root(call: Call) -> web.StreamResponse:
    """Answer /api and /apis in the preferred form of the Accept header. Raises APIError 405, 406."""
    if call.request.method in ("HEAD", "OPTIONS"):
        raise status.method_not_allowed()
    core = call.info.path.rstrip("/") == "/api"
    if core and not call.cluster.resources.versions(""):  # an extension API server
        raise status.page_not_found()
    header = call.request.headers.get("Accept", "")
    choices = [_wanted(clause) for clause in media_types.clauses(header)] if header else ["legacy"]
    choice = next((choice for choice in choices if choice), "")
    if not choice:
        raise media_types.only_accepted()
    if choice == "legacy":
        host = call.request.host
        return document(call, core_versions(host) if core else group_list(call.cluster))
    return _aggregated_response(call, core=core)


def _aggregated_response(call: Call, *, core: bool) -> web.StreamResponse:
    body = _encoded(call.cluster, core=core)
    etag = f'"{hashlib.sha512(body).hexdigest().upper()}"'
    headers = {"Cache-Control": "public", "ETag": etag, "Vary": "Accept"}
    if call.request.headers.get("If-None-Match") == etag:
        return web.Response(status=304, headers=headers)
    return negotiation.finish(call.request, body, AGGREGATED, 200, headers)


def _encoded(cluster: SimulatedCluster, *, core: bool) -> bytes:
    """Return the document's bytes, cached until the resources change."""
    kept = cluster.state.setdefault("discovery", {})
    generation, body = kept.get(core, (-1, b""))
    if generation != cluster.resources.generation:
        body = status.dumps(aggregated(cluster, core=core)) + b"\n"
        kept[core] = (cluster.resources.generation, body)
    return bytes(body)


def _serve_group(call: Call) -> web.StreamResponse:
    """Answer /api/v1, /apis/<group> and /apis/<group>/<version>. Raises APIError 404, 405, 406."""
    if call.request.method != "GET":
        raise status.method_not_allowed()
    parts = call.info.path.strip("/").split("/")
    if parts[0] == "api":
        found = resource_list(call.cluster, "", parts[1])
    elif len(parts) == 2:
        found = group(call.cluster, parts[1])
    else:
        found = resource_list(call.cluster, parts[1], parts[2])
    header = call.request.headers.get("Accept", "")
    if header and not any(
        media_types.matches(media_type, clause.media_type)
        for clause in media_types.clauses(header)
        for media_type in media_types.CUSTOM_TYPES
    ):
        raise media_types.only_accepted()
    return document(call, found)


def document(call: Call, content: JSONDict, headers: dict[str, str] | None = None) -> web.StreamResponse:
    """Answer with a document that is neither sorted nor compressed."""
    media_type = negotiation.plain_type(call.request)
    body = negotiation.encode(content, media_type)
    return negotiation.finish(
        call.request, body, media_type, 200, {**negotiation.base_headers(call), **(headers or {})}
    )
