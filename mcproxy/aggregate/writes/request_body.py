"""The body of a client's write, and its conversion for a member. Pure.

The cluster's label and annotation are removed, since the member's object has neither. The label is also removed from
inner maps of labels and selectors (`kubectl expose` copies a pod's labels into a selector, which would select nothing).
A resource version of the aggregate is replaced by the owner's part. Nothing else changes, in any encoding that clients
send. YAML that needs a change becomes JSON, which is also YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum

import msgspec
import yaml

from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL, CachedObject
from mcproxy.aggregate.writes.json_patch import edit_json_patch
from mcproxy.kube import json_edit, label_maps, protobuf, yaml_nodes
from mcproxy.kube.json_edit import MetadataEdit
from mcproxy.kube.media_types import BUILTIN_TYPES, JSON, PROTOBUF, YAML, unknown_format
from mcproxy.kube.nesting import TooDeep, refuse_deep
from mcproxy.kube.status import StatusError, unrecognized

JSON_PATCH = "application/json-patch+json"
APPLY_PATCHES = frozenset({"application/apply-patch+yaml", "application/apply-patch+cbor"})
_JSON = frozenset({JSON, "application/merge-patch+json", "application/strategic-merge-patch+json"})
_NULL_REMOVES = _JSON - {JSON}
_YAML = frozenset({YAML, "application/apply-patch+yaml"})
_READ_AS_JSON = _JSON | {JSON_PATCH}
_CBOR = frozenset({"application/cbor", "application/apply-patch+cbor"})
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LABEL_PATH = ("metadata", "labels", CLUSTER_LABEL)
_DELETE_DRY_RUN = 5  # protobuf field number in DeleteOptions
_DELETE_VERSION = ("preconditions", "resourceVersion")
_MOST_YAML = 256 * 1024
"""Maximum bytes of YAML that is parsed; PyYAML needs about 40 ms for this size."""
_OURS = (CLUSTER_LABEL.encode(), CLUSTER_ANNOTATION.encode(), b"resourceVersion")
"""Matches every body that may need a change."""


class BodyKind(Enum):
    """The kind of a body, according to where it can contain resource versions."""

    OBJECT = "object"
    """An object, a patch of an object, or a kind with its own ObjectMeta (Scale, Binding, TokenRequest)."""
    DELETE_OPTIONS = "DeleteOptions"
    EVICTION = "Eviction"


def is_apply(content_type: bytes | None) -> bool:
    """Whether a patch of this Content-Type is a server-side apply, which creates a missing object."""
    return _media_type(content_type) in APPLY_PATCHES


class RequestBody:
    """A complete request body with its media type."""

    __slots__ = ("_is_json", "_json", "content_type", "data", "media_type")

    def __init__(self, data: bytes, content_type: bytes | None) -> None:
        """`content_type` is the value of Content-Type; without this header, a kube-apiserver treats the body as JSON.

        Raises StatusError: 415 for CBOR, which cannot be edited here (the member refuses other unknown types), 400 for
        JSON that is nested more than 100 levels deep.
        """
        self.data = data
        self.content_type = content_type
        self.media_type = _media_type(content_type)
        if data and self.media_type in _CBOR:
            raise unknown_format(BUILTIN_TYPES)
        self._json: bytes | None = None
        self._is_json = self.media_type in _READ_AS_JSON or (self.media_type in _YAML and _looks_like_json(data))
        if self._is_json:
            try:
                refuse_deep(data)
            except TooDeep as error:
                raise _refused(error) from None

    @property
    def is_apply(self) -> bool:
        """Whether the body is a server-side apply, which creates a missing object."""
        return self.media_type in APPLY_PATCHES

    def cluster(self) -> str | None:
        """Return the cluster that the object's label names; None if it has no such label. Raises StatusError (400)."""
        label = None
        if not self.data or CLUSTER_LABEL.encode() not in self.data.replace(b"\\/", b"/"):
            return None
        try:
            if self.media_type == PROTOBUF:
                label = protobuf.metadata_of(self.data)[0].get(CLUSTER_LABEL)
            elif self._is_readable and self.media_type != JSON_PATCH:
                label = json_edit.string_at(self._as_json(), _LABEL_PATH)
        except json_edit.JSONLimitExceeded as error:
            raise _refused(error) from None
        except json_edit.MalformedJSON:
            return None  # the body is malformed; the member's answer will describe the error
        except protobuf.MalformedProtobuf as error:
            raise _malformed(error) from None
        return label or None

    def name(self) -> str:
        """Return the object's name, "" if it has none or cannot be read."""
        try:
            if self.media_type == PROTOBUF:
                return protobuf.name_of(self.data)
            return json_edit.string_at(self._as_json(), ("metadata", "name")) or ""
        except (json_edit.MalformedJSON, protobuf.MalformedProtobuf, StatusError):
            return ""

    def check_object(self, kind: str) -> None:
        """Raise StatusError for a body that is not an object, as a kube-apiserver does: 415 for an unknown media type,
        else 400. Use it for a body that is not sent to a member.
        """
        if self.media_type == PROTOBUF:
            try:
                protobuf.metadata_of(self.data)
            except protobuf.MalformedProtobuf as error:
                raise _malformed(error) from None
            return
        if self.media_type not in (JSON, YAML, *APPLY_PATCHES):
            raise unknown_format(BUILTIN_TYPES)
        try:
            _OBJECT.decode(self._as_json())
        except msgspec.ValidationError:
            raise unrecognized(kind, self.data, "it is no object") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            cut = not self.data.strip() or "truncated" in str(error)
            raise unrecognized(kind, self.data, "unexpected end of JSON input" if cut else str(error)) from None

    def for_member(
        self,
        member: str,
        owner_part: Callable[[str], str],
        kind: BodyKind = BodyKind.OBJECT,
        *,
        bare: Collection[str] = (),
    ) -> bytes:
        """Return the body for `member`; `owner_part` returns the member's part of a resource version.

        `bare` is as for `edit_json_patch`. Raises StatusError: 400 for an unreadable body, 413 for long YAML, and the
        errors of `owner_part`.
        """
        if not self.data:
            return b""
        edit = MetadataEdit({CLUSTER_LABEL: None}, {CLUSTER_ANNOTATION: None}, owner_part)
        try:
            if self.media_type == JSON_PATCH:
                return edit_json_patch(self.data, member, edit, bare=bare)
            if self._is_json or (self.media_type in _YAML and any(each in self.data for each in _OURS)):
                return self._edited_json(edit, owner_part, kind)
            if self.media_type == PROTOBUF:
                return self._edited_protobuf(edit, owner_part, kind)
        except json_edit.JSONLimitExceeded as error:
            raise _refused(error) from None
        except json_edit.MalformedJSON:
            pass  # the body is malformed; the member's answer will describe the error
        except protobuf.MalformedProtobuf as error:
            raise _malformed(error) from None
        return self.data

    def _edited_json(self, edit: MetadataEdit, change: Callable[[str], str], kind: BodyKind) -> bytes:
        if kind is BodyKind.DELETE_OPTIONS:
            return json_edit.change_string(self._as_json(), _DELETE_VERSION, change)
        edited = json_edit.edit_metadata(self._as_json(), edit)
        edited = label_maps.without(edited, CLUSTER_LABEL, keep_null=self.media_type in _NULL_REMOVES)
        if kind is BodyKind.EVICTION:
            edited = json_edit.change_string(edited, ("deleteOptions", *_DELETE_VERSION), change)
        return edited

    def _edited_protobuf(self, edit: MetadataEdit, change: Callable[[str], str], kind: BodyKind) -> bytes:
        if kind is BodyKind.DELETE_OPTIONS:
            return protobuf.change_string(self.data, protobuf.DELETE_OPTIONS_VERSION, change)
        edited = protobuf.edit_metadata(self.data, edit)
        envelope = protobuf.envelope(edited)
        if (envelope.api_version, envelope.kind) == ("v1", "Service"):
            edited = protobuf.without_entry(edited, protobuf.SERVICE_SELECTOR, CLUSTER_LABEL)
        if kind is BodyKind.EVICTION:
            edited = protobuf.change_string(edited, protobuf.EVICTION_VERSION, change)
        return edited

    @property
    def _is_readable(self) -> bool:
        return self._is_json or self.media_type in _YAML

    def _as_json(self) -> bytes:
        """Return JSON unchanged, and YAML as JSON. Raises StatusError (400, 413)."""
        if self._is_json or self.media_type not in _YAML:
            return self.data
        if self._json is None:
            self._json = _yaml_to_json(self.data)
        return self._json

    @property
    def is_dry_run(self) -> bool:
        """Whether the body is a DeleteOptions with dryRun, which changes nothing."""
        if self.media_type == PROTOBUF:
            return protobuf.encode_bytes(_DELETE_DRY_RUN, b"All") in self.data
        return b"dryRun" in self.data and b"All" in self.data


