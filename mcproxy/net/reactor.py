"""An epoll reactor with a shorter dispatch, which is measurably faster at high request rates.

Twisted's dispatch uses `log.callWithLogger` (a context dictionary for each event) and first calls `fileno()`. This
reactor calls the selectable directly. It handles errors as Twisted does: an exception of doRead or doWrite is logged
and closes the connection.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from twisted.internet import epollreactor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST, installReactor
from twisted.logger import Logger

from mcproxy.net.resolver import Resolver

log = Logger(__name__)

_monotonic = time.monotonic
_IN = epollreactor.EPOLLIN
_OUT = epollreactor.EPOLLOUT
_DEAD = epollreactor.EPOLLHUP | epollreactor.EPOLLERR

LONG_TURN = 0.001
"""Seconds above which an iteration of the reactor is reported individually."""


def _ignore(seconds: float) -> None:
    """Do nothing; the default of `long_turn`."""


class LeanEpollReactor(epollreactor.EPollReactor):
    """EPollReactor with its own `doPoll`.

    `end_of_turn` collects streams with coalesced writes or a protocol to flush. Their `end_turn` is called after all
    ready selectables have been called, before the reactor waits again.

    It measures its turns (iterations), each from the end of a wait to the next wait. A timer or request that becomes
    ready during a turn waits at most for that time. Reading the clock twice takes 0.1 µs, so every turn is measured.

    Twisted's reactors use the time of day: setting the clock forward would end every timeout at once, and setting it
    back would delay all timers by as much. Here timers use CLOCK_MONOTONIC, which is the same for all processes of the
    machine. The time of day is `wall_seconds` (`wall_time.py`).
    """

    seconds = staticmethod(time.monotonic)
    wall_seconds = staticmethod(time.time)

    def __init__(self) -> None:
        self.end_of_turn: list[Any] = []
        self.short_turns = 0  # number since the reader reset it, and the sum of their seconds
        self.short_turn_seconds = 0.0
        self.long_turn: Callable[[float], None] = _ignore  # called with the seconds of a turn over `LONG_TURN`
        self._woken_at = _monotonic()
        super().__init__()  # type: ignore[no-untyped-call]
        self.installNameResolver(Resolver(self))

    def addExclusiveReader(self, reader: Any) -> None:
        """Add a listening socket that other processes also poll (EPOLLEXCLUSIVE), so that a connection wakes only one.

        The processes share the socket, not the epoll instance. `removeReader` removes it. It cannot also be a writer.
        """
        fd = reader.fileno()
        if fd not in self._reads:
            self._poller.register(fd, _IN | select.EPOLLEXCLUSIVE)
            self._reads.add(fd)
            self._selectables[fd] = reader

    def _end_turn(self) -> None:
        # A failing send closes its connection. The protocol can then write to another stream, which joins this list.
        turn = self.end_of_turn
        for stream in turn:
            try:
                stream.end_turn()
            except BaseException as error:
                self._disconnect(stream, self._log_failure(error), False)
        turn.clear()

    def doPoll(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds (None: without limit) and call the ready selectables."""
        if self.end_of_turn:
            self._end_turn()
        selectables = self._selectables
        took = _monotonic() - self._woken_at
        if took > LONG_TURN:
            self.long_turn(took)
        else:
            self.short_turns += 1
            self.short_turn_seconds += took
        ready = self._poller.poll(-1 if timeout is None else timeout, len(selectables) or 1)
        self._woken_at = _monotonic()
        for fd, event in ready:
            selectable = selectables.get(fd)
            if selectable is None:
                continue  # another selectable has closed this one in this loop
            if event == _IN:
                try:
                    why = selectable.doRead()
                except BaseException as error:
                    why = self._log_failure(error)
                if why:
                    self._disconnect(selectable, why, True)
            else:
                self._dispatch(selectable, fd, event)
        if self.end_of_turn:
            self._end_turn()

    doIteration = doPoll

    def _dispatch(self, selectable: Any, fd: int, event: int) -> None:
        """Handle all events except a plain read, as `_PollLikeMixin._doReadOrWrite` does."""
        why: BaseException | None = None
        reading = False
        if event & _DEAD and not event & _IN:
            reading = fd in self._reads
            why = CONNECTION_DONE if reading else CONNECTION_LOST
        else:
            try:
                if event & _IN:
                    reading = True
                    why = selectable.doRead()
                if not why and event & _OUT and fd in self._writes:
                    reading = False
                    why = selectable.doWrite()
            except BaseException as error:
                why = self._log_failure(error)
        if why:
            self._disconnect(selectable, why, reading)

    def _disconnect(self, selectable: Any, why: BaseException, reading: bool) -> None:
        self._disconnectSelectable(selectable, why, reading)  # type: ignore[no-untyped-call]

    def _log_failure(self, error: BaseException) -> BaseException:
        log.failure("unhandled error in a connection; it is closed", event="internal_error")
        return error


def install() -> LeanEpollReactor:
    """Install this reactor in the process. Call it before any import of twisted.internet.reactor."""
    reactor = LeanEpollReactor()
    installReactor(reactor)  # type: ignore[no-untyped-call]
    return reactor
