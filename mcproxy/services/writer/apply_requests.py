"""Converts planned writes to requests to an API server, and classifies its responses. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

import msgspec

from mcproxy.services.api_types import MANAGED_BY, MANAGER
from mcproxy.services.exports.object_keys import ObjectKey
from mcproxy.services.writer.differences import PlannedWrite, Verb

FIELD_MANAGER = "mcproxy"
_APPLY = (("content-type", "application/apply-patch+yaml"), ("accept", "application/json"))
_JSON = (("content-type", "application/json"), ("accept", "application/json"))
_MAX_MESSAGE = 300  # maximum of characters of a kept message


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A request to an API server."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def request_of(change: PlannedWrite, timeout: float) -> WriteRequest:
    """Return the request for a change. `timeout`: seconds after which the API server abandons the request too."""
    key = change.key
    root = f"/apis/{key.group}/{key.version}" if key.group else f"/api/{key.version}"
    path = f"{root}/namespaces/{quote(key.namespace)}/{key.resource}/{quote(key.name)}"
    limit = f"timeout={max(1, int(timeout))}s"
    if change.verb is Verb.DELETE:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": change.uid, "resourceVersion": change.version},
        }
        return WriteRequest("DELETE", f"{path}?{limit}", _JSON, json.dumps(options).encode())
    if change.verb is Verb.STATUS:
        path += "/status"
    assert change.body is not None
    metadata: dict[str, Any] = {**(change.body.get("metadata") or {}), "name": key.name, "namespace": key.namespace}
    metadata["resourceVersion"] = change.version
    if change.uid:
        metadata["uid"] = change.uid
    body = json.dumps({**change.body, "metadata": metadata}, separators=(",", ":")).encode()
    return WriteRequest("PATCH", f"{path}?fieldManager={FIELD_MANAGER}&{limit}", _APPLY, body)


def namespace_request(name: str, timeout: float) -> WriteRequest:
    """Return the request that creates a namespace, which mcproxy never changes or deletes."""
    made = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {MANAGED_BY: MANAGER}},
    }
    path = f"/api/v1/namespaces?fieldManager={FIELD_MANAGER}&timeout={max(1, int(timeout))}s"
    return WriteRequest("POST", path, _JSON, json.dumps(made).encode())


class WriteOutcome(Enum):
    """The meaning of a response."""

    DONE = "done"
    GONE = "gone"
    """The object whose deletion or status was written does not exist any more."""
    CONFLICT = "conflict"
    """The object has changed since it was read."""
    FIELD_CONFLICT = "field_conflict"
    """Another field manager owns a field that mcproxy applies; mcproxy never takes it over."""
    NO_NAMESPACE = "no_namespace"
    REFUSED = "refused"
    """The API server refuses the object; the write is retried much later."""
    FORBIDDEN = "forbidden"
    """The proxy lacks a right."""
    LATER = "later"
    """The API server is unavailable (429, 5xx), or does not accept the credential (401)."""


class _Metadata(msgspec.Struct):
    uid: str = ""
    resourceVersion: str = ""


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    kind: str = ""
    causes: list[_Cause] = []


class _Answer(msgspec.Struct):
    kind: str = ""
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    message: str = ""
    reason: str = ""
    details: _Details | None = None


_decoder = msgspec.json.Decoder(_Answer)


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The meaning of a response."""

    outcome: WriteOutcome
    uid: str = ""
    version: int = 0
    message: str = ""
    """The API server's message."""


def answer_of(change: PlannedWrite, status: int, body: bytes) -> WriteAnswer:
    """Return the meaning of a response; any body is accepted."""
    try:
        found = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _Answer()
    message = _printable(found.message) or f"answered {status}"
    if 200 <= status < 300:
        if change.verb is Verb.DELETE:
            return WriteAnswer(WriteOutcome.DONE, change.uid)
        uid, version = found.metadata.uid, found.metadata.resourceVersion
        if not uid or not version.isdecimal() or len(version) > 20:
            return WriteAnswer(WriteOutcome.LATER, message="the answer is not the object that was written")
        return WriteAnswer(WriteOutcome.DONE, uid, int(version))
    return WriteAnswer(_failed(change, status, found), message=message)


def _failed(change: PlannedWrite, status: int, found: _Answer) -> WriteOutcome:
    if status == 404:
        of_namespace = found.details is not None and found.details.kind == "namespaces"
        if change.verb in (Verb.DELETE, Verb.STATUS):
            return WriteOutcome.GONE
        return WriteOutcome.NO_NAMESPACE if of_namespace else WriteOutcome.REFUSED
    if status == 409:
        causes = found.details.causes if found.details is not None else ()
        if any(each.reason == "FieldManagerConflict" for each in causes):
            return WriteOutcome.FIELD_CONFLICT
        return WriteOutcome.CONFLICT
    if status == 403:
        if "because it is being terminated" in found.message:  # a namespace that is being deleted accepts no objects
            return WriteOutcome.NO_NAMESPACE
        # A refusal by an admission policy is 403 too, and concerns only this object.
        return (
            WriteOutcome.FORBIDDEN
            if " cannot " in found.message and 'User "' in found.message
            else WriteOutcome.REFUSED
        )
    if status == 401:
        return WriteOutcome.LATER
    if status == 422 and "metadata.uid" in found.message:
        return WriteOutcome.CONFLICT
    if status == 500 and "failed to create typed patch object" in found.message:
        return WriteOutcome.REFUSED  # a field that the cluster's schema lacks concerns only this object
    if status == 429 or status >= 500:
        return WriteOutcome.LATER
    return WriteOutcome.REFUSED


def lacks_families(message: str) -> bool:
    """Whether an API server refuses a Service because its cluster lacks its IP families (golden/services, 8)."""
    return "spec.ipFamilies[0]: Invalid value" in message and "not configured on this cluster" in message


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[:_MAX_MESSAGE])


def place_of(key: ObjectKey) -> str:
    """Return the name of an object for messages to operators."""
    return f"{key.resource} {key.namespace}/{key.name}"
