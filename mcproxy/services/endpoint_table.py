"""Computes the endpoints of ingress backends from EndpointSlices and Services, and holds them in a table.

Everything here is pure except `EndpointTable`, which holds the newest values and notifies its subscribers. Every
serving process has one table. `endpoint_feed` fills it in the process that has the caches, and that process sends the
values to the others.

Source of the rules: kube-proxy (`pkg/proxy/endpointslicecache.go`, KEP-1669 and KEP-1672).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any, NamedTuple

from twisted.logger import Logger

from mcproxy.config.model.ingresses import IngressBackend, IPFamily
from mcproxy.config.model.keys import IPNetwork
from mcproxy.services.endpoint_slices import Address, AllowedAddresses, Service, Slice, TCPPort

log = Logger(__name__)

_FAMILIES = {IPFamily.IPV4: (4,), IPFamily.IPV6: (6,)}
MAX_ENDPOINTS = 5_000
"""Maximum of endpoints of one backend in one cluster; terminating endpoints are left out first."""


class ClusterServiceKey(NamedTuple):
    """One Service of one cluster."""

    cluster: str
    namespace: str
    service: str


class BackendKey(NamedTuple):
    """One port of a Service of one cluster, and the addresses that mcproxy can use (`allowed`: `AllowedAddresses`)."""

    cluster: str
    namespace: str
    service: str
    port: int | str
    allowed: tuple[IPNetwork, ...] = ()
    family: IPFamily | None = None  # IP family of the used addresses; None: the Service's primary one

    @property
    def service_key(self) -> ClusterServiceKey:
        return ClusterServiceKey(self.cluster, self.namespace, self.service)


class EndpointState(enum.StrEnum):
    READY = "Ready"
    TERMINATING = "Terminating"
    """A terminating but serving endpoint gets requests only if no cluster of the backend has a ready endpoint."""


class PodEndpoint(NamedTuple):
    """One address and port. Endpoints with equal address and port count as the same pod, whatever else changes."""

    address: str  # in canonical form
    port: int
    zone: str | None = None
    state: EndpointState = EndpointState.READY
    pod: str | None = None  # its name, in the namespace of the Service; None: not a pod


@dataclass(frozen=True, slots=True)
class PortEndpoints:
    """The known endpoints of one backend in one cluster."""

    endpoints: tuple[PodEndpoint, ...] = ()  # sorted by address, without duplicates
    app_protocol: str | None = None
    known: bool = False  # the cluster has reported its endpoints to this process or an earlier one
    stale: bool = False  # the endpoints are known, but the cluster cannot be reached now
    problem: str = ""  # why endpoints are missing, for operators
    missing: bool = False  # the cluster has no such Service or port, or it has type ExternalName


UNKNOWN = PortEndpoints()


def backend_keys(backend: IngressBackend) -> tuple[BackendKey, ...]:
    """Return the keys of a backend, one for each cluster, in the order of the configuration."""
    return tuple(
        BackendKey(cluster, backend.namespace, backend.service, backend.port, backend.allowed_cidrs, backend.ip_family)
        for cluster in backend.clusters
    )


def port_endpoints(
    key: BackendKey, service: Service | None, slices: Sequence[Slice], allowed: AllowedAddresses
) -> PortEndpoints:
    """Return the endpoints of a backend in a cluster whose Service and EndpointSlices are known."""
    where = f"service {key.namespace}/{key.service} of cluster {key.cluster}"
    if service is None:
        return PortEndpoints(known=True, problem=f"there is no {where}", missing=True)
    if service.external_name:
        what = f"{where} is of type ExternalName: it has no endpoints"
        return PortEndpoints(known=True, problem=what, missing=True)
    port = _port(service, key.port)
    if port is None:
        return PortEndpoints(known=True, problem=_no_port(where, service, key.port), missing=True)
    states, refused, unusable, app_protocol = _states(slices, port.name, allowed)
    families = service.families if key.family is None else _FAMILIES[key.family]
    found = _of_one_family(states, families, only=key.family is not None)
    problem = ""
    if states and not found:
        problem = f"{where} has no endpoint with an address of {key.family} (ipFamily)"
    elif refused and not found:
        problem = f"{where}: none of its {refused} addresses is allowed (allowedCIDRs)"
    elif unusable and not found:
        problem = f"{where}: none of its {unusable} endpoints has an IP address"
    elif len(found) > MAX_ENDPOINTS:
        problem = f"{where} has {len(found)} endpoints: {MAX_ENDPOINTS} of them are used"
        kept = sorted(found, key=lambda at: found[at].state is EndpointState.TERMINATING)[:MAX_ENDPOINTS]
        found = {at: found[at] for at in sorted(kept)}
    return PortEndpoints(tuple(found.values()), port.app_protocol or app_protocol, known=True, problem=problem)


def _port(service: Service, port: int | str) -> TCPPort | None:
    return next((each for each in service.ports if port in (each.port, each.name)), None)


def _no_port(where: str, service: Service, port: int | str) -> str:
    named = f"named {port}" if isinstance(port, str) else f"{port}"
    if service.ports:
        has = ", ".join(f"{each.name} ({each.port})" if each.name else str(each.port) for each in service.ports[:10])
        return f"{where} has no TCP port {named}; it has {has}"
    headless = ", as it is headless" if service.headless else ""
    return f"{where} has no TCP port {named}, and no other one{headless}: write one into the Service"


_At = tuple[Address, int]


def _states(
    slices: Iterable[Slice], port_name: str, allowed: AllowedAddresses
) -> tuple[dict[_At, PodEndpoint], int, int, str | None]:
    """Return a port's usable endpoints by address, the numbers of refused and of unusable ones, and its appProtocol."""
    found: dict[_At, PodEndpoint] = {}
    refused = unusable = 0
    app_protocol: str | None = None
    for each in slices:
        unusable += each.unusable
        for port in each.ports:
            if port.name != port_name:
                continue
            app_protocol = app_protocol or port.app_protocol
            for endpoint in each.endpoints:
                if endpoint.ready and not endpoint.terminating:
                    state = EndpointState.READY
                elif endpoint.serving and endpoint.terminating:
                    state = EndpointState.TERMINATING
                else:
                    continue
                if endpoint.address not in allowed:
                    refused += 1
                    continue
                at = endpoint.address, port.port
                known = found.get(at)
                if known is None or (state is EndpointState.READY and known.state is not state):
                    found[at] = PodEndpoint(endpoint.address.text, port.port, endpoint.zone, state, endpoint.pod)
    return found, refused, unusable, app_protocol


