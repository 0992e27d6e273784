"""List and watch requests for one collection of a member, the errors in its answers, and the log lines about it.

Source: Kubernetes API concepts ("Efficient detection of changes", "Retrieving large results sets in chunks", "Streaming
lists", "Receiving resources as Tables"); client-go `tools/cache` for the choice of parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any
from urllib.parse import urlencode

import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.decoder import Bookmark, MalformedItem, ObjectEvent, WatchError
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.member_calls import MemberError, MemberUnreachable
from mcproxy.identity.reviewer_log import shown
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status import read_status
from mcproxy.log_once import LogOnce
from mcproxy.net.wall_time import wall_seconds
from mcproxy.upstream.control import Use
from mcproxy.upstream.control_stream import BodyTooLarge, ControlStream

log = Logger(__name__)

PAGE = 500  # objects per page, as client-go requests
MIN_WATCH, MAX_WATCH = 300, 600  # bounds of the random duration of a watch in seconds, as in client-go
MAX_RETRY_AFTER = 60.0  # maximum seconds of a member's Retry-After that are respected
MAX_ERROR = 64 * 1024  # maximum bytes of a Status
MAX_PROBE = 4 * 1024 * 1024  # maximum bytes of a list of one object
MAX_OBJECTS = 2_000_000  # maximum number of objects in one store
_LOGGED_AFTER = 3  # consecutive transient failures before the first log line

TABLE = (("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),)
PLAIN = (("accept", "application/json"),)
METADATA = (("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"),)


class Collection:
    """The member's collection that a store copies. `table`: objects are requested as a Table, with their cells."""

    def __init__(self, member: Member, store: Store) -> None:
        self.member = member
        self.store = store
        self.gvr = store.resource.gvr
        self.table = True
        self._once = LogOnce(inf)

    # -- requests ----------------------------------------------------------------------------------------------

    async def open(self, path: str, use: Use) -> ControlStream:
        """Begin a list or a watch; return when the response head, of any status, has arrived. Raises MemberError."""
        return await self.member.open(path, headers=TABLE if self.table else PLAIN, use=use)

    async def version(self, beside: ControlStream | None = None) -> int:
        """Return the collection's present version, 0 if the answer has no version. Raises MemberError.

        `beside` is as for `Member.open`.
        """
        path = probe_path(self.gvr, self.store.namespace)
        response = await self.member.get(path, headers=METADATA, max_body=MAX_PROBE, beside=beside)
        if response.status != 200:
            raise refusal(response.status, response.body, None, "list", self.gvr)
        return version_of_list(response.body)

    def check_size(self, objects: int) -> None:
        """Raise MemberError if there are more objects than a store may hold."""
        if objects > MAX_OBJECTS:
            raise MemberError(f"the cluster has more than {MAX_OBJECTS} objects of {self.gvr}")

    # -- log lines ---------------------------------------------------------------------------------------------

    @property
    def log_fields(self) -> dict[str, Any]:
        """The fields of a log line that name the collection."""
        return {"cluster": self.member.name, "resource": str(self.gvr), "namespace": self.store.namespace}

    def log_followed(self) -> None:
        """Log that the collection is followed again, if its loss was logged."""
        if self._once.ends("watch"):
            log.info("a resource of a cluster is watched again", event="reflector_ready", **self.log_fields)

    def log_failure(self, error: MemberError, failures: int) -> None:
        """Log each kind of failure once. Another module logs that the member is unreachable.

        `failures`: the number of consecutive failures.
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
        """Log the first malformed object, which is left out of the store."""
        if self._once.allows("item"):
            log.warn(
                "an object was left out of the cache; more of its resource are not logged",
                event="object_left_out",
                **self.log_fields,
                cause=shown(item.message),
            )

    def log_dropped(self, cause: str) -> None:
        """Log that the cached objects are dropped, since they are not the cluster's present objects."""
        log.warn("the cache of a resource was dropped", event="cache_dropped", **self.log_fields, cause=cause)


