"""One client's watch: its response, its timers, and its cursor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.watch.cursor import Cursor
from mcproxy.aggregate.watch.rendering import error_line
from mcproxy.aggregate.watch.terms import Undecided, WatchTerms
from mcproxy.aggregate.watch.turns import Turns
from mcproxy.http.deadlines import NEVER
from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.view.view import ViewState

log = Logger()

SLICE_BYTES = 64 * 1024
SLICE_LINES = 256
"""What is made and written in one step."""
STEP_SECONDS = 0.005
"""How long one step lasts, about: a client decides how long its selectors are."""
BOOKMARK_INTERVAL = 60.0
"""Seconds between two bookmarks, about: they are spread so that not all watches get theirs at once."""
LAST_BOOKMARK = 2.0
"""Seconds before the deadline at which a last bookmark is sent."""
_RETRY = 1.0  # seconds until a bookmark is tried again that could not be sent because the client is behind
_BIG = 16 * 1024
_LINES_A_LOOK = 16  # at the clock

REOPEN_SPREAD = 5.0
"""Seconds within which watches end that must be opened anew after a reload: not all clients come back at once."""


class WatcherGroup(Protocol):
    """Watchers that get the same bytes (`group.Group`)."""

    key: Hashable
    watchers: dict[Watcher, None]

    @property
    def idle(self) -> bool:
        """Whether all of them have got everything that there is."""

    def dismiss(self, watcher: Watcher) -> None:
        """Leave a watcher to itself, where it stands."""


class WatchersOfView(Protocol):
    """The watchers of one view (`fan_out.FanOut`)."""

    state: ViewState
    turns: Turns

    def add(self, watcher: Watcher) -> None: ...

    def remove(self, watcher: Watcher) -> None: ...

    def join(self, watcher: Watcher) -> bool:
        """Take a watcher that is in step into its group; False if the group is elsewhere just now."""


class Watcher:
    """The handler of a watch's exchange, whose response head was written.

    `group` is where it gets live changes from; None while it catches up, waits, or does not read.
    """

    __slots__ = (
        "_bookmark_at",
        "_checking",
        "_clock",
        "_end_at",
        "_ended",
        "_fan_out",
        "_initial_end",
        "_last_bookmark_at",
        "_on_end",
        "_recheck_at",
        "_source",
        "_started",
        "_sync_until",
        "_terms",
        "cursor",
        "deadline",
        "exchange",
        "group",
        "paused",
        "postponed",
    )

    def __init__(
        self,
        exchange: Exchange,
        fan_out: WatchersOfView,
        cursor: Cursor,
        terms: WatchTerms,
        clock: IReactorTime,
        postponed: frozenset[str] = frozenset(),
        on_end: Callable[[Watcher], None] | None = None,
    ) -> None:
        self.exchange = exchange
        self.cursor = cursor
        self.group: WatcherGroup | None = None
        self.paused = False
        self.postponed = postponed
        """Members that were down, and are left out until they are back."""
        self._fan_out = fan_out
        self._on_end = on_end
        self._terms = terms
        self._clock = clock
        self._source: Iterator[bytes] | None = None
        self._started = False
        self._ended = False
        self._initial_end = terms.initial_end
        self._checking: Deferred[None] | None = None
        now = clock.seconds()
        self._end_at = now + terms.timeout
        self._sync_until = now + terms.initial_sync_timeout
        self._bookmark_at = now + BOOKMARK_INTERVAL * (0.9 + 0.2 * terms.spread) if terms.bookmarks else NEVER
        self._last_bookmark_at = self._end_at - LAST_BOOKMARK if terms.bookmarks else NEVER
        self._recheck_at = now + terms.recheck_interval if terms.recheck is not None else NEVER
        self.deadline = self._next_deadline()
        fan_out.add(self)

    def start(self, source: Iterator[bytes] | None = None) -> None:
        """Begin to send; `source` are the first lines, where they were worked out before the response began."""
        self._source = source
        self._started = True
        self.proceed()

    # -- sending ----------------------------------------------------------------------------------------------

    def write(self, data: bytes, chunk: bytes) -> None:
        """Write what all of a group get."""
        self.exchange.write_shared(data, chunk)

    def proceed(self) -> None:
        """Do what there is to do in one of the next turns."""
        if self._started and not self._ended and not self.paused:
            self._fan_out.turns.add(self, live=False)

    def step(self) -> int:
        """Send a slice of what brings the client to the present (`Turns`)."""
        if self._ended or self.paused:
            return 0
        try:
            if self.group is not None:
                self._take_back()
                return 0
            if self._source is None:
                if not self.cursor.behind:
                    return self._arrived()
                self._source = self.cursor.follow()
            return self._send_slice(self._source)
        except StatusError as error:
            self.fail(error)
        except Exception:
            log.failure("a watch failed", event="internal_error")
            self._close()
            self.exchange.abort()
        return 1

    def _send_slice(self, source: Iterator[bytes]) -> int:
        lines: list[bytes] = []
        size = number = 0
        end = self._clock.seconds() + STEP_SECONDS
        try:
            for line in source:
                number += 1
                if line:
                    lines.append(line)
                    size += len(line)
                if size >= SLICE_BYTES or number >= SLICE_LINES:
                    break
                if (not line or number % _LINES_A_LOOK == 0) and self._clock.seconds() > end:
                    break
            else:
                self._source = None
        finally:
            if lines:
                self._write_lines(lines)
        if self.cursor.closed:
            self.finish_up()
        return 1 + size // _BIG + number // 16

    def _write_lines(self, lines: list[bytes]) -> None:
        self.exchange.write(lines[0] if len(lines) == 1 else b"".join(lines))
        self.exchange.flush()

    def _arrived(self) -> int:
        """The client has everything that the queue has: take in new members, say so, and go into a group."""
        cursor = self.cursor
        cursor.settle()
        self._take_back()
        if cursor.startable():
            self._source = cursor.start()
            return 1
        if self._initial_end and self._all_in():
            self._initial_end = False
            if self._terms.bookmarks:
                self._write_lines([cursor.bookmark(initial_end=True)])
        if not self._initial_end and not self._ended and cursor.in_step:
            self._fan_out.join(self)
        return 0

    def _all_in(self) -> bool:
        """Whether the initial events are complete: every member is in that can be reached."""
        if self._clock.seconds() >= self._sync_until:
            return True
        state = self._fan_out.state
        waits_for = self.cursor.waits_for
        if any(member.name not in self.postponed for member in state.undiscovered):
            return False
        return not any(
            waits_for(member) and member.unavailable_since is None for member in self.cursor.coverage.members
        )

    def _take_back(self) -> None:
        """Take in members that were down and are back."""
        if not self.postponed:
            return
        down = frozenset(member.name for member in self._fan_out.state.members if member.unavailable_since is not None)
        back = self.postponed - down
        if not back:
            return
        if self.group is not None:
            self.group.dismiss(self)  # to where it stands; it comes back here when it is at the end of the queue
        elif not self.cursor.behind:
            self.postponed -= back
            self.cursor.admit(self.cursor.members | back)

    # -- the client (ExchangeHandler) -------------------------------------------------------------------------

    def body_data(self, data: bytes) -> None:
        """A watch has no body."""

    def body_end(self, trailers: list[Header]) -> None:
        """Nothing to do."""

    def cancelled(self) -> None:
        self._close()

    def pause_response(self) -> None:
        self.paused = True

    def resume_response(self) -> None:
        self.paused = False
        if self.group is None:
            self.proceed()

    def finish_up(self) -> None:
        """End the response; what was written are whole events."""
        if not self._ended:
            self._close()
            self.exchange.end()

    def fail(self, error: StatusError) -> None:
        """End with an ERROR event."""
        if not self._ended:
            self._close()
            self.exchange.write(error_line(error))
            self.exchange.end()

    def _close(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._source = None
        self.deadline = NEVER
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()
        self._fan_out.remove(self)
        if self._on_end is not None:
            self._on_end(self)

    @property
    def ended(self) -> bool:
        """Whether nothing more is sent."""
        return self._ended

    # -- times (http.deadlines) -------------------------------------------------------------------------------

    def expired(self) -> None:
        """Something is due."""
        if not self._ended:
            try:
                self._due(self._clock.seconds())
            except StatusError as error:
                self.fail(error)

    def _due(self, now: float) -> None:
        if now >= self._end_at:
            self.finish_up()
            return
        if now >= min(self._bookmark_at, self._last_bookmark_at):
            self._bookmark_due(now)
        if now >= self._recheck_at and self._checking is None:
            self._recheck_at = NEVER
            self._check_rights()
        if self._initial_end and now >= self._sync_until:
            self.proceed()
        self.deadline = self._next_deadline()

    def _next_deadline(self) -> float:
        sync_until = self._sync_until if self._initial_end and self._clock.seconds() < self._sync_until else NEVER
        return min(self._end_at, self._bookmark_at, self._last_bookmark_at, self._recheck_at, sync_until)

    def _bookmark_due(self, now: float) -> None:
        sent = self._send_bookmark()
        if now >= self._last_bookmark_at:
            self._last_bookmark_at = NEVER if sent else now + _RETRY / 4
        if now >= self._bookmark_at:
            self._bookmark_at = now + (BOOKMARK_INTERVAL if sent else _RETRY)

    def _send_bookmark(self) -> bool:
        """Send a bookmark if the client has everything that there is; a slow one must not get ahead of its events."""
        cursor = self.cursor
        if self.paused or self._initial_end or self._source is not None or not self._started:
            return False
        if cursor.behind or (self.group is not None and not self.group.idle):
            return False
        cursor.settle()
        first = cursor.first
        self._write_lines([cursor.bookmark()])
        if first and self.group is not None:
            self.group.dismiss(self)  # to those that have got their first event
        return True

    # -- rights -----------------------------------------------------------------------------------------------

    def members_added(self) -> None:
        """The view has members that it did not have: ask whether the user may read them, too."""
        if self._terms.recheck is not None and self._checking is None and not self._ended:
            self._recheck_at = NEVER
            self._check_rights()

    def _check_rights(self) -> None:
        checking = Deferred.fromCoroutine(self._recheck())
        checking.addErrback(self._recheck_failed)
        if not checking.called:
            self._checking = checking

    async def _recheck(self) -> None:
        assert self._terms.recheck is not None
        try:
            allowed = await self._terms.recheck()
        except Undecided:
            # The client goes on from its last version, which has no part of the new member: it gets its objects.
            self._checking = None
            self._end_at = min(self._end_at, self._clock.seconds() + REOPEN_SPREAD * self._terms.spread)
            self.deadline = self._next_deadline()
            return
        self._checking = None
        if self._ended:
            return
        known = self.cursor.members | self.postponed
        present = frozenset(member.name for member in self._fan_out.state.members)
        lost = (known & present) - allowed
        if lost:
            # The client must not keep what it may not read any more: it lists anew, with the rights that it has now.
            raise Expired(f"the objects of cluster {min(lost)} may no longer be read")
        if allowed - known:
            if self.group is not None:
                self.group.dismiss(self)
            self.cursor.admit(self.cursor.members | allowed)
            self.proceed()
        self._recheck_at = self._clock.seconds() + self._terms.recheck_interval
        self.deadline = self._next_deadline()

    def _recheck_failed(self, failure: Failure) -> None:
        self._checking = None
        if isinstance(failure.value, StatusError):
            self.fail(failure.value)
        elif not isinstance(failure.value, CancelledError):
            log.failure("a bug in the authorization of a watch", event="internal_error", failure=failure)
            self._close()
            self.exchange.abort()
