"""State of a client's connection: its address, the hosts allowed on it, and values computed for its last request.

The values are reused because the next request often has the same host and fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from twisted.internet.address import IPv4Address, IPv6Address

from mcproxy.config.model import Certificate, IPNetwork, ListenerTLS
from mcproxy.http.exchange import ServerConnection
from mcproxy.http.messages import RequestHead, first_value
from mcproxy.net.client_table import UNIX
from mcproxy.net.name_table import NameTable
from mcproxy.net.trusted_proxies import is_trusted
from mcproxy.services.ingress.forwarded_headers import Origin, origin

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")


def host_name(host: bytes) -> bytes:
    """Return the host of a Host header in lower case, without port and final dot; IPv6 addresses keep brackets."""
    if host[:1] == b"[":
        return host[: host.find(b"]") + 1]
    name = host.partition(b":")[0]
    return name[:-1] if name[-1:] == b"." else name


class CertificateCoverage:
    """The hosts for which a TLS connection accepts requests.

    A client can send requests for all hosts that the connection's certificate covers (connection reuse, RFC 9113
    9.1.1). A request for any other host of the listener is misdirected (421, RFC 9110 15.5.20). A client without a
    server name (SNI) got the default certificate and can request any host, as with nginx.
    """

    __slots__ = ("_default", "_names", "_shown")

    def __init__(self, tls: ListenerTLS, certificates: Iterable[Certificate]) -> None:
        by_name = {certificate.name: certificate for certificate in certificates}
        known = [by_name[name] for name in tls.all_certificates if name in by_name]
        covered: dict[str, list[str]] = {certificate.name: list(certificate.server_names) for certificate in known}
        for host, name in tls.hosts:
            covered.setdefault(name, []).append(host)
        shown = [
            *((host, name) for host, name in tls.hosts if name in by_name),
            *((name, certificate.name) for certificate in known for name in certificate.server_names),
        ]
        self._shown: NameTable[str] = NameTable(shown)
        self._default = known[0].name if known else ""
        self._names: Mapping[str, NameTable[bool]] = {
            name: NameTable((host, True) for host in hosts) for name, hosts in covered.items()
        }

    def misdirected(self, server_name: str | None, host: bytes) -> bool:
        """Whether a request for a host (`host_name`) is misdirected on a connection with this TLS server name."""
        name = host.decode("latin-1")
        if not server_name or name == server_name:
            return False
        certificate = self._shown.find(server_name) or self._default
        table = self._names.get(certificate)
        return table is None or table.find(name) is None

    def covers(self, host: bytes) -> bool:
        """Whether the listener has a certificate of its own for a host."""
        return self._shown.find(host.decode("latin-1")) is not None


class Handler(Protocol):
    """The handler of the requests of a connection under one Runtime (`ingress_handler`)."""

    def routes_of(self, connection: ServerConnection, host: bytes) -> Any:
        """Return the routes for a host on a connection; None if the host is misdirected there (421)."""


class ConnectionFields:
    """The values derived from a host and a block of fields, computed once for requests that repeat both."""

    __slots__ = ("address", "fields", "https", "request_id", "user_agent")

    def __init__(self, known: Origin) -> None:
        self.fields = known.rest + known.fields
        """The fields to send instead of the client's, without the identifier of the request."""
        self.address = known.address
        self.https = known.https
        given = first_value(known.rest, b"x-request-id")
        self.request_id = given if given is not None and _REQUEST_ID.fullmatch(given) else b""
        """The client's identifier of the request; b"" if it has no well-formed one."""
        if given is not None and not self.request_id:
            self.fields = _without_request_id(known.rest) + known.fields
        agent = first_value(known.rest, b"user-agent")
        self.user_agent = "" if agent is None else agent.decode("latin-1")


class Client:
    """A client's connection under one Runtime."""

    __slots__ = ("_fields", "_host", "_noted", "_trusted", "address", "handler", "host", "log_address", "routes", "tls")

    def __init__(self, connection: ServerConnection, handler: Handler, trusted: tuple[IPNetwork, ...]) -> None:
        transport = connection.transport
        peer = connection.client
        self.handler = handler
        self.address = peer.host if isinstance(peer, IPv4Address | IPv6Address) else ""
        self.log_address = self.address or UNIX
        self.tls = bool(transport.is_tls)
        self.host = b""
        """The host of the last request."""
        self.routes: Any = None
        """The routes of that host; None if the host is misdirected on this connection (421)."""
        self._host: bytes | None = None
        self._trusted = trusted if is_trusted(self.address, trusted) else ()
        self._fields: bytes | None = None
        self._noted: ConnectionFields | None = None

    def noted(self, connection: ServerConnection, head: RequestHead) -> ConnectionFields:
        """Return the values for the head of a request; set `host` and `routes`."""
        host, noted = head.host, self._noted
        if host != self._host:
            self._host = host
            self.host = name = host_name(host)
            self.routes = self.handler.routes_of(connection, name)
            noted = None
        if noted is None or head.fields != self._fields:
            fields = self._fields = head.fields
            known = origin(fields, host, self.address, tls=self.tls, trusted=self._trusted)
            noted = self._noted = ConnectionFields(known)
        return noted


def _without_request_id(fields: bytes) -> bytes:
    return b"".join(
        [line + b"\r\n" for line in fields.split(b"\r\n")[:-1] if not line.lower().startswith(b"x-request-id:")]
    )
