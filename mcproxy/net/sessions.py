"""TLS sessions of outgoing connections: resuming saves the handshake's signatures and 5 KB of memory a connection.

One cache belongs to one ClientTLS: one endpoint, one set of authorities, one client credential. A change of any makes a
new ClientTLS with an empty cache, so a session is never used under other terms than those it was verified under.

A resumed connection skips the chain's verification, so a session is not resumed when its chain was verified more than
MAX_AGE ago; sessions that follow from a resumed one keep the first one's time.
"""

from __future__ import annotations

from OpenSSL import SSL

MAX_AGE = 3600.0


class SessionCache:
    """Remembers the latest session. Times are seconds of the reactor."""

    __slots__ = ("_session", "_verified_at")

    def __init__(self) -> None:
        self._session: SSL.Session | None = None
        self._verified_at = 0.0

    def offer(self, connection: SSL.Connection, now: float) -> float | None:
        """Set the session on a connection before its handshake; return when its chain was verified, or None."""
        if self._session is None:
            return None
        if not 0 <= now - self._verified_at <= MAX_AGE:
            self._session = None
            return None
        try:
            connection.set_session(self._session)
        except ValueError:  # of another context: other authorities, or another credential
            self._session = None
            return None
        return self._verified_at

    def put(self, session: SSL.Session | None, verified_at: float) -> None:
        """Keep a session of a connection whose chain and name are verified."""
        if session is not None and verified_at >= self._verified_at:
            self._session = session
            self._verified_at = verified_at

    def clear(self) -> None:
        """Forget the session; the next connection makes a full handshake."""
        self._session = None
