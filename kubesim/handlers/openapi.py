"""The OpenAPI documents of a simulated cluster, as `kubectl explain`, `apply` and `edit` read them.

Documents are made from the definitions of schemas.py and the resources that are served, CRDs included. Types are
complete; paths have the verbs, the kinds and only the parameters that clients read (dryRun, fieldValidation).
Over HTTP (source: k8s.io/kube-openapi `handler3`):

* `/openapi/v3` answers `openapi_v3_root` (text/plain, as a kube-apiserver);
* `/openapi/v3/{path}` answers `openapi_v3(cluster, path)`; its ETag is `openapi_v3_hash` in quotes, and a `hash`
  parameter that differs from it is redirected to the right one;
* `/openapi/v2` answers `openapi_v2`. There is no protobuf form: clients that ask for it alone (kubectl before 1.27)
  get a 406.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kubesim.apimachinery import schemas, status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.handlers import openapi_paths
from kubesim.request.call import Call
from mcproxy.kube import media_types

if TYPE_CHECKING:
    from kubesim.cluster import SimulatedCluster

V3_PREFIX = "#/components/schemas/"
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
COMMON = tuple(META + name for name in ("APIResourceList", "DeleteOptions", "Patch", "Status", "WatchEvent"))
CRD_COMMON = tuple(META + name for name in ("DeleteOptions", "Patch", "Status"))
SECURITY = {
    "BearerToken": {
        "type": "apiKey",
        "description": "Bearer Token authentication",
        "name": "authorization",
        "in": "header",
    }
}


def path_of(group: str, version: str) -> str:
    """`api/v1` or `apis/apps/v1`."""
    return f"apis/{group}/{version}" if group else f"api/{version}"


def openapi_v3_root(cluster: SimulatedCluster) -> JSONDict:
    """Return the index: `serverRelativeURL` with a hash for each group-version."""
    paths = {path_of(group, version): _hash(cluster, group, version) for group, version in _group_versions(cluster)}
    paths.update({path: _other_hash(path) for path in _others(cluster)})
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={paths[path]}"} for path in sorted(paths)}}


def openapi_v3_hash(cluster: SimulatedCluster, group_version: str) -> str | None:
    """Return the hash in a document's URL and ETag; None for a group-version that is not served."""
    if group_version in _others(cluster):
        return _other_hash(group_version)
    group, version = _split(group_version)
    return _hash(cluster, group, version) if cluster.resources.resources(group, version) else None


def openapi_v3(cluster: SimulatedCluster, group_version: str) -> JSONDict | None:
    """The document of `apis/apps/v1`, `api/v1` (or just `apps/v1`, `v1`); None when it is not served.

    Documents are cached until a CRD changes; the caller must not change them.
    """
    if (answer := _others(cluster).get(group_version)) is not None:
        return _other_document(group_version, answer)
    group, version = _split(group_version)
    infos = cluster.resources.resources(group, version)
    if not infos:
        return None
    cache = _cache(cluster)
    key = path_of(group, version)
    if key not in cache:
        cache[key] = _document(group, version, infos)
    found: JSONDict = cache[key]
    return found


def openapi_v2(cluster: SimulatedCluster) -> JSONDict:
    """Return the Swagger 2.0 document of everything that is served. The caller must not change it."""
    cache = _cache(cluster)
    if "v2" not in cache:
        infos = list(cluster.resources)
        own: JSONDict = {}
        for info in infos:
            if not info.builtin:
                own.update(crd_definitions(info, version=2))
        definitions = {**{name: _v2(item) for name, item in schemas.definitions().items()}, **own}
        cache["v2"] = {
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": "1.36"},
            "paths": openapi_paths.paths(infos, definition_name, version=2),
            "definitions": {name: definitions[name] for name in sorted(definitions)},
            "securityDefinitions": SECURITY,
            "security": [{"BearerToken": []}],
        }
    found: JSONDict = cache["v2"]
    return found


