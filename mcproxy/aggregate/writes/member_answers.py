"""Rewrites a member's answer to a write for the client. Pure.

An object carries the cluster's label and annotation, and a resource version of the aggregate. A Status stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL, MAX_OBJECT_BYTES
from mcproxy.kube import json_edit, protobuf
from mcproxy.kube.media_types import JSON, PROTOBUF
from mcproxy.kube.metadata_edit import MetadataEdit
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.request import MemberResponse

_MAX_DIGITS = 20


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    deletion: str | None = msgspec.field(name="deletionTimestamp", default=None)
    grace: int | None = msgspec.field(name="deletionGracePeriodSeconds", default=None)
    finalizers: list[str] | None = None


class _Details(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Inner(msgspec.Struct):
    metadata: _Metadata | None = None


class _Row(msgspec.Struct):
    object: _Inner | None = None


class _Answer(msgspec.Struct):
    kind: str = ""
    metadata: _Metadata | None = None
    details: _Details | None = None
    rows: list[_Row] | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


class WrittenObject(msgspec.Struct, frozen=True):
    """What a member's answer to a write says of the object; "" and 0 for what it does not say."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    version: int = 0
    stays: bool = False
    """It was deleted, and goes only when its finalizers, or its grace period, are over."""

    @property
    def is_status(self) -> bool:
        return self.kind == "Status"


def read(answer: MemberResponse) -> WrittenObject:
    """Read an answer; one that cannot be read says nothing."""
    if len(answer.body) > MAX_OBJECT_BYTES:
        return WrittenObject()
    try:
        if media_type(answer) == PROTOBUF:
            return _read_protobuf(answer.body)
        if media_type(answer) != JSON:
            return WrittenObject()
        found = _ANSWER.decode(answer.body)
    except (msgspec.MsgspecError, protobuf.Malformed, UnicodeDecodeError, RecursionError):
        return WrittenObject()
    if found.kind == "Status":
        details = found.details or _Details()
        return WrittenObject("Status", details.name, details.uid)
    metadata = found.metadata or _Metadata()
    if found.rows:
        inner = found.rows[0].object
        metadata = (inner.metadata if inner is not None else None) or metadata
    stays = metadata.deletion is not None and bool(metadata.finalizers or metadata.grace)
    return WrittenObject(found.kind, metadata.name, metadata.uid, version_number(metadata.resource_version), stays)


def _read_protobuf(body: bytes) -> WrittenObject:
    kind = protobuf.envelope(body).kind
    if kind == "Status":
        return WrittenObject("Status")
    # Whether it stays is in fields that are not read: the version is waited for then.
    return WrittenObject(kind, version=version_number(protobuf.metadata_of(body)[1]), stays=True)


def edited(answer: MemberResponse, version: Callable[[int], str]) -> bytes:
    """Return the body of an answer for the client; `version` makes the aggregate's version of a member's.

    Raises StatusError (502) for an answer that cannot be read.
    """
    member = answer.member

    def change(text: str) -> str:
        number = version_number(text)
        return version(number) if number else text

    if len(answer.body) > MAX_OBJECT_BYTES:
        raise StatusError(502, f'cluster "{member}" answered with an object that is too large', reason="BadGateway")
    edit = MetadataEdit({CLUSTER_LABEL: member}, {CLUSTER_ANNOTATION: member}, change)
    try:
        if media_type(answer) == PROTOBUF:
            if protobuf.envelope(answer.body).kind == "Status":
                return answer.body
            return protobuf.edit_metadata(answer.body, edit)
        if media_type(answer) != JSON:
            return answer.body
        kind = json_edit.string_at(answer.body, ("kind",))
        if kind == "Status":
            return answer.body
        if kind == "Table":
            table = json_edit.edit_metadata(answer.body, MetadataEdit(resource_version=change))
            return json_edit.edit_rows(table, edit)
        return json_edit.edit_metadata(answer.body, edit)
    except (json_edit.Malformed, protobuf.Malformed) as error:
        raise StatusError(
            502, f'cluster "{member}" answered with what cannot be read: {error}', reason="BadGateway"
        ) from None


def media_type(answer: MemberResponse) -> str:
    """Return the media type of an answer, without parameters."""
    return (answer.header(b"content-type") or b"").partition(b";")[0].strip().lower().decode("latin-1")


def version_number(text: str) -> int:
    """Return a member's own resource version, 0 for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else 0
