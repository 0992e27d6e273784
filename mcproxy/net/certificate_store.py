"""Selection of the server certificate by SNI: an immutable table from server names to OpenSSL contexts.

A reload builds a new store and new contexts; established connections keep theirs. All contexts of a store have the same
policy (versions, ciphers, client certificate request, ALPN). The reason: OpenSSL takes verify mode and options from the
context with which a connection was created, and keeps them when the SNI callback switches the context. So every
connection is created with `default`, and the callback changes only the certificate.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence

from OpenSSL import SSL
from twisted.logger import Logger

from mcproxy.config.model import Certificate
from mcproxy.net.alpn import HTTP1_0, HTTP1_1
from mcproxy.net.name_table import NameTable
from mcproxy.net.tls_contexts import PairError, server_context

log = Logger(__name__)


class CertificateStore:
    """Server contexts by name: exact name, then one-label wildcard, then the default.

    `protocols` are the ALPN names of the supported protocols, best first.
    """

    __slots__ = ("_names", "default", "protocols")

    def __init__(
        self,
        default: SSL.Context,
        names: NameTable[SSL.Context],
        protocols: Sequence[bytes] = (HTTP1_1, HTTP1_0),
    ) -> None:
        self.default = default
        self._names = names
        self.protocols = tuple(protocols)

    @classmethod
    def build(
        cls,
        certificates: Iterable[Certificate],
        min_version: str = "1.2",
        protocols: Sequence[bytes] = (HTTP1_1, HTTP1_0),
        hosts: Mapping[str, str] | None = None,
    ) -> CertificateStore:
        """Build the contexts. The first certificate is the default. It also has precedence for a name in several.

        `min_version` is "1.2" or "1.3". `hosts` maps server names (lower case) to names of certificates, and takes
        precedence over names in certificates. Raises PairError with the certificate's name; ValueError without any.
        """
        contexts: list[SSL.Context] = []
        names: list[tuple[str, SSL.Context]] = []
        by_certificate: dict[str, SSL.Context] = {}
        for certificate in certificates:
            try:
                context = server_context(certificate.chain.data, certificate.key.data, min_version, protocols)
            except PairError as error:
                raise PairError(f"certificate {certificate.name}: {error}") from error
            contexts.append(context)
            by_certificate[certificate.name] = context
            names += [(name.lower(), context) for name in certificate.server_names]
        if not contexts:
            raise ValueError("a TLS listener needs a certificate")
        given = ((host, by_certificate[name]) for host, name in (hosts or {}).items() if name in by_certificate)
        store = cls(contexts[0], NameTable([*given, *names]), protocols)
        # OpenSSL calls the callback of the context with which a connection was created, which is always the default.
        contexts[0].set_tlsext_servername_callback(store._select_context)
        return store

    def find(self, name: str | None) -> SSL.Context:
        """Return the context for a server name in lower case; None (no SNI) and unknown names get the default."""
        return (name and self._names.find(name)) or self.default

    def connection(self, sock: socket.socket) -> SSL.Connection:
        """Create the server side of a TLS connection on a connected socket, ready for its handshake."""
        connection = SSL.Connection(self.default, sock)
        connection.set_accept_state()
        return connection

    @property
    def needs_alpn(self) -> bool:
        """Whether clients need ALPN, since a connection without ALPN is HTTP/1.1, which is disabled."""
        return HTTP1_1 not in self.protocols

    def _select_context(self, connection: SSL.Connection) -> None:
        """SNI callback: select the context. It catches and logs exceptions, which would go to sys.excepthook."""
        try:
            context = self.find(server_name(connection))
            if context is not self.default:
                connection.set_context(context)
        except Exception:
            log.failure("selecting a certificate failed; the default certificate is used", event="internal_error")


def server_name(connection: SSL.Connection) -> str | None:
    """The name that the client sent as SNI, in lower case and without a trailing dot; None without (valid) SNI."""
    raw = connection.get_servername()
    if not raw:
        return None
    try:
        return raw.decode("ascii").lower().rstrip(".") or None
    except UnicodeDecodeError:
        return None
