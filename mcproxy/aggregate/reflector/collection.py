"""One collection of a member: its requests, the errors of its answers, and the log lines about it.

Source: Kubernetes API concepts ("Efficient detection of changes", "Retrieving large results sets in chunks", "Streaming
lists", "Receiving resources as Tables"); client-go `tools/cache` for the choice of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any
from urllib.parse import urlencode

import msgspec
from twisted.logger import Logger

from mcproxy.aggregate.cache.decoder import MalformedItem
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_errors import MemberError, MemberUnreachable
from mcproxy.identity.reviewer_log import shown
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status_body import read_status
from mcproxy.log_once import LogOnce
from mcproxy.upstream.control import Use
from mcproxy.upstream.control_stream import BodyTooLarge, ControlStream

log = Logger(__name__)

PAGE = 500  # objects of a page, as client-go requests
MIN_WATCH, MAX_WATCH = 300, 600  # seconds that a watch lasts; random between them, as client-go's
MAX_RETRY_AFTER = 60.0  # seconds of a member's Retry-After that are kept
MAX_ERROR = 64 * 1024  # bytes of a Status
MAX_PROBE = 4 * 1024 * 1024  # bytes of a list of one object
MAX_OBJECTS = 2_000_000  # of one store
_LOGGED_AFTER = 3  # failures in a row of a kind that may pass

TABLE = (("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),)
PLAIN = (("accept", "application/json"),)
METADATA = (("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"),)


class Collection:
    """The collection that one store is a copy of. `table`: its objects are requested with the cells of a Table."""

    def __init__(self, member: Member, store: Store) -> None:
        self.member = member
        self.store = store
        self.gvr = store.resource.gvr
        self.table = True
        self._once = LogOnce(inf)

    # -- requests ----------------------------------------------------------------------------------------------

    async def open(self, path: str, use: Use) -> ControlStream:
        """Begin a list or a watch; return when its head, of any status, is there. Raises MemberError."""
        return await self.member.open(path, headers=TABLE if self.table else PLAIN, use=use)

    async def version(self, beside: ControlStream | None = None) -> int:
        """Return the version of the collection now, 0 if the answer has none. Raises MemberError.

        `beside` is as for `Member.open`.
        """
        path = probe_path(self.gvr, self.store.namespace)
        response = await self.member.get(path, headers=METADATA, max_body=MAX_PROBE, beside=beside)
        if response.status != 200:
            raise refusal(response.status, response.body, None, "list", self.gvr)
        return version_of_list(response.body)

    def check_size(self, objects: int) -> None:
        """Raise MemberError for more objects than a store may have."""
        if objects > MAX_OBJECTS:
            raise MemberError(f"the cluster has more than {MAX_OBJECTS} objects of {self.gvr}")

    # -- log lines ---------------------------------------------------------------------------------------------

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields of a log line that name the collection."""
        return {"cluster": self.member.name, "resource": str(self.gvr), "namespace": self.store.namespace}

    def log_followed(self) -> None:
        """Write that it is followed again, if it was written that it was not."""
        if self._once.ends("watch"):
            log.info("a resource of a cluster is watched again", event="reflector_ready", **self.log_fields)

    def log_failure(self, error: MemberError, failures: int) -> None:
        """Write one line for each kind of failure; that the member cannot be reached is in the log already.

        `failures`: how many there were in a row.
        """
        lasting = error.status in (401, 403)
        if isinstance(error, MemberUnreachable) or (not lasting and failures < _LOGGED_AFTER):
            return
        kind = str(error.status) if error.status else error.cause
        if not self._once.allows("watch", state=kind):
            return
        if error.status == 401:
            todo = f"give cluster {self.member.name} valid credentials"
        elif error.status == 403:
            todo = f"grant the proxy what `mcproxy rbac --cluster {self.member.name}` prints"
        elif error.status == 404:
            todo = "none if the definition was deleted; else see that the API service runs"
        else:
            todo = "see the log of the cluster's API server; it is tried again"
        log.warn(
            "a resource of a cluster cannot be watched",
            event="reflector_out",
            **self.log_fields,
            cause=error.cause,
            todo=todo,
        )

    def log_malformed(self, item: MalformedItem) -> None:
        """Write one line about the first object that is left out."""
        if self._once.allows("item"):
            log.warn(
                "an object was left out of the cache; more of its resource are not logged",
                event="object_left_out",
                **self.log_fields,
                cause=shown(item.message),
            )

    def log_dropped(self, cause: str) -> None:
        """Write that what was cached is no longer the cluster's."""
        log.warn("the cache of a resource was dropped", event="cache_dropped", **self.log_fields, cause=cause)


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


def watch_seconds(random: Callable[[], float]) -> int:
    """Return how long a watch is to last; `random` returns a float in [0, 1)."""
    return int(MIN_WATCH + random() * (MAX_WATCH - MIN_WATCH))


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


class _ListMeta(msgspec.Struct):
    resourceVersion: str = ""


class _List(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)


def version_of_list(body: bytes) -> int:
    """Return the resourceVersion of a list, 0 if it is no positive integer of 64 bits."""
    try:
        text = msgspec.json.decode(body, type=_List).metadata.resourceVersion
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 2**64 else 0
