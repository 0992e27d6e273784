"""The other end of a TLS connection, as far as it proved itself: the client certificate and what was sent beside it.

The handshake only proves that the client has the key of its certificate; any chain is accepted there. Whose
certificates count is a matter of the virtual server that a request goes to, so a Peer is judged later, by each set of
`Authorities` apart, and remembers what each of them said as long as it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cryptography import x509

from mcproxy.identity.client_certificates import Claim, claim

if TYPE_CHECKING:
    from mcproxy.identity.authorities import Authorities, Verdict

#: Verdicts that are kept: two for each authentication set that requests of one connection are for. After reloads and
#: with many virtual servers more would gather in a connection's life.
_KEPT = 8


UNREADABLE = Claim("", None, "it cannot be read")


class _Transport(Protocol):
    """What is needed of `http.transport.Transport`; only connections with TLS have a chain."""

    is_tls: bool

    def peer_certificate(self) -> x509.Certificate | None: ...


class Peer:
    """A client certificate, unverified; made once for each connection that shows one.

    `leaf` is None if what the client showed cannot be read as a certificate; then no authority vouches for it.
    """

    __slots__ = ("_claim", "_verdicts", "chain", "leaf")

    def __init__(self, leaf: x509.Certificate | None, chain: tuple[x509.Certificate, ...] = ()) -> None:
        self.leaf = leaf
        self.chain = chain  # intermediates as sent, for building a path to an authority
        self._claim: Claim | None = None
        self._verdicts: dict[Authorities, Verdict] = {}

    @classmethod
    def of(cls, transport: _Transport) -> Peer | None:
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

    def claim(self) -> Claim:
        """Return whom the certificate names; true only for authorities that vouch for it."""
        if self._claim is None:
            self._claim = UNREADABLE if self.leaf is None else claim(self.leaf)
        return self._claim

    def verdict(self, authorities: Authorities, now: float) -> Verdict:
        """Return what these authorities say of the peer; `now` is seconds since 1970."""
        verdict = self._verdicts.get(authorities)
        if verdict is not None and verdict.since <= now <= verdict.until:
            return verdict
        if len(self._verdicts) >= _KEPT:
            self._verdicts.clear()
        verdict = self._verdicts[authorities] = authorities.judge(self, now)
        return verdict