def _others(cluster: SimulatedCluster) -> dict[str, str]:
    """Return the described paths outside of group-versions, and the definition of their response ("" for text)."""
    groups = [group for group in cluster.resources.groups() if group and cluster.resources.is_builtin_group(group)]
    return {
        ".well-known/openid-configuration": "",
        "openid/v1/jwks": "",
        "version": "io.k8s.apimachinery.pkg.version.Info",
        "api": f"{META}APIVersions",
        "apis": f"{META}APIGroupList",
        **{f"apis/{group}": f"{META}APIGroup" for group in groups},
    }


def _other_hash(path: str) -> str:
    return hashlib.sha512(path.encode()).hexdigest().upper()


def _other_document(path: str, answer: str) -> JSONDict:
    schema = {"$ref": V3_PREFIX + answer} if answer else {"type": "string"}
    good = {"description": "OK", "content": {"application/json": {"schema": schema}}}
    found = closure([], [answer])
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.36"},
        "paths": {f"/{path}/": {"get": {"responses": {"200": good, "401": {"description": "Unauthorized"}}}}},
        "components": {
            "schemas": {name: _v3_schema(schemas.definitions()[name]) for name in sorted(found)},
            "securitySchemes": SECURITY,
        },
    }


def _cache(cluster: SimulatedCluster) -> JSONDict:
    """Return the cluster's cache, which is cleared when the served resources have changed."""
    kept: JSONDict = cluster.state.setdefault("openapi", {})
    if kept.get("generation") != cluster.resources.generation:
        kept.clear()
        kept["generation"] = cluster.resources.generation
    return kept


def _split(group_version: str) -> tuple[str, str]:
    text = group_version.strip("/")
    for prefix in ("apis/", "api/"):
        text = text.removeprefix(prefix)
    group, _, version = text.rpartition("/")
    return group, version


def _group_versions(cluster: SimulatedCluster) -> list[tuple[str, str]]:
    registry = cluster.resources
    return [(group, version) for group in registry.groups() for version in registry.versions(group)]


def _hash(cluster: SimulatedCluster, group: str, version: str) -> str:
    """Hash the resources of a document, not its text, so that the index is cheap."""
    facts = [
        (info.plural, info.kind, info.verbs, [item.name for item in info.subresources], info.crd_version)
        for info in cluster.resources.resources(group, version)
    ]
    text = json.dumps([group, version, facts], sort_keys=True)
    return hashlib.sha512(text.encode()).hexdigest().upper()


def definition_name(info: ResourceInfo, kind: str = "") -> str:
    """Return the name of the definition of a resource's kind, or of another kind in its group-version."""
    kind = kind or info.kind
    found = schemas.definition_name(info.group, info.version, kind)
    return found or f"{'.'.join(reversed(info.group.split('.')))}.{info.version}.{kind}"


def _document(group: str, version: str, infos: list[ResourceInfo]) -> JSONDict:
    builtin = any(info.builtin for info in infos)
    own: JSONDict = {}
    for info in infos:
        if not info.builtin:
            own.update(crd_definitions(info, version=3))
    wanted = [name for info in infos for name in _names(info)] + list(COMMON if builtin else CRD_COMMON)
    found = closure([*own.values()], wanted)
    components = {name: _v3(schemas.definitions()[name], group) for name in found}
    components.update(own)
    document: JSONDict = {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "1.36"}
        if builtin
        else {"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
        "paths": openapi_paths.paths(infos, definition_name, version=3),
        "components": {"schemas": {name: components[name] for name in sorted(components)}},
    }
    if builtin:
        document["components"]["securitySchemes"] = SECURITY
    return document


def _names(info: ResourceInfo) -> list[str]:
    """Return the built-in definitions that a resource's paths refer to."""
    kinds = [(info.group, info.version, info.kind), (info.group, info.version, info.list_kind)]
    kinds += [(sub.group or info.group, sub.version or info.version, sub.kind) for sub in info.subresources]
    names = [schemas.definition_name(*kind) for kind in kinds]
    return [name for name in names if name]


