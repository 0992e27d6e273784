"""One kube-apiserver: how to connect to it, its connection pool, and whether it takes requests.

It is kept across a reload for as long as nothing that its connections depend on has changed (`connection_key`), and
with it the pool, the health and the count of requests in flight. Name, weight and `disabled` are updated in place.

A disabled endpoint gets no new requests but is still checked, so that its health is known when it is enabled. A removed
one gets none either, and requests that wait for a connection to it go elsewhere at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any
from weakref import ref

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.interfaces import IProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.net.alpn import HTTP1_1
from mcproxy.net.errors import ConnectError, ConnectFailed, ConnectionRefused, TLSError
from mcproxy.observe.metrics.families import CONNECT_DURATION, UPSTREAM_CONNECTS
from mcproxy.upstream.endpoint_log import EndpointLog
from mcproxy.upstream.health_exchange import EndpointState
from mcproxy.upstream.health_state import Health, HealthState
from mcproxy.upstream.remedies import keys_of
from mcproxy.upstream.shared import Shared
from mcproxy.upstream.tls import EndpointTLS

if TYPE_CHECKING:
    from mcproxy.http.client_stream import ClientStream
    from mcproxy.http.pool import Pool

log = Logger()

_QUIET = 10.0  # seconds between two log lines about violations of the protocol
_DEFAULT_PORTS = {"https": 443, "http": 80}


class EndpointGone(ConnectFailed):
    """The endpoint was removed or went out while a request waited for a connection; not a failure of the connection."""


class Endpoint:
    """A live endpoint of one cluster. Only the pipeline changes `in_flight`, one up and one down for each request."""

    def __init__(
        self,
        config: model.Endpoint,
        cluster: model.Cluster,
        *,
        key: Hashable,
        setup: str = "",
        shared: Shared,
        data_tls: EndpointTLS | None,
        control_tls: EndpointTLS | None,
    ) -> None:
        """`data_tls` and `control_tls` are None for an endpoint without TLS; `key` is compared by a reload,
        and `setup` by processes that share the endpoint's health.
        """
        self.config = config
        self.connection_key = key
        self.setup = setup
        self.cluster_name = cluster.name
        self.keys = keys_of(cluster)
        self.path_prefix = config.path.encode()
        self.authority = authority(config)
        self.in_flight = 0
        self.ready = False  # takes requests: healthy, and neither disabled nor removed
        self.silent = False  # failures were without any response: see `_note_silence`
        self._answered_failure = False  # a check since the last success was answered, with a failure
        self._silent_checks = 0  # in a row
        self.health = HealthState(
            unhealthy_after=cluster.health_check.unhealthy_after, healthy_after=cluster.health_check.healthy_after
        )
        self.check_seconds: float | None = None  # what the newest health check that was answered took
        self._log = EndpointLog(self)
        self.check_soon: Callable[[], None] | None = None  # set by the health checker
        self.tell_out: Callable[[str], None] | None = None  # set where processes share the health
        self._connections = cluster.connections
        self._shared = shared
        self._data_tls = data_tls
        self._control_tls = control_tls
        self._since = shared.reactor.seconds()
        self._removed = False
        self._counted: Callable[[], ConnectError | None] = lambda: None  # the last failure to connect that was counted
        self._violation_logged = float("-inf")
        self._waiting: dict[Deferred[ClientStream], Deferred[ClientStream]] = {}
        self._listeners: list[Callable[[Endpoint], None]] = []
        self.pool: Pool = self._new_pool()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def unchecked(self) -> bool:
        """True if no check has decided yet; it may be used while no endpoint is ready."""
        return self.health.status is Health.UNCHECKED and not self.config.disabled and not self._removed

    @property
    def load(self) -> int:
        """Requests in flight, and those that wait for a connection."""
        return self.in_flight + len(self._waiting)

    @property
    def state_seconds(self) -> float:
        """For how long the health has been what it is."""
        return self._shared.reactor.seconds() - self._since

    @property
    def state_message(self) -> str:
        """Why the endpoint is ready, or not, for operators and Status messages."""
        seconds = int(self.state_seconds)
        if self._removed:
            return "removed from the configuration"
        if self.config.disabled:
            return "disabled"
        if self.health.status is Health.UNCHECKED:
            return self.health.cause or "not checked yet"
        if self.health.status is Health.READY:
            return f"ready for {seconds} s"
        return f"{self.health.cause} (out for {seconds} s)"

    def subscribe(self, notify: Callable[[Endpoint], None]) -> Callable[[], None]:
        """Subscribe to changes of health and configuration, and to checks that succeed; the result unsubscribes.

        The latter, since a connection may have failed while the endpoint counted as ready.
        """
        self._listeners.append(notify)

        def unsubscribe() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return unsubscribe

    def configure(self, config: model.Endpoint) -> None:
        """Apply the settings that do not affect connections: name, weight, disabled."""
        if config.disabled != self.config.disabled:
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

    def open(self, *, lasting: bool = False, upgrade: bool = False) -> Deferred[ClientStream]:
        """Return a stream for a request on a new connection, or on one that comes free (`Pool.open`).

        The request counts in `load` until then.

        Fails with `net.errors.ConnectError`: nothing was sent, so another one can be tried. If the endpoint is removed
        or goes out meanwhile, that is `EndpointGone`. Cancel it if the request is gone.
        """
        if self._removed:
            return fail(EndpointGone(self.state_message))
        inner = self.pool.open(lasting=lasting, upgrade=upgrade)
        outer: Deferred[ClientStream] = Deferred(lambda _: inner.cancel())
        self._waiting[outer] = inner

        def opened(stream: ClientStream) -> None:
            del self._waiting[outer]
            outer.callback(stream)

        def failed(reason: Failure) -> None:
            if self._waiting.pop(outer, None) is not None:  # else it has failed with EndpointGone
                outer.errback(reason)

        inner.addCallbacks(opened, failed)
        return outer

    def connect(self, protocol: IProtocol, alpn: tuple[bytes, ...] = (HTTP1_1,)) -> Deferred[None]:
        """Open a connection for requests that offers `alpn`; fails with `net.errors.ConnectError`."""
        if self._removed:
            return fail(ConnectFailed(self.state_message))
        return self._connect(protocol, self._data_tls, alpn)

    def connect_control(self, protocol: IProtocol) -> Deferred[None]:
        """Open a connection for control traffic, which presents the proxy's own client certificate."""
        return self._connect(protocol, self._control_tls, (HTTP1_1,))

    def record_connect_failure(self, problem: ConnectError) -> None:
        """Count a connection that was refused, reset, timed out or not trusted as a failed check, and check soon.

        It counts once, however many requests waited for the connection: over HTTP/2 they share it.
        """
        if self._removed or problem is self._counted():
            return
        self._counted = ref(problem)
        self.silent = True
        changed = self.health.connect_failed(problem.cause)
        if changed and self.tell_out is not None and isinstance(problem, ConnectionRefused | TLSError):
            self.tell_out(problem.cause)
        self._status_changed(changed)
        self.request_check()

    def record_out_elsewhere(self, cause: str) -> None:
        """Go out since the endpoint refuses the connections of another process, which has asked for a check."""
        if not self._removed and self.health.status is Health.READY:
            self.silent = True
            self._status_changed(self.health.out_elsewhere(cause))

    def request_check(self) -> None:
        """Schedule a check soon: a request failed in a way that it may have caused itself."""
        if self.check_soon is not None:
            self.check_soon()

    def record_connect_success(self) -> None:
        """Note that a connection of a request opened."""
        self.health.connect_succeeded()

    def record_check(self, failure: str | None, *, silent: bool = False, refused: bool = False) -> None:
        """Count the result of a health check.

        `failure` is None or the cause; `silent`: there was no answer at all; `refused`: it was 401 or 403.
        """
        fell_silent = self._note_silence(failure, silent=silent)
        health = self.health
        if failure is None:
            changed = health.check_succeeded()
        elif refused:
            changed = health.check_refused(failure, self._shared.reactor.seconds())
        else:
            changed = health.check_failed(failure)
        if changed and self.tell_out is not None and health.went_out_by_connections:
            self.tell_out(health.cause)
        self._status_changed(changed)
        if failure is None and not changed:
            self._notify()
        self._log.checked(failure)
        if fell_silent and not changed and health.status is Health.FAILED:
            self._shared.endpoint_out(self)  # it went out with an answer, and only now falls silent

    def _note_silence(self, failure: str | None, *, silent: bool) -> bool:
        """Update `silent` by the result of a check; return whether the endpoint fell silent by it.

        Where some checks are answered ("not ready"), one that is late does not make the endpoint silent, since it may
        just be busy: then it takes as many silent checks in a row as take an endpoint out.
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

    def export_state(self) -> EndpointState:
        """Return what another process needs to go on from here (`adopt_state`)."""
        now = self._shared.reactor.seconds()
        return EndpointState(
            health=self.health.record(now),
            since=now - self._since,
            silent=self.silent,
            answered_failure=self._answered_failure,
            silent_checks=self._silent_checks,
        )

    def adopt_state(self, state: EndpointState, credential: object) -> None:
        """Go on from where another process is, which has logged what there was to log."""
        now = self._shared.reactor.seconds()
        self.silent = state.silent
        self._answered_failure = state.answered_failure
        self._silent_checks = state.silent_checks
        changed = self.health.adopt(state.health, credential, now)
        self._since = now - state.since
        self._log.logged()
        if changed:
            self._update_ready()
            self._apply_status()

    def renew_pool(self) -> None:
        """Use new connections for new requests (the client certificate changed); running requests keep theirs."""
        old, self.pool = self.pool, self._new_pool()
        old.close()

    def _new_pool(self) -> Pool:
        settings = self._connections
        protocol = settings.protocol if self.config.scheme == "https" else model.UpstreamProtocol.HTTP1
        return self._shared.pool_factory(self.connect, settings, protocol, self._protocol_violated)

    def _protocol_violated(self, cause: str) -> None:
        """An HTTP/2 connection has ended because of what the API server sent, or did not send."""
        now = self._shared.reactor.seconds()
        if now >= self._violation_logged + _QUIET:
            self._violation_logged = now
            log.warn(
                "an HTTP/2 connection to an endpoint was ended",
                event="upstream_http2_ended",
                endpoint=self.name,
                cluster=self.cluster_name,
                cause=cause,
                todo="see what answers there, and the network between; `connections.protocol: HTTP1` avoids HTTP/2",
            )
        self.request_check()

    def close(self) -> None:
        """Close idle connections; those with a running request close after it."""
        self.pool.close()

    def remove(self) -> None:
        """Take no more requests: the endpoint is no longer in the configuration. Running ones go on."""
        self._removed = True
        self._update_ready()
        self.close()
        self._fail_waiting()
        self._notify()

    def _connect(self, protocol: IProtocol, tls: EndpointTLS | None, alpn: tuple[bytes, ...]) -> Deferred[None]:
        try:
            settings = None if tls is None else tls.client_tls()
        except ValueError as error:  # certificates of the file were checked at load; an exec plugin's are new
            return fail(TLSError(f"the certificates for {self.name} cannot be used: {error}"))
        begun = self._shared.reactor.seconds()
        opening = self._shared.connect(
            self.config.host,
            self.config.port,
            protocol,
            tls=settings,
            timeout=self._connections.connect_timeout,
            alpn=alpn,
        )
        return opening.addCallbacks(self._opened, self._not_opened, callbackArgs=(begun,))

    def _opened(self, result: None, begun: float) -> None:
        counts = self._shared.metrics.counts
        counts.increase(UPSTREAM_CONNECTS, (self.cluster_name, self.name, "ok"))
        counts.observe(CONNECT_DURATION, (self.cluster_name,), self._shared.reactor.seconds() - begun)

    def _not_opened(self, failure: Failure) -> Failure:
        if not failure.check(CancelledError):  # type: ignore[no-untyped-call]
            counts = self._shared.metrics.counts
            counts.increase(UPSTREAM_CONNECTS, (self.cluster_name, self.name, "failed"))
        return failure

    def _status_changed(self, changed: bool) -> None:
        if not changed:
            return
        self._since = self._shared.reactor.seconds()
        self._update_ready()
        self._log.status()
        self._apply_status()

    def _apply_status(self) -> None:
        if self.health.status is Health.FAILED:
            self._drop_connections()
            self._fail_waiting()
            self._shared.endpoint_out(self)
        self._notify()

    def _drop_connections(self) -> None:
        """Give no request to the connections of now: if the machine or its network is gone, no peer closes them.

        When the endpoint is back, a request that cannot be repeated must not find one of them.
        """
        self.pool.renew()

    def _fail_waiting(self) -> None:
        """Fail the requests that wait for a connection, and have sent nothing, so that they go elsewhere at once."""
        waiting, self._waiting = self._waiting, {}
        for outer, inner in waiting.items():
            outer.errback(EndpointGone(self.state_message))
            inner.cancel()

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


def authority(config: model.Endpoint) -> bytes:
    """Return the Host header's value: host, in brackets if IPv6, and the port unless it is the scheme's own."""
    host = config.host if config.host.isascii() else config.host.encode("idna").decode()
    if ":" in host:
        host = f"[{host}]"
    default = config.port == _DEFAULT_PORTS.get(config.scheme)
    return (host if default else f"{host}:{config.port}").encode()
