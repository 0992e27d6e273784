"""The requests in flight, and how they are ended when they have to be.

Short requests finish by themselves. Watches, logs and tunnels may not, so they are ended one after the other, spread
over the time that is left: a thousand informers that reconnect within one second would be an outage of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mcproxy.proxy.request import Request
from mcproxy.upstream.endpoint import Endpoint

_STEP = 0.1  # seconds between two checks
_SPREAD = 0.9  # part of the time over which requests are asked to end; the rest is for those that need a moment more


class InFlightRequests:
    """All requests in flight in the process: each adds itself to `requests`, and removes itself when it is done."""

    __slots__ = ("_clock", "requests")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.requests: set[Request] = set()

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

    async def end(self, requests: Collection[Request], timeout: float) -> None:
        """Wait for `requests` to end, ask those that would go on to end within `timeout` seconds, then abort the rest.

        Requests without an answer are not aborted if a reload has come meanwhile and its configuration can serve them.
        """
        begun = self._clock.seconds()
        asked: set[Request] = set()

        def check() -> None:
            elapsed = self._clock.seconds() - begun
            # Looked at anew each time: a request that waited may have become a watch, which can be asked to end, and a
            # restarted one is another request now, and the old one is over.
            here = self.requests.intersection(requests)
            open_ended = [request for request in here if request.open_ended and request not in asked]
            count = len(open_ended) + len(asked)
            due = count if timeout <= 0 else int(count * elapsed / (timeout * _SPREAD)) + 1
            for request in open_ended[: max(0, due - len(asked))]:
                request.end_gracefully()
                asked.add(request)
            if elapsed >= timeout:
                for request in here:
                    if not _restarted(request):
                        request.abort()
            if self.requests.isdisjoint(requests):
                loop.stop()

        loop = LoopingCall(check)
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
