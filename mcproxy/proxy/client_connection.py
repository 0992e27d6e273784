"""Properties of a client connection that are determined once and used by each of its requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress

from mcproxy.config.model import IPNetwork
from mcproxy.http.messages import RequestHead
from mcproxy.identity.authentication.x509.peer import HubPeer, TLSPeer
from mcproxy.identity.client_identity_headers import IdentityHeaders, split_identity_headers
from mcproxy.identity.cross_site import is_foreign
from mcproxy.net.client_table import UNIX
from mcproxy.net.trusted_proxies import is_trusted
from mcproxy.proxy.forwarded_headers import forwarded_block, forwarded_through, source_addresses
from mcproxy.proxy.routes import host_name

if TYPE_CHECKING:
    from mcproxy.http.exchange import Exchange, ServerConnection
    from mcproxy.proxy.routes import VirtualServer

#: Maximum bytes of one cached header block, and of all cached blocks of a connection. Requests with an equal block have
#: the same cached results.
_MAX_KEPT_FIELDS = 4096
_MAX_KEPT = 32 * 1024


class ServerTable(Protocol):
    """The virtual servers of a Runtime by their names (`proxy.routes.Routes`)."""

    def find(self, server_name: str | None, host: bytes) -> VirtualServer:
        """Return the server for a TLS server name and a Host header. Raises StatusError."""
        ...

    def names(self, host: bytes) -> bool:
        """Whether a Host header names a server."""
        ...


class ClientConnectionInfo:
    """A client's address and certificate, and cached results of its last requests, since the next one is often similar.

    A front proxy sends the requests of many users over one connection, so the header blocks of several users are kept.
    """

    __slots__ = (
        "_fields",
        "_forwarded",
        "_host",
        "_identity_headers",
        "_kept",
        "_kept_size",
        "_scheme",
        "_server",
        "address",
        "audited",
        "foreign_host",
        "handle",
        "log_address",
        "own_address",
        "peer",
        "routes",
        "scheme",
        "server_name",
        "trusted",
    )

    def __init__(
        self,
        connection: ServerConnection,
        routes: ServerTable,
        trusted_proxies: Sequence[IPNetwork],
        handle: Callable[[Exchange], None],
    ) -> None:
        """The last three belong to one Runtime; under another Runtime a connection needs another object of this class.

        `handle` is that Runtime's handler of the connection's requests.
        """
        transport = connection.transport
        self.routes = routes
        self.handle = handle
        self.address = _address_text(connection.client)
        self.log_address = self.address or UNIX
        self.server_name = transport.server_name if transport.is_tls else None
        dialled = connection.factory.dials
        self.trusted = dialled or is_trusted(self.address, trusted_proxies)
        self.scheme = "https" if transport.is_tls else "http"
        self._scheme = self.scheme.encode()
        #: the client's certificate, verified again under each Runtime; without TLS: None. A hub's is that of a server.
        self.peer = HubPeer(connection.factory.name) if dialled else TLSPeer.of(transport)
        #: the audit log's texts for requests with the same block of fields as the last one: both members, and userAgent
        self.audited: tuple[object, str, str] | None = None
        self.foreign_host = False  # Host of a plain-text request is no known and no local name (identity.cross_site)
        self._host = b""
        self._forwarded = b""
        self._server: VirtualServer | None = None
        self._fields: bytes | None = None
        self._identity_headers: IdentityHeaders
        self._kept: dict[bytes, IdentityHeaders] | None = None  # earlier headers, after the first change
        self._kept_size = 0
        self.own_address: tuple[str, ...] = (self.address,) if self.address else ()

    def server(self, host: bytes) -> VirtualServer:
        """Return the virtual server for a Host header. Raises StatusError as `Routes.find` does."""
        if self._server is None or host != self._host:  # most connections name only one host
            routes = self.routes
            self._server = routes.find(self.server_name, host)
            self._host = host
            self._forwarded = forwarded_block(self.address.encode(), self._scheme, host)
            plain = self._scheme == b"http" and bool(self.address)
            self.foreign_host = plain and not routes.names(host) and is_foreign(host_name(host))
        return self._server

    def identity_headers(self, fields: bytes) -> IdentityHeaders:
        """Return the identity headers of a head; raises StatusError as `split_identity_headers` does.

        Most clients send the same headers with each request, and parsing them is expensive if there is a token.
        """
        if fields != self._fields:
            headers = None if self._kept is None else self._kept.get(fields)
            if headers is None:
                headers = split_identity_headers(fields)
                if len(fields) > _MAX_KEPT_FIELDS:
                    return headers
            self._keep_last()
            self._fields, self._identity_headers = fields, headers
        return self._identity_headers

    def _keep_last(self) -> None:
        """Keep the headers of the last request with the earlier headers; drop all when there are too many."""
        fields = self._fields
        if fields is None or (self._kept is not None and fields in self._kept):
            return
        self._kept_size += len(fields)
        if self._kept is None or self._kept_size > _MAX_KEPT:
            self._kept, self._kept_size = {}, len(fields)
        self._kept[fields] = self._identity_headers

    def addresses(self, head: RequestHead) -> tuple[str, ...]:
        """Return the source addresses of a request (`forwarded_headers.source_addresses`)."""
        return source_addresses(head, self.address) if self.trusted else self.own_address

    def forwarded_fields(self, head: RequestHead) -> bytes:
        """Return the X-Forwarded-For, -Proto and -Host fields to send, as a block."""
        if self.trusted:
            return forwarded_through(head, self.address, self._scheme)
        if head.host == self._host and self._forwarded:
            return self._forwarded
        return forwarded_block(self.address.encode(), self._scheme, head.host)


def _address_text(address: IAddress | None) -> str:
    """Return an IP address as text; "" for a peer without one (unix socket)."""
    return address.host if isinstance(address, IPv4Address | IPv6Address) else ""
