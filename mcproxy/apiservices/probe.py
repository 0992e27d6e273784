"""One probe of a registration: GET /apis/GROUP/VERSION at the owner, as the proxy itself.

As in kube-aggregator up to five attempts are made, and one that succeeds is enough; but not all at once: the next one
begins, at another endpoint if there is one, when one has failed or has no answer for a while. 200 registrations that
are well are asked by 200 requests in half a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from mcproxy.apiservices.condition import Registration, Verdict, failure, of_status, without_endpoint
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.control_stream import BodyTooLarge, ControlStream
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint

TIMEOUT = 5.0
"""Seconds for all attempts together, as kube-aggregator's client has."""
ATTEMPTS = 5
PATIENCE = 1.0
"""Seconds without an answer after which another attempt begins."""
_PAUSE = 0.2  # seconds between two attempts at one endpoint
_MAX_BODY = (
    256 * 1024
)  # bytes that are read, so that the connection can be kept; what they say is nobody's concern here
_HEADERS = (("accept", "application/json"),)


Attempt = Callable[[Cluster, Endpoint, str], Coroutine["Deferred[Any]", Any, ControlStream]]
"""How one attempt is made at an endpoint, with a path (`attempt`)."""


async def attempt(cluster: Cluster, endpoint: Endpoint, path: str) -> ControlStream:
    """Send the request; return its answer. Raises ConnectError, ControlError, CredentialError."""
    return await cluster.control.stream(endpoint, path, headers=_HEADERS, head_timeout=TIMEOUT)


def no_endpoint(cluster: Cluster) -> Verdict:
    """Return the verdict on a cluster without an endpoint that takes requests; it tells no times, which go on."""
    return without_endpoint(
        cluster.name,
        {
            each.name: "disabled" if each.config.disabled else each.health.cause or "not ready"
            for each in cluster.endpoints
        },
    )


class Probe:
    """One probe. `result` gets the verdict, None if it has shown nothing. Cancelling it ends everything."""

    def __init__(
        self, registration: Registration, cluster: Cluster, clock: IReactorTime, send: Attempt = attempt
    ) -> None:
        self.result: Deferred[Verdict | None] = Deferred(lambda _: self._stop())
        self._registration = registration
        self._cluster = cluster
        self._clock = clock
        self._send = send
        self._tried: list[Endpoint] = []
        self._running: list[Deferred[None]] = []
        self._left = ATTEMPTS
        self._last: Verdict | None = None
        self._decided = False
        self._next = clock.callLater(0, self._begin)
        self._end = clock.callLater(TIMEOUT, self._late)

    def _begin(self) -> None:
        endpoint = self._cluster.balancer.pick(self._tried)
        if endpoint is None and self._tried:
            endpoint = self._cluster.balancer.pick()
            if endpoint is not None:
                self._tried.clear()
        if endpoint is None:
            self._left = 0
            if not self._running:
                self._decide(self._last or no_endpoint(self._cluster))
            return
        self._tried.append(endpoint)
        self._left -= 1
        if self._left:
            self._next = self._clock.callLater(PATIENCE, self._begin)
        running = Deferred.fromCoroutine(self._ask(endpoint))
        self._running.append(running)
        running.addBoth(self._ended, running)

    async def _ask(self, endpoint: Endpoint) -> None:
        path = self._registration.path
        where = f"{self._registration.cluster}/{endpoint.name} on {path}"
        try:
            stream = await self._send(self._cluster, endpoint, path)
        except ConnectError as error:
            endpoint.request_check()
            self._failed(failure(where, error.cause))
            return
        except (ControlError, CredentialError) as error:
            self._failed(failure(where, error.cause))
            return
        try:
            verdict = of_status(stream.status, where)
            if verdict.failed:
                self._failed(verdict)
            else:
                self._decide(verdict)
            await stream.read_all(_MAX_BODY)
        except (ControlError, BodyTooLarge):
            pass  # the status has said it
        finally:
            stream.close()

    def _failed(self, verdict: Verdict) -> None:
        if not self._decided:
            self._last = verdict
            if self._left and self._next.active():
                self._next.reset(0 if self._cluster.balancer.pick(self._tried) is not None else _PAUSE)

    def _ended(self, result: Failure | None, running: Deferred[None]) -> Failure | None:
        if running in self._running:
            self._running.remove(running)
        if isinstance(result, Failure):
            if not result.check(CancelledError):  # type: ignore[no-untyped-call]
                self._give_up(result)
            return None
        if self._running:
            return None
        if self._decided:
            self._stop()
        elif not self._next.active() and self._last is not None:
            self._decide(self._last)
        return None

    def _late(self) -> None:
        """All attempts together have had their time. What hangs says more than a failure that may be of before."""
        path = self._registration.path
        if self._decided:  # the body alone is missing
            self._stop()
        elif self._running:
            where = f"{self._registration.cluster}/{self._tried[-1].name} on {path}"
            self._decide(failure(where, f"no answer within {TIMEOUT:g} s"), stop=True)
        else:
            self._decide(self._last, stop=True)

    def _decide(self, verdict: Verdict | None, *, stop: bool = False) -> None:
        """Tell the verdict. The answer that gave it is read to its end, within the time of the probe."""
        if self._decided:
            return
        self._decided = True
        self._stop_beginning()
        if stop or not self._running:
            self._stop()
        self.result.callback(verdict)

    def _give_up(self, bug: Failure) -> None:
        if not self._decided:
            self._decided = True
            self._stop()
            self.result.errback(bug)

    def _stop_beginning(self) -> None:
        if self._next.active():
            self._next.cancel()

    def _stop(self) -> None:
        self._decided = True
        self._stop_beginning()
        if self._end.active():
            self._end.cancel()
        running, self._running = self._running, []
        for each in running:
            each.cancel()


Begin = Callable[[Registration, Cluster], Probe]
"""Begins a probe."""
