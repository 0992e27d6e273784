"""One kube-apiserver: its address and TLS, its connection pool, and its health.

A reload keeps an endpoint with its pool, its health and its count of requests in flight, unless a setting has changed
on which its connections depend (`connection_key`). Name, weight and `disabled` are updated in place.

A disabled endpoint gets no new requests, but is still checked, so that its health is known when it is enabled. A
removed endpoint gets no new requests either, and requests that wait for a connection go to other endpoints at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.log_once import LogOnce
from mcproxy.net.alpn import HTTP1_1
from mcproxy.net.causes import Cause, CauseCode, code_of
from mcproxy.net.connect_errors import ConnectError, ConnectFailed, ConnectionRefused, ConnectTimeout, TLSError
from mcproxy.observe.metrics.families import CONNECT_DURATION, UPSTREAM_CONNECTS
from mcproxy.upstream.endpoint_log import EndpointLog
from mcproxy.upstream.health_state import EndpointHealth, Health, HealthState
from mcproxy.upstream.host_header import host_header
from mcproxy.upstream.http_proxy import http_proxy
from mcproxy.upstream.own_identity import own_fields, uses_own_certificate
from mcproxy.upstream.pending_requests import PendingRequests
from mcproxy.upstream.remedies import keys_of
from mcproxy.upstream.tls import EndpointTLS
from mcproxy.upstream.trials import TRIAL_SECONDS, Trials
from mcproxy.upstream.upstream_context import UpstreamContext

if TYPE_CHECKING:
    from mcproxy.http.client_stream import ClientStream
    from mcproxy.http.connection_pool import Connect, ConnectionPool

log = Logger(__name__)

_QUIET = 10.0  # seconds between two log lines about violations of the protocol


class EndpointGone(ConnectFailed):
    """The endpoint was removed or went out while a request waited for a connection; no connection has failed."""


class Endpoint:
    """A live endpoint of one cluster. Only the pipeline changes `in_flight`, by one up and down for each request."""

    def __init__(
        self,
        config: model.EndpointConfig,
        cluster: model.ClusterConfig,
        *,
        key: Hashable,
        setup: str = "",
        context: UpstreamContext,
        data_tls: EndpointTLS | None,
        control_tls: EndpointTLS | None,
    ) -> None:
        """`data_tls`, `control_tls`: None for an endpoint without TLS. `key`: compared at a reload. `setup`: compared
        by processes that share the endpoint's health.
        """
        self.config = config
        self.connection_key = key
        self.setup = setup
        self.cluster_name = cluster.name
        self.keys = keys_of(cluster)
        self.own_fields = own_fields(cluster) if config.scheme == "https" else ()  # fields of the proxy's own requests
        self.path_prefix = config.path.encode()
        self.host_header = host_header(config)
        self.in_flight = 0
        self.ready = False  # whether it accepts requests: it is healthy, and neither disabled nor removed
        self.silent = False  # whether checks fail without a response: see `_note_silence`
        self._answered_failure = False  # whether a check since the last success got a response, which was a failure
        self._silent_checks = 0  # number of checks in a row without a response
        self.health = HealthState(
            unhealthy_after=cluster.health_check.unhealthy_after, healthy_after=cluster.health_check.healthy_after
        )
        self.connect_cause = ""  # why the last connection could not be opened; "" if it was opened
        self.check_seconds: float | None = None  # duration of the newest health check with a response
        self._log = EndpointLog(cluster.name, self.keys, self.health)
        self.check_soon: Callable[[], None] | None = None  # set by the health checker
        self.publish_failure: Callable[[str], None] | None = None  # set if processes share the endpoint's health
        self._connections = cluster.connections
        self._proxy = http_proxy(cluster.proxy)
        self._context = context
        self._data_tls = data_tls
        self._control_tls = control_tls
        #: whether own requests use the clients' pool: not if their connections present another certificate
        self._shares_connections = config.tunnel is not None or uses_own_certificate(cluster.identity)
        self._unfollow_tunnel: Callable[[], None] | None = None
        self._since = context.reactor.seconds()
        self._configured_at = self._since  # the time of the last change of `disabled`
        self._removed = False
        self._once = LogOnce(_QUIET)
        self._pending = PendingRequests()  # requests that wait for a connection
        self.trials = Trials()  # requests that were sent to this endpoint although it is out
        self._listeners: list[Callable[[Endpoint], None]] = []
        #: The pools for clients' and for the proxy's own requests; they are the same if both use the same certificate.
        self.pool: ConnectionPool = self._new_pool(self.connect)
        self.control_pool: ConnectionPool = self._new_control_pool()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def connect_timeout(self) -> float:
        """Timeout of opening a connection in seconds, for name resolution, TCP, HTTP proxy and TLS."""
        return self._connections.connect_timeout

    @property
    def unchecked(self) -> bool:
        """Whether no check has had a result yet; such an endpoint can be used while no endpoint is ready."""
        return self.health.status is Health.UNCHECKED and not self.config.disabled and not self._removed

    @property
    def may_be_tried(self) -> bool:
        """Whether the endpoint is out but may serve, so that a request tries it if no endpoint is ready."""
        health = self.health
        return health.status is Health.FAILED and health.may_serve and not self.config.disabled and not self._removed

    @property
    def changed_at(self) -> float:
        """The time of the last change of the health, by the reactor's clock."""
        return self._since

    @property
    def load(self) -> int:
        """The number of requests in flight or waiting for a connection."""
        return self.in_flight + len(self._pending)

    @property
    def state_seconds(self) -> float:
        """Seconds since the last change of the health."""
        return self._context.reactor.seconds() - self._since

    @property
    def shown_seconds(self) -> float:
        """Seconds since the last change of the state shown to operators: of the health or of `disabled`."""
        now = self._context.reactor.seconds()
        return now - (self._configured_at if self.config.disabled else max(self._since, self._configured_at))

    @property
    def state_cause(self) -> str:
        """Why the endpoint is ready or not, without durations."""
        if self._removed:
            return "removed from the configuration"
        if self.config.disabled:
            return "disabled"
        if self.health.status is Health.UNCHECKED:
            return self.health.cause or "not checked yet"
        return "ready" if self.health.status is Health.READY else self.health.cause

    @property
    def state_message(self) -> str:
        """`state_cause` with its duration, for operators and Status messages."""
        cause, seconds = self.state_cause, int(self.state_seconds)
        if self._removed or self.config.disabled or self.health.status is Health.UNCHECKED:
            return cause
        if self.health.status is Health.READY:
            return f"{cause} for {seconds} s"
        return Cause(f"{cause} (out for {seconds} s)", code_of(cause))

    def subscribe(self, notify: Callable[[Endpoint], None]) -> Callable[[], None]:
        """Subscribe to changes of health and configuration, and to successful checks; the result unsubscribes.

        Successful checks matter because a connection can have failed while the endpoint counted as ready.
        """
        self._listeners.append(notify)

        def unsubscribe() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return unsubscribe

    def configure(self, config: model.EndpointConfig) -> None:
        """Apply the settings that do not affect connections: name, weight, disabled."""
        if config.disabled != self.config.disabled:
            self._configured_at = self._context.reactor.seconds()
            about: dict[str, Any] = {
                "cluster": self.cluster_name,
                "endpoint": config.name,
                "log_subject": ("endpoint", self.cluster_name, config.url, "disabled"),
                "log_state": str(config.disabled),
            }
            if config.disabled:
                log.info("an endpoint is disabled: it gets no new requests", event="endpoint_disabled", **about)
            else:
                log.info("an endpoint is enabled", event="endpoint_enabled", **about)
        self.config = config
        self._update_ready()
        self._notify()

    def open(self, *, lasting: bool = False, upgrade: bool = False, apart: bool = False) -> Deferred[ClientStream]:
        """Return a stream for a request on a new connection, or on one that becomes free (`ConnectionPool.open`).

        The request counts in `load` until then. If the endpoint is out, the request waits for a second at most. Fails
        with `net.connect_errors.ConnectError`: nothing was sent, so another endpoint can be tried. Fails with
        `EndpointGone` if the endpoint is removed or goes out meanwhile. Cancel it when the request is gone.
        """
        if self._removed:
            return fail(EndpointGone(self.state_message))
        opening = self._pending.wait(self.pool.open(lasting=lasting, upgrade=upgrade, apart=apart))
        if self.health.status is Health.FAILED:
            opening.addTimeout(TRIAL_SECONDS, self._context.reactor, self._too_late)
        return opening

    def _too_late(self, result: Any, seconds: float) -> Any:
        if isinstance(result, Failure) and not isinstance(result.value, CancelledError):
            return result
        cause = f"no connection to {self.name} within {seconds:g} s"
        raise ConnectTimeout(Cause(cause, CauseCode.NO_CONNECTION_IN_TIME))

    def connect(self, protocol: IProtocol, alpn: tuple[bytes, ...] = (HTTP1_1,)) -> Deferred[None]:
        """Open a connection for requests that offers `alpn`. Fails with `net.connect_errors.ConnectError`."""
        if self._pending.releasing:  # the pool opens this connection for the next waiting request
            return fail(ConnectFailed(self.state_message))
        return self._connect(protocol, self._data_tls, alpn)

    def connect_control(self, protocol: IProtocol, alpn: tuple[bytes, ...] = (HTTP1_1,)) -> Deferred[None]:
        """Open a connection for control traffic, which presents the proxy's own client certificate."""
        return self._connect(protocol, self._control_tls, alpn)

    def record_connect_failure(self, problem: ConnectError) -> None:
        """Count a connection that was refused, reset, timed out or not trusted as a failed check, and check soon.

        The failure counts once, however many requests waited for the connection, because over HTTP/2 they share it.
        """
        if self._removed or problem.recorded:
            return
        problem.recorded = True
        self.silent = True
        changed = self.health.connect_failed(problem.cause)
        if changed and self.publish_failure is not None and isinstance(problem, ConnectionRefused | TLSError):
            self.publish_failure(problem.cause)
        self._status_changed(changed)
        self.request_check()

    def record_failure_elsewhere(self, cause: str) -> None:
        """Put the endpoint out, because it refuses the connections of another process, which has requested a check."""
        if not self._removed and self.health.status is Health.READY:
            self.silent = True
            self._status_changed(self.health.failed_elsewhere(cause))

    def request_check(self) -> None:
        """Schedule an early check after a request failed, because the cause may be something else than the endpoint."""
        if self.check_soon is not None:
            self.check_soon()

    def record_connect_success(self) -> None:
        """Note that a connection for a request was opened."""
        self.health.connect_succeeded()

    def record_check(
        self, failure: str | None, *, silent: bool = False, refused: bool = False, unconnected: bool = False
    ) -> None:
        """Count the result of a health check.

        `failure`: the cause, or None. `silent`: there was no response. `refused`: the status was 401 or 403.
        `unconnected`: no connection could be opened.
        """
        fell_silent = self._note_silence(failure, silent=silent)
        health = self.health
        if failure is None:
            changed = health.check_succeeded()
        elif refused:
            changed = health.check_refused(failure, self._context.reactor.seconds())
        else:
            changed = health.check_failed(failure, silent=silent, unconnected=unconnected)
        if changed and self.publish_failure is not None and health.went_out_by_connections:
            self.publish_failure(health.cause)
        self._status_changed(changed)
        if failure is None and not changed:
            self._notify()
        self._log.checked(failure, self.config)
        if fell_silent and not changed and health.status is Health.FAILED:
            self._context.endpoint_out(self)  # the endpoint was out while it responded, and has now fallen silent

    def _note_silence(self, failure: str | None, *, silent: bool) -> bool:
        """Update `silent` by the result of a check; return whether the endpoint has fallen silent with this check.

        If some checks get a response ("not ready"), a late one does not make the endpoint silent, because it may just
        be busy. Then the endpoint becomes silent only after as many late checks in a row as put an endpoint out.
        """
        if failure is None or not silent:
            self._answered_failure = failure is not None
            self._silent_checks = 0
            self.silent = False
            return False
        before = self.silent
        self._silent_checks += 1
        self.silent = before or not self._answered_failure or self._silent_checks >= self.health.unhealthy_after
        return self.silent and not before

    def export_state(self) -> EndpointHealth:
        """Return the state from which another process continues (`adopt_state`)."""
        now = self._context.reactor.seconds()
        return EndpointHealth(
            health=self.health.record(now),
            since=now - self._since,
            silent=self.silent,
            answered_failure=self._answered_failure,
            silent_checks=self._silent_checks,
        )

    def adopt_state(self, state: EndpointHealth, credential: object) -> None:
        """Continue from the state of another process, which has logged the state."""
        now = self._context.reactor.seconds()
        self.silent = state.silent
        self._answered_failure = state.answered_failure
        self._silent_checks = state.silent_checks
        changed = self.health.adopt(state.health, credential, now)
        self._since = now - state.since
        self._log.logged()
        if changed:
            self._update_ready()
            self._apply_status()

    @property
    def pools(self) -> tuple[ConnectionPool, ...]:
        """The pools of all connections to the endpoint."""
        return (self.pool,) if self.control_pool is self.pool else (self.pool, self.control_pool)

    def renew_own_connections(self) -> None:
        """Use new connections for requests with the proxy's own client certificate, because it has changed.

        Running requests keep their connections.
        """
        old = self.control_pool
        if self.pool is old:
            self.pool = self._new_pool(self.connect)
        self.control_pool = self._new_control_pool()
        old.close()

    def _new_control_pool(self) -> ConnectionPool:
        return self.pool if self._shares_connections else self._new_pool(self.connect_control)

    def _new_pool(self, connect: Connect) -> ConnectionPool:
        settings = self._connections
        protocol = model.UpstreamProtocol.HTTP1 if self.config.scheme == "http" else settings.protocol
        return self._context.pool_factory(connect, settings, protocol, self._protocol_violated)

    def _protocol_violated(self, cause: str) -> None:
        """Log that an HTTP/2 connection has ended because the API server violated the protocol, or was silent."""
        if self._once.allows(now=self._context.reactor.seconds()):
            log.warn(
                "an HTTP/2 connection to an endpoint was ended",
                event="upstream_http2_ended",
                endpoint=self.name,
                cluster=self.cluster_name,
                cause=cause,
            )
        self.request_check()

    def follow_tunnel(self) -> None:
        """Follow the tunnel to this endpoint, if there is one: without a control connection the endpoint is out."""
        tunnel, tunnels = self.config.tunnel, self._context.tunnels
        if tunnel is not None and tunnels is not None and self._unfollow_tunnel is None:
            self._unfollow_tunnel = tunnels.follow(tunnel, self._tunnel_changed)

    def _tunnel_changed(self, is_up: bool, cause: str) -> None:
        if is_up:
            self.request_check()
        elif not self._removed:
            self.silent = True
            self._status_changed(self.health.failed_elsewhere(Cause(cause, CauseCode.NO_TUNNEL)))

    def close(self) -> None:
        """Close idle connections at once, and busy ones after their requests."""
        if self._unfollow_tunnel is not None:
            self._unfollow_tunnel()
            self._unfollow_tunnel = None
        for pool in self.pools:
            pool.close()

    def remove(self) -> None:
        """Accept no more requests, because a reload has removed the endpoint. Running requests continue."""
        self._removed = True
        self._update_ready()
        self.close()
        self._fail_waiting()
        self._notify()

    def _connect(self, protocol: IProtocol, tls: EndpointTLS | None, alpn: tuple[bytes, ...]) -> Deferred[None]:
        try:
            settings = None if tls is None else tls.client_tls()
        except ValueError as error:  # only an exec plugin's certificate, because configured ones were checked at load
            return fail(
                TLSError(Cause(f"the certificates for {self.name} cannot be used: {error}", CauseCode.OWN_CERTIFICATE))
            )
        begun = self._context.reactor.seconds()
        timeout = self._connections.connect_timeout
        tunnel, tunnels = self.config.tunnel, self._context.tunnels
        if tunnel is None:
            opening = self._context.connect(
                self.config.host,
                self.config.port,
                protocol,
                tls=settings,
                timeout=timeout,
                alpn=alpn,
                proxy=self._proxy,
            )
        elif tunnels is None:
            return fail(ConnectFailed("this process has no tunnels"))
        else:
            opening = tunnels.connect(tunnel, protocol, alpn, timeout)
        return opening.addCallbacks(self._opened, self._not_opened, callbackArgs=(begun,))

    def _opened(self, result: None, begun: float) -> None:
        self.connect_cause = ""
        counts = self._context.metrics.counts
        counts.increase(UPSTREAM_CONNECTS, (self.cluster_name, self.name, "ok"))
        counts.observe(CONNECT_DURATION, (self.cluster_name,), self._context.reactor.seconds() - begun)

    def _not_opened(self, failure: Failure) -> Failure:
        if isinstance(failure.value, ConnectError):
            self.connect_cause = failure.value.cause
        if not failure.check(CancelledError):  # type: ignore[no-untyped-call]
            counts = self._context.metrics.counts
            counts.increase(UPSTREAM_CONNECTS, (self.cluster_name, self.name, "failed"))
        return failure

    def _status_changed(self, changed: bool) -> None:
        if not changed:
            return
        self._since = self._context.reactor.seconds()
        self._update_ready()
        self._log.status(self.config, self.ready)
        self._apply_status()

    def _apply_status(self) -> None:
        if self.health.status is Health.FAILED:
            self._drop_connections()
            self._fail_waiting()
            self._context.endpoint_out(self)
        self._notify()

    def _drop_connections(self) -> None:
        """Send no more requests on the present connections, which no peer closes if the machine or network is gone.

        When the endpoint returns, a request that cannot be repeated must not use one of these connections.
        """
        for pool in self.pools:
            pool.renew()

    def _fail_waiting(self) -> None:
        """Fail the requests that wait for a connection; nothing was sent, so they go to other endpoints at once."""
        self._pending.release(lambda: EndpointGone(self.state_message))

    def _notify(self) -> None:
        for notify in tuple(self._listeners):
            notify(self)

    def _update_ready(self) -> None:
        self.ready = self.health.status is Health.READY and not self.config.disabled and not self._removed

    def __repr__(self) -> str:
        return f"<Endpoint {self.cluster_name}/{self.name} {self.health.status.value}>"


def is_ready(endpoint: Endpoint) -> bool:
    """Return `endpoint.ready`."""
    return endpoint.ready


def is_unchecked(endpoint: Endpoint) -> bool:
    """Return `endpoint.unchecked`."""
    return endpoint.unchecked
