"""The part of `check --connect` for pod networks.

It checks whether pods of backends are reachable from this machine, and whether two clusters have pods with the same
address. Services across clusters depend on both, and no configuration file shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectError, ConnectingCancelledError, TimeoutError
from twisted.internet.protocol import Factory, Protocol

from mcproxy.config import model
from mcproxy.services.allowed_addresses import Address, AllowedAddresses
from mcproxy.services.api_types import UnreadableObject
from mcproxy.services.cache_scopes import ALL, Kind, scopes_of
from mcproxy.services.endpoint_slices import Slice, read_slice
from mcproxy.services.exports.source_objects import read_slice_name
from mcproxy.services.well_known import SERVICE_NAME

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster

_WITHIN = 10.0
"""Seconds for one request."""
_CONNECT = 3.0
"""Seconds for one connection to a pod."""
_MAX_BODY = 32 * 1024 * 1024
_MAX_PODS = 3
"""Pods of one service in one cluster that are tried, until one can be reached."""
_NOT_CONNECTED = (ConnectError, ConnectingCancelledError, TimeoutError, OSError)
_SLICES = "/apis/discovery.k8s.io/v1"


class _Metadata(msgspec.Struct):
    namespace: str = ""
    labels: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


class _List(msgspec.Struct):
    items: list[msgspec.Raw]


@dataclass(slots=True)
class Pods:
    """The EndpointSlices of each cluster, by namespace and service, without imported ones."""

    slices: dict[str, dict[tuple[str, str], list[Slice]]] = field(default_factory=dict)

    def add(self, cluster: str, body: bytes) -> None:
        """Add a list of EndpointSlices. Raises msgspec.DecodeError; other objects are left out."""
        found = self.slices.setdefault(cluster, {})
        for raw in msgspec.json.decode(body, type=_List).items:
            try:
                if read_slice_name(bytes(raw)) is None:
                    continue
                metadata = msgspec.json.decode(raw, type=_Object).metadata
                name = (metadata.labels or {}).get(SERVICE_NAME)
                if name is not None:
                    found.setdefault((metadata.namespace, name), []).append(read_slice(bytes(raw)))
            except (UnreadableObject, msgspec.DecodeError, UnicodeDecodeError):
                continue

    def overlaps(self) -> Iterator[str]:
        """Yield a sentence for each pair of clusters with a common address, with one example."""
        owners: dict[Address, tuple[str, str]] = {}
        told: set[tuple[str, str]] = set()
        for cluster, services in self.slices.items():
            for (namespace, name), slices in services.items():
                for address in (each.address for piece in slices for each in piece.endpoints):
                    first, service = owners.setdefault(address, (cluster, f"{namespace}/{name}"))
                    if first != cluster and (first, cluster) not in told:
                        told.add((first, cluster))
                        yield (
                            f"clusters {first} and {cluster}: {address.text} is a pod of both ({service}, "
                            f"{namespace}/{name}): their pod networks overlap, so what is meant for one may reach the "
                            "other; give one of them another podCIDR"
                        )

    def targets(self, backend: model.IngressBackend, cluster: str) -> list[tuple[str, int]]:
        """Return addresses and ports of the pods to try: ready ones that the backend allows."""
        allowed = AllowedAddresses(backend.allowed_cidrs)
        found = [
            (endpoint.address.text, port.port)
            for piece in self.slices.get(cluster, {}).get((backend.namespace, backend.service), ())
            for port in piece.ports[:1]
            for endpoint in piece.endpoints
            if endpoint.ready and endpoint.address in allowed
        ]
        return found[:_MAX_PODS]


async def read(cluster: Cluster, config: model.Config, pods: Pods) -> None:
    """Read the slices that the configuration needs of a cluster.

    Raises ConnectError, ControlError and CredentialError; refused and unreadable objects are left out.
    """
    namespaces = scopes_of(config).get(cluster.name, {}).get(Kind.SLICES, frozenset())
    for namespace in sorted(namespaces):
        endpoint = cluster.pick()
        if endpoint is None:
            return
        path = f"{_SLICES}/endpointslices" if namespace == ALL else f"{_SLICES}/namespaces/{namespace}/endpointslices"
        asking = cluster.control.request(
            endpoint, "GET", path, headers=(("accept", "application/json"),), timeout=_WITHIN, max_body=_MAX_BODY
        )
        answer = await asking
        if answer.status == 200:
            try:
                pods.add(cluster.name, answer.body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return


def direct_backends(config: model.Config) -> Iterator[tuple[str, model.IngressBackend, str]]:
    """Yield ingress, backend and cluster of the services that are reached at pod addresses, once for each cluster."""
    seen: set[tuple[str, str, str]] = set()
    for ingress in config.ingresses:
        for backend in ingress.backends:
            for cluster in backend.clusters if backend.via is model.Via.ENDPOINTS else ():
                key = (cluster, backend.namespace, backend.service)
                if key not in seen:
                    seen.add(key)
                    yield ingress.name, backend, cluster


async def reach(reactor: Any, targets: list[tuple[str, int]]) -> tuple[bool, str]:
    """Return whether a connection to a pod succeeds, and the pod; if none does, all addresses with the last cause."""
    cause = ""
    for address, port in targets:
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