def list_path(gvr: GroupVersionResource, namespace: str, *, limit: int, token: str = "", table: bool = True) -> str:
    """Return the target of one page of a consistent list."""
    query = {"limit": str(limit)}
    if token:
        query["continue"] = token
    return _target(gvr, namespace, query, table=table)


def probe_path(gvr: GroupVersionResource, namespace: str) -> str:
    """Return the target of the smallest list; its resourceVersion is the collection's present version."""
    return f"{gvr.path(namespace)}?limit=1"


def watch_path(gvr: GroupVersionResource, namespace: str, *, version: int, seconds: int, table: bool = True) -> str:
    """Return the target of a watch of the changes after `version`."""
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
    """Return the duration of a watch in seconds; `random` returns a float in [0, 1)."""
    return int(MIN_WATCH + random() * (MAX_WATCH - MIN_WATCH))


async def refused(stream: ControlStream, verb: str, gvr: GroupVersionResource) -> MemberError:
    """Return the error for an unsuccessful answer; read its body if it is short."""
    try:
        body = await stream.read_all(MAX_ERROR)
    except BodyTooLarge:
        body = b""
    return refusal(stream.status, body, stream.header(b"retry-after"), verb, gvr)


def refusal(status: int, body: bytes, retry_after: bytes | None, verb: str, gvr: GroupVersionResource) -> MemberError:
    """Return the error for an answer with this status and body."""
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
    """Return the resourceVersion of a list, 0 if it is not a positive 64-bit integer."""
    try:
        text = msgspec.json.decode(body, type=_List).metadata.resourceVersion
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 and int(text) < 2**64 else 0


# -- watches --------------------------------------------------------------------------------------------------
#
# The events of one watch: split into lines, decoded, and applied to the store of its collection.
#
# Several watches of one collection can feed its store at the same time. A member's columns change with a definition's
# additionalPrinterColumns, or with the member's version. If API servers of several versions share one name, a list and
# the watch after it can have different columns each time.


COMPACTED = "the cluster has forgotten the version that the watch was to go on from (410)"
MAX_LINE = 32 * 1024 * 1024  # bytes; an object of up to 1.5 MB in etcd arrives as JSON, with Table cells


class LineTooLong(Exception):
    """A line is longer than any valid event."""


class LineSplitter:
    """Splits a stream of bytes into lines."""

    __slots__ = ("_begun", "_limit", "_size")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun: list[bytes] = []  # pieces of the incomplete last line
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add data; return the lines that are complete now, without line feeds and empty lines. Raises LineTooLong."""
        end = data.find(b"\n")
        if end < 0:
            self._keep(data)
            return []
        if self._begun:
            self._keep(data[:end])
            first = b"".join(self._begun)
            self._begun.clear()
            self._size = 0
            lines = [first, *data[end + 1 :].split(b"\n")]
        else:
            lines = data.split(b"\n")
        rest = lines.pop()
        if rest:
            self._keep(rest)
        return [line for line in lines if line]

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._begun.clear()
            raise LineTooLong
        self._begun.append(data)


class StallTimer:
    """Closes `stream` when no data has arrived for `seconds`, or up to a quarter longer.

    The timer is not reset for each piece of data, since a busy watch gets thousands of pieces per second.
    """

    __slots__ = ("_call", "_cause", "_clock", "_heard_at", "_stream", "seconds")

    def __init__(self, clock: IReactorTime, stream: ControlStream, seconds: float, cause: str) -> None:
        self._clock = clock
        self._stream = stream
        self._cause = cause
        self._heard_at = clock.seconds()
        self.seconds = seconds
        self._call = clock.callLater(seconds, self._look)

    def heard(self) -> None:
        """Record that data has arrived."""
        self._heard_at = self._clock.seconds()

    def change(self, seconds: float, cause: str) -> None:
        """Set another timeout and restart the timer."""
        self.stop()
        self.seconds, self._cause = seconds, cause
        self._heard_at = self._clock.seconds()
        self._call = self._clock.callLater(seconds, self._look)

    def stop(self) -> None:
        """Cancel the timer; it can be called several times."""
        if self._call.active():
            self._call.cancel()

    def _look(self) -> None:
        silent = self._clock.seconds() - self._heard_at
        if silent >= self.seconds:
            self._stream.close(self._cause)
        else:
            self._call = self._clock.callLater(max(self.seconds - silent, self.seconds / 4), self._look)


COLUMN_RELIST_INTERVAL = 600.0
"""Seconds within which a collection is listed again only once for the same columns."""
_MAX_KNOWN_COLUMNS = 16


class ColumnRelists:
    """The columns for which one collection was listed again."""

    def __init__(self) -> None:
        self._listed: dict[bytes, float] = {}

    def allow(self, columns: bytes, now: float) -> bool:
        """Return whether to list again because the member now has these columns; if so, record the relist.

        `now` is in seconds.
        """
        self._listed = {known: at for known, at in self._listed.items() if at + COLUMN_RELIST_INTERVAL > now}
        if columns in self._listed or len(self._listed) >= _MAX_KNOWN_COLUMNS:
            return False
        self._listed[columns] = now
        return True


def without_cells(item: CachedObject) -> CachedObject:
    """Return an object without cells, for which a Table shows only name and age."""
    return item if item.cells is None else msgspec.structs.replace(item, cells=None)


class ColumnsChanged(Exception):
    """The store's cells were printed for other columns than the member's present ones: list the collection again."""


class WatchEnded(Exception):
    """A watch has ended; the reflector resumes it."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class RelistNeeded(WatchEnded):
    """A watch has ended, or a list failed, and a watch cannot resume from the store's version."""


