"""Decoding of request bodies: kind and version are checked, unknown fields as fieldValidation demands."""

from __future__ import annotations

from typing import Any

import yaml

from mcproxy.demo.apimachinery import status
from mcproxy.demo.apimachinery.resources import ResourceInfo
from mcproxy.demo.handlers.write_options import WriteOptions
from mcproxy.demo.patch import patches
from mcproxy.demo.registry import strict_decoding
from mcproxy.demo.request import negotiation
from mcproxy.demo.request.call import Call

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


def check_patched(call: Call, write: WriteOptions, body: bytes, kind: str, patched: JSONDict) -> None:
    """Check that a patch left kind and version alone; unknown fields are dropped, warned of or refused.

    Raises APIError 400.
    """
    check_type(call.target, patched)
    sent = body if kind in (patches.MERGE_PATCH, patches.STRATEGIC_PATCH) else b""
    if kind == patches.APPLY_PATCH and write.field_validation != "Ignore":
        config = yaml.safe_load(body)
        found = strict_decoding.unknown_fields(call.target, config) if isinstance(config, dict) else []
        if found and write.field_validation == "Strict":
            raise status.bad_request(f"failed to create typed patch object: {', '.join(found)}")
    call.warnings += strict_decoding.decode(call.target, patched, sent, write.field_validation)
