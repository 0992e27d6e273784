"""The options of a watch, its states (a table), and the times of its bookmarks. Pure: `Watcher` acts on it.

A watch is opened, brings its client to the present, and then gets every change with a group of others; it leaves the
group whenever it must catch up by itself again (the client was slow, a member was added, its rights changed).

    OPENING ──STARTED──> WAITING ──LINES──> CATCHING_UP       any ──CLOSED──> ENDED
                         ^ │  ^                  │
               DISMISSED │ │  └─────ALL_SENT─────┘
                         │ └─JOINED─> LIVE
                         └──────────────┘

Two conditions are not states, since they hold in any of WAITING, CATCHING_UP and LIVE:

- The client does not read (`Watcher.paused`). Nothing is sent until it does; a group dismisses such a watch at the next
  event instead of buffering for it.
- The initial events of a streaming list are not complete (`Watcher.initial_end_due`). Until the bookmark that ends them
  was sent, a watch gets no other bookmark and joins no group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from mcproxy.http.deadlines import NEVER


class WatchState(Enum):
    """What a watch is doing."""

    OPENING = "the response has begun; the caches are not as fresh yet as was requested"
    CATCHING_UP = "sends lines made for it alone: initial events, a resume, or what the queue has after its position"
    WAITING = "has sent all of that; is in no group, since a member or the bookmark of the initial events is missing"
    LIVE = "is in a group, which writes to it"
    ENDED = "sends nothing more"


class Trigger(Enum):
    """What moves a watch from one state to another."""

    STARTED = "the caches are as fresh as was requested"
    LINES = "there are lines to send"
    ALL_SENT = "they were sent"
    JOINED = "a group took it in"
    DISMISSED = "its group let it catch up by itself"
    CLOSED = "the response ended: the deadline, an error, a shutdown, or the client has gone"


TRANSITIONS: Mapping[WatchState, Mapping[Trigger, WatchState]] = {
    WatchState.OPENING: {Trigger.STARTED: WatchState.WAITING, Trigger.CLOSED: WatchState.ENDED},
    WatchState.WAITING: {
        Trigger.LINES: WatchState.CATCHING_UP,
        Trigger.JOINED: WatchState.LIVE,
        Trigger.CLOSED: WatchState.ENDED,
    },
    WatchState.CATCHING_UP: {Trigger.ALL_SENT: WatchState.WAITING, Trigger.CLOSED: WatchState.ENDED},
    WatchState.LIVE: {Trigger.DISMISSED: WatchState.WAITING, Trigger.CLOSED: WatchState.ENDED},
    WatchState.ENDED: {},
}

RUNNING = frozenset({WatchState.WAITING, WatchState.CATCHING_UP, WatchState.LIVE})
"""States in which a watch has steps to take."""
UP_TO_DATE = frozenset({WatchState.WAITING, WatchState.LIVE})
"""States in which a bookmark may be sent: it must not precede the events up to it."""


class IllegalTransition(Exception):
    """A bug: a trigger that is impossible in the state of the watch."""


def next_state(state: WatchState, trigger: Trigger) -> WatchState:
    """Return the state after `trigger`. Raises IllegalTransition."""
    try:
        return TRANSITIONS[state][trigger]
    except KeyError:
        raise IllegalTransition(f"{trigger.name} in state {state.name}") from None


# -- options ---------------------------------------------------------------------------------------------------


class Undecided(Exception):
    """A reload has added a member about which the request was not authorized: the client must send it again."""


class Rights(NamedTuple):
    """The members that let the user of a watch read now."""

    allowed: frozenset[str]
    unreachable: frozenset[str] = frozenset()
    """Members that cannot be asked, and whose last decision has expired."""


Recheck = Callable[[], Awaitable[Rights]]
"""Raises Undecided, or StatusError if the server no longer accepts the request."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How long a watch lasts and what it sends in addition to changes. Times are seconds.

    `initial_end`: a bookmark ends the initial events once every reachable member has sent its objects; a member without
    any known state is waited for at most `initial_sync_timeout`. `recheck` is called every `recheck_interval`.
    """

    timeout: float
    bookmarks: bool = False
    initial_end: bool = False
    initial_sync_timeout: float = 10.0
    recheck: Recheck | None = None
    recheck_interval: float = 30.0
    spread: float = 0.5
    """A random number from 0 to 1."""


# -- bookmarks --------------------------------------------------------------------------------------------------

BOOKMARK_INTERVAL = 60.0
"""Seconds between two bookmarks, approximately: they are spread so that not all watches get theirs at once."""
LAST_BOOKMARK = 2.0
"""Seconds before the deadline at which a last bookmark is sent."""
LAG_DELAY = 0.5
"""Seconds after an event whose lead is not the greatest part of its vector until a bookmark is sent: clients compare
what they saw last with what they wrote (KEP-5504), and the last event may be another cluster's."""
LAG_INTERVAL = 1.0
"""The least seconds between two such bookmarks of one watch."""
_RETRY = 1.0  # seconds until a bookmark is tried again that could not be sent because the client is behind


class BookmarkTimes:
    """When a watch gets bookmarks: regular ones, one before its end, and one after events that lag. Times are those of
    one clock, in seconds."""

    __slots__ = ("_last", "_regular", "_sent_at", "_wanted", "after_lag")

    def __init__(self, now: float, timeout: float, *, wanted: bool, spread: float) -> None:
        """`timeout`: how long the watch lasts. `wanted`: the client takes bookmarks. `spread`: a random number from 0
        to 1."""
        self._wanted = wanted
        self._regular = now + BOOKMARK_INTERVAL * (0.9 + 0.2 * spread) if wanted else NEVER
        # A kube-apiserver sends none in a watch that is not longer than that.
        self._last = now + timeout - LAST_BOOKMARK if wanted and timeout > LAST_BOOKMARK else NEVER
        self.after_lag = NEVER
        """When one is due because the last event lags."""
        self._sent_at = -NEVER

    @property
    def next(self) -> float:
        """When the next one is due."""
        return min(self._regular, self._last, self.after_lag)

    @property
    def may_be_sooner(self) -> bool:
        """Whether an event that lags makes the next one due sooner."""
        return self._wanted and self.after_lag == NEVER

    def event_lags(self, now: float) -> None:
        """An event was sent whose version compares less than a bookmark at the same position."""
        self.after_lag = max(now + LAG_DELAY, self._sent_at + LAG_INTERVAL)

    def needed(self, now: float, *, lags: bool) -> bool:
        """Whether a bookmark is to be sent now. One that is due only after a lagging event is not, if no event lags any
        more.
        """
        if self.after_lag <= now < min(self._regular, self._last) and not lags:
            self.after_lag = NEVER
            return False
        return now >= self.next

    def tried(self, now: float, *, sent: bool) -> None:
        """A bookmark that was due was sent, or could not be sent."""
        if sent:
            self._sent_at = now
        if now >= self.after_lag:
            self.after_lag = NEVER if sent else now + _RETRY / 4
        if now >= self._last:
            self._last = NEVER if sent else now + _RETRY / 4
        if now >= self._regular:
            self._regular = now + (BOOKMARK_INTERVAL if sent else _RETRY)
