"""Content negotiation: chooses the representation that an Accept header requests.

Sources: apiserver `negotiation.NegotiateMediaTypeOptions` and, for requests that never reach it, go-restful's route
check. The texts are those of a kube-apiserver 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mcproxy.kube.status import StatusError

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
BUILTIN_TYPES = (JSON, YAML, PROTOBUF)
CUSTOM_TYPES = (JSON, YAML)
STREAM_TYPES = f", {JSON};stream=watch, {PROTOBUF};stream=watch"
MAX_CLAUSES = 64
"""Maximum of entries of an Accept header that are read; clients send up to five."""
_PARTIAL, _PARTIAL_LIST, _TABLE = "PartialObjectMetadata", "PartialObjectMetadataList", "Table"
_META_VERSIONS = ("v1", "v1beta1")


@dataclass(frozen=True)
class NegotiatedMediaType:
    """The negotiated media type, and its parameters `as` and `v` ("" for the object itself)."""

    media_type: str = JSON
    kind: str = ""
    version: str = ""


@dataclass(frozen=True)
class Clause:
    """One entry of an Accept header; `params` without `q`."""

    media_type: str
    params: Mapping[str, str]
    quality: float


def clauses(accept: str) -> list[Clause]:
    """Return the entries of an Accept header by descending quality; entries of equal quality stay in order."""
    found = []
    for part in accept.split(",", MAX_CLAUSES)[:MAX_CLAUSES]:
        media_type, _, rest = part.strip().partition(";")
        params = dict(item.strip().partition("=")[::2] for item in rest.split(";") if item.strip())
        try:
            quality = float(params.pop("q", "1"))
        except ValueError:
            quality = 1.0
        if media_type.strip():
            found.append(Clause(media_type.strip().lower(), params, quality))
    return sorted(found, key=lambda clause: -clause.quality)


def matches(media_type: str, pattern: str) -> bool:
    """Return whether a media type matches a pattern such as `*/*` or `application/*`."""
    if pattern in ("*/*", "*"):
        return True
    return pattern == media_type or (pattern.endswith("/*") and media_type.startswith(pattern[:-1]))


def prefers_yaml(accept: str) -> bool:
    """Return whether an Accept header prefers YAML to JSON."""
    for clause in clauses(accept):
        if matches(JSON, clause.media_type):
            return False
        if matches(YAML, clause.media_type) and not clause.params:
            return True
    return False


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Return whether an Accept-Encoding accepts gzip, read as a kube-apiserver does: `*` and `gzip;q=0` do not."""
    return any(
        clause.media_type == "gzip" and clause.quality > 0
        for clause in clauses((accept_encoding or b"").decode("latin-1"))
    )


def negotiate(
    accept: str,
    *,
    custom: bool = False,
    list_of: tuple[str, str] | None = None,
    writable: Sequence[str] = (JSON,),
    named: Sequence[str] = (),
) -> NegotiatedMediaType:
    """Return the representation for a request of a resource. Raises StatusError 406.

    `list_of` is the (group, kind) of the listed objects, None for a single object or a watch. A list can be requested
    as PartialObjectMetadataList, other responses as PartialObjectMetadata. `writable` are the media types that the
    server writes; `named` are those that a refusal names (by default the same). `custom`: the request is for a custom
    resource, which a kube-apiserver does not serve as protobuf.
    """
    if not accept:
        return NegotiatedMediaType()
    wanted = clauses(accept)
    partial = _PARTIAL if list_of is None else _PARTIAL_LIST
    for clause in wanted:
        for media_type in writable:
            if matches(media_type, clause.media_type) and _allowed(clause.params, partial):
                return NegotiatedMediaType(media_type, clause.params.get("as", ""), clause.params.get("v", ""))
    if list_of is not None and wanted and wanted[0].params.get("as") == _PARTIAL:
        raise _list_as_object(*list_of, custom=custom)
    served = CUSTOM_TYPES if custom else BUILTIN_TYPES
    if not custom and not any(matches(media_type, clause.media_type) for clause in wanted for media_type in served):
        streams = STREAM_TYPES if list_of is not None else ""
        text = f"406: Not Acceptable\n\nAvailable representations: {', '.join(served)}{streams}"
        raise StatusError(406, text, details={}, indented=True)
    raise only_accepted(named or writable)


def _allowed(params: Mapping[str, str], partial: str) -> bool:
    kind = params.get("as", "")
    if not kind:
        return not params.get("g") and not params.get("v")
    return kind in (_TABLE, partial) and params.get("g") == "meta.k8s.io" and params.get("v") in _META_VERSIONS


def _list_as_object(group: str, kind: str, *, custom: bool) -> StatusError:
    go_type = "*unstructured.UnstructuredList" if custom else f"*{group.partition('.')[0] or 'core'}.{kind}List"
    text = f"you requested PartialObjectMetadata, but the requested object is a list ({go_type})"
    return StatusError(406, text, indented=True)


def only_accepted(served: Sequence[str] = BUILTIN_TYPES) -> StatusError:
    """Return the 406 error of NegotiateMediaTypeOptions."""
    return StatusError(406, f"only the following media types are accepted: {', '.join(served)}", indented=True)


def unknown_format(accepted: Sequence[str]) -> StatusError:
    """Return the 415 error for the media type of a body (apiserver `NewUnsupportedMediaTypeError`)."""
    types = ", ".join(accepted)
    return StatusError(415, f"the body of the request was in an unknown format - accepted media types include: {types}")
