"""The peer of a TLS connection: its client certificate and the intermediates that it sent.

The handshake only proves that the client has the private key of its certificate; any chain is accepted there. The
CAs depend on the virtual server of a request, so a TLSPeer is verified later, by each `ClientCertificateVerifier`
separately, and caches each result while it is valid.
"""

from __future__ import annotations

from typing import Protocol

from cryptography import x509

from mcproxy.identity.authentication.x509.certificate_user import CertificateUser, certificate_user
from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier, Verification

#: Cached results: two for each set of authenticators that requests of one connection use. Reloads and many virtual
#: servers would otherwise let them grow without bound.
_KEPT = 8


UNREADABLE = CertificateUser("", None, "it cannot be read")


class _Transport(Protocol):
    """The part of `http.transport.Transport` that is used; only connections with TLS have a chain."""

    is_tls: bool

    def peer_certificate(self) -> x509.Certificate | None: ...


class TLSPeer:
    """A client certificate, unverified; made once for each connection that has one.

    `leaf` is None if the client's certificate cannot be parsed; then no verifier accepts it.
    """

    __slots__ = ("_user", "_verifications", "chain", "leaf")

    def __init__(self, leaf: x509.Certificate | None, chain: tuple[x509.Certificate, ...] = ()) -> None:
        self.leaf = leaf
        self.chain = chain  # intermediates as sent, for building a path to an authority
        self._user: CertificateUser | None = None
        self._verifications: dict[ClientCertificateVerifier, Verification] = {}

    @classmethod
    def of(cls, transport: _Transport) -> TLSPeer | None:
        """Return the peer of a connection whose handshake is done; None if it sent no certificate."""
        if not transport.is_tls:
            return None
        try:
            leaf = transport.peer_certificate()
            if leaf is None:
                return None
            chain: list[x509.Certificate] = transport.peer_chain()  # type: ignore[attr-defined]
        except (ValueError, x509.InvalidVersion):  # OpenSSL accepts more certificates than cryptography
            return cls(None)
        return cls(leaf, tuple(chain))

    def certificate_user(self) -> CertificateUser:
        """Return the user that the certificate names; it is valid only if a verifier accepts the certificate."""
        if self._user is None:
            self._user = UNREADABLE if self.leaf is None else certificate_user(self.leaf)
        return self._user

    def verification(self, verifier: ClientCertificateVerifier, now: float) -> Verification:
        """Return the result of a verifier, cached while it is valid; `now` is seconds since 1970."""
        result = self._verifications.get(verifier)
        if result is not None and result.since <= now <= result.until:
            return result
        if len(self._verifications) >= _KEPT:
            self._verifications.clear()
        result = self._verifications[verifier] = verifier.verify(self, now)
        return result
