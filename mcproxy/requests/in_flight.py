"""The requests in flight, and how they are ended at a shutdown or when a reload removes what they use.

A watch can be resumed by its client, so it ends cleanly, between two events. A tunnel (exec, attach, port-forward) or a
followed log cannot be resumed, so it has time to end by itself; after that it is cut: a tunnel is closed, a log is
broken off, because a client would take a clean end for the end of the log. All other requests are waited for.
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


# The kinds of requests, by how one in flight is ended before it is done. Pure.


class RequestKind(enum.Enum):
    """The values are the words in which a shutdown counts what it has cut."""

    SHORT = "requests"
    """Ends by itself, soon: everything but the following. Also streams below `proxy`."""
    WATCH = "watches"
    """Is resumed by its client after a clean end."""
    LOG = "logs"
    """A followed log: ends only with its container, and cannot be resumed."""
    STREAM = "streams"
    """A request to an ingress that lasts: a download, a stream of events. It cannot be resumed."""
    TUNNEL = "tunnels"
    """exec, attach, port-forward, and every connection that was upgraded: cannot be resumed."""

    @property
    def resumable(self) -> bool:
        return self is RequestKind.SHORT or self is RequestKind.WATCH


def kind_of(info: RequestInfo | None) -> RequestKind:
    """Return the kind of a request that is not upgraded yet."""
    if info is None or not info.long_running:
        return RequestKind.SHORT
    if info.verb == "watch":
        return RequestKind.WATCH
    if info.subresource == "log":
        return RequestKind.LOG
    return RequestKind.TUNNEL if info.subresource in STREAM_SUBRESOURCES else RequestKind.SHORT


_STEP: Final = 0.1  # seconds between two checks
_WATCH_SPREAD: Final = 5.0  # seconds over which the watches of a removed part end: not all informers reconnect at once
_CLOSE_TIMEOUT: Final = 1.0  # seconds for a tunnel to send what is queued, once it was closed

WATCH_TIMEOUT: Final = 1.0
"""Seconds for watches to reach the end of an event at a shutdown."""
REQUEST_TIMEOUT: Final = 5.0
"""Seconds for short requests to finish at a shutdown."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestInFlight(metaclass=ABCMeta):
    """A request that has not ended, and how it is ended before it is done; hashed by identity.

    Subclasses set the attributes: calling a constructor here would cost every request.
    """

    __slots__ = ("ended_at", "exchange", "reason", "was_cut")

    exchange: Exchange
    reason: str
    """One of `reasons.REASONS`, for the access log; "" until it is known."""
    was_cut: bool
    ended_at: float
    """When it ended, by the reactor's clock; 0.0 before."""

    @property
    @abstractmethod
    def kind(self) -> RequestKind:
        """How to end it, as far as is known yet."""

    @abstractmethod
    def end_gracefully(self) -> bool:
        """End a watch cleanly, now or at the end of its current event; False if it has no response yet."""

    @abstractmethod
    def begin_again(self) -> bool:
        """Restart the request with the configuration in force, if no response has begun and repeating it is safe.

        Returns whether that was done.
        """

    def cut(self, *, now: bool = False) -> None:
        """End the request before it is done: close a tunnel (with `now` at once), close the connection of any other.

        A followed log is broken off, never ended cleanly: its client would take what it has for the whole log.
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
        """How it ended, one of `reasons.REASONS`."""
        if self.reason:
            return self.reason
        exchange = self.exchange
        if exchange.status and exchange.completed:
            return "ok"
        if exchange.status and not exchange.responded and not exchange.stalled:
            return "bad_request"  # the engine has answered
        return "client_stalled" if exchange.stalled else "client_closed"


R = TypeVar("R", bound=RequestInFlight)


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestsInFlight(Generic[R]):
    """Requests in flight: each adds itself to `requests`, and removes itself when it is done."""

    __slots__ = ("_clock", "cut", "draining", "requests")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.requests: set[R] = set()
        self.draining = False  # tunnels and followed logs are refused
        self.cut: Counter[RequestKind] = Counter()  # requests that were ended at a shutdown before they were done

    def __len__(self) -> int:
        return len(self.requests)

    def select(self, wanted: Callable[[R], bool]) -> list[R]:
        """Return the requests for which `wanted` is true."""
        return [request for request in self.requests if wanted(request)]

    # -- shutdown -----------------------------------------------------------------------------------------------

    async def drain(self, timeout: float) -> None:
        """Refuse new tunnels and followed logs, and wait until there are none, at most `timeout` seconds.

        Cuts those that remain. Everything else continues. Returns at once if there are none.
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
        """End all watches, each at the end of an event, and wait for every other request; then cut those that remain.

        Both times are in seconds from now.
        """
        self.draining = True
        begun = self._clock.seconds()
        asked: set[R] = set()

        def check() -> bool:
            elapsed = self._clock.seconds() - begun
            for request in self.select(lambda request: request.kind is RequestKind.WATCH and request not in asked):
                if request.end_gracefully():  # else it still waits, and may become a watch
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
        """End all requests of a process whose successor serves already; new ones may come on its last connections.

        Watches end cleanly, spread over 5 s. Tunnels and followed logs have `timeout` seconds to end by themselves, and
        all other requests too, but at least 5 s; those that remain are cut.
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
        """End `requests`, whose endpoint, cluster, server or listener a reload has removed, or whose owner is another.

        Watches end cleanly, spread over `spread` seconds. Every other request has `timeout` seconds to end by itself,
        then it is cut; one without an answer is restarted instead where the configuration in force can serve it.
        """
        begun = self._clock.seconds()
        asked: set[R] = set()
        spread = min(spread, timeout)

        def check() -> bool:
            elapsed = self._clock.seconds() - begun
            here = self.requests.intersection(requests)  # each time: a restarted one is another request now
            self._end_watches(here, asked, elapsed, spread)
            if elapsed >= timeout:
                for request in here:
                    if not request.begin_again():
                        request.cut(now=elapsed >= timeout + _CLOSE_TIMEOUT)
            return self.requests.isdisjoint(requests)

        await self._repeat(check)

    def _end_watches(self, requests: Collection[R], asked: set[R], elapsed: float, spread: float) -> None:
        """Watches are asked to end evenly over `spread` seconds: ask those whose turn has come after `elapsed`.

        `asked` has those that were asked before. Call it again and again: a request that waited may become a watch.
        """
        watches = [request for request in requests if request.kind is RequestKind.WATCH and request not in asked]
        count = len(watches) + len(asked)
        due = count if elapsed >= spread else int(count * elapsed / spread) + 1
        for request in watches:
            if len(asked) >= due:
                break
            if request.end_gracefully():  # else it has no answer yet
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
