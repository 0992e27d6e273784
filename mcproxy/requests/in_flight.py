"""Tracks the requests in flight, and ends them at a shutdown or when a reload removes objects that they use.

A client can resume a watch, so a watch is ended cleanly, between two events. A client cannot resume a tunnel (exec,
attach, port-forward) or a followed log, so these have time to end by themselves. After that a tunnel is closed, and a
log is aborted, because a client would take a clean end for the end of the log. All other requests have time to finish.
"""

from __future__ import annotations

import enum
from abc import ABCMeta, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mcproxy.http.exchange import Exchange
from mcproxy.kube.requestinfo import STREAM_SUBRESOURCES

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo


# The kinds of requests, which determine how a request in flight is ended early. Pure.


class RequestKind(enum.Enum):
    """The kind of a request. The values are the names in the counts of cut requests at a shutdown."""

    SHORT = "requests"
    """A request that ends soon by itself: all of no other kind. Also streams through the subresource `proxy`."""
    WATCH = "watches"
    """A watch, which its client resumes after a clean end."""
    LOG = "logs"
    """A followed log, which ends only with its container and cannot be resumed."""
    STREAM = "streams"
    """A long request to an ingress, such as a download or a stream of events, which cannot be resumed."""
    TUNNEL = "tunnels"
    """exec, attach, port-forward, and every upgraded connection, which cannot be resumed."""

    @property
    def resumable(self) -> bool:
        return self is RequestKind.SHORT or self is RequestKind.WATCH


def kind_of(info: RequestInfo | None) -> RequestKind:
    """Return the kind of a request before an upgrade."""
    if info is None or not info.long_running:
        return RequestKind.SHORT
    if info.verb == "watch":
        return RequestKind.WATCH
    if info.subresource == "log":
        return RequestKind.LOG
    return RequestKind.TUNNEL if info.subresource in STREAM_SUBRESOURCES else RequestKind.SHORT


_STEP: Final = 0.1  # seconds between two checks
_WATCH_SPREAD: Final = 5.0  # seconds over which ends of watches are spread, so that not all informers reconnect at once
_CLOSE_TIMEOUT: Final = 1.0  # seconds for a closed tunnel to send queued data

WATCH_TIMEOUT: Final = 1.0
"""Seconds within which watches must reach the end of an event at a shutdown."""
REQUEST_TIMEOUT: Final = 5.0
"""Seconds within which short requests must finish at a shutdown."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestInFlight(metaclass=ABCMeta):
    """A request that has not ended, with methods that end it early; hashed by identity.

    Subclasses set the attributes, because calling a constructor would cost time for every request.
    """

    __slots__ = ("ended_at", "exchange", "reason", "was_cut")

    exchange: Exchange
    reason: str
    """The reason of the request's end, one of `reasons.REASONS`, for the access log; "" until the reason is known."""
    was_cut: bool
    ended_at: float
    """The time of the request's end by the reactor's clock; 0.0 before the end."""

    @property
    @abstractmethod
    def kind(self) -> RequestKind:
        """The kind of the request as known now; it can change, e.g. by an upgrade."""

    @abstractmethod
    def end_gracefully(self) -> bool:
        """End a watch cleanly, now or after its current event; return False if it has no response yet."""

    @abstractmethod
    def begin_again(self) -> bool:
        """Restart the request with the configuration in force, if no response has begun and repeating it is safe.

        Return whether it was restarted.
        """

    def cut(self, *, now: bool = False) -> None:
        """End the request early: close a tunnel (with `now` at once), or the connection of another request.

        A followed log is aborted, never ended cleanly, because its client would take a clean end for the log's end.
        """
        exchange = self.exchange
        if exchange.ended:
            return
        first, self.was_cut = not self.was_cut, True
        self.reason = "drained"
        handler = exchange.handler
        if exchange.upgraded and not now:
            if first and handler is not None:
                handler.end_gracefully()
            return
        exchange.abort()
        if handler is not None:
            handler.cancelled()

    @property
    def outcome(self) -> str:
        """The reason of the request's end, one of `reasons.REASONS`."""
        if self.reason:
            return self.reason
        exchange = self.exchange
        if exchange.status and exchange.completed:
            return "ok"
        if exchange.status and not exchange.responded and not exchange.stalled:
            return "bad_request"  # the HTTP engine has refused the request
        return "client_stalled" if exchange.stalled else "client_closed"


