"""What a write sends: its options and its object, checked as Kubernetes does.

CreateOptions, UpdateOptions, PatchOptions and DeleteOptions are checked as by apimachinery `meta/v1/validation`; for
the object, kind and version are checked, and unknown fields as fieldValidation demands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from kubesim.apimachinery import status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.status import (
    StatusCause,
    field_forbidden,
    field_not_supported,
    field_required,
    field_too_long,
)
from kubesim.registry import patches, schema_validation, services
from kubesim.registry.deletion import DeleteOptions
from kubesim.request import negotiation
from kubesim.request.call import Call
from mcproxy.kube import media_types
from mcproxy.kube.query_parameters import boolean, integer

PROPAGATIONS = ("Foreground", "Background", "Orphan")


@dataclass(frozen=True)
class WriteOptions:
    """Options of create, update and patch; `field_validation` is Ignore, Warn (the default) or Strict."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False


def _dry_run_causes(values: list[str]) -> list[StatusCause]:
    if not [value for value in values if value] or values == ["All"]:
        return []
    return [field_not_supported("dryRun", values, ("All",))]


def write_options(query: Mapping[str, str], kind: str, *, applying: bool = False) -> WriteOptions:
    """Parse and validate; `kind` is the options' kind in messages. Raises APIError 422."""
    dry_run = query.get("dryRun", "")
    manager = query.get("fieldManager", "")
    validation = query.get("fieldValidation", "")
    force = boolean(query.get("force"))
    causes = []
    if applying and not manager:
        causes.append(field_required("fieldManager", "is required for apply patch"))
    if force and not applying and kind == "PatchOptions":
        causes.append(field_forbidden("force", "may not be specified for non-apply patch"))
    if len(manager) > 128:
        causes.append(field_too_long("fieldManager", 128))
    causes += _dry_run_causes([dry_run] if dry_run else [])
    if validation not in ("", "Ignore", "Warn", "Strict"):
        causes.append(field_not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
    if causes:
        raise status.invalid("meta.k8s.io", kind, "", causes)
    return WriteOptions(bool(dry_run), manager, validation or "Warn", force)


async def delete_options(call: Call) -> tuple[DeleteOptions, bool]:
    """Return (options, dry run) of a DELETE, from its body, or without one from its query. Raises APIError 400, 422."""
    query = call.query
    content_type = (call.request.headers.get("Content-Type") or media_types.JSON).partition(";")[0]
    body = await negotiation.read_body(call)
    sent: JSONDict = {}
    if body:
        if content_type not in media_types.BUILTIN_TYPES:
            raise status.unsupported_media_type(media_types.BUILTIN_TYPES)
        sent = await negotiation.read_object(call, kind="DeleteOptions")
    else:
        if query.get("gracePeriodSeconds"):
            sent["gracePeriodSeconds"] = integer(query["gracePeriodSeconds"])
        if query.get("dryRun"):
            sent["dryRun"] = [query["dryRun"]]
    _check_delete(sent)
    preconditions = sent.get("preconditions") or {}
    options = DeleteOptions(
        grace=sent.get("gracePeriodSeconds"),
        propagation=sent.get("propagationPolicy") or "",
        orphan_dependents=sent.get("orphanDependents"),
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
    )
    return options, bool(sent.get("dryRun"))


def _check_delete(sent: JSONDict) -> None:
    causes = []
    policy = sent.get("propagationPolicy")
    if policy and sent.get("orphanDependents") is not None:
        text = f"Invalid value: {policy}: orphanDependents and deletionPropagation cannot be both set"
        causes.append(StatusCause("FieldValueInvalid", text, "propagationPolicy"))
    elif policy and policy not in PROPAGATIONS:
        causes.append(field_not_supported("propagationPolicy", policy, (*PROPAGATIONS, "nil")))
    causes += _dry_run_causes(list(sent.get("dryRun") or ()))
    if causes:
        raise status.invalid("meta.k8s.io", "DeleteOptions", "", causes)


async def read(call: Call, write: WriteOptions) -> JSONDict:
    """Return the body as an object of the call's resource, without unknown fields.

    Raises APIError 400 for a body that cannot be decoded or is of another kind, and for unknown fields with Strict.
    """
    obj = await negotiation.read_object(call)
    check_type(call.target, obj)
    body = await negotiation.read_body(call)
    is_json = body[:1] == b"{"
    call.warnings += schema_validation.decode_strictly(
        call.target, obj, body if is_json else b"", write.field_validation
    )
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
        services.check_times(obj)


def _check_typed(resource: ResourceInfo, config: JSONDict) -> None:
    """Refuse unknown fields of an apply configuration, whatever `fieldValidation` says. Raises APIError 500."""
    found = [
        f".{name.split(chr(34))[1]}: field not declared in schema"
        for name in schema_validation.unknown_fields(resource, config)
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
    call.warnings += schema_validation.decode_strictly(call.target, patched, sent, write.field_validation)
