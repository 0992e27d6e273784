"""Watchers that see the same changes in the same representation: what is sent to them is made once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Protocol

from mcproxy.aggregate.cache.object import EventType
from mcproxy.aggregate.watch.change_queue import Change, ChangeQueue, Item, Reset
from mcproxy.http.h1.framing import encode_chunk

if TYPE_CHECKING:
    from mcproxy.aggregate.watch.cursor import Cursor
    from mcproxy.aggregate.watch.watcher import Watcher

CHUNK_BYTES = 64 * 1024
"""Bytes that are written to one watcher at a time; one event may be bigger."""
CHUNK_CHANGES = 512
WRITES = 50
"""Watchers that are written to in one step."""
_BIG = 16 * 1024  # bytes that cost about as much as a small write


class GroupOwner(Protocol):
    """What has the groups of a view (`fan_out.FanOut`)."""

    queue: ChangeQueue

    def leave(self, watcher: Watcher) -> None:
        """Take a watcher out of its group."""


class Group:
    """Watchers in step with each other. `position` is where they stand, `end` where they will when all of them have
    got what is being written."""

    __slots__ = (
        "_chunk",
        "_coverage",
        "_data",
        "_fan_out",
        "_first",
        "_marks",
        "_pending",
        "_rendering",
        "_seen",
        "_selection",
        "_unfilled",
        "end",
        "key",
        "position",
        "watchers",
    )

    def __init__(self, fan_out: GroupOwner, key: Hashable, cursor: Cursor) -> None:
        """`cursor` is that of the first watcher: what all of them select, and how it is written."""
        self._fan_out = fan_out
        self.key = key
        self._selection = cursor.selection
        self._rendering = cursor.rendering
        self._coverage = cursor.coverage
        self._unfilled = dict(cursor.unfilled)
        self._seen = cursor.coverage.key, frozenset(self._unfilled.items())  # what their versions depend on
        self._first = cursor.first  # they have got no event yet
        self.position = self.end = cursor.position
        self.watchers: dict[Watcher, None] = {}
        self._pending: Iterator[Watcher] | None = None
        self._data = b""
        self._chunk = b""
        self._marks = cursor.marks

    @property
    def idle(self) -> bool:
        """Whether all of them have got everything that there is."""
        return self._pending is None and self.position == self._fan_out.queue.end

    def add(self, watcher: Watcher) -> None:
        """Take in a watcher that stands at `end`."""
        self.watchers[watcher] = None
        watcher.group = self

    def dismiss(self, watcher: Watcher) -> None:
        """Leave a watcher to itself, where it stands; it comes back when it is in step again."""
        self._fan_out.leave(watcher)
        stores = self._coverage.stores
        watcher.cursor.marks = {place: mark for place, mark in watcher.cursor.marks.items() if place in stores}
        watcher.proceed()

    def disband(self) -> None:
        """Leave each watcher to itself."""
        for watcher in list(self.watchers):
            self.dismiss(watcher)

    def step(self) -> int:
        """Write to some of the watchers (`Turns`)."""
        if self._pending is None and not self._prepare():
            return 0
        return self._write()

    def _prepare(self) -> bool:
        """Make the next chunk; False if there is none."""
        if not self.watchers:
            return False
        items = self._plain()
        if not items:
            if self.position < self._fan_out.queue.end:
                self.disband()  # each works out for itself what a change of the view means for it
            return False
        lines: list[bytes] = []
        for item in items:
            if isinstance(item, Change) and (line := self._line(item, first=self._first and not lines)):
                lines.append(line)
        self.end = self.position + len(items)
        self._marks = items[-1].marks
        self._data = b"".join(lines)
        self._chunk = encode_chunk(self._data) if self._data else b""
        self._pending = iter(list(self.watchers))
        return True

    def _plain(self) -> list[Item]:
        """Return the next items of the queue as far as they mean the same for all of the group."""
        queue, items, size = self._fan_out.queue, list[Item](), 0
        most = self._selection.at_once(CHUNK_CHANGES)
        if self.position < queue.start:
            return items
        for number in range(self.position, queue.end):
            item = queue.get(number)
            if not isinstance(item, Change | Reset) or len(items) == most:
                break
            size += item.size
            if items and size > CHUNK_BYTES:
                break
            items.append(item)
        return items

    def _line(self, change: Change, *, first: bool) -> bytes:
        """Return the bytes of a change, made by whichever group is the first to need them."""
        if id(change.store) not in self._coverage.stores:
            return b""
        event = change.event
        outcome = self._selection.outcome(event)
        if outcome is None:
            return b""
        kind, obj = outcome
        key = kind, obj is event.object, self._rendering.key, self._seen, first
        line = change.lines.get(key)
        if line is None:
            lead = max(event.version, change.before) if event.type is EventType.DELETED else event.version
            marks = {**self._unfilled, **change.marks} if self._unfilled else change.marks
            version = self._coverage.whole(marks, lead)
            line = change.lines[key] = self._rendering.event(kind, change.store, obj, version, first=first)
        return line

    def _write(self) -> int:
        assert self._pending is not None
        data, chunk, end, marks = self._data, self._chunk, self.end, self._marks
        written = 0
        for watcher in self._pending:
            if watcher.group is not self:
                continue
            cursor = watcher.cursor
            if cursor.position == end:
                continue  # it came while the chunk was being written
            if data:
                if watcher.paused:
                    self.dismiss(watcher)
                    continue
                cursor.first = False
                watcher.write(data, chunk)
                written += 1
            cursor.position, cursor.marks = end, marks
            if written == WRITES:
                return written * (1 + len(data) // _BIG)
        self._pending = None
        self.position = end
        self._data = self._chunk = b""
        if self._first and data:
            self.disband()  # to the group of those that have got the first event
        return max(1, written * (1 + len(data) // _BIG))
