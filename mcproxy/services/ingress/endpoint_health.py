"""Passive and active health checks of one endpoint of a backend.

A ready endpoint can be out (ejected) for two reasons:

*Passive health* (`out_by_requests`). A failure is what nginx always counts as one (`proxy_next_upstream error timeout
invalid_header`): no connection, a connection that ends before the head of the response, no head in time, a malformed
head. As in nginx, no response status is a failure (not even 502, 503 or 504) unless `retryOn` names it: otherwise the
load of a pod that sheds load with 503 would move to its neighbours. Three failures in a row put the endpoint out for
10 s, each further time in a row for twice as long, at most 60 s. Then its trial begins: the first failure puts it out
again, the first response ends the trial.

*Active health* (`out_by_checks`), if the backend has a `healthCheck`: `unhealthyAfter` failed checks in a row put the
endpoint out, until `healthyAfter` checks in a row succeed.

If all ready endpoints are out, all of them are used (`endpoint_balancer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config.model import BackendHealthCheck
from mcproxy.http.client_stream import ClientStream, ConnectionClosed
from mcproxy.http.messages import Header, ResponseHead, UpstreamProtocolError
from mcproxy.http.tunnel import TunnelSide
from mcproxy.net.connect_errors import ConnectError
from mcproxy.services.endpoint_table import EndpointState, PodEndpoint
from mcproxy.services.ingress.forward_target import Target
from mcproxy.upstream.control import request_head

log = Logger(__name__)

MAX_FAILURES = 3
"""Number of failures in a row that put an endpoint out."""
FIRST_OUT = 10.0
"""Seconds for which an endpoint is out the first time."""
LONGEST_OUT = 60.0
"""Maximum of seconds for which an endpoint is out."""


class BackendEndpoint:
    """An endpoint in one cluster. Backends that differ only in weights, strategy or affinity share it."""

    __slots__ = (
        "_clock",
        "_failures",
        "_gone",
        "_outs",
        "_timer",
        "changed",
        "cluster",
        "failures_total",
        "name",
        "out_by_checks",
        "out_by_requests",
        "pod",
        "problem",
        "since",
        "target",
        "went_out",
    )

    def __init__(
        self, cluster: str, pod: PodEndpoint, target: Target, clock: IReactorTime, since: float = -math.inf
    ) -> None:
        """`target`: the destination of requests (`pod_pools`). `since`: when the endpoint was added or recovered."""
        self.cluster = cluster
        self.pod = pod
        self.target = target
        self.since = since
        address = f"[{pod.address}]" if ":" in pod.address else pod.address
        self.name = f"{address}:{pod.port}" if pod.port else address  # port 0: an API server chooses the pod
        self.out_by_requests = False
        self.out_by_checks = False
        self.problem = ""  # why the endpoint is out, for operators
        self.failures_total = 0
        self.changed: Callable[[], None] = _nothing  # called after possible changes of `usable`
        # Called when failed requests have put the endpoint out, with the seconds for which it is out.
        self.went_out: Callable[[BackendEndpoint, float], None] = _ignored
        self._clock = clock
        self._failures = 0  # number of failures in a row
        self._gone = False
        self._outs = 0  # number of ejections in a row, without a response in between
        self._timer: IDelayedCall | None = None

    @property
    def in_flight(self) -> int:
        """The requests in flight at the endpoint, of all backends."""
        return self.target.in_flight

    @property
    def ready(self) -> bool:
        """Whether the endpoint is ready according to its EndpointSlice."""
        return self.pod.state is EndpointState.READY

    @property
    def usable(self) -> bool:
        """Whether neither requests nor checks have put the endpoint out."""
        return not self.out_by_requests and not self.out_by_checks

    def succeeded(self) -> None:
        """Reset the count of failures, because the head of a response has arrived."""
        if self._failures:
            self._failures = self._outs = 0

    def failed(self, problem: str) -> None:
        """Count a failure."""
        self.failures_total += 1
        self._failures += 1
        if self._failures < MAX_FAILURES or self.out_by_requests or self._gone:
            return
        self.out_by_requests = True
        self.problem = problem
        seconds = min(LONGEST_OUT, FIRST_OUT * 2 ** min(self._outs, 10))
        self._outs += 1
        self._timer = self._clock.callLater(seconds, self._begin_trial)
        self.changed()
        self.went_out(self, seconds)

    def _begin_trial(self) -> None:
        self._timer = None
        self.out_by_requests = False
        self._failures = MAX_FAILURES - 1  # on trial
        self._came_back()

    def checked(self, failing: bool, problem: str = "") -> None:
        """Set the result of active checks."""
        if failing is not self.out_by_checks:
            self.out_by_checks = failing
            if failing:
                self.problem = problem
                self.changed()
            else:
                self._came_back()

    def _came_back(self) -> None:
        """End a reason for being out; after the last reason the endpoint has a slow start, as a new one."""
        if self.usable:
            self.since = self._clock.seconds()
        self.changed()

    def stop(self) -> None:
        """End the timer of a removed endpoint; requests that fail later start no timer."""
        self._gone = True
        self.changed, self.went_out = _nothing, _ignored
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing() -> None:
    """Do nothing."""


def _ignored(endpoint: BackendEndpoint, seconds: float) -> None:
    """Do nothing."""


# -- active checks --------------------------------------------------------------------------------------------
#
# Active health checks send GET `healthCheck.path` to a backend's endpoints; as in kubelet's probes, 200 to 399 is good.
#
# Each process with listeners checks independently, over the connections of requests, idle ones first. A new
# endpoint counts as healthy. A terminating endpoint is not checked.


_FIELDS = b"User-Agent: mcproxy-health-check\r\nAccept: */*\r\n"
_MOST_BODY = 64 * 1024  # maximum of bytes of a body that is read so that the connection can be kept
_FIRST = 1.0  # seconds within which the first check begins
_JITTER = 0.1  # fraction of the interval


class HealthChecks:
    """The checks of a backend's endpoints in one cluster; they run between `start` and `stop`."""

    def __init__(
        self, config: BackendHealthCheck, service: str, cluster: str, clock: IReactorTime, random: Callable[[], float]
    ) -> None:
        """`service` and `cluster` are for the log; `random` returns a float in [0, 1)."""
        self._config = config
        self._service = service
        self._cluster = cluster
        self._clock = clock
        self._random = random
        self._running = False
        self._endpoints: tuple[BackendEndpoint, ...] = ()
        self._checkers: dict[BackendEndpoint, _Checker] = {}

    def start(self) -> None:
        """Start checking."""
        self._running = True
        self.follow(self._endpoints)

    def stop(self) -> None:
        """Stop at once."""
        self._running = False
        self.follow(())

    def follow(self, endpoints: Iterable[BackendEndpoint]) -> None:
        """Set the endpoints to check."""
        self._endpoints = tuple(endpoints)
        wanted = {each for each in self._endpoints if each.ready} if self._running else set()
        for endpoint in [each for each in self._checkers if each not in wanted]:
            self._checkers.pop(endpoint).stop()
        for endpoint in wanted:
            if endpoint not in self._checkers:
                self._checkers[endpoint] = _Checker(endpoint, self._config, self._clock, self._random, self._decided)

    def _decided(self, endpoint: BackendEndpoint, problem: str) -> None:
        endpoint.checked(bool(problem), problem)
        if problem:
            log.warn(
                "an endpoint of an ingress is out: its health checks fail",
                event="ingress_endpoint_out",
                service=self._service,
                cluster=self._cluster,
                endpoint=endpoint.name,
                cause=problem,
                todo="see that pod; `healthCheck` of the backend has the path of the request",
                log_subject=("ingress endpoint", self._service, self._cluster, endpoint.name),
            )
        else:
            log.info(
                "an endpoint of an ingress answers its health checks again",
                event="ingress_endpoint_back",
                service=self._service,
                cluster=self._cluster,
                endpoint=endpoint.name,
            )


