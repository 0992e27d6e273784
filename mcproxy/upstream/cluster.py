"""A live cluster: its endpoints, the proxy's credential, the balancer, the health checks, and its last resort.

A reload builds the new cluster in addition to the old one, which does not change until the runtime is swapped:

    new = Cluster.build(config, shared, previous=old)   # `old` itself if nothing changed
    new.start()                                         # activates it
    old.stop(successor=new)                             # closes what `new` does not use

A running request keeps all objects that it uses; its connection stays open until it ends. A cluster that was built but
never started holds no resources, so a failed reload just drops it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from weakref import WeakSet

from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.upstream.balancing.balancer import Balancer, make_balancer
from mcproxy.upstream.control import ControlClient
from mcproxy.upstream.credentials import CredentialSource
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.health_checker import HealthChecker
from mcproxy.upstream.health_state import Health
from mcproxy.upstream.own_identity import front_proxy_certificate, is_front_proxy, uses_own_certificate
from mcproxy.upstream.tls import ClientCertificate, EndpointTLS
from mcproxy.upstream.trials import Trial
from mcproxy.upstream.upstream_context import UpstreamContext

log = Logger(__name__)


class Cluster:
    """One cluster of the configuration."""

    RETRY_AFTER = 5  # seconds, in responses to clients when no endpoint is ready

    def __init__(
        self, config: model.ClusterConfig, context: UpstreamContext, *, previous: Cluster | None = None
    ) -> None:
        """Reuse the endpoints and the credential of `previous` that `config` does not change.

        `previous` is not changed. Raises `CredentialError` for a credential that can never be sent.
        """
        self.config = config
        self.name = config.name
        self.has_tunnels = any(endpoint.tunnel is not None for endpoint in config.endpoints)
        self._context = context
        if previous is not None and _credential_key(previous.config) == _credential_key(config):
            self.credentials: CredentialSource = previous.credentials
        else:
            self.credentials = context.credential_source(config)
        self.endpoints = self._keep_or_make(previous)
        self.balancer: Balancer = make_balancer(
            model.Strategy.ROUND_ROBIN, self.endpoints, None if previous is None else previous.balancer
        )
        self._authorization_field = (b"", b"")  # the last value, and the header field made of it
        self.control = ControlClient(self.credentials, context)
        self._health = self._make_health_checker()
        self._unsubscribe: Callable[[], None] | None = None
        #: Endpoints of earlier clusters of this name: the same API servers over other connections. Requests that began
        #: before the reload can still be sent to them.
        self._former_endpoints: WeakSet[Endpoint] = WeakSet()
        self.refused_tokens = RefusedTokens()
        #: The time of the last refusal of a right to impersonate, by right; kept by `proxy.upstream_errors`.
        self.impersonation_refused_at: dict[str, float] = {}

    @classmethod
    def build(cls, config: model.ClusterConfig, context: UpstreamContext, previous: Cluster | None = None) -> Cluster:
        """Return `previous` if its configuration is equal, else a new cluster that reuses unchanged parts of it."""
        if previous is not None and previous.config == config:
            return previous
        return cls(config, context, previous=previous)

    @property
    def metrics(self) -> Metrics:
        """The counts of this process."""
        return self._context.metrics

    def authorization_field(self, value: bytes) -> bytes:
        """Return the header field for a value of `credentials.authorization()`; all requests share one object."""
        known, field = self._authorization_field
        if value is not known:
            field = b"Authorization: %b\r\n" % value
            self._authorization_field = value, field
        return field

    def pick(self, exclude: Collection[Endpoint] = ()) -> Endpoint | None:
        """Return the endpoint for the proxy's next own request; `exclude`: as in `balancer.Balancer.pick`."""
        return self.balancer.pick(exclude) or self.last_resort(exclude)

    def last_resort(
        self,
        exclude: Collection[Endpoint],
        endpoints: Sequence[Endpoint] | None = None,
        trial: Trial | None = None,
    ) -> Endpoint | None:
        """Return an endpoint that is out but may serve, for a request without a ready one (`choose_last_resort`).

        `endpoints`: the endpoints to which the request can go (those of a policy); None: all.
        """
        asked = self.endpoints if endpoints is None else endpoints
        return choose_last_resort(self.name, asked, exclude, self._context.reactor.seconds(), trial)

    def subset(self, names: Sequence[str]) -> tuple[Endpoint, ...]:
        """Return the endpoints with these names or URLs, each once, in this order; without names, all endpoints.

        Raises LookupError for a name that no endpoint has. This method can be called before `start`, because the names
        are those of this configuration.
        """
        if not names:
            return self.endpoints
        known: dict[str, Endpoint] = {}
        for config, endpoint in zip(self.config.endpoints, self.endpoints, strict=True):
            known.setdefault(config.url, endpoint)
        known.update(zip((config.name for config in self.config.endpoints), self.endpoints, strict=True))
        for name in names:
            if name not in known:
                raise LookupError(f'cluster "{self.name}" has no endpoint "{name}"')
        return tuple(dict.fromkeys(known[name] for name in names))

    def unavailable_message(self, endpoints: Sequence[Endpoint] | None = None, *, times: bool = True) -> str:
        """Return the text for a 503 with the reason why each endpoint was not picked.

        `endpoints`: the endpoints to which the request can go (those of a policy); None: all. Without `times` the
        message has no durations, so it can be kept.
        """
        asked = self.endpoints if endpoints is None else endpoints
        reasons = "; ".join(f"{endpoint.name}: {_unready_reason(endpoint, times)}" for endpoint in asked)
        return f'no endpoint of cluster "{self.name}" is ready: {reasons}'

    @property
    def unready_cause(self) -> str:
        """Why the cluster accepts no requests, "" if it does. It names no address, because probes are public."""
        if any(endpoint.ready for endpoint in self.endpoints):
            return ""
        if any(endpoint.unchecked for endpoint in self.endpoints):
            return "its endpoints have not been checked yet"
        return f"none of its {len(self.endpoints)} endpoints is ready"

    def start(self) -> None:
        """Start health checks, and follow changes of the credential; do nothing if started already."""
        if self._unsubscribe is not None:
            return
        for endpoint, config in zip(self.endpoints, self.config.endpoints, strict=True):
            self._apply_settings(endpoint, config)
            endpoint.follow_tunnel()
        self._unsubscribe = self.credentials.on_certificate_change(self._certificate_changed)
        self._health.start()

    def stop(self, successor: Cluster | None = None) -> None:
        """Stop health checks and close idle connections, except those of endpoints that `successor` reuses."""
        if successor is self:
            return
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self._health.stop()
        if successor is None:
            self._release((), ())
        else:
            successor._former_endpoints.update(self._release(successor.endpoints, successor.config.endpoints))
        if successor is None or successor.credentials is not self.credentials:
            self.credentials.close()

    def _release(self, kept: Sequence[Endpoint], configured: Sequence[model.EndpointConfig]) -> Iterable[Endpoint]:
        """Close the endpoints that are not `kept`. An endpoint whose URL is still `configured`, with other connections,
        completes its waiting requests and is returned; a removed endpoint fails them.
        """
        by_url = {config.url: config for config in configured}
        stay = []
        for endpoint in (*self.endpoints, *self._former_endpoints):
            if endpoint in kept:
                continue
            config = by_url.get(endpoint.config.url)
            if config is None:
                endpoint.remove()
            else:
                endpoint.configure(config)
                endpoint.close()
                stay.append(endpoint)
        return stay

    def _keep_or_make(self, previous: Cluster | None) -> tuple[Endpoint, ...]:
        before = () if previous is None else previous.endpoints
        spare = {endpoint.connection_key: endpoint for endpoint in before}
        ready = {} if previous is None else {_server_parts(previous.config, each.config): each for each in before}
        endpoints = []
        for config in self.config.endpoints:
            key = _connection_key(self.config, config)
            endpoint = spare.pop(key) if key in spare else self._make(config)
            endpoints.append(endpoint)
            same = ready.get(_server_parts(self.config, config))
            if same is not None and same is not endpoint and same.health.status is Health.READY:
                endpoint.adopt_state(same.export_state(), None)  # only a certificate or password was renewed
        return tuple(endpoints)

    def _make_health_checker(self) -> HealthChecker:
        if self._context.health is None:
            return HealthChecker(self.config, self.endpoints, self.credentials, self._context)
        from mcproxy.upstream.health_sharing import SharedHealthChecker

        return SharedHealthChecker(self.config, self.endpoints, self.credentials, self._context, self._context.health)

    def _setup(self, config: model.EndpointConfig) -> str:
        """Return the `setup` that processes compare (`health_sharing`); "" if they do not share their health."""
        if self._context.health is None:
            return ""
        from mcproxy.upstream.health_sharing import fingerprint

        return fingerprint(_connection_parts(self.config, config))

    def _make(self, config: model.EndpointConfig) -> Endpoint:
        data_tls = control_tls = None
        if config.scheme == "https":
            credentials = self.credentials  # `self` in the closure would keep all earlier clusters of an endpoint alive
            control_tls = self._tls(config, lambda: credentials.certificate)
            if is_front_proxy(self.config):
                front = front_proxy_certificate(self.config)
                data_tls = control_tls = self._tls(config, lambda: front)
            elif uses_own_certificate(self.config.identity):
                data_tls = control_tls
            else:
                shown = front_proxy_certificate(self.config)
                data_tls = self._tls(config, lambda: shown)
        return Endpoint(
            config,
            self.config,
            key=_connection_key(self.config, config),
            setup=self._setup(config),
            context=self._context,
            data_tls=data_tls,
            control_tls=control_tls,
        )

    def _tls(self, config: model.EndpointConfig, certificate: Callable[[], ClientCertificate | None]) -> EndpointTLS:
        return EndpointTLS(self._context.contexts, self.config.tls, config.host, certificate)

    def _apply_settings(self, endpoint: Endpoint, config: model.EndpointConfig) -> None:
        """Apply to a reused endpoint the settings that do not affect its connections."""
        check = self.config.health_check
        endpoint.health.set_thresholds(unhealthy_after=check.unhealthy_after, healthy_after=check.healthy_after)
        endpoint.configure(config)

    def _certificate_changed(self) -> None:
        for endpoint in self.endpoints:
            endpoint.renew_own_connections()

    def __repr__(self) -> str:
        return f"<Cluster {self.name}>"