class EventIntake:
    """Applies the events of one watch to a store; `position` is the version of the last event or bookmark.

    Each watch begins at the store's version and sends every later change in order. So a change that the store already
    has, but this watch has not sent yet, came from another watch, and this watch will repeat it.
    """

    def __init__(self, collection: Collection, clock: IReactorTime, relists: ColumnRelists) -> None:
        """`relists` are the relists of this store for other columns. The watch begins at the store's version."""
        self._collection = collection
        self._store = collection.store
        self._clock = clock
        self.position = self._store.version
        self._relists = relists
        self._columns: bytes | None = None  # the columns that this watch has sent; None before that

    def take(self, line: bytes) -> bool:
        """Decode one event and apply it to the store, unless the store has it; return whether it was a bookmark.

        Raises MalformedResponse, ColumnsChanged, OutOfOrder if the versions go back, and the errors of `error_of`.
        """
        store = self._store
        event = store.decoder.decode_event(line, wall_seconds(self._clock))
        if isinstance(event, WatchError):
            raise error_of(event, self._collection.gvr)
        if event.columns is not None:
            self._take_columns(event.columns)
        if isinstance(event, Bookmark):
            self.position = max(self.position, event.version)
            store.progress(event.version)
        elif isinstance(event, ObjectEvent):
            version = event.object.version
            if not self.position < version < store.version:
                fits = self._columns is None or self._columns == store.columns
                store.apply(event.type, event.object if fits else without_cells(event.object))
            self.position = max(self.position, version)
        else:
            if event.key and event.type is not None:
                if not self.position < event.version < store.version:
                    store.leave_out(event.type, event.key, event.version)
                self.position = max(self.position, event.version)
            self._collection.log_malformed(event)
        self._collection.check_size(len(store))
        return isinstance(event, Bookmark)

    def _take_columns(self, columns: bytes) -> None:
        """Apply the columns of a watch's first event. Raises ColumnsChanged."""
        self._columns = columns
        if not self._store.take_columns(columns) and self._relists.allow(columns, self._clock.seconds()):
            raise ColumnsChanged("the columns of the Table have changed")


def error_of(event: WatchError, gvr: GroupVersionResource) -> Exception:
    """Return the exception for an ERROR event: RelistNeeded for 410, else MemberError."""
    if event.code == 410:
        return RelistNeeded(COMPACTED)
    text = f"a watch of {gvr} ended with {event.code} {shown(event.reason or event.message)}"
    return MemberError(text, status=event.code, retry_after=float(event.retry_after))
