"""What is known of a client connection before its first request: found out once, used by each of its requests."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress

from mcproxy.config.model import IPNetwork
from mcproxy.http.messages import RequestHead, split_fields
from mcproxy.identity.authentication.x509.peer import TLSPeer
from mcproxy.identity.cross_site import is_foreign
from mcproxy.identity.identity_headers import IdentityHeaders, split_identity_headers
from mcproxy.proxy.routes import host_name

if TYPE_CHECKING:
    from mcproxy.http.server import ServerConnection
    from mcproxy.proxy.pipeline import Pipeline
    from mcproxy.proxy.routes import VirtualServer

#: Bytes of fields that are kept to be known again: for every connection, a few times over.
_REMEMBERED = 4096


class ClientFacts:
    """A client's address, and what its X-Forwarded-* headers become."""

    __slots__ = (
        "_fields",
        "_forwarded",
        "_host",
        "_identity_headers",
        "_noted",
        "_scheme",
        "_server",
        "address",
        "foreign_host",
        "peer",
        "pipeline",
        "server_name",
        "trusted",
    )

    def __init__(self, connection: ServerConnection, pipeline: Pipeline) -> None:
        """`pipeline` is the one in force: what follows from its configuration holds only as long as it is."""
        transport = connection.transport
        networks = pipeline.trusted_proxies
        self.pipeline = pipeline
        self.address = _address_text(connection.client)
        self.server_name = transport.server_name if transport.is_tls else None
        self.trusted = bool(networks) and bool(self.address) and _within(self.address, networks)
        self._scheme = b"https" if transport.is_tls else b"http"
        #: the client's certificate, judged anew under each Runtime (None without one)
        self.peer = TLSPeer.of(transport) if transport.is_tls else None
        self.foreign_host = False  # see identity.browsers
        self._host = b""
        self._forwarded = b""
        self._server: VirtualServer | None = None
        self._fields: bytes | None = None
        self._identity_headers: IdentityHeaders
        self._noted: tuple[str, str] | None = None

    def server(self, host: bytes) -> VirtualServer:
        """Return the virtual server for a Host header; raises StatusError as `Routes.find` does."""
        if self._server is None or host != self._host:  # a connection most often keeps to one host
            routes = self.pipeline.routes
            self._server = routes.find(self.server_name, host)
            self._host = host
            self._forwarded = _fields(self.address.encode(), self._scheme, host)
            plain = self._scheme == b"http" and bool(self.address)
            self.foreign_host = plain and not routes.names(host) and is_foreign(host_name(host))
        return self._server

    def identity_headers(self, fields: bytes) -> IdentityHeaders:
        """Return what the fields of a head present; raises StatusError as `split_identity_headers` does.

        A client most often sends the same ones with each request, and a token makes it dear to sort them.
        """
        if fields != self._fields:
            presented = split_identity_headers(fields)
            if len(fields) > _REMEMBERED:
                return presented
            self._fields, self._identity_headers = fields, presented
            self._noted = None
        return self._identity_headers

    def noted(self, head: RequestHead) -> tuple[str, str]:
        """Return what a log tells of a head's fields: Audit-ID and User-Agent, each "" if it is absent."""
        if head.fields != self._fields:
            return _noted(head)
        if self._noted is None:
            self._noted = _noted(head)
        return self._noted

    def forwarded(self, head: RequestHead) -> bytes:
        """Return the X-Forwarded-For, -Proto and -Host fields to send, as a block.

        They are set anew. What the client sent counts only from a trusted proxy, whose own address is then added to
        the list, as the next one expects.
        """
        if self.trusted:
            received = [value for name, value in split_fields(head.fields) if name == b"x-forwarded-for"]
            scheme = head.header(b"x-forwarded-proto") or self._scheme
            host = head.header(b"x-forwarded-host") or head.host
            return _fields(b", ".join([*received, self.address.encode()]), scheme, host)
        if head.host == self._host and self._forwarded:
            return self._forwarded
        return _fields(self.address.encode(), self._scheme, head.host)


def _noted(head: RequestHead) -> tuple[str, str]:
    return (
        (head.header(b"audit-id") or b"").decode("latin-1"),
        (head.header(b"user-agent") or b"").decode("latin-1"),
    )


def _fields(chain: bytes, scheme: bytes, host: bytes) -> bytes:
    """Return the block; a unix socket's peer has no address, and an HTTP/1.0 request may have no host."""
    return b"%bX-Forwarded-Proto: %b\r\n%b" % (
        b"X-Forwarded-For: %b\r\n" % chain if chain else b"",
        scheme,
        b"X-Forwarded-Host: %b\r\n" % host if host else b"",
    )


def _address_text(address: IAddress | None) -> str:
    """Return an IP address as text; "" for a peer without one (unix socket)."""
    return address.host if isinstance(address, IPv4Address | IPv6Address) else ""


def _within(address: str, networks: Sequence[IPNetwork]) -> bool:
    parsed = ip_address(address.partition("%")[0])
    return any(parsed in network for network in networks)