def _unready_reason(endpoint: Endpoint, times: bool) -> str:
    """Return why an endpoint was not picked. The endpoint can still count as ready, because one failed connection does
    not put it out.
    """
    if endpoint.ready:
        return endpoint.health.cause or endpoint.connect_cause or "the connection failed"
    return endpoint.state_message if times else endpoint.state_cause


def _credential_key(config: model.ClusterConfig) -> Hashable:
    """Return the settings that the credential depends on; an exec plugin can also get information about the cluster."""
    plugin = config.credentials.exec
    with_cluster = plugin is not None and plugin.provide_cluster_info
    about_cluster = (config.tls, config.endpoints[0].url, config.proxy)
    return (config.credentials, about_cluster) if with_cluster else config.credentials


def _connection_key(cluster: model.ClusterConfig, endpoint: model.EndpointConfig) -> Hashable:
    """Return the settings that the connections to an endpoint depend on; a change of any other setting keeps them."""
    return _connection_parts(cluster, endpoint), cluster.connections


def _connection_parts(cluster: model.ClusterConfig, endpoint: model.EndpointConfig) -> Hashable:
    """Return the settings that one connection depends on: addresses, names and certificates."""
    credentials = cluster.credentials
    return (
        _server_parts(cluster, endpoint),
        front_proxy_certificate(cluster),
        (credentials.certificate, credentials.key),
        None if credentials.exec is None else _credential_key(cluster),  # a plugin can provide the certificate
        cluster.proxy,
    )