def without_marks(data: bytes, content_type: bytes | None, cluster: str) -> bytes:
    """Return the body of a write to a cluster whose objects are not cached, without the label and annotation of cached
    objects, which a client may have copied. Nothing else changes. Raises StatusError as `RequestBody`.
    """
    plain = data.replace(b"\\/", b"/").replace(b"~1", b"/")
    if CLUSTER_LABEL.encode() not in plain and CLUSTER_ANNOTATION.encode() not in plain:
        return data
    return RequestBody(data, content_type).for_member(cluster, lambda version: version)


def _looks_like_json(data: bytes) -> bool:
    """Whether data that begins like JSON is JSON, as nearly always, and not a YAML flow mapping."""
    if data.lstrip()[:1] != b"{":
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def _yaml_to_json(data: bytes) -> bytes:
    if len(data) > _MOST_YAML:
        raise StatusError(413, f"Request entity too large: limit of YAML is {_MOST_YAML}; send JSON")
    try:
        return yaml_nodes.to_json(data.decode())
    except yaml_nodes.RepeatedKey as error:
        raise StatusError(400, f"strict decoding error: yaml: unmarshal errors:\n  {error}") from None
    except yaml_nodes.YAMLLimitExceeded as error:
        raise StatusError(400, f"this YAML cannot be read here: {error}; send JSON") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise StatusError(400, f"error decoding YAML: {str(error)[:200]}") from None


