"""The checks of services by `check --connect`.

The checks find Services without the port of a backend, pods that are unreachable from this machine, and clusters that
have pods with the same address. No configuration file shows these faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectingCancelledError, TimeoutError
from twisted.internet.protocol import Factory, Protocol

from mcproxy.config import model
from mcproxy.services.api_types import SERVICE_NAME, UnreadableObject
from mcproxy.services.cache_scopes import ALL, FollowedKind, scopes_of
from mcproxy.services.endpoint_slices import Address, AllowedAddresses, Service, Slice, read_service, read_slice
from mcproxy.services.endpoint_table import (
    UNKNOWN,
    BackendKey,
    PodEndpoint,
    PortEndpoints,
    backend_keys,
    port_endpoints,
)
from mcproxy.services.exports.source_objects import read_slice_name

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster

_WITHIN = 10.0
"""Timeout of a request (seconds)."""
_CONNECT = 3.0
"""Timeout of a connection to a pod (seconds)."""
_MAX_BODY = 32 * 1024 * 1024
_MAX_PODS = 3
"""Limit of the pods of a service in a cluster that are tried until one is reachable."""
_UNREADABLE = (UnreadableObject, msgspec.DecodeError, UnicodeDecodeError)
_NOT_CONNECTED = (ConnectError, ConnectingCancelledError, TimeoutError, OSError)


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


@dataclass(slots=True)
class Pods:
    """The Services and EndpointSlices of each cluster, by namespace and Service, without imported slices."""

    slices: dict[str, dict[tuple[str, str], list[Slice]]] = field(default_factory=dict)
    services: dict[str, dict[tuple[str, str], Service | UnreadableObject]] = field(default_factory=dict)
    read: set[tuple[str, str]] = field(default_factory=set)
    """Clusters and namespaces (or `ALL`) whose Services and EndpointSlices have both been read."""

    def add_slices(self, cluster: str, body: bytes) -> None:
        """Add a list of EndpointSlices, without other objects. Raises msgspec.DecodeError."""
        found = self.slices.setdefault(cluster, {})
        for raw in msgspec.json.decode(body, type=_List).items:
            try:
                if read_slice_name(bytes(raw)) is None:
                    continue
                metadata = msgspec.json.decode(raw, type=_Object).metadata
                name = (metadata.labels or {}).get(SERVICE_NAME)
                if name is not None:
                    found.setdefault((metadata.namespace, name), []).append(read_slice(bytes(raw)))
            except _UNREADABLE:
                continue

    def add_services(self, cluster: str, body: bytes) -> None:
        """Add a list of Services; an unreadable Service has no ports. Raises msgspec.DecodeError."""
        found = self.services.setdefault(cluster, {})
        for raw in msgspec.json.decode(body, type=_List).items:
            metadata = msgspec.json.decode(raw, type=_Object).metadata
            try:
                found[metadata.namespace, metadata.name] = read_service(bytes(raw))
            except UnreadableObject as error:
                found[metadata.namespace, metadata.name] = error

    def endpoints(self, key: BackendKey) -> PortEndpoints:
        """Return the endpoints of a backend that the daemon would use."""
        if self.read.isdisjoint(((key.cluster, key.namespace), (key.cluster, ALL))):
            return UNKNOWN
        name = key.namespace, key.service
        service, slices = self.services[key.cluster].get(name), self.slices[key.cluster].get(name, ())
        if isinstance(service, UnreadableObject):
            where = f"service {key.namespace}/{key.service} of cluster {key.cluster}"
            return PortEndpoints(problem=f"{where}: {service}")
        return port_endpoints(key, service, slices, AllowedAddresses(key.allowed))

    def overlaps(self) -> Iterator[str]:
        """Yield a sentence for each pair of clusters with a common address, with one example."""
        owners: dict[Address, tuple[str, str]] = {}
        reported: set[tuple[str, str]] = set()
        for cluster, services in self.slices.items():
            for (namespace, name), slices in services.items():
                for address in (each.address for piece in slices for each in piece.endpoints):
                    first, service = owners.setdefault(address, (cluster, f"{namespace}/{name}"))
                    if first != cluster and (first, cluster) not in reported:
                        reported.add((first, cluster))
                        yield (
                            f"clusters {first} and {cluster}: {address.text} is a pod of both ({service}, "
                            f"{namespace}/{name}): their pod networks overlap, so what is meant for one may reach the "
                            "other; give one of them another podCIDR"
                        )


async def read(cluster: Cluster, config: model.Config, pods: Pods) -> None:
    """Read the Services and slices of a cluster that the configuration needs.

    Refused and unreadable objects are omitted. Raises ConnectError, ControlError and CredentialError.
    """
    namespaces = scopes_of(config).get(cluster.name, {}).get(FollowedKind.SLICES, frozenset())
    for namespace in sorted(namespaces):
        below = "" if namespace == ALL else f"/namespaces/{namespace}"
        slices = await _list(cluster, f"/apis/discovery.k8s.io/v1{below}/endpointslices")
        services = await _list(cluster, f"/api/v1{below}/services")
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            if slices is not None:
                pods.add_slices(cluster.name, slices)
            if slices is not None and services is not None:
                pods.add_services(cluster.name, services)
                pods.read.add((cluster.name, namespace))


async def _list(cluster: Cluster, path: str) -> bytes | None:
    endpoint = cluster.pick()
    if endpoint is None:
        return None
    asking = cluster.control.request(
        endpoint, "GET", path, headers=(("accept", "application/json"),), timeout=_WITHIN, max_body=_MAX_BODY
    )
    answer = await asking
    return answer.body if answer.status == 200 else None


def backends_of(config: model.Config) -> Iterator[tuple[str, BackendKey, bool]]:
    """Yield each backend in a cluster once: the ingress, its key, and whether it is reached at pod addresses."""
    seen: set[BackendKey] = set()
    for ingress in config.ingresses:
        for backend in ingress.backends:
            for key in backend_keys(backend):
                if key not in seen:
                    seen.add(key)
                    yield ingress.name, key, backend.via is model.Via.ENDPOINTS


async def reach(reactor: Any, endpoints: Sequence[PodEndpoint]) -> tuple[bool, str]:
    """Return True and a pod to which a connection succeeds, or False and the last cause."""
    cause = ""
    for address, port, *_ in endpoints[:_MAX_PODS]:
        shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            factory = Factory.forProtocol(Protocol)
            made: Deferred[Any] = HostnameEndpoint(reactor, address, port, timeout=_CONNECT).connect(factory)
            protocol = await made
        except _NOT_CONNECTED as error:
            cause = f"{shown}: {str(error) or type(error).__name__}"
            continue
        protocol.transport.abortConnection()
        return True, shown
    return False, cause