def _server_parts(cluster: model.ClusterConfig, endpoint: model.EndpointConfig) -> Hashable:
    """Return the settings that stay the same when the proxy's own certificate, or its password for an HTTP proxy, is
    renewed in its files.
    """
    credentials, front = cluster.credentials, cluster.front_proxy
    owned = (credentials.certificate, credentials.key, *((front.certificate, front.key) if front is not None else ()))
    return (
        (cluster.name, endpoint.scheme, endpoint.host, endpoint.port, endpoint.path),
        (cluster.tls, cluster.identity, is_front_proxy(cluster), credentials.exec),
        None if cluster.proxy is None else (cluster.proxy.url, cluster.proxy.user),
        tuple(None if file is None else file.path for file in owned),
    )


# -- refused tokens of clients, whose requests go over separate connections (`Use.UNAUTHENTICATED`) --------------------

_REFUSED_SECONDS = 60.0  # time for which a token is remembered after its last refusal
_MOST_REFUSED = 1024


class RefusedTokens:
    """The tokens that one cluster has refused. Only hashes are kept; two tokens with the same hash would only share
    connections.
    """

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until: OrderedDict[int, float] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._until)

    def note(self, token: bytes, now: float) -> None:
        """Note that the cluster responded with 401 to a request with `token`; `now` in seconds."""
        key = hash(token)
        self._until[key] = now + _REFUSED_SECONDS
        self._until.move_to_end(key)
        if len(self._until) > _MOST_REFUSED:
            self._until.popitem(last=False)

    def has(self, token: bytes, now: float) -> bool:
        """Return whether the cluster refused `token` within the last minute."""
        key = hash(token)
        until = self._until.get(key)
        if until is None:
            return False
        if now >= until:
            del self._until[key]
            return False
        return True


# -- the last resort: an endpoint that is out but may serve, if no endpoint of the cluster is ready --------------------
# An overloaded kube-apiserver can serve requests although its /readyz is late, or fails for a reason that concerns few
# clients. Without a last resort, clients would have no service while every check fails. So a request tries an endpoint
# that was ready before and to which no connection has failed since (`HealthState.may_serve`), as in Envoy's panic mode
# and in the balancer of k3s without a healthy server. An endpoint that was never ready is not tried: a starting API
# server responds with 403 and 404 before it has read its roles and custom resources, which would mislead clients.


def choose_last_resort(
    cluster: str, endpoints: Sequence[Endpoint], exclude: Collection[Endpoint], now: float, trial: Trial | None
) -> Endpoint | None:
    """Return the endpoint to try if none is ready: the one with the least load; None if no endpoint may be tried.

    `trial`: the request of a client; None for the proxy's own request.
    """
    able = [each for each in endpoints if each.may_be_tried and each not in exclude and each.trials.admit(now)]
    if not able:
        return None
    chosen = min(able, key=lambda each: each.load)
    if trial is not None:
        chosen.trials.add(trial)
    if [each for each in able if each.trials.is_new_outage(each.changed_at)]:
        log.warn(
            "no endpoint is ready: requests try those that were ready and still accept connections",
            event="cluster_last_resort",
            cluster=cluster,
            endpoint=", ".join(each.name for each in able),
            cause=chosen.health.cause,
            todo="see why the checks fail while the API server serves; healthCheck.path and .timeout configure them",
            log_subject=("last resort", cluster),
            log_state=chosen.health.cause,
        )
    return chosen
