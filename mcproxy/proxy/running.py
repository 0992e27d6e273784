"""The requests that are under way, and how they are brought to an end when they have to be.

Short requests finish by themselves. Watches, logs, tunnels may not, so they are ended one after the other, spread over
the time that is left: a thousand informers that all come back in one second would be an outage of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall

from mcproxy.proxy.forward import Forward
from mcproxy.proxy.request import Request
from mcproxy.upstream.endpoint import Endpoint

_STEP = 0.1  # seconds between two looks
_SPREAD = 0.9  # part of the time over which requests are asked to end; the rest is for those that need a moment more


class Running:
    """All requests under way in the process: each adds itself to `requests`, and takes itself off when it is done."""

    __slots__ = ("_clock", "requests")

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.requests: set[Request] = set()

    def __len__(self) -> int:
        return len(self.requests)

    def those(self, wanted: Callable[[Request], bool]) -> list[Request]:
        return [request for request in self.requests if wanted(request)]

    def endpoint_out(self, endpoint: Endpoint) -> None:
        """Tell the requests that were sent to `endpoint` that it went out (`upstream.shared.Shared`)."""
        for request in self.those(lambda request: request.endpoint is endpoint):
            handler = request.exchange.handler
            if isinstance(handler, Forward):
                handler.endpoint_out()

    async def end(self, requests: Collection[Request], timeout: float) -> None:
        """Wait for `requests` to end, ask those that would go on to end within `timeout` seconds, then break off.

        Those that have no answer yet are not broken off if a reload has come since and they can be served by what it
        brought.
        """
        begun = self._clock.seconds()
        asked: set[Request] = set()

        def look() -> None:
            elapsed = self._clock.seconds() - begun
            # Looked at anew each time: one that waited for something may be a watch now, which can be asked to end, and
            # one that began anew elsewhere is another request now, and this one is over.
            here = self.requests.intersection(requests)
            lasting = [request for request in here if request.lasting and request not in asked]
            count = len(lasting) + len(asked)
            due = count if timeout <= 0 else int(count * elapsed / (timeout * _SPREAD)) + 1
            for request in lasting[: max(0, due - len(asked))]:
                request.finish_up()
                asked.add(request)
            if elapsed >= timeout:
                for request in here:
                    if not _began_anew(request):
                        request.break_off()
            if self.requests.isdisjoint(requests):
                loop.stop()

        loop = LoopingCall(look)
        loop.clock = self._clock
        ended: Deferred[LoopingCall] = loop.start(_STEP)
        await ended


def _began_anew(request: Request) -> bool:
    """Let the configuration in force serve a request that what was removed has not begun to answer, if that is safe."""
    handler = request.exchange.handler
    if handler is None:
        return request.waiting is not None and request.begin_anew()
    return isinstance(handler, Forward) and handler.start_over()
