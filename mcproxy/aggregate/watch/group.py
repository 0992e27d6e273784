"""Groups of watchers with the same selection and representation: each change is encoded once for a whole group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.cached_object import EventType
from mcproxy.aggregate.watch.changes import Change, ChangeQueue, Namesake, QueueItem, StoreReset, outgoing_events
from mcproxy.http.h1.framing import encode_chunk

if TYPE_CHECKING:
    from mcproxy.aggregate.watch.catch_up import CatchUp
    from mcproxy.aggregate.watch.watcher import Watcher

CHUNK_BYTES = 64 * 1024
"""Maximum bytes that are written to one watcher at a time, unless a single event is larger."""
CHUNK_CHANGES = 512
WRITES = 50
"""Maximum number of watchers to which one step writes."""
_BIG = 16 * 1024  # bytes that cost about as much as a small write


class Group:
    """Watchers at the same position. `number` is the queue number of their next item, `end` the number after the chunk
    that is being written.
    """

    __slots__ = (
        "_chunk",
        "_data",
        "_definitions",
        "_encoder",
        "_lags",
        "_leave",
        "_next_definitions",
        "_pending",
        "_pending_resumes",
        "_queue",
        "_selection",
        "_sent",
        "_version_key",
        "_watched",
        "end",
        "key",
        "number",
        "watchers",
    )

    def __init__(self, queue: ChangeQueue, leave: Callable[[Watcher], None], key: Hashable, catch_up: CatchUp) -> None:
        """`leave` removes a watcher from its group. `catch_up` belongs to the first watcher; its selection, position
        and encoder apply to the whole group.
        """
        position = catch_up.position
        self._queue = queue
        self._leave = leave
        self.key = key
        self._selection = catch_up.selection
        self._encoder = catch_up.encoder
        self._watched = position.watched
        self._pending_resumes = dict(position.pending_resumes)
        self._version_key = position.watched.key, frozenset(self._pending_resumes.items())
        # the inputs of the watchers' resource versions
        self._definitions = self._next_definitions = position.sent_definitions
        # the clients' versions before and after the chunk that is being written
        self.number = self.end = position.number
        self.watchers: dict[Watcher, None] = {}
        self._pending: Iterator[Watcher] | None = None
        self._data = b""
        self._chunk = b""
        self._sent = position.sent
        self._lags = False  # as `WatchPosition.lags`, after the chunk that is being written

    @property
    def idle(self) -> bool:
        """Whether all watchers have received the whole queue."""
        return self._pending is None and self.number == self._queue.end

    def add(self, watcher: Watcher) -> None:
        """Add a watcher whose position is `end`."""
        self.watchers[watcher] = None
        watcher.group = self

    def dismiss(self, watcher: Watcher) -> None:
        """Let a watcher catch up by itself; it joins a group again when it is up to date."""
        self._leave(watcher)
        stores, position = self._watched.stores, watcher.position
        position.sent = {store: version for store, version in position.sent.items() if store in stores}
        watcher.dismissed()

    def disband(self) -> None:
        """Let every watcher catch up by itself."""
        for watcher in list(self.watchers):
            self.dismiss(watcher)

    def step(self) -> int:
        """Write to some of the watchers (`scheduler.Job`)."""
        if self._pending is None and not self._prepare():
            return 0
        return self._write()

    def _prepare(self) -> bool:
        """Encode the next chunk; False if there is none."""
        if not self.watchers:
            return False
        items = self._common_items()
        if not items:
            if self.number < self._queue.end:
                self.disband()  # a change of the view affects each watcher differently
            return False
        self._next_definitions = self._definitions
        lines = [line for item in items if isinstance(item, Change) and (line := self._line(item))]
        self.end = self.number + len(items)
        self._sent = items[-1].versions
        self._data = b"".join(lines)
        self._chunk = encode_chunk(self._data) if self._data else b""
        self._pending = iter(list(self.watchers))
        return True

    def _common_items(self) -> list[QueueItem]:
        """Return the next items of the queue, up to the first item that affects the group's watchers differently."""
        queue, items, size = self._queue, list[QueueItem](), 0
        most = self._selection.batch_size(CHUNK_CHANGES)
        if self.number < queue.start:
            return items
        for number in range(self.number, queue.end):
            item = queue.get(number)
            if not isinstance(item, Change | StoreReset) or len(items) == most:
                break
            size += item.size
            if items and size > CHUNK_BYTES:
                break
            items.append(item)
        return items

    def _line(self, change: Change) -> bytes:
        """Return the line of a change; the first group that needs the line encodes it."""
        if id(change.store) not in self._watched.stores:
            return b""
        event = change.event
        if change.namesakes and (
            namesakes := [each for each in change.namesakes if id(each.store) in self._watched.stores]
        ):
            return self._lines_with_namesakes(change, namesakes)
        outcome = self._selection.outcome(event)
        if outcome is None:
            return b""
        kind, obj = outcome
        lead = max(event.version, change.before) if event.type is EventType.DELETED else event.version
        versions = {**self._pending_resumes, **change.versions} if self._pending_resumes else change.versions
        self._lags = self._watched.lags(versions, lead)
        columns, before = self._watched.columns, self._next_definitions
        self._next_definitions = now = self._encoder.definitions(columns, change.store)
        key = kind, obj is event.object, self._encoder.key, self._version_key, now, before == now
        line = change.lines.get(key)
        if line is None:
            version = self._watched.event_version(versions, change.store, lead)
            line = self._encoder.event(kind, columns, change.store, obj, version, before)
            self._queue.keep_line(change, key, line)
        return line

    def _lines_with_namesakes(self, change: Change, namesakes: Sequence[Namesake]) -> bytes:
        """Return the bytes of a change to a name that other members have, too, if only one object is shown."""
        before = {**self._pending_resumes, **change.versions, id(change.store): change.before}
        events = outgoing_events(self._selection, change.store, change.event, change.before, namesakes, before)
        if not events:
            return b""
        after, last = {**self._pending_resumes, **change.versions}, events[-1]
        self._lags = self._watched.lags(before if last.before else after, last.lead)
        columns, sent_definitions = self._watched.columns, self._next_definitions
        definitions = [self._encoder.definitions(columns, each.store) for each in events]
        self._next_definitions = definitions[-1]
        outgoing = tuple((each.type, id(each.object)) for each in events)
        first_has_same = sent_definitions == definitions[0]
        key = outgoing, self._encoder.key, self._version_key, tuple(definitions), first_has_same
        found = change.lines.get(key)
        if found is None:
            parts = []
            for each, now in zip(events, definitions, strict=True):
                version = self._watched.event_version(before if each.before else after, each.store, each.lead)
                args = each.type, columns, each.store, each.object, version, sent_definitions
                parts.append(self._encoder.event(*args))
                sent_definitions = now
            found = change.lines[key] = b"".join(parts)
        return found

    def _write(self) -> int:
        assert self._pending is not None
        data, chunk, end, sent = self._data, self._chunk, self.end, self._sent
        written = 0
        for watcher in self._pending:
            if watcher.group is not self:
                continue
            position = watcher.position
            if position.number == end:
                continue  # the watcher joined while the chunk was being written
            if data:
                if watcher.paused:
                    self.dismiss(watcher)
                    continue
                position.sent_definitions = self._next_definitions
                watcher.write(data, chunk, lags=self._lags)
                written += 1
            position.number, position.sent = end, sent
            if written == WRITES:
                return written * (1 + len(data) // _BIG)
        self._pending = None
        self.number = end
        self._data = self._chunk = b""
        if self._next_definitions != self._definitions:
            self.disband()  # each watcher joins the group with its columnDefinitions
        return max(1, written * (1 + len(data) // _BIG))
