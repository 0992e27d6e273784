"""The options of a watch and its state machine. Pure: `Watcher` acts on it.

A watch is opened, brings its client up to date, and then gets every change together with a group of watches. It leaves
the group when it must catch up by itself again (the client was slow, a member was added, the user's rights changed).

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


class WatchState(Enum):
    """The state of a watch."""

    OPENING = "the response has begun; the caches are not as fresh yet as was requested"
    CATCHING_UP = "sends lines made for it alone: initial events, a resume, or what the queue has after its position"
    WAITING = "has sent all of that; is in no group, since a member or the bookmark of the initial events is missing"
    LIVE = "is in a group, which writes to it"
    ENDED = "sends nothing more"


class Trigger(Enum):
    """An event that changes the state of a watch."""

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
"""States in which a watch has work for the scheduler."""
UP_TO_DATE = frozenset({WatchState.WAITING, WatchState.LIVE})
"""States in which a bookmark may be sent: it must not precede the events up to its version."""


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
    """The members from which the user of a watch may read now."""

    allowed: frozenset[str]
    unreachable: frozenset[str] = frozenset()
    """Members that cannot be asked about the user's rights, and whose last decision has expired."""


Recheck = Callable[[], Awaitable[Rights]]
"""Raises Undecided, or StatusError if the server no longer accepts the request."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The duration of a watch, and the lines that it sends in addition to changes. Times are in seconds.

    `initial_end`: a bookmark ends the initial events after every reachable member's objects were sent; the wait for a
    member without known state lasts at most `initial_sync_timeout`. `recheck` is called every `recheck_interval`.
    """

    timeout: float
    bookmarks: bool = False
    initial_end: bool = False
    initial_sync_timeout: float = 10.0
    recheck: Recheck | None = None
    recheck_interval: float = 30.0
    spread: float = 0.5
    """A random number from 0 to 1."""
