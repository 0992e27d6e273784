"""What is known of a client connection before its first request: found out once, used by each of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress

from mcproxy.config.model import IPNetwork
from mcproxy.http.messages import Header

if TYPE_CHECKING:
    from mcproxy.http.server import ServerConnection


class ClientFacts:
    """A client's address, and what its X-Forwarded-* headers become."""

    __slots__ = ("_scheme", "address", "networks", "server_name", "trusted")

    def __init__(self, connection: ServerConnection, networks: Sequence[IPNetwork]) -> None:
        transport = connection.transport
        self.address = _address_text(connection.client)
        self.server_name = transport.server_name if transport.is_tls else None
        self.networks = networks  # of trusted proxies, as they were configured when this was found out
        self.trusted = bool(networks) and bool(self.address) and _within(self.address, networks)
        self._scheme = b"https" if transport.is_tls else b"http"

    def forwarded(self, headers: list[Header], host: bytes) -> list[Header]:
        """Return the X-Forwarded-For, -Proto and -Host fields to send.

        They are set anew. What the client sent (in `headers`, names in lower case) counts only from a trusted proxy,
        whose own address is then added to the list, as the next one expects.
        """
        chain, scheme = self.address.encode(), self._scheme
        if self.trusted:
            received = [value for name, value in headers if name == b"x-forwarded-for"]
            chain = b", ".join([*received, chain])
            scheme = _first(headers, b"x-forwarded-proto") or scheme
            host = _first(headers, b"x-forwarded-host") or host
        result = [(b"x-forwarded-proto", scheme), (b"x-forwarded-host", host)]
        if chain:
            result.append((b"x-forwarded-for", chain))
        return result


def _first(headers: list[Header], name: bytes) -> bytes | None:
    return next((value for field, value in headers if field == name), None)


def _address_text(address: IAddress | None) -> str:
    """Return an IP address as text; "" for a peer without one (unix socket)."""
    return address.host if isinstance(address, IPv4Address | IPv6Address) else ""


def _within(address: str, networks: Sequence[IPNetwork]) -> bool:
    parsed = ip_address(address.partition("%")[0])
    return any(parsed in network for network in networks)
