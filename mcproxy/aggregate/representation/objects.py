"""One object in each representation, and the envelopes of lists, byte for byte as a kube-apiserver writes them.

Custom resources are written with sorted keys and with kind and apiVersion in every item; built-in ones with Go's order
of fields and without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mcproxy.aggregate.selection import scalar_at
from mcproxy.kube.media_types import Accepted
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.object import CachedObject

TABLE, PARTIAL, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
NONE, METADATA, OBJECT = "None", "Metadata", "Object"

_PHASES = (
    (
        "Succeeded",
        b',"conditions":[{"type":"Completed","status":"True","reason":"Succeeded",'
        b'"message":"The pod has completed successfully."}]',
    ),
    (
        "Failed",
        b',"conditions":[{"type":"Completed","status":"True","reason":"Failed","message":"The pod failed."}]',
    ),
)


@dataclass(frozen=True, slots=True)
class Representation:
    """What a client asks for: `kind` is "" (the objects themselves), TABLE, PARTIAL or PARTIAL_LIST.

    `version` is that of meta.k8s.io, `include_object` NONE, METADATA or OBJECT (of a Table's rows).
    """

    kind: str = ""
    version: str = "v1"
    include_object: str = METADATA

    @property
    def api_version(self) -> bytes:
        """The apiVersion of a Table or PartialObjectMetadata."""
        return b"meta.k8s.io/" + self.version.encode()


def representation(accepted: Accepted, include_object: str) -> Representation:
    """Return what was negotiated; `include_object` is the query parameter. Raises StatusError 400."""
    if accepted.kind == TABLE and include_object not in ("", NONE, METADATA, OBJECT):
        raise StatusError(
            400,
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{include_object}": '
            "must be 'Metadata', 'Object', 'None', or empty",
            indented=True,
        )
    included = include_object if accepted.kind == TABLE and include_object else METADATA
    return Representation(accepted.kind, accepted.version or "v1", included)


def partial_object(obj: CachedObject, resource_version: bytes, api_version: bytes = b"meta.k8s.io/v1") -> bytes:
    """Return the PartialObjectMetadata of an object."""
    return b"".join(
        (
            b'{"kind":"PartialObjectMetadata","apiVersion":"',
            api_version,
            b'","metadata":',
            obj.metadata_json(resource_version),
            b"}",
        )
    )


def table_row(cells: bytes, obj: bytes, conditions: bytes = b"") -> bytes:
    """Return a row of a Table; `obj` is JSON ("null" with includeObject=None)."""
    return b"".join((b'{"cells":', cells, conditions, b',"object":', obj, b"}"))


def row_conditions(obj: CachedObject) -> bytes:
    """Return the conditions of a pod's row, with a comma before them; b"" for a pod that has not ended."""
    for phase, conditions in _PHASES:
        if b'"%b"' % phase.encode() in obj.tail and (
            scalar_at(obj.json(b"", b"%d" % obj.version), ("status", "phase")) == phase
        ):
            return conditions
    return b""


def row_object(obj: CachedObject, resource_version: bytes, type_prefix: bytes, wanted: Representation) -> bytes:
    """Return what stands in `object` of a row."""
    if wanted.include_object == NONE:
        return b"null"
    if wanted.include_object == OBJECT:
        return obj.json(type_prefix, resource_version)
    return partial_object(obj, resource_version, wanted.api_version)


@dataclass(frozen=True, slots=True)
class ListMeta:
    """The metadata of a list; `remaining` is None where remainingItemCount is left out."""

    resource_version: str
    continue_token: str = ""
    remaining: int | None = None

    def json(self) -> bytes:
        """Return it in Go's order of fields."""
        text = b'{"resourceVersion":' + _text(self.resource_version)
        if self.continue_token:
            text += b',"continue":' + _text(self.continue_token)
        if self.remaining is not None:
            text += b',"remainingItemCount":%d' % self.remaining
        return text + b"}"

    def sorted_json(self) -> bytes:
        """Return it as in lists of custom resources: sorted, always with `continue`."""
        text = b'{"continue":' + _text(self.continue_token)
        if self.remaining is not None:
            text += b',"remainingItemCount":%d' % self.remaining
        return text + b',"resourceVersion":' + _text(self.resource_version) + b"}"


def envelope(
    wanted: Representation,
    metadata: ListMeta,
    *,
    list_kind: str,
    api_version: str,
    custom: bool,
    columns: bytes = b"[]",
) -> tuple[bytes, bytes]:
    """Return what stands before and behind a list's items; `columns` are a Table's columnDefinitions."""
    if wanted.kind == TABLE:
        head = b'{"kind":"Table","apiVersion":"%b","metadata":%b,"columnDefinitions":%b,"rows":['
        return head % (wanted.api_version, metadata.json(), columns), b"]}\n"
    if wanted.kind:
        head = b'{"kind":"PartialObjectMetadataList","apiVersion":"%b","metadata":%b,"items":['
        return head % (wanted.api_version, metadata.json()), b"]}\n"
    kind, version = _text(list_kind), _text(api_version)
    if custom:
        tail = b'],"kind":%b,"metadata":%b}\n' % (kind, metadata.sorted_json())
        return b'{"apiVersion":%b,"items":[' % version, tail
    head = b'{"kind":%b,"apiVersion":%b,"metadata":%b,"items":['
    return head % (kind, version, metadata.json()), b"]}\n"


def _text(text: str) -> bytes:
    return msgspec.json.encode(text)
