"""PATCH: the content type selects one of four kinds of patch."""

from __future__ import annotations

import copy
import json
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.status import APIError, bad_request, not_found, unsupported_media_type
from kubesim.patch import json_patch, server_side_apply, strategic_merge

JSONDict = dict[str, Any]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def media_type(content_type: str) -> str:
    """Return a Content-Type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def check_media_type(content_type: str, resource: ResourceInfo) -> str:
    """Return the kind of patch. Raises APIError 415, in two forms, as a real server."""
    kind = media_type(content_type)
    if kind == STRATEGIC_PATCH and not resource.builtin:
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH, APPLY_PATCH))
    if kind not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH):
        raise APIError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    return kind


def apply_patch(
    current: JSONDict | None,
    body: bytes,
    content_type: str,
    *,
    resource: ResourceInfo,
    field_manager: str,
    force: bool,
    now: str,
    subresource: str = "",
) -> JSONDict:
    """Return the patched object; `current` is not changed and shares nothing with it.

    Only an apply patch may create (`current` None). `subresource` is that of the object to which it is applied.

    An apply patch sets managedFields itself; after any other the caller calls `managed_fields.update`. `now` is an RFC
    3339 time of whole seconds. Raises APIError: 400 (body), 404 (no object), 409 (apply conflict), 415, 422.
    """
    kind = check_media_type(content_type, resource)
    current = copy.deepcopy(current)
    if kind == APPLY_PATCH:
        config = server_side_apply.load_yaml(body)
        return server_side_apply.apply(
            current,
            config,
            resource=resource,
            manager=field_manager,
            force=force,
            now=now,
            subresource=subresource,
        )
    if current is None:
        raise not_found(resource.group, resource.plural, "")
    patch = decode(body)
    if kind == JSON_PATCH:
        patched = json_patch.json_patch(current, patch)
    elif not isinstance(patch, dict):
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {json_patch.go_kind(patch)} into Go value of type "
            "map[string]interface {}"
        )
    elif kind == MERGE_PATCH:
        patched = json_patch.merge_patch(current, patch)
    else:
        patched = strategic_merge.merge(schemas.of(resource), current, patch)
    if not isinstance(patched, dict):
        raise bad_request("error decoding patch: the result is not an object")
    return patched


def decode(body: bytes) -> Any:
    """Decode a patch's JSON. Raises APIError 400 with Go's message."""
    try:
        return json.loads(body)
    except UnicodeDecodeError as error:
        raise bad_request("error decoding patch: invalid UTF-8") from error
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos :]
        found = f"invalid character '{rest[0]}' looking for beginning of value" if rest.strip() else ""
        raise bad_request(f"error decoding patch: {found or 'unexpected end of JSON input'}") from error