def _of_one_family(found: dict[_At, PodEndpoint], families: Sequence[int], *, only: bool) -> dict[_At, PodEndpoint]:
    """Return the sorted endpoints of one IP family: a dual-stack pod has an endpoint in each family, but counts once.

    The family is the first of `families` with endpoints, else IPv4. `only`: use no family outside of `families`.
    """
    ordered = sorted(found)
    present = dict.fromkeys(address.family for address, _ in ordered)
    if only:
        ordered = [at for at in ordered if at[0].family in families]
    elif len(present) > 1:
        primary = next((family for family in families if family in present), 4)
        ordered = [at for at in ordered if at[0].family == primary]
    return {at: found[at] for at in ordered}


class EndpointTable:
    """The newest values of all backends of a configuration."""

    def __init__(self) -> None:
        self._values: dict[BackendKey, PortEndpoints] = {}
        self._listeners: dict[BackendKey, dict[int, Callable[[BackendKey], None]]] = {}
        self._all_listeners: dict[int, Callable[[BackendKey], None]] = {}
        self._next_number = 0

    def get(self, key: BackendKey) -> PortEndpoints:
        """Return the value of a backend, or `UNKNOWN`."""
        return self._values.get(key, UNKNOWN)

    def items(self) -> Iterator[tuple[BackendKey, PortEndpoints]]:
        """Iterate over all backends with a value."""
        return iter(tuple(self._values.items()))

    def subscribe(self, keys: Iterable[BackendKey], callback: Callable[[BackendKey], None]) -> Callable[[], None]:
        """Call `callback` with each of `keys` whose value has changed, until the returned function is called."""
        keys = tuple(dict.fromkeys(keys))
        number = self._number()
        for key in keys:
            self._listeners.setdefault(key, {})[number] = callback

        def unsubscribe() -> None:
            for key in keys:
                listeners = self._listeners.get(key, {})
                listeners.pop(number, None)
                if not listeners:
                    self._listeners.pop(key, None)

        return unsubscribe

    def subscribe_all(self, callback: Callable[[BackendKey], None]) -> Callable[[], None]:
        """Call `callback` with every key whose value has changed, until the returned function is called."""
        number = self._number()
        self._all_listeners[number] = callback

        def unsubscribe() -> None:
            self._all_listeners.pop(number, None)

        return unsubscribe

    # Methods for the owner of the table

    def set(self, key: BackendKey, value: PortEndpoints) -> bool:
        """Set a value; return whether it has changed."""
        if self.get(key) == value:
            return False
        self._values[key] = value
        self._notify(key)
        return True

    def keep(self, keys: Iterable[BackendKey]) -> None:
        """Remove all keys except these: the others have left the configuration."""
        kept = frozenset(keys)
        for key in [key for key in self._values if key not in kept]:
            del self._values[key]
            self._notify(key)

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _notify(self, key: BackendKey) -> None:
        for callback in (*self._all_listeners.values(), *self._listeners.get(key, {}).values()):
            try:
                callback(key)
            except Exception:
                log.failure("a listener of endpoints failed", event="internal_error")


