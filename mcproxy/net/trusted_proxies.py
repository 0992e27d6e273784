"""The peers whose word about the client is believed: `trustedProxies` of a listener, `from` of the PROXY protocol."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from mcproxy.config.model import IPNetwork


def is_trusted(address: str, networks: Sequence[IPNetwork]) -> bool:
    """Return whether an IP address (with or without a zone) is in one of the networks; a malformed one is in none."""
    if not networks:
        return False
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(parsed in network for network in networks)
