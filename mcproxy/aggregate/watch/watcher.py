"""One client's watch: its response, timers and rights; its state machine is in `watch_state.py`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.encoding.objects import error_event
from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.watch.bookmark_times import BookmarkTimes
from mcproxy.aggregate.watch.catch_up import CatchUp
from mcproxy.aggregate.watch.changes import ChangeQueue
from mcproxy.aggregate.watch.scheduler import WatchScheduler
from mcproxy.aggregate.watch.watch_state import (
    RUNNING,
    UP_TO_DATE,
    Trigger,
    Undecided,
    WatchOptions,
    WatchState,
    next_state,
)
from mcproxy.http.deadlines import NEVER
from mcproxy.http.messages import Header
from mcproxy.kube.status import StatusError, retry_after

if TYPE_CHECKING:
    from mcproxy.http.exchange import Exchange

log = Logger(__name__)

SLICE_BYTES = 64 * 1024
SLICE_LINES = 256
"""Maximum bytes that are encoded and written in one step."""
STEP_SECONDS = 0.005
"""Approximate maximum seconds of one step, since clients choose the length of selectors."""
_BIG = 16 * 1024
_LINES_A_LOOK = 16  # lines between two reads of the clock

REOPEN_SPREAD = 5.0
"""Seconds over which the end of watches by a reload is spread, so that not all clients return at once."""


class WatcherGroup(Protocol):
    """The interface of the group that writes to a watcher (`group.Group`)."""

    key: Hashable
    watchers: dict[Watcher, None]

    @property
    def idle(self) -> bool:
        """Whether all watchers of the group have received the whole queue."""

    def dismiss(self, watcher: Watcher) -> None:
        """Let a watcher catch up by itself from its position."""


class WatchersOfView(Protocol):
    """The interface of the set of all watchers of a view (`fan_out.FanOut`)."""

    queue: ChangeQueue
    scheduler: WatchScheduler

    def add(self, watcher: Watcher) -> None: ...

    def remove(self, watcher: Watcher) -> None: ...

    def join(self, watcher: Watcher) -> bool:
        """Add an up-to-date watcher to its group; False if the group is at another position at the moment."""


class Watcher:
    """The handler of a watch's exchange, whose response head was already written.

    `group` sends live changes to the watcher; it is None in states other than LIVE.
    """

    __slots__ = (
        "_bookmarks",
        "_checking",
        "_clock",
        "_end_at",
        "_fan_out",
        "_lines",
        "_on_end",
        "_options",
        "_recheck_at",
        "_state",
        "_sync_until",
        "catch_up",
        "deadline",
        "exchange",
        "group",
        "initial_end_due",
        "left_out_while_down",
        "paused",
        "position",
        "unreachable",
    )

    def __init__(
        self,
        exchange: Exchange,
        fan_out: WatchersOfView,
        catch_up: CatchUp,
        options: WatchOptions,
        clock: IReactorTime,
        left_out_while_down: frozenset[str] = frozenset(),
        on_end: Callable[[Watcher], None] | None = None,
    ) -> None:
        self.exchange = exchange
        self.catch_up = catch_up
        self.position = catch_up.position
        self.group: WatcherGroup | None = None
        self.paused = False
        self.left_out_while_down = left_out_while_down
        """Members that were unavailable, and are left out until they return."""
        self.unreachable = frozenset[str]()
        """Unavailable members that cannot be asked whether the user may still read their objects."""
        self.initial_end_due = options.initial_end
        """Whether the bookmark that ends the initial events has not been sent yet."""
        self._fan_out = fan_out
        self._on_end = on_end
        self._options = options
        self._clock = clock
        self._state = WatchState.OPENING
        self._lines: Iterator[bytes] | None = None  # remaining lines in CATCHING_UP
        self._checking: Deferred[None] | None = None
        now = clock.seconds()
        self._end_at = now + options.timeout
        self._sync_until = now + options.initial_sync_timeout
        self._bookmarks = BookmarkTimes(now, options.timeout, wanted=options.bookmarks, spread=options.spread)
        self._recheck_at = now + options.recheck_interval if options.recheck is not None else NEVER
        self.deadline = self._next_deadline()
        fan_out.add(self)

    # -- states -----------------------------------------------------------------------------------------------

    def _move(self, trigger: Trigger) -> None:
        self._state = next_state(self._state, trigger)

    def start(self, lines: Iterator[bytes] | None = None) -> None:
        """Begin to send events; `lines` are the first lines, if they were encoded before the response began."""
        if self.ended:
            return
        self._move(Trigger.STARTED)
        if lines is not None:
            self._send(lines)
        self.proceed()

    def _send(self, lines: Iterator[bytes]) -> None:
        """Send lines, in the next steps."""
        self._move(Trigger.LINES)
        self._lines = lines

    def dismissed(self) -> None:
        """The group has dismissed this watcher: it catches up by itself."""
        self._move(Trigger.DISMISSED)
        self.proceed()

    @property
    def ended(self) -> bool:
        """Whether the watch has ended."""
        return self._state is WatchState.ENDED

    # -- sending ----------------------------------------------------------------------------------------------

    def write(self, data: bytes, chunk: bytes, *, lags: bool = False) -> None:
        """Write a chunk that the whole group gets; `lags` is the value of `WatchPosition.lags` after the chunk."""
        self.exchange.write_shared(data, chunk)
        self.position.lags = lags
        if lags:
            self._bookmark_soon()

    def _bookmark_soon(self) -> None:
        """Schedule a bookmark within a second, since the last version sent can compare less than an earlier one."""
        bookmarks = self._bookmarks
        if bookmarks.may_be_sooner and not self.ended:
            bookmarks.event_lags(self._clock.seconds())
            self.deadline = min(self.deadline, bookmarks.after_lag)

    def proceed(self) -> None:
        """Schedule the next step for one of the next turns."""
        if self._state in RUNNING and not self.paused:
            self._fan_out.scheduler.add(self, live=False)

    def step(self) -> int:
        """Do one small step of work for the present state (`scheduler.Job`)."""
        if self.paused:
            return 0
        try:
            return _STEPS[self._state](self)
        except StatusError as error:
            self.fail(error)
        except Exception:
            log.failure("a watch failed", event="internal_error")
            self._close()
            self.exchange.abort()
        return 1

    def _step_nothing(self) -> int:
        return 0

    def _step_catching_up(self) -> int:
        """Send a slice of the lines."""
        assert self._lines is not None
        written: list[bytes] = []
        size = number = 0
        end = self._clock.seconds() + STEP_SECONDS
        try:
            for line in self._lines:
                number += 1
                if line:
                    written.append(line)
                    size += len(line)
                if size >= SLICE_BYTES or number >= SLICE_LINES:
                    break
                if (not line or number % _LINES_A_LOOK == 0) and self._clock.seconds() > end:
                    break
            else:
                self._lines = None
                self._move(Trigger.ALL_SENT)
        finally:
            if written:
                self._write_lines(written)
                if self.position.lags:
                    self._bookmark_soon()
        if self.catch_up.closed:
            self.end_gracefully()
        return 1 + size // _BIG + number // 16

    def _write_lines(self, lines: list[bytes]) -> None:
        self.exchange.write(lines[0] if len(lines) == 1 else b"".join(lines))
        self.exchange.flush()

    def _step_waiting(self) -> int:
        """Send new changes; if there are none, add new members, end the initial events, and join a group."""
        position, catch_up = self.position, self.catch_up
        if position.behind:
            self._send(catch_up.follow())
            return self._step_catching_up()
        position.adopt_bookmarks()
        self._readmit_members()
        if position.startable():
            self._send(catch_up.begin())
            return 1
        if self.initial_end_due and self._all_in():
            self.initial_end_due = False
            if self._options.bookmarks:
                self._write_lines([catch_up.bookmark(initial_end=True)])
        if not self.initial_end_due and not self.ended and position.in_step and self._fan_out.join(self):
            self._move(Trigger.JOINED)
        return 0

    def _step_live(self) -> int:
        self._readmit_members()
        return 0

    def _all_in(self) -> bool:
        """Whether the initial events are complete: the objects of every reachable member were sent."""
        if self._clock.seconds() >= self._sync_until:
            return True
        position = self.position
        undiscovered = self._fan_out.queue.state.undiscovered
        if any(member.name not in self.left_out_while_down for member in undiscovered):
            return False
        return not any(
            position.waits_for(member) and member.unavailable_since is None for member in position.watched.members
        )

    def _readmit_members(self) -> None:
        """Add members that were unavailable and have returned."""
        if not self.left_out_while_down:
            return
        members = self._fan_out.queue.state.members
        down = frozenset(member.name for member in members if member.unavailable_since is not None)
        back = self.left_out_while_down - down
        if not back:
            return
        if self.group is not None:
            self.group.dismiss(self)  # this method runs again when the watcher is at the end of the queue
        elif not self.position.behind:
            self.left_out_while_down -= back
            self.position.admit(self.position.members | back)

    # -- the client (ExchangeHandler) -------------------------------------------------------------------------

    def body_data(self, data: bytes) -> None:
        """A watch has no body."""

    def body_end(self, trailers: list[Header]) -> None:
        """Do nothing: a watch request has no body."""

    def cancelled(self) -> None:
        self._close()

    def pause_response(self) -> None:
        self.paused = True

    def resume_response(self) -> None:
        self.paused = False
        if self.group is None:
            self.proceed()

    def end_gracefully(self) -> None:
        """End the response; only whole events were written."""
        if not self.ended:
            self._close()
            self.exchange.end()

    def fail(self, error: StatusError) -> None:
        """End the watch with an ERROR event."""
        if not self.ended:
            self._close()
            self.exchange.write(error_event(error))
            self.exchange.end()

    def _close(self) -> None:
        if self.ended:
            return
        self._move(Trigger.CLOSED)
        self._lines = None
        self.deadline = NEVER
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()
        self._fan_out.remove(self)
        if self._on_end is not None:
            self._on_end(self)

    # -- times (http.deadlines) -------------------------------------------------------------------------------

    def expired(self) -> None:
        """Handle that the next deadline has passed: end, bookmark, check of rights, or end of the initial wait."""
        if not self.ended:
            try:
                self._due(self._clock.seconds())
            except StatusError as error:
                self.fail(error)

    def _due(self, now: float) -> None:
        if now >= self._end_at:
            self.end_gracefully()
            return
        if self._bookmarks.next <= now and self._bookmarks.needed(now, lags=self.position.lags):
            self._bookmarks.tried(now, sent=self._send_bookmark())
        if now >= self._recheck_at and self._checking is None:
            self._recheck_at = NEVER
            self._check_rights()
        if self.initial_end_due and now >= self._sync_until:
            self.proceed()
        self.deadline = self._next_deadline()

    def _next_deadline(self) -> float:
        sync_until = self._sync_until if self.initial_end_due and self._clock.seconds() < self._sync_until else NEVER
        return min(self._end_at, self._bookmarks.next, self._recheck_at, sync_until)

    def _send_bookmark(self) -> bool:
        """Send a bookmark if the client has all events: a bookmark must not precede them."""
        position = self.position
        if self.paused or self.initial_end_due or self._state not in UP_TO_DATE:
            return False
        if position.behind or (self.group is not None and not self.group.idle):
            return False
        position.adopt_bookmarks()
        definitions = position.sent_definitions
        self._write_lines([self.catch_up.bookmark()])
        if position.sent_definitions != definitions and self.group is not None:
            self.group.dismiss(self)  # the watcher then joins the group with the same columnDefinitions
        return True

    # -- rights -----------------------------------------------------------------------------------------------

    def recheck_rights(self) -> None:
        """Check the user's rights immediately: the view's members changed, or a member has returned."""
        if self._options.recheck is not None and self._checking is None and not self.ended:
            self._recheck_at = NEVER
            self._check_rights()

    def _check_rights(self) -> None:
        checking = Deferred.fromCoroutine(self._recheck())
        checking.addErrback(self._recheck_failed)
        if not checking.called:
            self._checking = checking

    async def _recheck(self) -> None:
        assert self._options.recheck is not None
        try:
            allowed, unreachable = await self._options.recheck()
        except Undecided:
            # The client resumes at its last version, which has no part of the new member, so it gets the new objects.
            self._checking = None
            self._end_at = min(self._end_at, self._clock.seconds() + REOPEN_SPREAD * self._options.spread)
            self.deadline = self._next_deadline()
            return
        self._checking = None
        if self.ended:
            return
        known = self.position.members | self.left_out_while_down
        present = {member.name: member for member in self._fan_out.queue.state.members}
        lost = known.intersection(present) - allowed - unreachable
        if lost:
            # The user must not keep objects without the right to read them: after a 410, the client lists again.
            raise Expired(f"the objects of cluster {min(lost)} may no longer be read")
        self.unreachable = known.intersection(present) & unreachable
        for name in sorted(self.unreachable):
            # An unavailable member sends nothing, and the client keeps its objects. Nothing more may be shown from an
            # available member, but a 410 would make the client delete objects that the user may still be allowed to
            # read.
            if present[name].unavailable_since is None:
                message = f"it cannot be asked whether the objects of cluster {name} may still be read"
                raise retry_after(503, message, 1, name=name)
        if allowed - known:
            if self.group is not None:
                self.group.dismiss(self)
            self.position.admit(self.position.members | allowed)
            self.proceed()
        self._recheck_at = self._clock.seconds() + self._options.recheck_interval
        self.deadline = self._next_deadline()

    def _recheck_failed(self, failure: Failure) -> None:
        self._checking = None
        if isinstance(failure.value, StatusError):
            self.fail(failure.value)
        elif not isinstance(failure.value, CancelledError):
            log.failure("a bug in the authorization of a watch", event="internal_error", failure=failure)
            self._close()
            self.exchange.abort()


_STEPS: dict[WatchState, Callable[[Watcher], int]] = {
    WatchState.OPENING: Watcher._step_nothing,
    WatchState.WAITING: Watcher._step_waiting,
    WatchState.CATCHING_UP: Watcher._step_catching_up,
    WatchState.LIVE: Watcher._step_live,
    WatchState.ENDED: Watcher._step_nothing,
}
