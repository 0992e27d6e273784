"""The peer of a TLS connection: its client certificate and the intermediates that it sent.

The handshake only proves that the client has the private key of its certificate; any chain is accepted there. Which
CAs count depends on the virtual server that a request goes to, so a TLSPeer is verified later, by each
`ClientCertificateVerifier` apart, and keeps each result for as long as it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cryptography import x509

from mcproxy.identity.authentication.x509.user import CertificateUser, certificate_user

if TYPE_CHECKING:
    from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier, Verification

#: Verifications that are cached: two for each authentication set that requests of one connection are for. After reloads
#: and with many virtual servers more would gather in a connection's life.
_KEPT = 8


UNREADABLE = CertificateUser("", None, "it cannot be read")


class _Transport(Protocol):
    """What is needed of `http.transport.Transport`; only connections with TLS have a chain."""

    is_tls: bool

    def peer_certificate(self) -> x509.Certificate | None: ...


class TLSPeer:
    """A client certificate, unverified; made once for each connection that shows one.

    `leaf` is None if what the client showed cannot be read as a certificate; then no verifier accepts it.
    """

    __slots__ = ("_user", "_verifications", "chain", "leaf")

    def __init__(self, leaf: x509.Certificate | None, chain: tuple[x509.Certificate, ...] = ()) -> None:
        self.leaf = leaf
        self.chain = chain  # intermediates as sent, for building a path to an authority
        self._user: CertificateUser | None = None
        self._verifications: dict[ClientCertificateVerifier, Verification] = {}

    @classmethod
    def of(cls, transport: _Transport) -> TLSPeer | None:
        """Return the peer of a connection whose handshake is done; None if it showed no certificate."""
        if not transport.is_tls:
            return None
        try:
            leaf = transport.peer_certificate()
            if leaf is None:
                return None
            chain: list[x509.Certificate] = transport.peer_chain()  # type: ignore[attr-defined]
        except (ValueError, x509.InvalidVersion):  # OpenSSL takes more for a certificate than cryptography does
            return cls(None)
        return cls(leaf, tuple(chain))

    def certificate_user(self) -> CertificateUser:
        """Return the user that the certificate names; it counts only where a verifier accepts the certificate."""
        if self._user is None:
            self._user = UNREADABLE if self.leaf is None else certificate_user(self.leaf)
        return self._user

    def verification(self, verifier: ClientCertificateVerifier, now: float) -> Verification:
        """Return the result of a verifier, cached while it holds; `now` is seconds since 1970."""
        result = self._verifications.get(verifier)
        if result is not None and result.since <= now <= result.until:
            return result
        if len(self._verifications) >= _KEPT:
            self._verifications.clear()
        result = self._verifications[verifier] = verifier.verify(self, now)
        return result
