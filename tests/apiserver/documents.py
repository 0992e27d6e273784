"""What an API server says of its API: discovery in both forms, OpenAPI v3 and v2."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

JSONDict = dict[str, Any]
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True)
class Resource:
    """A resource of the group-version; each has the subresource `ping`."""

    name: str
    kind: str
    namespaced: bool = True
    text: str = ""
    """What its schema says of it."""

    @property
    def singular(self) -> str:
        return self.kind.lower()


def group(name: str, version: str) -> JSONDict:
    """Return an APIGroup, without kind and apiVersion as it stands in a list."""
    known = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [known], "preferredVersion": known}


def resource_list(group_version: str, resources: Iterable[Resource]) -> JSONDict:
    """Return an APIResourceList."""
    found: list[JSONDict] = []
    for each in resources:
        common = {"namespaced": each.namespaced, "kind": each.kind}
        found.append(
            {"name": each.name, "singularName": each.singular, **common, "verbs": VERBS, "shortNames": [each.name[:3]]}
        )
        found.append({"name": f"{each.name}/ping", "singularName": "", **common, "verbs": ["create", "get"]})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": found}


def group_discovery(name: str, version: str, resources: Iterable[Resource]) -> JSONDict:
    """Return an APIGroupDiscovery."""
    found: list[JSONDict] = []
    for each in resources:
        kind = {"group": name, "version": version, "kind": each.kind}
        ping = {"subresource": "ping", "responseKind": kind, "verbs": ["create", "get"]}
        found.append(
            {
                "resource": each.name,
                "responseKind": kind,
                "scope": "Namespaced" if each.namespaced else "Cluster",
                "singularResource": each.singular,
                "shortNames": [each.name[:3]],
                "verbs": VERBS,
                "subresources": [ping],
            }
        )
    versions = [{"version": version, "resources": found, "freshness": "Current"}]
    return {"metadata": {"name": name}, "versions": versions}


def _schemas(name: str, version: str, resources: Iterable[Resource], prefix: str) -> JSONDict:
    meta = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    names = {each: {"type": "string"} for each in ("name", "namespace", "resourceVersion", "uid", "creationTimestamp")}
    schemas: JSONDict = {
        meta: {"type": "object", "description": "ObjectMeta", "properties": {**names, "labels": labels}}
    }
    for each in resources:
        size = {"type": "integer", "description": f"how large a {each.singular} is"}
        color = {"type": "string", "description": "what it looks like"}
        described = each.text or f"{each.kind} is made by an API server of another make."
        schemas[f"{'.'.join(reversed(name.split('.')))}.{version}.{each.kind}"] = {
            "type": "object",
            "description": described,
            "properties": {
                "apiVersion": {"type": "string"},
                "kind": {"type": "string"},
                "metadata": {"$ref": f"{prefix}{meta}"}
                if "components" not in prefix
                else {"allOf": [{"$ref": f"{prefix}{meta}"}], "default": {}},
                "spec": {
                    "type": "object",
                    "description": "what is wanted",
                    "properties": {"size": size, "color": color},
                },
            },
            "x-kubernetes-group-version-kind": [{"group": name, "version": version, "kind": each.kind}],
        }
    return schemas


def _paths(name: str, version: str, resources: Iterable[Resource]) -> JSONDict:
    paths: JSONDict = {}
    for each in resources:
        scope = "/namespaces/{namespace}" if each.namespaced else ""
        kind = {"group": name, "version": version, "kind": each.kind}
        parameters = [{"name": known, "in": "query", "schema": {"type": "string"}} for known in _QUERY]
        write = {"parameters": parameters, "responses": {}, "x-kubernetes-group-version-kind": kind}
        collection = f"/apis/{name}/{version}{scope}/{each.name}"
        paths[collection] = {"post": {**write, "x-kubernetes-action": "post"}}
        paths[f"{collection}/{{name}}"] = {"patch": {**write, "x-kubernetes-action": "patch"}}
    return paths


_QUERY = ("dryRun", "fieldManager", "fieldValidation")


def openapi_v3(name: str, version: str, resources: Iterable[Resource]) -> bytes:
    """Return the document of the group-version."""
    resources = tuple(resources)
    document = {
        "openapi": "3.0.0",
        "info": {"title": name, "version": version},
        "paths": _paths(name, version, resources),
        "components": {"schemas": _schemas(name, version, resources, "#/components/schemas/")},
    }
    return json.dumps(document).encode()


def openapi_v3_index(name: str, version: str, document: bytes) -> JSONDict:
    """Return the list of documents."""
    path = f"apis/{name}/{version}"
    digest = hashlib.sha512(document).hexdigest().upper()
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}}}


def openapi_v2(name: str, version: str, resources: Iterable[Resource]) -> JSONDict:
    """Return the document of all."""
    definitions = _schemas(name, version, resources, "#/definitions/")
    info = {"title": name, "version": version}
    return {"swagger": "2.0", "info": info, "paths": {}, "definitions": definitions}