class _Checker:
    """The checks of one endpoint."""

    __slots__ = ("_bad", "_begun", "_clock", "_config", "_decided", "_endpoint", "_good", "_probe", "_random", "_timer")

    def __init__(
        self,
        endpoint: BackendEndpoint,
        config: BackendHealthCheck,
        clock: IReactorTime,
        random: Callable[[], float],
        decided: Callable[[BackendEndpoint, str], None],
    ) -> None:
        self._endpoint = endpoint
        self._config = config
        self._clock = clock
        self._random = random
        self._decided = decided
        self._good = self._bad = 0  # numbers of successful and of failed checks in a row
        self._begun = clock.seconds()
        self._probe: Deferred[str] | None = None
        self._timer: IDelayedCall | None = clock.callLater(random() * min(_FIRST, config.interval), self._check)

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.cancel()

    def _check(self) -> None:
        self._timer = None
        self._begun = self._clock.seconds()
        probe = self._probe = Deferred.fromCoroutine(_probe(self._endpoint.target, self._config.path.encode()))
        probe.addTimeout(self._config.timeout, self._clock)
        probe.addCallbacks(self._ended, self._failed)

    def _failed(self, failure: Failure) -> None:
        if isinstance(failure.value, TimeoutError):
            self._ended(f"no answer within {self._config.timeout:g} s")
        elif not isinstance(failure.value, CancelledError):
            log.failure("a health check failed unexpectedly", event="internal_error", failure=failure)
            self._ended("")

    def _ended(self, problem: str) -> None:
        if self._probe is None:
            return  # stopped meanwhile
        self._probe = None
        config, out = self._config, self._endpoint.out_by_checks
        self._good, self._bad = (0, self._bad + 1) if problem else (self._good + 1, 0)
        pause = config.interval * (1 - _JITTER * self._random())
        elapsed = self._clock.seconds() - self._begun
        self._timer = self._clock.callLater(max(0.0, pause - elapsed), self._check)
        if problem and not out and self._bad >= config.unhealthy_after:
            self._decided(self._endpoint, problem)
        elif not problem and out and self._good >= config.healthy_after:
            self._decided(self._endpoint, "")


