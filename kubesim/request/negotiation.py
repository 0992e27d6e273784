"""Content negotiation: choosing the representation, reading bodies, writing responses.

Sources: apiserver `NegotiateMediaTypeOptions` and, for refusals before it, go-restful's route check. This
server writes JSON and YAML; a client that accepts protobuf and JSON gets JSON, and protobuf alone is 406.

Objects and lists are written in full, as a Table, or as PartialObjectMetadata.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import yaml
from aiohttp import web

from kubesim.apimachinery import protobuf, status
from kubesim.apimachinery.resources import JSONDict
from kubesim.printing import tables
from kubesim.request.call import Call
from kubesim.storage import list_watch
from kubesim.storage.list_watch import Page
from mcproxy.kube import media_types
from mcproxy.kube.media_types import (
    BUILTIN_TYPES,
    CUSTOM_TYPES,
    JSON,
    PROTOBUF,
    YAML,
    NegotiatedMediaType,
    clauses,
    matches,
)
from mcproxy.kube.query_parameters import boolean

if TYPE_CHECKING:
    from kubesim.request.call import Call


BODY_LIMIT = 3 * 1024 * 1024
CHUNK_FROM = 2048
"""Bytes from which a response is chunked: Go's net/http sends a Content-Length for responses that fit its buffer."""
GZIP_FROM = 128 * 1024

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def negotiate(call: Call, *, listing: bool = False) -> NegotiatedMediaType:
    """Return the representation for a resource request. Raises StatusError 406.

    `listing` allows PartialObjectMetadataList rather than PartialObjectMetadata.
    """
    header = call.request.headers.get("Accept", "")
    resource = call.resource
    builtin = resource is None or resource.builtin
    kind = resource.kind if resource is not None else ""
    group = resource.group if resource is not None else ""
    return media_types.negotiate(
        header,
        custom=not builtin,
        list_of=(group, kind) if listing else None,
        writable=(JSON, YAML),
        named=BUILTIN_TYPES if builtin else CUSTOM_TYPES,
    )


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


def _pretty(call: Call) -> bool:
    """Return whether JSON is indented: by the query, else for browsers and command-line clients."""
    asked = call.query.get("pretty")
    if asked:
        return boolean(asked)
    return call.request.headers.get("User-Agent", "").startswith(("curl", "Wget", "Mozilla/5.0"))


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
    body = encode(obj, media_type, sort=sort, pretty=_pretty(call))
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


def error_response(request: web.Request, error: status.StatusError) -> web.Response:
    """Return the response for an error: a Status in JSON or YAML, or plain text."""
    headers = {"Cache-Control": "no-cache, private", **{name.decode(): value.decode() for name, value in error.headers}}
    if isinstance(error, status.APIError) and error.text:
        return finish(request, error.body(), "text/plain; charset=utf-8", error.code, headers)
    media_type = plain_type(request)
    body = encode(error.status(), YAML) if media_type == YAML else error.body()
    return finish(request, body, media_type, error.code, headers)


OK = 200


def include_object(call: Call) -> str:
    """Return the includeObject parameter. Raises APIError 400."""
    return tables.check_include_object(call.query.get("includeObject", ""))


def table_of(
    call: Call, items: list[JSONDict], metadata: JSONDict, accepted: NegotiatedMediaType, include: str
) -> JSONDict:
    """Return a Table of objects of the call's resource."""
    table = tables.table(
        call.target,
        items,
        include_object=include,
        list_metadata=metadata,
        now=call.cluster.now(),
        columns=call.target.printer_columns,
    )
    if accepted.version != "v1":
        table["apiVersion"] = f"meta.k8s.io/{accepted.version}"
        for row in table["rows"]:
            if (row.get("object") or {}).get("kind") == "PartialObjectMetadata":
                row["object"]["apiVersion"] = table["apiVersion"]
    return table


def partial(obj: JSONDict, accepted: NegotiatedMediaType) -> JSONDict:
    """Return the PartialObjectMetadata of an object."""
    return {**tables.partial_metadata(obj), "apiVersion": f"meta.k8s.io/{accepted.version}"}


def answer(call: Call, obj: JSONDict, accepted: NegotiatedMediaType, code: int = OK) -> web.StreamResponse:
    """Answer with one object."""
    if accepted.kind == "Table":
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        obj = table_of(call, [obj], metadata, accepted, include_object(call))
    elif accepted.kind:
        obj = partial(obj, accepted)
    return respond(call, obj, code)


def answer_list(call: Call, page: Page, accepted: NegotiatedMediaType) -> web.StreamResponse:
    """Answer with a list."""
    if accepted.kind == "Table":
        return respond(call, table_of(call, page.items, list_watch.list_metadata(page), accepted, include_object(call)))
    if accepted.kind:
        version = f"meta.k8s.io/{accepted.version}"
        content = {
            "kind": "PartialObjectMetadataList",
            "apiVersion": version,
            "metadata": list_watch.list_metadata(page),
            "items": [partial(item, accepted) for item in page.items],
        }
        return respond(call, content)
    return respond(call, list_watch.envelope(call.target, page))