def closure(roots: Iterable[Any], names: Iterable[str]) -> set[str]:
    """Return all definitions that some schemas and names refer to, directly or not."""
    known = schemas.definitions()
    found: set[str] = set()
    waiting = [*names, *(name for root in roots for name in _references(root))]
    while waiting:
        name = waiting.pop()
        if name in known and name not in found:
            found.add(name)
            waiting.extend(_references(known[name]))
    return found


def _references(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        own = [value["$ref"].rpartition("/")[2]] if isinstance(value.get("$ref"), str) else []
        return own + [name for item in value.values() for name in _references(item)]
    if isinstance(value, list):
        return [name for item in value for name in _references(item)]
    return []


def _v2(value: Any, *, named: bool = False) -> Any:
    """Return a definition in its v2 form, without defaults. `named`: the keys are field names."""
    if not isinstance(value, Mapping):
        return value
    return {
        key: _v2(item, named=key == "properties" and not named)
        for key, item in value.items()
        if named or key != "default"
    }


def _v3(definition: Mapping[str, Any], group: str) -> JSONDict:
    """Return a definition in its v3 form."""
    out = _v3_schema(definition)
    kinds = definition.get("x-kubernetes-group-version-kind", ())
    if len(kinds) > 1:
        out["x-kubernetes-group-version-kind"] = [item for item in kinds if item["group"] in ("", group)]
    return out


def _v3_schema(schema: Mapping[str, Any]) -> JSONDict:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        pointer = {"$ref": V3_PREFIX + reference.rpartition("/")[2]}
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return {**beside, "allOf": [pointer]} if beside else pointer
    out = dict(schema)
    if schema.get("format") == "int-or-string":
        del out["type"]
        out["oneOf"] = [{"type": "integer"}, {"type": "string"}]
    elif schema.get("type") == "string" and schema.get("description", "").startswith("Quantity is a fixed-point"):
        del out["type"]
        out["oneOf"] = [{"type": "string"}, {"type": "number"}]
    if "properties" in schema:
        out["properties"] = {key: _v3_schema(item) for key, item in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            out[key] = _v3_schema(schema[key])
    return out


def crd_definitions(info: ResourceInfo, *, version: int) -> JSONDict:
    """The definitions of a custom resource and of its list, in the form of OpenAPI `version`."""
    own = ((info.crd_version or {}).get("schema") or {}).get("openAPIV3Schema") or {}
    prefix = V3_PREFIX if version == 3 else schemas.PREFIX

    def reference(name: str, text: str) -> JSONDict:
        pointer = {"$ref": prefix + name}
        return {"description": text, "allOf": [pointer]} if version == 3 else {"description": text, **pointer}

    def kinds(kind: str) -> list[JSONDict]:
        return [{"group": info.group, "kind": kind, "version": info.version}]

    documented = schemas.definitions()["io.k8s.api.core.v1.ConfigMap"]["properties"]
    meta = {key: documented[key] for key in ("apiVersion", "kind")}
    name = definition_name(info)
    properties = own.get("properties", {})
    if version == 2:
        properties = {key: _v2(item) for key, item in properties.items()}
    properties = {
        **properties,
        **meta,
        "metadata": reference(schemas.OBJECT_META, documented["metadata"]["description"]),
    }
    item = {**own, "type": "object", "properties": dict(sorted(properties.items()))}
    item["x-kubernetes-group-version-kind"] = kinds(info.kind)
    more = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
    lists = {
        "description": f"{info.list_kind} is a list of {info.kind}",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": meta["apiVersion"],
            "items": {
                "description": f"List of {info.plural}. More info: {more}",
                "type": "array",
                "items": {"$ref": prefix + name},
            },
            "kind": meta["kind"],
            "metadata": reference(schemas.LIST_META, f"Standard list metadata. More info: {more}#types-kinds"),
        },
        "x-kubernetes-group-version-kind": kinds(info.list_kind),
    }
    return {name: item, definition_name(info, info.list_kind): lists}


GONE_IN_304 = ("Accept-Ranges", "Last-Modified")
MODIFIED = "Sat, 21 Nov 2026 09:00:00 GMT"


def handle(call: Call) -> web.StreamResponse:
    """Answer a path below /openapi/. Raises APIError 404, 405, 406."""
    if call.request.method not in ("GET", "HEAD"):
        raise status.method_not_allowed()
    path = call.info.path
    if path.rstrip("/") == "/openapi/v3":
        return _index(call)
    if path.startswith("/openapi/v3/"):
        return _answer_v3(call, path.removeprefix("/openapi/v3/").strip("/"))
    if path == "/openapi/v2":
        return _answer_v2(call)
    raise status.page_not_found()


def _send(call: Call, body: bytes, etag: str, headers: dict[str, str]) -> web.StreamResponse:
    """Respond as Go's http.ServeContent: Content-Length, ETag, Last-Modified, HEAD and If-None-Match."""
    quoted = f'"{etag}"'
    headers = {**headers, "ETag": quoted, "Last-Modified": MODIFIED, "Vary": "Accept", "Accept-Ranges": "bytes"}
    if call.request.headers.get("If-None-Match") == quoted:
        return web.Response(status=304, headers={key: headers[key] for key in headers if key not in GONE_IN_304})
    return web.Response(body=body, headers={"Content-Type": media_types.JSON, **headers})


def _of_v2(response: web.StreamResponse) -> web.StreamResponse:
    """Add the Vary header of the compressing handler that a real apiserver has before /openapi/v2."""
    del response.headers["Vary"]
    for value in ("Accept-Encoding", "Accept"):
        response.headers.add("Vary", value)
    return response


def _accepts_json(call: Call) -> bool:
    header = call.request.headers.get("Accept", "")
    return not header or any(
        media_types.matches(media_types.JSON, clause.media_type) for clause in media_types.clauses(header)
    )


def _empty(code: int, headers: dict[str, str]) -> web.StreamResponse:
    """Respond without a body."""
    return web.Response(status=code, headers=headers)


def _index(call: Call) -> web.StreamResponse:
    body = status.dumps(openapi_v3_root(call.cluster))
    headers = {"Cache-Control": "no-cache, private", "Content-Type": "text/plain; charset=utf-8"}
    return web.Response(body=body, headers={**headers, "Last-Modified": MODIFIED, "Accept-Ranges": "bytes"})


def _answer_v3(call: Call, group_version: str) -> web.StreamResponse:
    wanted = openapi_v3_hash(call.cluster, group_version)
    found = openapi_v3(call.cluster, group_version)
    if wanted is None or found is None:
        return _empty(404, {"Cache-Control": "no-cache, private"})
    sent = call.query.get("hash")
    if sent and sent != wanted:
        location = f"/openapi/v3/{group_version}?hash={wanted}"
        headers = {"Location": location, "ETag": f'"{wanted}"', "Cache-Control": "no-cache, private"}
        return web.Response(status=301, headers={**headers, "Vary": "Accept", "Content-Type": media_types.JSON})
    headers = {"Cache-Control": "no-cache, private"}
    if sent:
        expires = (call.cluster.now() + timedelta(days=365)).strftime("%a, %d %b %Y %H:%M:%S UTC")
        headers = {"Cache-Control": "public, immutable", "Expires": expires}
    return _send(call, _encoded(call, group_version, found), wanted, headers)


def _encoded(call: Call, key: str, content: JSONDict) -> bytes:
    """Return the bytes of a document, cached until the resources change."""
    kept = call.cluster.state.setdefault("openapi_routes", {})
    generation, body = kept.get(key, (-1, b""))
    if generation != call.cluster.resources.generation:
        body = status.dumps(content)
        kept[key] = (call.cluster.resources.generation, body)
    return bytes(body)


def _answer_v2(call: Call) -> web.StreamResponse:
    if not _accepts_json(call):
        return _of_v2(_empty(406, {"Cache-Control": "no-cache, private", "Vary": "Accept"}))
    body = _encoded(call, "v2", openapi_v2(call.cluster))
    etag = hashlib.sha512(body).hexdigest().upper()
    return _of_v2(_send(call, body, etag, {"Cache-Control": "no-cache, private"}))
