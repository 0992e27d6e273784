"""HTTP of /openapi/v2 and /openapi/v3: hashes in URLs, ETags, the redirect from an outdated hash.

Source: k8s.io/kube-openapi `handler3`; the documents are made by `openapi`.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from aiohttp import web

from kubesim.apimachinery import status
from kubesim.discovery import openapi
from kubesim.request.call import Call
from mcproxy.kube import media_types

JSONDict = dict[str, Any]

GONE_IN_304 = ("Accept-Ranges", "Last-Modified")
MODIFIED = "Sat, 21 Nov 2026 09:00:00 GMT"


def handle(call: Call) -> web.StreamResponse:
    """Answer a path below /openapi/. Raises APIError 404, 405, 406."""
    if call.request.method not in ("GET", "HEAD"):
        raise status.method_not_allowed()
    path = call.info.path
    if path.rstrip("/") == "/openapi/v3":
        return _index(call)
    if path.startswith("/openapi/v3/"):
        return _document(call, path.removeprefix("/openapi/v3/").strip("/"))
    if path == "/openapi/v2":
        return _v2(call)
    raise status.page_not_found()


def _send(call: Call, body: bytes, etag: str, headers: dict[str, str]) -> web.StreamResponse:
    """Respond as Go's http.ServeContent: Content-Length, ETag, Last-Modified, HEAD and If-None-Match."""
    quoted = f'"{etag}"'
    headers = {**headers, "ETag": quoted, "Last-Modified": MODIFIED, "Vary": "Accept", "Accept-Ranges": "bytes"}
    if call.request.headers.get("If-None-Match") == quoted:
        return web.Response(status=304, headers={key: headers[key] for key in headers if key not in GONE_IN_304})
    return web.Response(body=body, headers={"Content-Type": media_types.JSON, **headers})


def _of_v2(response: web.StreamResponse) -> web.StreamResponse:
    """Add the Vary header of the compressing handler that a real apiserver has before /openapi/v2."""
    del response.headers["Vary"]
    for value in ("Accept-Encoding", "Accept"):
        response.headers.add("Vary", value)
    return response


def _accepts_json(call: Call) -> bool:
    header = call.request.headers.get("Accept", "")
    return not header or any(
        media_types.matches(media_types.JSON, clause.media_type) for clause in media_types.clauses(header)
    )


def _empty(code: int, headers: dict[str, str]) -> web.StreamResponse:
    """Respond without a body."""
    return web.Response(status=code, headers=headers)


def _index(call: Call) -> web.StreamResponse:
    body = status.dumps(openapi.openapi_v3_root(call.cluster))
    headers = {"Cache-Control": "no-cache, private", "Content-Type": "text/plain; charset=utf-8"}
    return web.Response(body=body, headers={**headers, "Last-Modified": MODIFIED, "Accept-Ranges": "bytes"})


def _document(call: Call, group_version: str) -> web.StreamResponse:
    wanted = openapi.openapi_v3_hash(call.cluster, group_version)
    found = openapi.openapi_v3(call.cluster, group_version)
    if wanted is None or found is None:
        return _empty(404, {"Cache-Control": "no-cache, private"})
    sent = call.query.get("hash")
    if sent and sent != wanted:
        location = f"/openapi/v3/{group_version}?hash={wanted}"
        headers = {"Location": location, "ETag": f'"{wanted}"', "Cache-Control": "no-cache, private"}
        return web.Response(status=301, headers={**headers, "Vary": "Accept", "Content-Type": media_types.JSON})
    headers = {"Cache-Control": "no-cache, private"}
    if sent:
        expires = (call.cluster.now() + timedelta(days=365)).strftime("%a, %d %b %Y %H:%M:%S UTC")
        headers = {"Cache-Control": "public, immutable", "Expires": expires}
    return _send(call, _encoded(call, group_version, found), wanted, headers)


def _encoded(call: Call, key: str, content: JSONDict) -> bytes:
    """Return the bytes of a document, cached until the resources change."""
    kept = call.cluster.state.setdefault("openapi_routes", {})
    generation, body = kept.get(key, (-1, b""))
    if generation != call.cluster.resources.generation:
        body = status.dumps(content)
        kept[key] = (call.cluster.resources.generation, body)
    return bytes(body)


def _v2(call: Call) -> web.StreamResponse:
    if not _accepts_json(call):
        return _of_v2(_empty(406, {"Cache-Control": "no-cache, private", "Vary": "Accept"}))
    body = _encoded(call, "v2", openapi.openapi_v2(call.cluster))
    etag = hashlib.sha512(body).hexdigest().upper()
    return _of_v2(_send(call, body, etag, {"Cache-Control": "no-cache, private"}))