async def _probe(target: Target, path: bytes) -> str:
    """Probe a target; return why it is unhealthy, or ""."""
    stream = target.take(upgrade=False)
    if stream is not None:
        try:
            return await _ask(stream, path)
        except ConnectionClosed:
            pass  # the endpoint had closed an idle connection, which is no failure
    try:
        return await _ask(await target.open(upgrade=False), path)
    except ConnectError as problem:
        return str(problem)
    except ConnectionClosed as problem:
        return f"no answer: {problem}"
    except UpstreamProtocolError as problem:
        return f"no valid answer: {problem}"


def _ask(stream: ClientStream, path: bytes) -> Deferred[str]:
    answer = _Answer(stream)
    stream.send_head(request_head("GET"), path, b"health-check", (_FIELDS,), answer, 0.0)
    return answer.result


class _Answer:
    """The response to a check (`ResponseSink`)."""

    def __init__(self, stream: ClientStream) -> None:
        self.result: Deferred[str] = Deferred(lambda _: self._give_up())
        self._stream: ClientStream | None = stream
        self._status = 0
        self._size = 0

    def _give_up(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def _done(self) -> None:
        if self._stream is not None:
            self._stream = None
            self.result.callback("" if 200 <= self._status < 400 else f"it answers {self._status}")

    def response_interim(self, head: ResponseHead) -> None:
        """Do nothing: the final response follows."""

    def response_head(self, head: ResponseHead) -> None:
        self._status = head.status

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        self._status = head.status
        self._done()

    def response_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > _MOST_BODY and self._stream is not None:
            self._stream.cancel()
            self._done()

    def response_flush(self) -> None:
        """Do nothing: the response is not passed on."""

    def response_end(self, trailers: list[Header]) -> None:
        self._done()

    def response_failed(self, problem: Exception) -> None:
        if self._stream is not None:
            self._stream = None
            self.result.errback(problem)

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        side.close(clean=False)
        self._status = head.status
        self._done()

    def pause_request(self) -> None:
        """Do nothing: the request has no body."""

    def resume_request(self) -> None:
        """Do nothing: the request has no body."""
