"""Content negotiation: choosing the representation, reading bodies, writing responses.

Sources: apiserver `negotiation.NegotiateMediaTypeOptions` and, for refusals before it, go-restful's route check. This
server writes JSON and YAML; a client that accepts protobuf and JSON gets JSON, and protobuf alone is 406.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from aiohttp import web

from mcproxy.demo.apimachinery import protobuf, status
from mcproxy.demo.apimachinery.query_parameters import boolean

if TYPE_CHECKING:
    from mcproxy.demo.request.call import Call

JSONDict = dict[str, Any]

JSON, YAML, PROTOBUF = "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"
BUILTIN_TYPES = (JSON, YAML, PROTOBUF)
CUSTOM_TYPES = (JSON, YAML)
BODY_LIMIT = 3 * 1024 * 1024
CHUNK_FROM = 2048
"""Bytes from which a response is chunked: Go's net/http sends a Content-Length for what fits its buffer."""
GZIP_FROM = 128 * 1024
STREAM_TYPES = f", {JSON};stream=watch, {PROTOBUF};stream=watch"
META_TYPES = {"Table": ("v1", "v1beta1"), "PartialObjectMetadata": ("v1", "v1beta1")}
META_TYPES["PartialObjectMetadataList"] = META_TYPES["PartialObjectMetadata"]

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Accepted:
    """The negotiated media type, and its parameters `as` and `v` ("" for the object itself)."""

    media_type: str = JSON
    kind: str = ""
    version: str = ""


@dataclass(frozen=True)
class Clause:
    """One entry of an Accept header."""

    media_type: str
    params: Mapping[str, str]
    quality: float


def clauses(accept: str) -> list[Clause]:
    """Return the entries of an Accept header by descending quality, equal ones in their order."""
    found = []
    for part in accept.split(","):
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
    if pattern in ("*/*", "*"):
        return True
    return pattern == media_type or (pattern.endswith("/*") and media_type.startswith(pattern[:-1]))


def negotiate(call: Call, *, listing: bool = False) -> Accepted:
    """Return the representation for a resource request. Raises APIError 406.

    `listing` allows PartialObjectMetadataList rather than PartialObjectMetadata.
    """
    header = call.request.headers.get("Accept", "")
    if not header:
        return Accepted()
    wanted = clauses(header)
    served = BUILTIN_TYPES if call.resource is None or call.resource.builtin else CUSTOM_TYPES
    partial = "PartialObjectMetadataList" if listing else "PartialObjectMetadata"
    for clause in wanted:
        for media_type in (JSON, YAML):
            if matches(media_type, clause.media_type) and _allowed(clause.params, partial):
                return Accepted(media_type, clause.params.get("as", ""), clause.params.get("v", ""))
    _check_single(call, wanted, listing=listing)
    return _refuse(wanted, served, listing=listing, custom=served is CUSTOM_TYPES)


def _check_single(call: Call, wanted: list[Clause], *, listing: bool) -> None:
    if listing and call.resource is not None and wanted[0].params.get("as") == "PartialObjectMetadata":
        group = call.resource.group.partition(".")[0] or "core"
        go_type = f"*{group}.{call.resource.kind}List" if call.resource.builtin else "*unstructured.UnstructuredList"
        text = f"you requested PartialObjectMetadata, but the requested object is a list ({go_type})"
        raise status.APIError(406, "NotAcceptable", text, indented=True)


def _allowed(params: Mapping[str, str], partial: str) -> bool:
    kind = params.get("as", "")
    if not kind:
        return not params.get("g") and not params.get("v")
    if kind not in ("Table", partial) or params.get("g") != "meta.k8s.io":
        return False
    return params.get("v") in META_TYPES[kind]


def _refuse(wanted: list[Clause], served: tuple[str, ...], *, listing: bool, custom: bool) -> Accepted:
    if not custom and not any(matches(media_type, clause.media_type) for clause in wanted for media_type in served):
        streams = STREAM_TYPES if listing else ""
        raise status.not_acceptable(f"406: Not Acceptable\n\nAvailable representations: {', '.join(served)}{streams}")
    raise only_accepted(served)


def only_accepted(served: tuple[str, ...] = BUILTIN_TYPES) -> status.APIError:
    """Return the 406 of NegotiateMediaTypeOptions."""
    text = f"only the following media types are accepted: {', '.join(served)}"
    return status.APIError(406, "NotAcceptable", text, indented=True)


def plain_type(request: web.Request) -> str:
    """Return JSON or YAML for errors and documents, whichever the Accept header prefers; JSON when it has neither."""
    for clause in clauses(request.headers.get("Accept", "")):
        for media_type in (JSON, YAML):
            if matches(media_type, clause.media_type):
                return media_type
    return JSON


async def read_body(call: Call) -> bytes:
    """Return the request body. Raises APIError 413 beyond 3 MiB."""
    try:
        return await call.request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise status.too_large(BODY_LIMIT) from error


