"""The requests of reflectors: their paths and headers, and what an answer that is no success means.

Source: Kubernetes API concepts ("Efficient detection of changes", "Retrieving large results sets in chunks", "Streaming
lists", "Receiving resources as Tables"); client-go `tools/cache` for the choice of parameters.
"""

from __future__ import annotations

from urllib.parse import urlencode

from mcproxy.aggregate.reflector.errors import MemberError
from mcproxy.identity.reviewer_log import shown as shown
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status_body import read_status
from mcproxy.upstream.control_stream import BodyTooLarge, ControlStream

PAGE = 500  # objects of a page, as client-go asks for
MIN_WATCH, MAX_WATCH = 300, 600  # seconds that a watch lasts; random between them, as client-go's
MAX_RETRY_AFTER = 60.0  # seconds that a member may make us wait
MAX_ERROR = 64 * 1024  # bytes of a Status
MAX_PROBE = 4 * 1024 * 1024  # bytes of a list of one object

TABLE = (("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),)
PLAIN = (("accept", "application/json"),)
METADATA = (("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"),)


def list_path(gvr: GroupVersionResource, namespace: str, *, limit: int, token: str = "", table: bool = True) -> str:
    """Return the target of one page of a consistent list."""
    query = {"limit": str(limit)}
    if token:
        query["continue"] = token
    return _target(gvr, namespace, query, table=table)


def probe_path(gvr: GroupVersionResource, namespace: str) -> str:
    """Return the target of the smallest list: its resourceVersion is that of the collection now."""
    return f"{gvr.path(namespace)}?limit=1"


def watch_path(gvr: GroupVersionResource, namespace: str, *, version: int, seconds: int, table: bool = True) -> str:
    """Return the target of a watch of what changes after `version`."""
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": str(version),
        "timeoutSeconds": str(seconds),
    }
    return _target(gvr, namespace, query, table=table)


def watch_list_path(gvr: GroupVersionResource, namespace: str, *, seconds: int, table: bool = True) -> str:
    """Return the target of a watch that begins with all objects (KEP-3157)."""
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "timeoutSeconds": str(seconds),
    }
    return _target(gvr, namespace, query, table=table)


async def refused(stream: ControlStream, verb: str, gvr: GroupVersionResource) -> MemberError:
    """Return the error of an answer that is no success; reads the rest of it, as far as it is short."""
    try:
        body = await stream.read_all(MAX_ERROR)
    except BodyTooLarge:
        body = b""
    return refusal(stream.status, body, stream.header(b"retry-after"), verb, gvr)


def refusal(status: int, body: bytes, retry_after: bytes | None, verb: str, gvr: GroupVersionResource) -> MemberError:
    """Return the error of an answer with this status and body."""
    if status == 401:
        cause = "the cluster does not accept the proxy's own credential (401)"
    elif status == 403:
        cause = f"the cluster does not let the proxy {verb} {gvr} (403)"
    else:
        message = _message(body)
        cause = f"the cluster answered {status} to a {verb} of {gvr}" + (f": {message}" if message else "")
    seconds = int(retry_after) if retry_after and retry_after.isdigit() and len(retry_after) < 6 else 0
    return MemberError(cause, status=status, retry_after=min(float(seconds), MAX_RETRY_AFTER))


def _message(body: bytes) -> str:
    status = read_status(body)
    return shown(body[:200].decode("utf-8", "replace").strip() if status is None else status.message)


def _target(gvr: GroupVersionResource, namespace: str, query: dict[str, str], *, table: bool) -> str:
    if table:
        query["includeObject"] = "Object"
    return f"{gvr.path(namespace)}?{urlencode(query)}"
