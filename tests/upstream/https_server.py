"""An HTTPS server on loopback for the tests that need real TLS: it records what reaches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trustme
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from zope.interface import implementer

__all__ = ["NOT_DONE_YET", "HTTPSServer", "Seen"]


@dataclass
class Seen:
    """One request that reached the server. `connection` tells connections apart."""

    method: str
    uri: str
    headers: dict[str, str]
    body: bytes
    client: str | None
    server_name: str | None
    connection: int


@implementer(IOpenSSLServerConnectionCreator)
class _Creator:
    def __init__(self, context: SSL.Context) -> None:
        self._context = context

    def serverConnectionForTLS(self, protocol: Any) -> SSL.Connection:
        return SSL.Connection(self._context, None)


@dataclass
class HTTPSServer:
    """`respond(request)` is a twisted.web render method; the default answers 200 and {}."""

    reactor: Any
    ca: trustme.CA
    name: str
    respond: Callable[[Any], Any] = lambda request: b"{}"
    seen: list[Seen] = field(default_factory=list)
    port: int = 0

    def start(self) -> int:
        """Listen; return the port, which also stands in `port`."""
        context = SSL.Context(SSL.TLS_METHOD)
        self.ca.issue_cert(self.name).configure_cert(context)
        context.set_verify(SSL.VERIFY_PEER, lambda *_: True)
        context.set_session_id(b"test")
        site = Site(_Resource(self))  # type: ignore[no-untyped-call]
        self._port = self.reactor.listenSSL(0, site, _Creator(context), interface="127.0.0.1")
        self.port = int(self._port.getHost().port)
        return self.port

    def stop(self) -> Deferred[Any]:
        """Stop listening; may be called again."""
        return maybeDeferred(self._port.stopListening)


class _Resource(Resource):
    isLeaf = True

    def __init__(self, server: HTTPSServer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._server = server

    def render(self, request: Any) -> Any:
        transport = request.channel.transport
        tls = transport.getHandle()
        certificate = tls.get_peer_certificate(as_cryptography=True)
        names = [] if certificate is None else certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        server_name = tls.get_servername()
        self._server.seen.append(
            Seen(
                method=request.method.decode(),
                uri=request.uri.decode(),
                headers={
                    name.decode().lower(): b",".join(values).decode("latin-1")
                    for name, values in request.requestHeaders.getAllRawHeaders()
                },
                body=request.content.read(),
                client=str(names[0].value) if names else None,
                server_name=None if server_name is None else server_name.decode(),
                connection=transport.getPeer().port,
            )
        )
        return self._server.respond(request)
