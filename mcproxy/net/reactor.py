"""The epoll reactor with a lean dispatch: the one change that was clearly worth it at request rates.

Twisted's dispatch goes through `log.callWithLogger` (a context dictionary each event) and asks `fileno()` first. Here
the selectable is called directly. Errors are handled as before: an exception of doRead or doWrite is logged and
the connection is lost with it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import epollreactor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST, installReactor
from twisted.logger import Logger

log = Logger()

_IN = epollreactor.EPOLLIN
_OUT = epollreactor.EPOLLOUT
_DEAD = epollreactor.EPOLLHUP | epollreactor.EPOLLERR


class LeanEpollReactor(epollreactor.EPollReactor):
    """EPollReactor with its own `doPoll`.

    `end_of_turn` takes streams that hold small writes; their `send_held` is called when all that was ready has been
    called, and before the reactor waits again.
    """

    def __init__(self) -> None:
        self.end_of_turn: list[Any] = []
        super().__init__()  # type: ignore[no-untyped-call]

    def _end_turn(self) -> None:
        # A send may fail and end its connection, and that may write to another: such a stream is added behind.
        turn = self.end_of_turn
        for stream in turn:
            try:
                stream.send_held()
            except BaseException as error:
                self._lost(stream, self._caught(error), False)
        turn.clear()

    def doPoll(self, timeout: float | None) -> None:
        """Wait up to `timeout` seconds (None: for ever) and call what is ready."""
        if self.end_of_turn:
            self._end_turn()
        selectables = self._selectables
        for fd, event in self._poller.poll(-1 if timeout is None else timeout, len(selectables) or 1):
            selectable = selectables.get(fd)
            if selectable is None:
                continue  # closed by one that was called before it in this loop
            if event == _IN:
                try:
                    why = selectable.doRead()
                except BaseException as error:
                    why = self._caught(error)
                if why:
                    self._lost(selectable, why, True)
            else:
                self._dispatch(selectable, fd, event)
        if self.end_of_turn:
            self._end_turn()

    doIteration = doPoll

    def _dispatch(self, selectable: Any, fd: int, event: int) -> None:
        """Anything but a plain read, as `_PollLikeMixin._doReadOrWrite` does it."""
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
                why = self._caught(error)
        if why:
            self._lost(selectable, why, reading)

    def _lost(self, selectable: Any, why: BaseException, reading: bool) -> None:
        self._disconnectSelectable(selectable, why, reading)  # type: ignore[no-untyped-call]

    def _caught(self, error: BaseException) -> BaseException:
        log.failure("a connection's code failed; the connection is closed")
        return error


def install() -> LeanEpollReactor:
    """Make this the process's reactor; call before anything imports twisted.internet.reactor."""
    reactor = LeanEpollReactor()
    installReactor(reactor)  # type: ignore[no-untyped-call]
    return reactor
