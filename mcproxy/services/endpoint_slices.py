"""Decodes the fields of EndpointSlices and Services that ingresses need; the clusters that sent them may be hostile.

Source: k8s.io/api `discovery/v1` and `core/v1`; missing fields have the defaults that kube-proxy assumes.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

import msgspec

from mcproxy.config.model.keys import IPNetwork
from mcproxy.services.api_types import DNS_LABEL, DNS_SUBDOMAIN, MAX_SLICE_ENDPOINTS, ConditionsJSON, PortJSON, decode

MAX_PORTS = 1000
"""Maximum of ports of one slice or Service."""

_APP_PROTOCOL = re.compile(r"[A-Za-z0-9._/-]{1,317}")  # a qualified name, as the key of a label
_ZONE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class SliceEndpoint(NamedTuple):
    """One endpoint of a slice; all ports of the slice apply to it."""

    address: Address
    zone: str | None
    ready: bool
    serving: bool
    terminating: bool
    pod: str | None = None  # name of the pod; None if the endpoint is no pod


class TCPPort(NamedTuple):
    """One TCP port of a Service or of a slice (there `port` is the pods' port number)."""

    name: str
    port: int
    app_protocol: str | None


class Slice(NamedTuple):
    """One EndpointSlice. `unusable`: the number of endpoints without an IP address of the slice's address type."""

    endpoints: tuple[SliceEndpoint, ...]
    ports: tuple[TCPPort, ...]
    unusable: int = 0


class Service(NamedTuple):
    """One Service."""

    external_name: bool
    headless: bool
    families: tuple[int, ...]
    """IP families (4, 6), the primary one first; () if the Service does not specify them."""
    ports: tuple[TCPPort, ...]


class _Target(msgspec.Struct):
    kind: str | None = None
    name: str | None = None


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] = msgspec.field(default_factory=list)
    conditions: ConditionsJSON | None = None
    zone: str | None = None
    target_ref: _Target | None = None


class _Slice(msgspec.Struct, rename="camel"):
    address_type: str = ""
    endpoints: list[_Endpoint] | None = None
    ports: list[PortJSON] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    type: str | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    ip_families: list[str] | None = None
    ports: list[PortJSON] | None = None


class _Service(msgspec.Struct):
    spec: _Spec | None = None


_SLICE = msgspec.json.Decoder(_Slice)
_SERVICE = msgspec.json.Decoder(_Service)
_FAMILIES = {"IPv4": 4, "IPv6": 6}


def read_slice(data: bytes) -> Slice:
    """Return an EndpointSlice. Raises UnreadableObject.

    A missing `ready` is true, a missing `serving` equals `ready`, a missing `terminating` is false. Only the first
    address of an endpoint is used.
    """
    found = decode(_SLICE, data)
    family = _FAMILIES.get(found.address_type)
    read = found.endpoints or []
    endpoints = [] if family is None else [each for each in map(_endpoint, read[:MAX_SLICE_ENDPOINTS]) if each]
    endpoints = [each for each in endpoints if each.address.family == family]
    return Slice(tuple(endpoints), _ports(found.ports), len(read) - len(endpoints))


def read_service(data: bytes) -> Service:
    """Return a Service. Raises UnreadableObject."""
    spec = decode(_SERVICE, data).spec or _Spec()
    return Service(
        external_name=spec.type == "ExternalName",
        headless=spec.cluster_ip == "None",
        families=tuple(dict.fromkeys(_FAMILIES[each] for each in spec.ip_families or () if each in _FAMILIES)),
        ports=_ports(spec.ports),
    )


def _endpoint(read: _Endpoint) -> SliceEndpoint | None:
    address = parse_address(read.addresses[0]) if read.addresses else None
    if address is None:
        return None
    conditions = read.conditions or ConditionsJSON()
    ready = conditions.ready is not False
    serving = ready if conditions.serving is None else conditions.serving
    zone = read.zone if read.zone is not None and _ZONE.fullmatch(read.zone) else None
    return SliceEndpoint(address, zone, ready, serving, conditions.terminating is True, _pod(read.target_ref))


def _pod(target: _Target | None) -> str | None:
    name = None if target is None or target.kind != "Pod" else target.name
    return name if name is not None and len(name) <= 253 and DNS_SUBDOMAIN.fullmatch(name) else None


def _ports(read: list[PortJSON] | None) -> tuple[TCPPort, ...]:
    """Return the usable ports, only the first one of each name; in a valid Service names are unique.

    A thousand ports with one name would list each endpoint a thousand times.
    """
    ports: dict[str, TCPPort] = {}
    for each in (read or ())[:MAX_PORTS]:
        name = each.name or ""
        if each.port is None or not 0 < each.port < 65536 or (each.protocol or "TCP") != "TCP":
            continue
        if name not in ports and (not name or DNS_LABEL.fullmatch(name)):
            ports[name] = TCPPort(name, each.port, _app_protocol(each.app_protocol))
    return tuple(ports.values())


