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

#: Verdicts that are kept: two for each authentication set that requests of one connection are for. After reloads and
#: with many virtual servers more would gather in a connection's life.
_KEPT = 8


UNREADABLE = CertificateUser("", None, "it cannot be read")


class _Transport(Protocol):
    """What is needed of `http.transport.Transport`; only connections with TLS have a chain."""

    is_tls: bool

    def peer_certificate(self) -> x509.Certificate | None: ...


class TLSPeer:
    """A client certificate, unverified; made once for each connection that shows one.

    `leaf` is None if what the client showed cannot be read as a certificate; then no authority vouches for it.
    """

    __slots__ = ("_claim", "_verdicts", "chain", "leaf")

    def __init__(self, leaf: x509.Certificate | None, chain: tuple[x509.Certificate, ...] = ()) -> None:
        self.leaf = leaf
        self.chain = chain  # intermediates as sent, for building a path to an authority
        self._claim: CertificateUser | None = None
        self._verdicts: dict[ClientCertificateVerifier, Verification] = {}

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
        """Return whom the certificate names; true only for authorities that vouch for it."""
        if self._claim is None:
            self._claim = UNREADABLE if self.leaf is None else certificate_user(self.leaf)
        return self._claim

    def verification(self, authorities: ClientCertificateVerifier, now: float) -> Verification:
        """Return what these authorities say of the peer; `now` is seconds since 1970."""
        verdict = self._verdicts.get(authorities)
        if verdict is not None and verdict.since <= now <= verdict.until:
            return verdict
        if len(self._verdicts) >= _KEPT:
            self._verdicts.clear()
        verdict = self._verdicts[authorities] = authorities.verify(self, now)
        return verdict
