"""TLS to an endpoint: the context, the verified name, and the resumable sessions.

A cluster has two kinds of connections, which never mix. Connections for clients' requests carry no client certificate
of the proxy with `Passthrough`. Connections for control traffic (health checks, reviews) always use the proxy's own
credential. Each endpoint has an `EndpointTLS` for each kind. Sessions are kept per endpoint and client certificate, so
that no session is resumed under another identity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from OpenSSL import SSL

from mcproxy.config import model
from mcproxy.net.connect import ClientTLS
from mcproxy.net.tls_contexts import SessionCache, client_context


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate chain (leaf first) and its key, both in PEM; repr shows neither."""

    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)


_Key = tuple[bytes | None, ClientCertificate | None, bool]


class ClientContexts:
    """The OpenSSL contexts in use, one for each distinct content, shared by all endpoints.

    So a CA of 200 clusters is parsed once. A context is freed together with its last user.
    """

    def __init__(self) -> None:
        self._contexts: WeakValueDictionary[_Key, SSL.Context] = WeakValueDictionary()

    def get(self, ca: bytes | None, certificate: ClientCertificate | None, *, verify: bool) -> SSL.Context:
        """Return the context for these authorities (None: the system's), client certificate and verification."""
        key = (ca, certificate, verify)
        context = self._contexts.get(key)
        if context is None:
            pair = None if certificate is None else (certificate.chain, certificate.key)
            context = client_context(ca, pair, verify)
            self._contexts[key] = context
        return context


class EndpointTLS:
    """The TLS parameters of new connections of one kind to one endpoint; follows changes of the client certificate."""

    __slots__ = ("_certificate", "_client_tls", "_config", "_contexts", "_host", "_used")

    def __init__(
        self,
        contexts: ClientContexts,
        config: model.ClusterTLS,
        host: str,
        certificate: Callable[[], ClientCertificate | None],
    ) -> None:
        self._contexts = contexts
        self._config = config
        self._host = host
        self._certificate = certificate
        self._used: ClientCertificate | None = None
        self._client_tls: ClientTLS | None = None

    def client_tls(self) -> ClientTLS:
        """Return the settings for a new connection; the context is built when the first connection needs it."""
        certificate = self._certificate()
        if self._client_tls is None or certificate != self._used:
            verify = not self._config.insecure_skip_verify
            ca = None if self._config.ca is None else self._config.ca.data
            self._client_tls = ClientTLS(
                context=self._contexts.get(ca, certificate, verify=verify),
                server_name=self._config.server_name or self._host,
                verify=verify,
                sessions=SessionCache(),
            )
            self._used = certificate
        return self._client_tls
