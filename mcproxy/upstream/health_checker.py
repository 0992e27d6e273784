"""Schedules the health checks of a cluster's endpoints. `health_check` sends one, `health_state` evaluates the results.

Each endpoint is checked at once, then every `interval` seconds with a jitter of 10 % (so that many proxies do not
synchronize), and early when a request could not connect. If `/readyz` does not exist (404), `/healthz` is used. After a
401 or 403 the next check follows after one second, for 30 seconds, because the API server may just be starting. A
check that timed out while this process was stopped (SIGSTOP, a suspended machine) does not count, and is repeated. An
early check after a failed request opens a new connection: an API server that responds over existing connections but
accepts no new ones is not healthy.

If a check of an endpoint that was never ready gets no response, it is repeated once with ten times the timeout. An
overloaded API server that responds in this time has started, and may serve (`Cluster.last_resort`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.net.connect_errors import ConnectError
from mcproxy.observe.metrics.families import HEALTH_CHECKS
from mcproxy.upstream.credentials import CredentialError, CredentialSource
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_check import CheckError, StoodStill, failure_message, get_health, is_refused
from mcproxy.upstream.health_state import REFUSED_SECONDS
from mcproxy.upstream.remedies import remedy
from mcproxy.upstream.upstream_context import UpstreamContext

log = Logger(__name__)

_JITTER = 0.1
_MIN_GAP = 1.0  # minimum of seconds between the starts of two checks, however many requests fail to connect
_LATE_FACTOR = 10  # multiple of `timeout` within which a response shows that the endpoint has started
_OLDER_PATH = {"/readyz": "/healthz"}  # for Kubernetes before 1.16, and other API servers


class HealthChecker:
    """The checks of all endpoints of one cluster."""

    def __init__(
        self,
        config: model.ClusterConfig,
        endpoints: Sequence[Endpoint],
        credentials: CredentialSource,
        context: UpstreamContext,
    ) -> None:
        self._name = config.name
        self._context = context
        self._endpoints = endpoints
        self._checks: list[EndpointChecker] = []
        self.credentials = credentials
        self.settings = config.health_check
        self.warned = False  # whether a warning about a missing right was logged

    def start(self) -> None:
        """Start checking all endpoints."""
        self._checks = [EndpointChecker(endpoint, self, self._context) for endpoint in self._endpoints]
        for check in self._checks:
            check.start()

    def stop(self) -> None:
        """Stop the checks; results of running ones are dropped."""
        checks, self._checks = self._checks, []
        for check in checks:
            check.stop()

    def use_credential(self, endpoint: Endpoint, authorization: bytes | None) -> None:
        """Note the credential of the check that is starting."""
        endpoint.health.use_credential((authorization, self.credentials.certificate))

    def record(
        self, endpoint: Endpoint, failure: str | None, *, silent: bool, refused: bool, unconnected: bool
    ) -> None:
        """Count the result of a check; the arguments are those of `Endpoint.record_check`."""
        endpoint.record_check(failure, silent=silent, refused=refused, unconnected=unconnected)
        if failure is None:
            self.warned = False
        elif endpoint.health.alive_but_refused(self._context.reactor.seconds()):
            self.warn_of_missing_right(failure)

    def warn_of_missing_right(self, cause: str) -> None:
        """Log once that the credential lacks the right to read the health, until a check is permitted again."""
        if not self.warned:
            self.warned = True
            log.warn(
                "endpoints count as alive although their health check refuses the credential",
                event="health_check_credential_refused",
                cluster=self._name,
                cause=cause,
                todo=remedy(cause, self._endpoints[0].keys),
            )


class EndpointChecker:
    """The checks of one endpoint, one after the other."""

    def __init__(self, endpoint: Endpoint, owner: HealthChecker, context: UpstreamContext) -> None:
        self._endpoint = endpoint
        self._owner = owner
        self._context = context
        self._path = owner.settings.path
        self._began = 0.0
        self._next: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self._stopped = True
        self._repeat = False  # whether the last check had no result
        self._requested = False  # whether an early check was requested
        self._new_connection = False  # whether the running check uses a new connection
        self._refused_since: float | None = None  # begin of the uninterrupted series of refused checks
        self._late_answer: Deferred[None] | None = None  # the wait for a late answer

    def start(self) -> None:
        self._stopped = False
        self._endpoint.check_soon = self._check_soon
        reactor = self._context.reactor
        self._next = reactor.callLater(self._context.check_pacing.reserve(reactor.seconds()), self._begin)

    def stop(self) -> None:
        self._stopped = True
        if self._endpoint.check_soon == self._check_soon:  # no successor has taken over the endpoint
            self._endpoint.check_soon = None
        if self._next is not None:
            self._next.cancel()
            self._next = None
        for running in (self._running, self._late_answer):
            if running is not None:
                running.cancel()

    def _check_soon(self) -> None:
        self._requested = True
        if self._next is None:  # a check is running
            return
        now = self._context.reactor.seconds()
        at = max(now, self._began + _MIN_GAP)
        if self._next.getTime() > at:
            self._next.reset(at - now)

    def _begin(self) -> None:
        self._next = None
        self._began = self._context.reactor.seconds()
        self._new_connection, self._requested = self._requested, False
        running = self._running = Deferred.fromCoroutine(self._check())
        running.addErrback(self._check_crashed)
        running.addCallback(self._schedule)

    def _schedule(self, _: None) -> None:
        self._running = None
        if self._stopped:
            return
        interval = self._owner.settings.interval * (1 + _JITTER * (2 * self._context.random() - 1))
        now = self._context.reactor.seconds()
        if self._repeat:
            self._repeat, interval = False, 0.0
        if self._refused_since is not None and now - self._refused_since < REFUSED_SECONDS:
            interval = min(interval, _MIN_GAP)
        wait = self._began + interval - now
        self._next = self._context.reactor.callLater(max(0.0, wait), self._begin)

    def _check_crashed(self, failure: Failure) -> None:
        """Ignore the cancellation of a check; any other exception is a bug, which must not end the checks for good."""
        if not (self._stopped and isinstance(failure.value, CancelledError)):
            log.failure(
                "a health check failed unexpectedly",
                failure,
                event="internal_error",
                cluster=self._endpoint.cluster_name,
                endpoint=self._endpoint.name,
            )

    async def _check(self) -> None:
        authorization = await self._authorization()
        endpoint, owner, reactor = self._endpoint, self._owner, self._context.reactor
        owner.use_credential(endpoint, authorization)
        sent = reactor.seconds()
        silent = True
        refused = unconnected = False
        failure: str | None
        try:
            status, body = await self._send(authorization, owner.settings.timeout)
            silent = False
            refused = is_refused(status)
            failure = failure_message(status, body, self._path)
        except StoodStill:
            self._repeat = True
            return
        except ConnectError as error:
            unconnected = True
            failure = error.cause
        except CheckError as error:
            failure = error.cause
        if self._stopped:
            return
        if silent and not unconnected and not endpoint.health.may_serve and self._late_answer is None:
            self._late_answer = Deferred.fromCoroutine(self._wait_for_late_answer(authorization))
            self._late_answer.addErrback(self._check_crashed).addCallback(self._stop_waiting)
        now = reactor.seconds()
        if not silent:
            endpoint.check_seconds = now - sent
        if not refused:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        result = "ok" if failure is None else "failed"
        self._context.metrics.counts.increase(HEALTH_CHECKS, (endpoint.cluster_name, endpoint.name, result))
        owner.record(endpoint, failure, silent=silent, refused=refused, unconnected=unconnected)

    async def _wait_for_late_answer(self, authorization: bytes | None) -> None:
        """Check an endpoint that was never ready, with a longer timeout."""
        try:
            status, _ = await self._send(authorization, _LATE_FACTOR * self._owner.settings.timeout)
        except (CheckError, ConnectError):
            return
        if 200 <= status < 300 and not self._stopped:
            self._endpoint.health.answered_late()

    def _stop_waiting(self, _: None) -> None:
        self._late_answer = None

    async def _authorization(self) -> bytes | None:
        """Return the value of the Authorization header; None if there is none now, so the check is sent without it."""
        credentials = self._owner.credentials
        try:
            if not credentials.is_ready:
                waiting = Deferred.fromCoroutine(credentials.ready())
                await waiting.addTimeout(self._owner.settings.timeout, self._context.reactor)
            return credentials.authorization()
        except (CredentialError, TimeoutError):
            return None  # the source of the credential has logged the error

    async def _send(self, authorization: bytes | None, timeout: float) -> tuple[int, bytes]:
        """Send a check; if the credential is refused and there is a newer one, send a second check."""
        status, body = await self._get_on_known_path(authorization, timeout)
        if status == 401 and self._owner.credentials.invalidate(authorization):
            authorization = await self._authorization()
            status, body = await self._get_on_known_path(authorization, timeout)
        if status == 401:
            self._owner.credentials.note_refusal(self._context.reactor.seconds(), authorization)
        return status, body

    async def _get_on_known_path(self, authorization: bytes | None, timeout: float) -> tuple[int, bytes]:
        """GET the health path, or the older path if the API server has only that."""
        status, body = await self._get(self._path, authorization, timeout)
        older = _OLDER_PATH.get(self._path)
        if status == 404 and older is not None:
            status, body = await self._get(older, authorization, timeout)
            if status != 404:
                self._path = older
        return status, body

    async def _get(self, path: str, authorization: bytes | None, timeout: float) -> tuple[int, bytes]:
        return await get_health(
            self._endpoint,
            path,
            authorization,
            self._context.reactor,
            timeout=timeout,
            new_connection=self._new_connection,
        )
