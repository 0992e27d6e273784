"""Health checks of a cluster: when an endpoint is checked, and over what; `health_state` judges the results.

Each endpoint is checked at once, then every `interval` seconds give or take a tenth (so that many proxies do not
fall into step), and early after a request could not connect. `/readyz` that does not exist becomes `/healthz`.
401 and 403 mean that the API server is alive; one warning tells that the credential lacks the right.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.net.errors import ConnectError
from mcproxy.upstream.credentials import CredentialError, CredentialSource
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_probe import Probe, ProbeError, failure_of, lacks_right, probe_request
from mcproxy.upstream.shared import Shared

log = Logger()

_JITTER = 0.1
_MIN_GAP = 1.0  # seconds between the beginnings of two checks, however many requests fail to connect
_OLDER_PATH = {"/readyz": "/healthz"}  # Kubernetes before 1.16, and API servers of other make


class HealthChecker:
    """The checks of all endpoints of one cluster."""

    def __init__(
        self, config: model.Cluster, endpoints: Sequence[Endpoint], credentials: CredentialSource, shared: Shared
    ) -> None:
        self._name = config.name
        self._warned = False
        self.credentials = credentials
        self.settings = config.health_check
        self._checks = [EndpointChecker(endpoint, self, shared) for endpoint in endpoints]

    def start(self) -> None:
        for check in self._checks:
            check.start()

    def stop(self) -> None:
        for check in self._checks:
            check.stop()

    def note_right(self, status: int, path: str) -> None:
        """Warn once when the credential may not see the health, and again only after it could."""
        if not lacks_right(status):
            self._warned = False
        elif not self._warned:
            self._warned = True
            log.warn(
                "health check of cluster {cluster}: {path} answered {status}; it counts as alive",
                cluster=self._name,
                path=path,
                status=status,
                todo="give the cluster's credential the right to get this path, or set healthCheck.path",
            )


class EndpointChecker:
    """The checks of one endpoint, one after the other."""

    def __init__(self, endpoint: Endpoint, owner: HealthChecker, shared: Shared) -> None:
        self._endpoint = endpoint
        self._owner = owner
        self._shared = shared
        self._path = owner.settings.path
        self._began = 0.0
        self._next: IDelayedCall | None = None
        self._running: Deferred[None] | None = None
        self._stopped = True

    def start(self) -> None:
        self._stopped = False
        self._endpoint.check_soon = self._check_soon
        reactor = self._shared.reactor
        self._next = reactor.callLater(self._shared.check_pacing.reserve(reactor.seconds()), self._begin)

    def stop(self) -> None:
        self._stopped = True
        if self._endpoint.check_soon == self._check_soon:  # not if a successor has taken the endpoint over
            self._endpoint.check_soon = None
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._running is not None:
            self._running.cancel()

    def _check_soon(self) -> None:
        if self._next is None:  # a check is running
            return
        now = self._shared.reactor.seconds()
        at = max(now, self._began + _MIN_GAP)
        if self._next.getTime() > at:
            self._next.reset(at - now)

    def _begin(self) -> None:
        self._next = None
        self._began = self._shared.reactor.seconds()
        running = self._running = Deferred.fromCoroutine(self._check())
        running.addErrback(self._check_crashed)
        running.addCallback(self._schedule)

    def _schedule(self, _: None) -> None:
        self._running = None
        if self._stopped:
            return
        interval = self._owner.settings.interval * (1 + _JITTER * (2 * self._shared.random() - 1))
        wait = self._began + interval - self._shared.reactor.seconds()
        self._next = self._shared.reactor.callLater(max(0.0, wait), self._begin)

    def _check_crashed(self, failure: Failure) -> None:
        """End a check that was cancelled; anything else is our own fault and must not end the checks for good."""
        if not (self._stopped and isinstance(failure.value, CancelledError)):
            log.failure("health check of {endpoint} broke", failure, endpoint=repr(self._endpoint))

    async def _check(self) -> None:
        authorization = await self._authorization()
        timeout = self._owner.settings.timeout
        silent = True
        try:
            failure = await Deferred.fromCoroutine(self._probe(authorization)).addTimeout(timeout, self._shared.reactor)
            silent = False
        except TimeoutError:
            failure = f"no answer on {self._path} within {timeout:g} s"
        except ConnectError as error:
            failure = error.cause
        except ProbeError as error:
            failure = str(error)
        if not self._stopped:
            self._endpoint.record_check(failure, silent=silent)

    async def _authorization(self) -> bytes | None:
        """Return the credential's header; None if there is none now, since an API server can be alive without it."""
        credentials = self._owner.credentials
        try:
            if not credentials.is_ready:
                waiting = Deferred.fromCoroutine(credentials.ready())
                await waiting.addTimeout(self._owner.settings.timeout, self._shared.reactor)
            return credentials.authorization()
        except (CredentialError, TimeoutError):
            return None  # the source has logged it

    async def _probe(self, authorization: bytes | None) -> str | None:
        status, body = await self._get(self._path, authorization)
        older = _OLDER_PATH.get(self._path)
        if status == 404 and older is not None:
            status, body = await self._get(older, authorization)
            if status != 404:
                self._path = older
        if status == 401:
            self._owner.credentials.invalidate(authorization)
        self._owner.note_right(status, self._path)
        return failure_of(status, body, self._path)

    async def _get(self, path: str, authorization: bytes | None) -> tuple[int, bytes]:
        target = self._endpoint.path_prefix + path.encode()
        probe = Probe(probe_request(self._endpoint.authority, target, authorization))
        try:
            await self._endpoint.connect_control(probe)
            return await probe.answer
        finally:
            probe.close()
