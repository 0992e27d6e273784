"""The ingresses of one configuration: handlers of listeners, backends, endpoints.

They are built while the previous ones are in force, and take over unchanged parts: endpoints with connections, health
and counts (`backend_endpoints`), backends with rotation (`backend`). A backend that differs only in its weights,
strategy or affinity keeps its endpoints. The previous objects do not change until they are discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.net.name_table import NameTable
from mcproxy.observe.metrics.ingress_counts import IngressCounts
from mcproxy.observe.recorders import Recorder
from mcproxy.requests.batch import RequestBatch
from mcproxy.requests.in_flight import RequestsInFlight
from mcproxy.services.endpoint_table import EndpointTable
from mcproxy.services.ingress.backend import Backend
from mcproxy.services.ingress.backend_endpoints import BackendMember, Ejected, MemberKey, Targets, member_keys
from mcproxy.services.ingress.client_connection import CertificateCoverage
from mcproxy.services.ingress.cookie_affinity import derived_key, joined_keys
from mcproxy.services.ingress.ingress_handler import IngressHandler
from mcproxy.services.ingress.ingress_request import IngressRequest
from mcproxy.services.ingress.live_route import BackendShares, LiveRoute
from mcproxy.services.ingress.router import Route, Router, routes_of

if TYPE_CHECKING:
    from mcproxy.services.ingress.ingress_request import IngressTracer


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressResources:
    """Dependencies of ingresses that a process keeps over all reloads."""

    clock: IReactorTime
    table: EndpointTable
    targets: Targets
    in_flight: RequestsInFlight[IngressRequest]
    batch: RequestBatch[IngressRequest] | None
    counts: IngressCounts | None
    random: Callable[[], float]
    request_ids: Callable[[], bytes]
    ejected: Ejected
    secret: bytes
    """The secret for keys of affinity cookies, if no listener has a certificate."""


ShareKey = tuple[str, str, str, str]
"""The key of a rule with several backends: ingress, rule, path type, and names of the backends."""


@dataclass(frozen=True, slots=True)
class Ingresses:
    """The ingresses of one configuration."""

    handlers: Mapping[str, IngressHandler]
    """The handlers by listener."""
    backends: Mapping[model.IngressBackend, Backend]
    members: Mapping[MemberKey, BackendMember]
    shares: Mapping[ShareKey, BackendShares]
    keys: tuple[bytes, ...]
    """The keys of affinity cookies; the first one makes new cookies."""

    @classmethod
    def build(
        cls,
        config: model.Config,
        previous: Ingresses | None,
        resources: IngressResources,
        log: Recorder | None = None,
        tracer: IngressTracer | None = None,
    ) -> Ingresses:
        """Build the ingresses, reusing parts of `previous`. `log`: the access log. `tracer`: makes spans."""
        keys = joined_keys(_key(config) or resources.secret, () if previous is None else previous.keys)
        replaced: dict[tuple[str, str, int | str], Backend] = {}  # by service: predecessors of changed backends
        for each, live in previous.backends.items() if previous is not None else ():
            replaced.setdefault(_service(each), live)
        members: dict[MemberKey, BackendMember] = {}
        backends: dict[model.IngressBackend, Backend] = {}
        for backend in dict.fromkeys(found for ingress in config.ingresses for found in ingress.backends):
            own = {}
            for cluster, key in member_keys(backend).items():
                member = members.get(key) or (None if previous is None else previous.members.get(key))
                if member is None:
                    member = BackendMember(
                        key,
                        resources.table,
                        resources.targets,
                        resources.clock,
                        resources.random,
                        resources.ejected,
                    )
                members[key] = own[cluster] = member
            before = None if previous is None else previous.backends.get(backend)
            if before is not None and previous is not None and previous.keys == keys:
                backends[backend] = before
            else:
                before = before or replaced.get(_service(backend))
                backends[backend] = Backend(backend, own, resources.random, keys, before, resources.clock.seconds)
        rule_shares = _RuleShares(backends, {} if previous is None else previous.shares)
        handlers = {
            listener.name: _handler(config, listener, rule_shares, resources, log, tracer)
            for listener in config.listeners
            if listener.serves is model.Serves.INGRESS
        }
        return cls(
            MappingProxyType(handlers),
            MappingProxyType(backends),
            MappingProxyType(members),
            MappingProxyType(rule_shares.shares),
            keys,
        )

    def activate(self) -> None:
        """Start the health checks, because the configuration comes into force."""
        for member in self.members.values():
            member.start()

    def discard(self, keep: Ingresses | None) -> None:
        """End every live object that `keep` does not share."""
        for config, backend in self.backends.items():
            if keep is None or keep.backends.get(config) is not backend:
                backend.stop()
        for key, member in self.members.items():
            if keep is None or keep.members.get(key) is not member:
                member.stop()


class _RuleShares:
    """The shares of rules, each made once for all listeners."""

    def __init__(
        self, backends: Mapping[model.IngressBackend, Backend], before: Mapping[ShareKey, BackendShares]
    ) -> None:
        self.shares: dict[ShareKey, BackendShares] = {}
        self._backends = backends
        self._before = before

    def of(self, route: Route) -> BackendShares | None:
        """Return the shares of a rule; None for a redirect."""
        own = [(self._backends[backend], weight) for backend, weight in route.shares]
        if len(own) < 2:
            return BackendShares(own, spill=False, previous=None) if own else None
        key = route.ingress.name, route.label, route.path_type, " ".join(backend.name for backend, _ in own)
        found = self.shares.get(key)
        if found is None:
            found = self.shares[key] = BackendShares(own, spill=route.spill, previous=self._before.get(key))
        return found


def _key(config: model.Config) -> bytes:
    """Return the cookie key derived from the certificates of Ingress listeners; b"" without certificates."""
    names = {
        name
        for listener in config.listeners
        if listener.serves is model.Serves.INGRESS and listener.tls is not None
        for name in listener.tls.all_certificates
    }
    return derived_key(each.key.data for each in config.certificates if each.name in names)


def _service(backend: model.IngressBackend) -> tuple[str, str, int | str]:
    return backend.namespace, backend.service, backend.port


def _handler(
    config: model.Config,
    listener: model.ListenerConfig,
    rule_shares: _RuleShares,
    resources: IngressResources,
    log: Recorder | None,
    tracer: IngressTracer | None,
) -> IngressHandler:
    ingresses = [ingress for ingress in config.ingresses if listener.name in ingress.listeners]
    redirects = {ingress.name: redirected_hosts(config, listener, ingress) for ingress in ingresses}

    def live(route: Route) -> LiveRoute:
        ingress = route.ingress
        return LiveRoute(route, rule_shares.of(route), redirects[ingress.name], ingress.redirect_port)

    return IngressHandler(
        Router((route, live(route)) for route in routes_of(ingresses)),
        coverage=None if listener.tls is None else CertificateCoverage(listener.tls, config.certificates),
        trusted_proxies=listener.trusted_proxies,
        in_flight=resources.in_flight,
        request_ids=resources.request_ids,
        counts=resources.counts,
        log=log,
        batch=resources.batch,
        tracer=tracer,
    )


def redirected_hosts(
    config: model.Config, listener: model.ListenerConfig, ingress: model.Ingress
) -> NameTable[bool] | None:
    """Return the hosts of an ingress whose requests on this listener are redirected to TLS; None if there are none."""
    if listener.tls is not None or not ingress.redirect_to_tls or not ingress.tls:
        return None
    if not any(each.tls is not None for each in config.listeners if each.name in ingress.listeners):
        return None
    return NameTable((host, True) for host in _tls_hosts(config, ingress))


def _tls_hosts(config: model.Config, ingress: model.Ingress) -> Iterable[str]:
    names = {each.name: each.server_names for each in config.certificates}
    for entry in ingress.tls:
        yield from entry.hosts or names.get(entry.certificate, ())