def _media_type(content_type: bytes | None) -> str:
    return (content_type or b"").partition(b";")[0].strip().lower().decode("latin-1") or JSON


def _refused(error: ValueError) -> StatusError:
    return StatusError(400, f"the body of the request cannot be read: {error}")


def _malformed(error: ValueError) -> StatusError:
    return StatusError(400, f"the body of the request is no Kubernetes protobuf: {error}")


def bare_maps(cached: CachedObject | None) -> tuple[str, ...]:
    """Return the names of the maps (labels, annotations) that the member's own object lacks."""
    if cached is None:
        return ()
    found = ["labels"] if cached.labels.keys() == {CLUSTER_LABEL} else []
    # The cache's decoder writes this text for an object that has no annotations of its own.
    if b'"annotations":{"%b":"' % CLUSTER_ANNOTATION.encode() in cached.head + cached.tail and _annotations(
        cached.metadata_json(b"0")
    ) == [CLUSTER_ANNOTATION]:
        found.append("annotations")
    return tuple(found)


def _annotations(metadata: bytes) -> list[str]:
    """Return the names of the annotations in metadata; an empty list if there are too many to check."""
    try:
        for member in json_edit.members(metadata):
            if member.name == "annotations":
                return [each.name for each in json_edit.members(metadata, member.value, member.end)]
    except json_edit.MalformedJSON:
        pass
    return []