def _app_protocol(text: str | None) -> str | None:
    return text if text is not None and _APP_PROTOCOL.fullmatch(text) else None


# -- addresses ------------------------------------------------------------------------------------------------
#
# The allowed addresses of endpoints: never those of the proxy's own machine, unless the configuration names them.
#
# Anyone who can write Endpoints in a namespace chooses the addresses in its EndpointSlices, so every address from a
# cluster is checked here. Source of the default ranges: Kubernetes' own validation of EndpointSlices
# (`ValidateNonSpecialIP`), extended by the forms of IPv6 that carry an IPv4 address.


NEVER_ALLOWED: tuple[IPNetwork, ...] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("224.0.0.0/4"),
    IPv4Network("255.255.255.255/32"),
    IPv6Network("::/128"),
    IPv6Network("::ffff:0:0/96"),  # IPv4-mapped: the socket would connect to the IPv4 address
    IPv6Network("ff00::/8"),
)
"""Unspecified, multicast and mapped addresses: no configuration allows them."""

LOCAL_NETWORKS: tuple[IPNetwork, ...] = (
    IPv4Network("127.0.0.0/8"),
    IPv4Network("169.254.0.0/16"),
    IPv6Network("::/96"),  # ::1 and IPv4-compatible addresses
    IPv6Network("fe80::/10"),
    # Metadata services of clouds give credentials to any process on a virtual machine. Most have link-local addresses.
    IPv4Network("100.100.100.200/32"),  # Alibaba Cloud
    IPv4Network("168.63.129.16/32"),  # Azure
    IPv4Network("192.0.0.192/32"),  # Oracle Cloud
    IPv6Network("fd00:ec2::254/128"),  # AWS
    IPv6Network("fd20:ce::254/128"),  # Google Cloud
    IPv6Network("64:ff9b::a9fe:0/112"),  # 169.254.0.0/16 by NAT64
)
"""Loopback and link-local addresses and metadata services of clouds. Only a configured network within one of these
ranges allows them; ``0.0.0.0/0`` does not."""

_Range = tuple[bytes, bytes]


class Address(NamedTuple):
    """An IP address; addresses sort by family (IPv4 before IPv6) and bytes."""

    family: int  # 4 or 6
    packed: bytes

    @property
    def text(self) -> str:
        """The address in canonical form (RFC 5952)."""
        return socket.inet_ntop(socket.AF_INET if self.family == 4 else socket.AF_INET6, self.packed)


def parse_address(text: str) -> Address | None:
    """Return an address; None if it is invalid (a name, an IPv6 zone, an IPv4 address with leading zeros)."""
    try:
        if ":" in text:
            return Address(6, socket.inet_pton(socket.AF_INET6, text))
        return Address(4, socket.inet_pton(socket.AF_INET, text))
    except (OSError, ValueError):  # ValueError: a NUL, or text that cannot be encoded
        return None


class AllowedAddresses:
    """The addresses that one configuration allows."""

    __slots__ = ("_allowed", "_refused")

    def __init__(self, networks: Iterable[IPNetwork] = ()) -> None:
        """`networks`: `allowedCIDRs`; empty: all addresses except `NEVER_ALLOWED` and `LOCAL_NETWORKS` are allowed."""
        networks = tuple(networks)
        explicit = [_range(each) for each in networks if any(_within(each, local) for local in LOCAL_NETWORKS)]
        self._allowed = [_range(network) for network in networks] if networks else None
        self._refused: list[tuple[_Range, tuple[_Range, ...]]] = [(_range(each), ()) for each in NEVER_ALLOWED] + [
            (_range(each), tuple(explicit)) for each in LOCAL_NETWORKS
        ]

    def __contains__(self, address: Address) -> bool:
        packed = address.packed
        if packed[0] in _FIRST_BYTES[address.family]:
            for refused, but in self._refused:
                if _in_range(packed, refused) and not any(_in_range(packed, each) for each in but):
                    return False
        return self._allowed is None or any(_in_range(packed, each) for each in self._allowed)


def _first_bytes(family: int) -> frozenset[int]:
    ranges = [_range(each) for each in (*NEVER_ALLOWED, *LOCAL_NETWORKS) if each.version == family]
    return frozenset(first for low, high in ranges for first in range(low[0], high[0] + 1))


def _in_range(packed: bytes, bounds: _Range) -> bool:
    return len(packed) == len(bounds[0]) and bounds[0] <= packed <= bounds[1]


def _range(network: IPNetwork) -> _Range:
    return network.network_address.packed, network.broadcast_address.packed


def _within(network: IPNetwork, other: IPNetwork) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


_FIRST_BYTES = {family: _first_bytes(family) for family in (4, 6)}
"""The first bytes of the addresses in the forbidden ranges; most pod addresses pass the check by their first byte."""
