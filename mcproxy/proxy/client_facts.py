"""What is known of a client connection before its first request: found out once, used by each of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress

from mcproxy.config.model import IPNetwork
from mcproxy.http.messages import first_value, split_line

if TYPE_CHECKING:
    from mcproxy.http.server import ServerConnection


class ClientFacts:
    """A client's address, and what its X-Forwarded-* headers become."""

    __slots__ = ("_lines", "_scheme", "address", "networks", "server_name", "trusted")

    def __init__(self, connection: ServerConnection, networks: Sequence[IPNetwork]) -> None:
        transport = connection.transport
        self.address = _address_text(connection.client)
        self.server_name = transport.server_name if transport.is_tls else None
        self.networks = networks  # of trusted proxies, as they were configured when this was found out
        self.trusted = bool(networks) and bool(self.address) and _within(self.address, networks)
        self._scheme = b"https" if transport.is_tls else b"http"
        self._lines = _lines(self.address.encode(), self._scheme)

    def forwarded(self, lines: list[bytes], host: bytes) -> list[bytes]:
        """Return the X-Forwarded-For, -Proto and -Host lines to send.

        They are set anew. What the client sent (among `lines`) counts only from a trusted proxy, whose own address is
        then added to the list, as the next one expects.
        """
        if not self.trusted:
            return [*self._lines, b"X-Forwarded-Host: " + host]
        fields = [split_line(line) for line in lines]
        received = [value for name, value in fields if name == b"x-forwarded-for"]
        scheme = first_value(lines, b"x-forwarded-proto") or self._scheme
        host = first_value(lines, b"x-forwarded-host") or host
        return [
            *_lines(b", ".join([*received, self.address.encode()]), scheme),
            b"X-Forwarded-Host: " + host,
        ]


def _lines(chain: bytes, scheme: bytes) -> list[bytes]:
    proto = b"X-Forwarded-Proto: " + scheme
    return [b"X-Forwarded-For: " + chain, proto] if chain else [proto]


def _address_text(address: IAddress | None) -> str:
    """Return an IP address as text; "" for a peer without one (unix socket)."""
    return address.host if isinstance(address, IPv4Address | IPv6Address) else ""


def _within(address: str, networks: Sequence[IPNetwork]) -> bool:
    parsed = ip_address(address.partition("%")[0])
    return any(parsed in network for network in networks)
