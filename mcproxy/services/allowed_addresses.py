"""Which addresses of endpoints are used: those that a configuration allows, and never the proxy's own machine unasked.

A cluster's EndpointSlices may name any address (whoever may write Endpoints in a namespace chooses it), so what comes
from a cluster is hostile until it has been looked at here. Source of the default ranges: Kubernetes' own validation of
EndpointSlices (`ValidateNonSpecialIP`), with the forms of IPv6 that carry an IPv4 address.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network
from typing import NamedTuple

from mcproxy.config.model.common import IPNetwork

NEVER: tuple[IPNetwork, ...] = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("224.0.0.0/4"),
    IPv4Network("255.255.255.255/32"),
    IPv6Network("::/128"),
    IPv6Network("::ffff:0:0/96"),  # IPv4 in IPv6: the socket would connect to the IPv4 address
    IPv6Network("ff00::/8"),
)
"""Unspecified, multicast and mapped addresses: no configuration allows them."""

LOCAL: tuple[IPNetwork, ...] = (
    IPv4Network("127.0.0.0/8"),
    IPv4Network("169.254.0.0/16"),
    IPv6Network("::/96"),  # ::1, and IPv4 in IPv6 in its first form
    IPv6Network("fe80::/10"),
    # Metadata services of clouds, which give credentials to whoever asks from a machine there. Most are link-local.
    IPv4Network("100.100.100.200/32"),  # Alibaba Cloud
    IPv4Network("168.63.129.16/32"),  # Azure
    IPv4Network("192.0.0.192/32"),  # Oracle Cloud
    IPv6Network("fd00:ec2::254/128"),  # AWS
    IPv6Network("fd20:ce::254/128"),  # Google Cloud
    IPv6Network("64:ff9b::a9fe:0/112"),  # 169.254.0.0/16 by NAT64
)
"""Loopback and link-local addresses and metadata services of clouds: only where a network that is configured lies
within one of these ranges, so that ``0.0.0.0/0`` does not allow them."""

_Range = tuple[bytes, bytes]


class Address(NamedTuple):
    """An IP address; its order is that of its bytes, IPv4 before IPv6."""

    family: int  # 4 or 6
    packed: bytes

    @property
    def text(self) -> str:
        """In the canonical form (RFC 5952)."""
        return socket.inet_ntop(socket.AF_INET if self.family == 4 else socket.AF_INET6, self.packed)


def parse_address(text: str) -> Address | None:
    """Return an address; None for what is none (a name, a zone of IPv6, an IPv4 address with leading zeros)."""
    try:
        if ":" in text:
            return Address(6, socket.inet_pton(socket.AF_INET6, text))
        return Address(4, socket.inet_pton(socket.AF_INET, text))
    except (OSError, ValueError):  # ValueError: a NUL, or what is not encodable
        return None


class AllowedAddresses:
    """The addresses that one configuration allows."""

    __slots__ = ("_allowed", "_refused")

    def __init__(self, networks: Iterable[IPNetwork] = ()) -> None:
        """`networks`: `allowedCIDRs`; none of them: everything but the ranges of `NEVER` and `LOCAL`."""
        networks = tuple(networks)
        explicit = [_range(each) for each in networks if any(_within(each, local) for local in LOCAL)]
        self._allowed = [_range(network) for network in networks] if networks else None
        self._refused: list[tuple[_Range, tuple[_Range, ...]]] = [(_range(each), ()) for each in NEVER] + [
            (_range(each), tuple(explicit)) for each in LOCAL
        ]

    def __contains__(self, address: Address) -> bool:
        packed = address.packed
        if packed[0] in _FIRST_BYTES[address.family]:
            for refused, but in self._refused:
                if _in(packed, refused) and not any(_in(packed, each) for each in but):
                    return False
        return self._allowed is None or any(_in(packed, each) for each in self._allowed)


def _first_bytes(family: int) -> frozenset[int]:
    ranges = [_range(each) for each in (*NEVER, *LOCAL) if each.version == family]
    return frozenset(first for low, high in ranges for first in range(low[0], high[0] + 1))


def _in(packed: bytes, bounds: _Range) -> bool:
    return len(packed) == len(bounds[0]) and bounds[0] <= packed <= bounds[1]


def _range(network: IPNetwork) -> _Range:
    return network.network_address.packed, network.broadcast_address.packed


def _within(network: IPNetwork, other: IPNetwork) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)


_FIRST_BYTES = {family: _first_bytes(family) for family in (4, 6)}
"""With which byte an address begins that may be in one of the ranges: most addresses of pods do not."""
