"""TLS session cache of outgoing connections: resumption saves the signatures of a handshake and 5 KB a connection.

A cache belongs to one ClientTLS: one endpoint, one set of CAs, one client credential. If one of them changes there is a
new ClientTLS with an empty cache, so a session is never used with settings other than those it was verified with.

A resumed connection skips the verification of the chain, so a session is not resumed if its chain was verified more
than MAX_AGE ago; sessions that derive from a resumed one keep the time of the first. The certificate of a resumed
connection is the one of the first, too: the name that it was found to have then need not be looked for again, which
would be a tenth of the cost of a health check.
"""

from __future__ import annotations

from typing import NamedTuple

from OpenSSL import SSL

MAX_AGE = 3600.0


class Verified(NamedTuple):
    """When the chain of a session's certificate was verified, in seconds of the reactor, and for which name."""

    at: float
    name: str


class SessionCache:
    """Remembers the latest session."""

    __slots__ = ("_session", "_verified")

    def __init__(self) -> None:
        self._session: SSL.Session | None = None
        self._verified = Verified(0.0, "")

    def offer(self, connection: SSL.Connection, now: float) -> Verified | None:
        """Set the session on a connection before its handshake; return what was verified of it, None without one."""
        if self._session is None:
            return None
        if not 0 <= now - self._verified.at <= MAX_AGE:
            self._session = None
            return None
        try:
            connection.set_session(self._session)
        except ValueError:  # of another context: other CAs, or another credential
            self._session = None
            return None
        return self._verified

    def put(self, session: SSL.Session | None, verified: Verified) -> None:
        """Store the session of a connection whose chain and name are verified."""
        if session is not None and verified.at >= self._verified.at:
            self._session = session
            self._verified = verified

    def clear(self) -> None:
        """Forget the session; the next connection makes a full handshake."""
        self._session = None
