"""The events of one watch: split into lines, decoded, and applied to the store of its collection.

Several watches of one collection may feed its store at a time. A member's columns change when a definition's
additionalPrinterColumns do, or with its version. But where API servers of several versions are behind one name, a list
and the watch that follows it may have different ones each time.
"""

from __future__ import annotations

import msgspec
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.decoder import Bookmark, ObjectEvent, WatchError
from mcproxy.aggregate.reflector.collection import Collection
from mcproxy.aggregate.reflector.member_errors import MemberError
from mcproxy.identity.reviewer_log import shown
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.net.wall_time import wall_seconds
from mcproxy.upstream.control_stream import ControlStream

COMPACTED = "the cluster has forgotten the version that the watch was to go on from (410)"
MAX_LINE = 32 * 1024 * 1024  # bytes; an object may have 1.5 MB in etcd, and comes with Table cells and in JSON


class LineTooLong(Exception):
    """A line without end: no event."""


class LineSplitter:
    """Joins pieces and splits them at line feeds."""

    __slots__ = ("_begun", "_limit", "_size")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun: list[bytes] = []  # pieces of the line that is not complete
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, without line feeds; empty ones are left out. Raises LineTooLong."""
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
    """Closes `stream` when it was not heard of for `seconds`, or up to a quarter longer.

    The timer is not moved with each piece that arrives, since a busy watch has thousands in a second.
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
        """Note that something arrived."""
        self._heard_at = self._clock.seconds()

    def change(self, seconds: float, cause: str) -> None:
        """Allow another time from now on."""
        self.stop()
        self.seconds, self._cause = seconds, cause
        self._heard_at = self._clock.seconds()
        self._call = self._clock.callLater(seconds, self._look)

    def stop(self) -> None:
        """End the timer; may be called again."""
        if self._call.active():
            self._call.cancel()

    def _look(self) -> None:
        silent = self._clock.seconds() - self._heard_at
        if silent >= self.seconds:
            self._stream.close(self._cause)
        else:
            self._call = self._clock.callLater(max(self.seconds - silent, self.seconds / 4), self._look)


INTERVAL = 600.0
"""Seconds within which a collection is listed again only once for the same columns."""
_MAX_KNOWN = 16


class ColumnRelists:
    """The columns for which one collection was listed again."""

    def __init__(self) -> None:
        self._listed: dict[bytes, float] = {}

    def allow(self, columns: bytes, now: float) -> bool:
        """Return whether to list again because the member's columns are these now; if so, that is noted.

        `now` is in seconds.
        """
        self._listed = {known: at for known, at in self._listed.items() if at + INTERVAL > now}
        if columns in self._listed or len(self._listed) >= _MAX_KNOWN:
            return False
        self._listed[columns] = now
        return True


def without_cells(item: CachedObject) -> CachedObject:
    """Return an object of which a Table shows name and age alone."""
    return item if item.cells is None else msgspec.structs.replace(item, cells=None)


class ColumnsChanged(Exception):
    """The store's cells were printed for other columns than the member has now: it must be listed again."""


class WatchEnded(Exception):
    """A watch has ended; it is resumed."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class RelistNeeded(WatchEnded):
    """A watch has ended, or a list failed, and the store's version cannot be resumed from."""


class EventIntake:
    """Applies the events of one watch to a store; `position` is the version of the last event or bookmark.

    Each watch sends every change after its beginning, in order, and begins at the store's version. So a change that
    the store has and this watch has not sent yet came from another watch, and this watch repeats it.
    """

    def __init__(self, collection: Collection, clock: IReactorTime, relists: ColumnRelists) -> None:
        """`relists` are those of the store for other columns, by whichever watch. It begins at the store's version."""
        self._collection = collection
        self._store = collection.store
        self._clock = clock
        self.position = self._store.version
        self._relists = relists
        self._columns: bytes | None = None  # that the cells of this watch are printed for, once it has sent them

    def take(self, line: bytes) -> bool:
        """Decode one event and give it to the store, unless that has seen it; return whether it was a bookmark.

        Raises MalformedResponse, ColumnsChanged, OutOfOrder for a watch that goes back, and what `error_of` returns.
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
        """Take what the first event of a watch says of its cells. Raises ColumnsChanged."""
        self._columns = columns
        if not self._store.take_columns(columns) and self._relists.allow(columns, self._clock.seconds()):
            raise ColumnsChanged("the columns of the Table have changed")


def error_of(event: WatchError, gvr: GroupVersionResource) -> Exception:
    """Return what an ERROR event is to the reflector: RelistNeeded for 410, else MemberError."""
    if event.code == 410:
        return RelistNeeded(COMPACTED)
    text = f"a watch of {gvr} ended with {event.code} {shown(event.reason or event.message)}"
    return MemberError(text, status=event.code, retry_after=float(event.retry_after))
