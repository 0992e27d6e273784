"""Decoding of request bodies: kind and version are checked, unknown fields as fieldValidation demands."""

from __future__ import annotations

from typing import Any

import yaml

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import ResourceInfo
from kubesim.handlers.write_options import WriteOptions
from kubesim.patch import patches
from kubesim.registry import service_validation, strict_decoding
from kubesim.request import negotiation
from kubesim.request.call import Call

JSONDict = dict[str, Any]


async def read(call: Call, write: WriteOptions) -> JSONDict:
    """Return the body as an object of the call's resource, without unknown fields.

    Raises APIError 400 for a body that cannot be decoded or is of another kind, and for unknown fields with Strict.
    """
    obj = await negotiation.read_object(call)
    check_type(call.target, obj)
    body = await negotiation.read_body(call)
    is_json = body[:1] == b"{"
    call.warnings += strict_decoding.decode(call.target, obj, body if is_json else b"", write.field_validation)
    return obj


def check_type(resource: ResourceInfo, obj: JSONDict) -> None:
    """Check that the object is of the path's kind and version. Raises APIError 400."""
    version, kind = obj.get("apiVersion"), obj.get("kind")
    if version and version != resource.group_version:
        raise status.bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({resource.group_version})"
        )
    if kind and kind != resource.kind:
        group = resource.group or "core"
        raise status.bad_request(
            f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: converting '
            f"({resource.version}.{kind}) to ({group}.{resource.kind}): unknown conversion"
        )
    if resource.storage == ("coordination.k8s.io", "leases"):
        service_validation.check_times(obj)


def _check_typed(resource: ResourceInfo, config: JSONDict) -> None:
    """Refuse unknown fields of an apply configuration, whatever `fieldValidation` says. Raises APIError 500."""
    found = [
        f".{name.split(chr(34))[1]}: field not declared in schema"
        for name in strict_decoding.unknown_fields(resource, config)
    ]
    if not found:
        return
    metadata = config.get("metadata") or {}
    where = (
        f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {resource.group_version}, Kind={resource.kind}"
    )
    text = found[0] if len(found) == 1 else "errors:\n" + "\n".join(f"  {each}" for each in found)
    raise status.APIError(500, "", f"failed to create typed patch object ({where}): {text}")


def check_patched(call: Call, write: WriteOptions, body: bytes, kind: str, patched: JSONDict) -> None:
    """Check that a patch left kind and version alone; unknown fields are dropped, warned of or refused.

    Raises APIError 400.
    """
    check_type(call.target, patched)
    sent = body if kind in (patches.MERGE_PATCH, patches.STRATEGIC_PATCH) else b""
    name = (patched.get("metadata") or {}).get("name")
    if name and name != call.info.name:
        raise status.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({call.info.name})"
        )
    if kind == patches.APPLY_PATCH:
        _check_typed(call.target, yaml.safe_load(body))
    call.warnings += strict_decoding.decode(call.target, patched, sent, write.field_validation)
