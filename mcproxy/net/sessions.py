"""TLS session cache of outgoing connections: resumption saves the signatures of a handshake and 5 KB a connection.

A cache belongs to one ClientTLS: one endpoint, one set of CAs, one client credential. If one of them changes there is a
new ClientTLS with an empty cache, so a session is never used with settings other than those it was verified with.

A resumed connection skips the verification of the chain, so a session is not resumed if its chain was verified more
than MAX_AGE ago; sessions that derive from a resumed one keep the time of the first.
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
        """Set the session on a connection before its handshake; return the time its chain was verified, or None."""
        if self._session is None:
            return None
        if not 0 <= now - self._verified_at <= MAX_AGE:
            self._session = None
            return None
        try:
            connection.set_session(self._session)
        except ValueError:  # of another context: other CAs, or another credential
            self._session = None
            return None
        return self._verified_at

    def put(self, session: SSL.Session | None, verified_at: float) -> None:
        """Store the session of a connection whose chain and name are verified."""
        if session is not None and verified_at >= self._verified_at:
            self._session = session
            self._verified_at = verified_at

    def clear(self) -> None:
        """Forget the session; the next connection makes a full handshake."""
        self._session = None