async def read_object(call: Call, *, kind: str = "") -> JSONDict:
    """Return the body as an object, from JSON, YAML or protobuf. Raises APIError 400, 413 or 415.

    `kind` is the kind in the message for a body that cannot be decoded; by default the resource's.
    """
    served = BUILTIN_TYPES if call.resource is None or call.resource.builtin else CUSTOM_TYPES
    media_type = (call.request.headers.get("Content-Type") or JSON).partition(";")[0].strip().lower()
    if media_type not in served:
        raise status.unsupported_media_type(served)
    body = await read_body(call)
    if media_type == PROTOBUF:
        try:
            return protobuf.decode(body)
        except protobuf.Undecodable as error:
            raise status.unsupported_media_type(CUSTOM_TYPES) from error
    expected = kind or (call.resource.kind if call.resource else "")
    return parse_object(body, media_type, expected)


def parse_object(body: bytes, media_type: str, kind: str) -> JSONDict:
    """Return a JSON or YAML body as an object. Raises APIError 400 with Go's message."""
    try:
        value = yaml.load(body, Loader=_Loader) if media_type == YAML else json.loads(body)
    except (ValueError, yaml.YAMLError) as error:
        shown = body.decode("utf-8", "replace") or "<empty>"
        cause = go_json_error(body, error)
        raise status.bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; "
            f"json parse error: {cause} ({shown})"
        ) from error
    if not isinstance(value, dict):
        name = {list: "array", str: "string", int: "number", float: "number", bool: "bool"}.get(type(value), "null")
        raise status.bad_request(
            f"couldn't get version/kind; json parse error: json: cannot unmarshal {name} into Go value of type "
            "struct { APIVersion string; Kind string }"
        )
    return value


def go_json_error(body: bytes, error: Exception) -> str:
    """Return encoding/json's message for broken JSON (the common cases)."""
    text = body.decode("utf-8", "replace")
    position = getattr(error, "pos", None)
    if position is None or not text[position:].strip() or "Unterminated string" in str(error):
        return "unexpected end of JSON input"
    return f"invalid character {json.dumps(text[position])[1:-1]!r} looking for beginning of value"


def encode(obj: JSONDict, media_type: str, *, sort: bool = False, pretty: bool = False) -> bytes:
    """Encode an object. `sort` sorts the keys, as those of custom resources are."""
    if media_type == YAML:
        return bytes(yaml.dump(obj, Dumper=_Dumper, encoding="utf-8", allow_unicode=True, default_flow_style=False))
    if pretty:
        return json.dumps(obj, indent=2, ensure_ascii=False, sort_keys=sort).encode()
    if sort:
        obj = json.loads(json.dumps(obj, sort_keys=True))
    return status.dumps(obj) + b"\n"


def base_headers(call: Call) -> dict[str, str]:
    return {"Cache-Control": "no-cache, private"}


def respond(
    call: Call, obj: JSONDict, status_code: int = 200, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Respond with an object in the negotiated media type (the caller converts it to a Table)."""
    media_type = plain_type(call.request)
    sort = call.resource is not None and not call.resource.builtin and not _is_meta(obj)
    body = encode(obj, media_type, sort=sort, pretty=boolean(call.query.get("pretty")))
    return finish(call.request, body, media_type, status_code, {**base_headers(call), **(headers or {})}, gzip=True)


def _is_meta(obj: JSONDict) -> bool:
    return str(obj.get("apiVersion", "")).startswith("meta.k8s.io") or obj.get("kind") == "Status"


def finish(
    request: web.Request,
    body: bytes,
    content_type: str,
    status_code: int = 200,
    headers: Mapping[str, str] | None = None,
    *,
    gzip: bool = False,
) -> web.Response:
    """Return a response framed as Go does it: Content-Length for small bodies, else chunks; gzip for big ones."""
    out = {"Content-Type": content_type, **(headers or {})}
    if gzip and len(body) > GZIP_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):
        out["Content-Encoding"] = "gzip"
        out["Vary"] = "Accept-Encoding"
        body = _gzip(body)
    response = web.Response(status=status_code, body=body, headers=out)
    if len(body) > CHUNK_FROM and request.version >= (1, 1):
        response.enable_chunked_encoding()
    return response


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    return compressor.compress(body) + compressor.flush()


def error_response(request: web.Request, error: status.APIError) -> web.Response:
    """Return the response for an error: a Status in JSON or YAML, or plain text."""
    headers = {"Cache-Control": "no-cache, private", **dict(error.headers)}
    if error.text:
        return finish(request, error.body(), "text/plain; charset=utf-8", error.code, headers)
    media_type = plain_type(request)
    body = encode(error.status(), YAML) if media_type == YAML else error.body()
    return finish(request, body, media_type, error.code, headers)
