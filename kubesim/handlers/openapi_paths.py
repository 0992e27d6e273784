"""The `paths` of the OpenAPI documents: the verbs of resources and their kinds.

kubectl reads in them the kind of a resource (`explain`) and whether the server validates fields (the fieldValidation
parameter of PATCH and POST).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import JSONDict, ResourceInfo, Subresource

NameOf = Callable[..., str]
META = "io.k8s.apimachinery.pkg.apis.meta.v1."
PATCH_TYPES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
CUSTOM_PATCH_TYPES = PATCH_TYPES[:3]
"""Media types of patches of custom resources: kubectl reads here whether it may send a strategic merge patch."""
MEDIA_TYPES = ("application/json", "application/vnd.kubernetes.protobuf", "application/yaml")
WRITE_PARAMETERS = (
    ("dryRun", "string", "All: nothing is persisted."),
    ("fieldManager", "string", "The name of the actor that makes the changes."),
    (
        "fieldValidation",
        "string",
        "What is done with unknown or duplicate fields: Ignore, Warn (the default) or Strict.",
    ),
)
FORCE = ("force", "boolean", "Whether an apply takes fields over that other managers own.")
ITEM_VERBS = (("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete"))
ACTIONS = {"get": "get", "list": "list", "create": "post", "update": "put", "patch": "patch", "delete": "delete"}


def paths(infos: Iterable[ResourceInfo], name_of: NameOf, *, version: int) -> JSONDict:
    """The paths of some resources, in the form of OpenAPI `version` (2 or 3)."""
    out: JSONDict = {}
    for info in infos:
        base = f"/apis/{info.group}/{info.version}" if info.group else f"/api/{info.version}"
        if info.namespaced and "list" in info.verbs:
            out[f"{base}/{info.plural}"] = {"get": _operation(info, name_of, "list", version)}
        where = f"{base}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"{base}/{info.plural}"
        out[where] = _collection(info, name_of, version)
        item = {method: _operation(info, name_of, verb, version) for verb, method in ITEM_VERBS if verb in info.verbs}
        if item:
            out[f"{where}/{{name}}"] = item
        for sub in info.subresources:
            operations = {
                ACTIONS[verb]: _operation(info, name_of, verb, version, sub=sub)
                for verb in sub.verbs
                if verb in ACTIONS and _answer(info, name_of, verb, sub)
            }
            if operations:
                out[f"{where}/{{name}}/{sub.name}"] = operations
    return {path: out[path] for path in sorted(out) if out[path]}


def _collection(info: ResourceInfo, name_of: NameOf, version: int) -> JSONDict:
    verbs = {"list": "get", "create": "post", "deletecollection": "delete"}
    return {method: _operation(info, name_of, verb, version) for verb, method in verbs.items() if verb in info.verbs}


def _operation(
    info: ResourceInfo, name_of: NameOf, verb: str, version: int, *, sub: Subresource | None = None
) -> JSONDict:
    kind = sub.kind if sub else info.kind
    group = (sub.group or info.group) if sub else info.group
    kind_version = (sub.version or info.version) if sub else info.version
    answer = _answer(info, name_of, verb, sub)
    out: JSONDict = {
        "parameters": _parameters(verb, answer, version),
        **_bodies(verb, answer, version, PATCH_TYPES if info.builtin else CUSTOM_PATCH_TYPES),
        "x-kubernetes-action": {"create": "post", "update": "put"}.get(verb, verb),
        "x-kubernetes-group-version-kind": {"group": group, "version": kind_version, "kind": kind},
    }
    return {key: value for key, value in out.items() if value != []}


def _answer(info: ResourceInfo, name_of: NameOf, verb: str, sub: Subresource | None) -> str:
    """Return the definition of an operation's response; "" for one that is not described (streams)."""
    if verb in ("delete", "deletecollection"):
        return META + "Status"
    if sub is not None:
        if sub.kind == info.kind:
            return name_of(info, "")
        return schemas.definition_name(sub.group or info.group, sub.version or info.version, sub.kind) or ""
    return name_of(info, info.list_kind if verb == "list" else "")


def _parameters(verb: str, answer: str, version: int) -> list[JSONDict]:
    wanted = list(WRITE_PARAMETERS) if verb in ("create", "update", "patch") else []
    if verb == "patch":
        wanted.append(FORCE)
    if version == 3:
        return [
            {"name": name, "in": "query", "description": text, "schema": {"type": kind, "uniqueItems": True}}
            for name, kind, text in wanted
        ]
    out: list[JSONDict] = [
        {"uniqueItems": True, "type": kind, "description": text, "name": name, "in": "query"}
        for name, kind, text in wanted
    ]
    if verb in ("create", "update", "patch"):
        body = META + "Patch" if verb == "patch" else answer
        out.insert(0, {"name": "body", "in": "body", "required": True, "schema": {"$ref": f"#/definitions/{body}"}})
    return out


def _bodies(verb: str, answer: str, version: int, patch_types: tuple[str, ...]) -> JSONDict:
    """Return requestBody and responses (v3), or consumes, produces and responses (v2)."""
    if version == 2:
        good = {"description": "OK", "schema": {"$ref": f"#/definitions/{answer}"}}
        return {
            "consumes": list(patch_types) if verb == "patch" else ["*/*"],
            "produces": list(MEDIA_TYPES),
            "schemes": ["https"],
            "responses": {"200": good, "401": {"description": "Unauthorized"}},
        }
    reference = {"schema": {"$ref": f"#/components/schemas/{answer}"}}
    good = {"description": "OK", "content": dict.fromkeys(MEDIA_TYPES, reference)}
    out: JSONDict = {}
    if verb == "patch":
        patch = {"schema": {"$ref": f"#/components/schemas/{META}Patch"}}
        out["requestBody"] = {"content": dict.fromkeys(patch_types, patch), "required": True}
    elif verb in ("create", "update"):
        out["requestBody"] = {"content": {"*/*": reference}, "required": True}
    return {**out, "responses": {"200": good, "401": {"description": "Unauthorized"}}}
