"""Tracks requests that wait for a connection of a pool, so that they can be sent to another endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from mcproxy.http.client_stream import ClientStream


class PendingRequests:
    """The requests that wait for a connection of one pool; `len()` is their number."""

    __slots__ = ("_waiting", "releasing")

    def __init__(self) -> None:
        self._waiting: dict[Deferred[ClientStream], Deferred[ClientStream]] = {}
        self.releasing = False  # whether `release` runs, during which the pool may try to open further connections

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, inner: Deferred[ClientStream]) -> Deferred[ClientStream]:
        """Return a Deferred that fires as `inner` (`ConnectionPool.open`) does, unless `release` is called first.

        Cancelling it cancels both.
        """
        outer: Deferred[ClientStream] = Deferred(lambda _: inner.cancel())
        self._waiting[outer] = inner

        def opened(stream: ClientStream) -> None:
            del self._waiting[outer]
            outer.callback(stream)

        def failed(reason: Failure) -> None:
            if self._waiting.pop(outer, None) is not None:  # otherwise the request was released
                outer.errback(reason)

        inner.addCallbacks(opened, failed)
        return outer

    def release(self, problem: Callable[[], Exception]) -> None:
        """Fail the waiting requests; nothing was sent, so they go to another endpoint at once."""
        waiting, self._waiting = self._waiting, {}
        self.releasing = True
        for outer, inner in waiting.items():
            outer.errback(problem())
            inner.cancel()
        self.releasing = False