R = TypeVar("R", bound=RequestInFlight)


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestsInFlight(Generic[R]):
    """The requests in flight. Each adds itself to `requests`, and removes itself at its end."""

    __slots__ = ("_clock", "cut", "draining", "requests")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.requests: set[R] = set()
        self.draining = False  # whether tunnels and followed logs are refused
        self.cut: Counter[RequestKind] = Counter()  # number of requests that a shutdown ended early

    def __len__(self) -> int:
        return len(self.requests)

    def select(self, wanted: Callable[[R], bool]) -> list[R]:
        """Return the requests for which `wanted` is true."""
        return [request for request in self.requests if wanted(request)]

    # -- shutdown -----------------------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Refuse new tunnels and followed logs, and wait at most `timeout` seconds until the open ones have ended.

        Long requests to ingresses are awaited, too. Then the remaining requests of these kinds are cut; others
        continue. Returns at once if there are none.
        """
        self.draining = True
        deadline = self._clock.seconds() + timeout

        def check() -> bool:
            open_ = self.select(lambda request: not request.kind.resumable)
            if open_ and self._clock.seconds() >= deadline:
                for request in open_:
                    self._cut(request)
                return True
            return not open_

        await self._repeat(check)

    async def finish(self, watch_timeout: float = WATCH_TIMEOUT, request_timeout: float = REQUEST_TIMEOUT) -> None:
        """End each watch at the end of an event, and cut the requests that have not ended in time.

        Short requests and streams have `request_timeout` seconds from now, all other requests `watch_timeout` seconds.
        """
        self.draining = True
        begun = self._clock.seconds()
        asked: set[R] = set()

        def check() -> bool:
            elapsed = self._clock.seconds() - begun
            for request in self.select(lambda request: request.kind is RequestKind.WATCH and request not in asked):
                if request.end_gracefully():  # if False, there is no response yet: try again in the next step
                    asked.add(request)
            for request in list(self.requests):
                soon = request.kind is RequestKind.SHORT or request.kind is RequestKind.STREAM
                limit = request_timeout if soon else watch_timeout
                if elapsed >= limit:
                    self._cut(request, now=True)
            return not self.requests

        await self._repeat(check)

    def cut_all(self) -> None:
        """End every request at once."""
        for request in list(self.requests):
            self._cut(request, now=True)

    def _cut(self, request: R, *, now: bool = False) -> None:
        if not request.was_cut:
            self.cut[request.kind] += 1
        request.cut(now=now)

    # -- reload -------------------------------------------------------------------------------------------------

    async def retire(self, timeout: float) -> None:
        """End all requests of a process whose successor already serves. New requests can arrive on its last
        connections.

        Watches end cleanly, spread over 5 s. Every request has `timeout` seconds to end by itself; short requests and
        watches have at least 6 s. Remaining requests are cut.
        """
        begun = self._clock.seconds()
        asked: set[R] = set()

        def check() -> bool:
            elapsed = self._clock.seconds() - begun
            self._end_watches(self.requests, asked, elapsed, _WATCH_SPREAD)
            for request in list(self.requests):
                limit = timeout
                if request.kind.resumable:
                    limit = max(timeout, REQUEST_TIMEOUT, _WATCH_SPREAD + WATCH_TIMEOUT)
                if elapsed >= limit:
                    self._cut(request, now=elapsed >= limit + _CLOSE_TIMEOUT)
            return not self.requests

        await self._repeat(check)

    async def end_removed(self, requests: Collection[R], timeout: float, *, spread: float = _WATCH_SPREAD) -> None:
        """End `requests` whose endpoint, cluster, server or listener a reload has removed, or whose owner has changed.

        Watches end cleanly, spread over `spread` seconds. Every other request has `timeout` seconds to end by itself,
        then it is cut. A request without a response is instead restarted if the configuration in force can serve it.
        """
        begun = self._clock.seconds()
        asked: set[R] = set()
        spread = min(spread, timeout)

        def check() -> bool:
            elapsed = self._clock.seconds() - begun
            # Compute this in each step, since a restart replaces a request by another one.
            here = self.requests.intersection(requests)
            self._end_watches(here, asked, elapsed, spread)
            if elapsed >= timeout:
                for request in here:
                    if not request.begin_again():
                        request.cut(now=elapsed >= timeout + _CLOSE_TIMEOUT)
            return self.requests.isdisjoint(requests)

        await self._repeat(check)

    def _end_watches(self, requests: Collection[R], asked: set[R], elapsed: float, spread: float) -> None:
        """Request the end of as many watches as are due after `elapsed` of `spread` seconds, so that they end evenly.

        `asked` has the watches of earlier calls. Call this repeatedly, because a waiting request can become a watch.
        """
        watches = [request for request in requests if request.kind is RequestKind.WATCH and request not in asked]
        count = len(watches) + len(asked)
        due = count if elapsed >= spread else int(count * elapsed / spread) + 1
        for request in watches:
            if len(asked) >= due:
                break
            if request.end_gracefully():  # if False, there is no response yet
                asked.add(request)

    async def _repeat(self, check: Callable[[], bool]) -> None:
        """Call `check` now and every 0.1 s until it returns True."""

        def step() -> None:
            if check():
                loop.stop()

        loop = LoopingCall(step)
        loop.clock = self._clock
        ended: Deferred[LoopingCall] = loop.start(_STEP)
        await ended
