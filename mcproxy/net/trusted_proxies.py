"""Decides which peers are trusted to report the client's address: `trustedProxies` and the PROXY protocol's `from`."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from mcproxy.config.model import IPNetwork


def is_trusted(address: str, networks: Sequence[IPNetwork]) -> bool:
    """Return whether an IP address (with or without a zone) is in a network; false for a malformed address."""
    if not networks:
        return False
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return any(parsed in network for network in networks)
