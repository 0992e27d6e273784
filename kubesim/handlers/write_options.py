"""CreateOptions, UpdateOptions, PatchOptions and DeleteOptions from a request, checked as Kubernetes does.

Source: apimachinery `meta/v1/validation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubesim.apimachinery import status
from kubesim.apimachinery.status import Cause
from kubesim.registry.deletion import DeleteOptions
from kubesim.request import negotiation
from kubesim.request.call import Call
from mcproxy.kube import media_types
from mcproxy.kube.query_parameters import boolean, integer

JSONDict = dict[str, Any]

PROPAGATIONS = ("Foreground", "Background", "Orphan")


@dataclass(frozen=True)
class WriteOptions:
    """Options of create, update and patch; `field_validation` is Ignore, Warn (the default) or Strict."""

    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Warn"
    force: bool = False


def _dry_run_causes(values: list[str]) -> list[Cause]:
    if not [value for value in values if value] or values == ["All"]:
        return []
    shown = "[" + ", ".join(f'"{value}"' for value in values) + "]"
    return [Cause("FieldValueNotSupported", f'Unsupported value: {shown}: supported values: "All"', "dryRun")]


def write_options(query: Mapping[str, str], kind: str, *, applying: bool = False) -> WriteOptions:
    """Parse and validate; `kind` is the options' kind in messages. Raises APIError 422."""
    dry_run = query.get("dryRun", "")
    manager = query.get("fieldManager", "")
    validation = query.get("fieldValidation", "")
    force = boolean(query.get("force"))
    causes = []
    if applying and not manager:
        text = "Required value: is required for apply patch"
        causes.append(Cause("FieldValueRequired", text, "fieldManager"))
    if force and not applying and kind == "PatchOptions":
        causes.append(Cause("FieldValueForbidden", "Forbidden: may not be specified for non-apply patch", "force"))
    if len(manager) > 128:
        causes.append(Cause("FieldValueTooLong", "Too long: may not be more than 128 bytes", "fieldManager"))
    causes += _dry_run_causes([dry_run] if dry_run else [])
    if validation not in ("", "Ignore", "Warn", "Strict"):
        supported = '"", "Ignore", "Strict", "Warn"'
        text = f'Unsupported value: "{validation}": supported values: {supported}'
        causes.append(Cause("FieldValueNotSupported", text, "fieldValidation"))
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
        if query.get("propagationPolicy"):
            sent["propagationPolicy"] = query["propagationPolicy"]
        if "orphanDependents" in query:
            sent["orphanDependents"] = boolean(query["orphanDependents"])
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
        causes.append(Cause("FieldValueInvalid", text, "propagationPolicy"))
    elif policy and policy not in PROPAGATIONS:
        supported = '"Foreground", "Background", "Orphan", "nil"'
        text = f'Unsupported value: "{policy}": supported values: {supported}'
        causes.append(Cause("FieldValueNotSupported", text, "propagationPolicy"))
    causes += _dry_run_causes(list(sent.get("dryRun") or ()))
    if causes:
        raise status.invalid("meta.k8s.io", "DeleteOptions", "", causes)
