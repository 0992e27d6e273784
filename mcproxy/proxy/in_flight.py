"""The requests in flight, and how they are ended at a shutdown or when a reload removes what they use.

A watch can be resumed by its client, so it ends cleanly, between two events. A tunnel (exec, attach, port-forward) or a
followed log cannot be resumed, so it has time to end by itself; after that it is cut: a tunnel is closed, a log is
broken off, because a client would take a clean end for the end of the log. All other requests are waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mcproxy.kube.status import retry_after
from mcproxy.proxy.request import Request, RequestKind
from mcproxy.upstream.endpoint import Endpoint

_STEP = 0.1  # seconds between two checks
_WATCH_SPREAD = 5.0  # seconds over which the watches of a removed part end: not all informers reconnect at once
_CLOSE_TIMEOUT = 1.0  # seconds for a tunnel to send what is queued, once it was closed
_RETRY_AFTER = 5  # seconds

WATCH_TIMEOUT = 1.0
"""Seconds for watches to reach the end of an event at a shutdown."""
REQUEST_TIMEOUT = 5.0
"""Seconds for short requests to finish at a shutdown."""


class InFlightRequests:
    """All requests in flight in the process: each adds itself to `requests`, and removes itself when it is done."""

    __slots__ = ("_clock", "cut", "draining", "requests")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.requests: set[Request] = set()
        self.draining = False  # tunnels and followed logs are refused
        self.cut: Counter[RequestKind] = Counter()  # requests that were ended at a shutdown before they were done

    def __len__(self) -> int:
        return len(self.requests)

    def select(self, wanted: Callable[[Request], bool]) -> list[Request]:
        """Return the requests for which `wanted` is true."""
        return [request for request in self.requests if wanted(request)]

    def endpoint_out(self, endpoint: Endpoint) -> None:
        """Notify the requests that were sent to `endpoint` that it went out (`upstream.shared.Shared`)."""
        for request in self.select(lambda request: request.endpoint is endpoint):
            if request.upstream is not None:
                request.upstream.endpoint_out()

    def refuse_if_unresumable(self, request: Request) -> None:
        """While draining: raise StatusError (503) for a tunnel or a followed log, which would be cut soon."""
        if request.exchange.head.upgrade is not None or not request.kind.resumable:
            request.reason = "draining"
            raise retry_after(503, "the proxy is shutting down and opens no tunnels or followed logs", _RETRY_AFTER)

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
        asked: set[Request] = set()

        def check() -> bool:
            elapsed = self._clock.seconds() - begun
            for request in self.select(lambda request: request.kind is RequestKind.WATCH and request not in asked):
                if request.end_gracefully():  # else it waits, and may become a watch yet
                    asked.add(request)
            for request in list(self.requests):
                limit = request_timeout if request.kind is RequestKind.SHORT else watch_timeout
                if elapsed >= limit:
                    self._cut(request, now=True)
            return not self.requests

        await self._repeat(check)

    def cut_all(self) -> None:
        """End every request at once."""
        for request in list(self.requests):
            self._cut(request, now=True)

    def _cut(self, request: Request, *, now: bool = False) -> None:
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
        asked: set[Request] = set()

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

    async def end_removed(self, requests: Collection[Request], timeout: float) -> None:
        """End `requests`, whose endpoint, cluster, server or listener a reload has removed.

        Watches end cleanly, spread over 5 s. Every other request has `timeout` seconds to end by itself, and is cut
        then; one that has no answer yet is restarted instead where the configuration in force can serve it.
        """
        begun = self._clock.seconds()
        asked: set[Request] = set()
        spread = min(_WATCH_SPREAD, timeout)

        def check() -> bool:
            elapsed = self._clock.seconds() - begun
            here = self.requests.intersection(requests)  # each time: a restarted one is another request now
            self._end_watches(here, asked, elapsed, spread)
            if elapsed >= timeout:
                for request in here:
                    if not _restarted(request):
                        request.cut(now=elapsed >= timeout + _CLOSE_TIMEOUT)
            return self.requests.isdisjoint(requests)

        await self._repeat(check)

    def _end_watches(self, requests: Collection[Request], asked: set[Request], elapsed: float, spread: float) -> None:
        """Ask as many of the watches among `requests` to end as are due after `elapsed` of `spread` seconds.

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


def _restarted(request: Request) -> bool:
    """Restart a request that the removed part has not begun to answer, with the configuration in force, if it is safe.

    Returns whether that was done.
    """
    if request.upstream is not None:
        return request.upstream.restart()
    return request.waiting is not None and request.restart()
