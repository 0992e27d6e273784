"""The representation that a client requests: the objects themselves, a Table, PartialObjectMetadata."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.kube.media_types import Accepted
from mcproxy.kube.status import StatusError

TABLE, PARTIAL, PARTIAL_LIST = "Table", "PartialObjectMetadata", "PartialObjectMetadataList"
NONE, METADATA, OBJECT = "None", "Metadata", "Object"


@dataclass(frozen=True, slots=True)
class Representation:
    """`kind` is "" (the objects themselves), TABLE, PARTIAL or PARTIAL_LIST.

    `version` is that of meta.k8s.io, `include_object` NONE, METADATA or OBJECT (of a Table's rows).
    """

    kind: str = ""
    version: str = "v1"
    include_object: str = METADATA

    @property
    def api_version(self) -> bytes:
        """The apiVersion of a Table or PartialObjectMetadata."""
        return b"meta.k8s.io/" + self.version.encode()


def requested_representation(accepted: Accepted, include_object: str) -> Representation:
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