def after_loss(before: PortEndpoints) -> PortEndpoints:
    """Return the value of a backend whose cluster cannot be reached: the last known endpoints."""
    return replace(before, stale=True) if before.known else before


def by_service(keys: Iterable[BackendKey]) -> Mapping[ClusterServiceKey, tuple[BackendKey, ...]]:
    """Return the backends of each Service."""
    found: dict[ClusterServiceKey, list[BackendKey]] = {}
    for key in dict.fromkeys(keys):
        found.setdefault(key.service_key, []).append(key)
    return {service: tuple(each) for service, each in found.items()}


# -- messages -------------------------------------------------------------------------------------------------
#
# The endpoints of a backend as plain JSON values, for the messages between processes.
#
# The endpoints are one string, ``ADDRESS PORT STATE ZONE POD;…``: no part contains a space, a semicolon, or a character
# that JSON escapes.


_STATES = {"R": EndpointState.READY, "T": EndpointState.TERMINATING}
_LETTERS = {state: letter for letter, state in _STATES.items()}

Entry = list[Any]
"""A backend as JSON: ``[key, flags, appProtocol, problem, endpoints]``."""


def entry_of(key: BackendKey, value: PortEndpoints) -> Entry:
    """Return the entry for a backend and its value."""
    lines = ";".join(
        f"{each.address} {each.port} {_LETTERS[each.state]} {each.zone or ''} {each.pod or ''}"
        for each in value.endpoints
    )
    flags = ("k" if value.known else "") + ("s" if value.stale else "") + ("m" if value.missing else "")
    networks = [str(network) for network in key.allowed]
    return [[*key[:4], networks, key.family], flags, value.app_protocol, value.problem, lines]


def entry_name(entry: Entry) -> str:
    """Return the name of the entry's backend, which all entries of the backend share."""
    return repr(entry[0])


def entry_size(entry: Entry) -> int:
    """Return the approximate size of an entry in bytes."""
    return 200 + len(entry[3]) + len(entry[4])


def read_entry(entry: Entry) -> tuple[BackendKey, PortEndpoints]:
    """Return the backend and its value from an entry (the inverse of `entry_of`)."""
    (cluster, namespace, service, port, networks, family), flags, app_protocol, problem, lines = entry
    key = BackendKey(
        cluster,
        namespace,
        service,
        port,
        tuple(ip_network(network) for network in networks),
        family and IPFamily(family),
    )
    endpoints = tuple(map(_read_endpoint, lines.split(";"))) if lines else ()
    return key, PortEndpoints(endpoints, app_protocol, "k" in flags, "s" in flags, problem, "m" in flags)


def _read_endpoint(line: str) -> PodEndpoint:
    address, port, state, zone, pod = line.split(" ")
    return PodEndpoint(address, int(port), zone or None, _STATES[state], pod or None)
