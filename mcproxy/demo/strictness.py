"""What is checked of a body before it becomes an object: its kind and version, and unknown fields (fieldValidation)."""

from __future__ import annotations

from typing import Any

from mcproxy.demo import negotiate, patches, status
from mcproxy.demo.call import Call
from mcproxy.demo.options import WriteOptions
from mcproxy.demo.resources import ResourceInfo

JSONDict = dict[str, Any]


async def read(call: Call, write: WriteOptions) -> tuple[bytes, JSONDict]:
    """(body, object). Raises APIError 400 for what cannot be read, or unknown fields if they are to be refused."""
    obj = await negotiate.read_object(call)
    body = await negotiate.read_body(call)
    return body, obj


def check_type(resource: ResourceInfo, obj: JSONDict) -> None:
    """Whether the object is of the path's kind and version. Raises APIError 400."""
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
    """A patch may not change what the object is. Raises APIError 400."""
    check_type(call.target, patched)
    if kind != patches.APPLY_PATCH:
        return
