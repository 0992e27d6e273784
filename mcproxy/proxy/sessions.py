"""Limits the duration of sessions: watches, followed logs and tunnels (`servers[].sessions`).

A session is a long-running request whose response has begun. It ends at `maxAge` (up to 10 % earlier, so that sessions
that began together do not end together). With `endWithCredential` it also ends when its credential is no longer
accepted: the credential is authenticated again by the configuration in force every 10 s and after each reload. So an
expired certificate or token, a removed CA or static token, a revocation list and a removed authenticator all end the
session. If another server reviews a token, its expiry is unknown, so it is reviewed again when the cached result has
expired. While a reviewer is unavailable, the session continues.

A watch ends cleanly, between two events. A tunnel is closed. A followed log is broken off, since its client would take
a clean end as the end of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.kube.status import StatusError
from mcproxy.proxy.filters import reauthenticate
from mcproxy.proxy.request import Request

if TYPE_CHECKING:
    from mcproxy.proxy.routes import VirtualServer

log = Logger(__name__)

_JITTER = 0.1  # fraction of maxAge
_CHECK_INTERVAL = 10.0  # seconds between two authentications of a session
_RELOAD_SPREAD = 2.0  # seconds over which all sessions are authenticated again after a reload
_GRACE = 5.0  # seconds for a watch to reach the end of an event, and for a tunnel to send its queued data


class Sessions:
    """The sessions of the process that have a limited duration."""

    __slots__ = ("_clock", "_open", "_random", "_requests", "_servers")

    def __init__(self, clock: IReactorTime, requests: set[Request], random: Callable[[], float]) -> None:
        """`requests` are those in flight; `random` returns a float in [0, 1)."""
        self._clock = clock
        self._requests = requests
        self._random = random
        self._open: dict[Request, _Session] = {}
        self._servers: Mapping[str, VirtualServer] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, request: Request) -> None:
        """Note that the response to a long-running request has begun."""
        server = self.server_of(request) or request.server
        if server is not None and (server.sessions.max_age or server.sessions.end_with_credential):
            self._keep(request, server.sessions)

    def _keep(self, request: Request, limits: model.SessionsConfig) -> _Session:
        request.sessions = self
        session = self._open[request] = _Session(request, limits, self)
        return session

    def end(self, request: Request) -> None:
        """A registered request has ended."""
        self._open.pop(request).stop()

    def activate(self, servers: Mapping[str, VirtualServer]) -> None:
        """Authenticate the sessions by the configuration in force from now on; `servers` are its servers by name."""
        self._servers = servers
        for request in self._requests:
            server = self.server_of(request)
            if server is None or not server.sessions.end_with_credential or not request.is_session:
                continue
            session = self._open.get(request) or self._keep(request, model.SessionsConfig())
            session.schedule_check(self._random() * _RELOAD_SPREAD)

    def server_of(self, request: Request) -> VirtualServer | None:
        """Return the server in force for a request; None if it was removed (other code then ends the request)."""
        return None if request.server is None else self._servers.get(request.server.name)

    def server_named(self, name: str) -> VirtualServer | None:
        """Return a server of the configuration in force."""
        return self._servers.get(name)

    @property
    def clock(self) -> IReactorTime:
        return self._clock

    def random(self) -> float:
        return self._random()


class _Session:
    __slots__ = ("_check", "_checking", "_end", "_request", "_sessions")

    def __init__(self, request: Request, limits: model.SessionsConfig, sessions: Sessions) -> None:
        self._request = request
        self._sessions = sessions
        self._end: IDelayedCall | None = None
        self._check: IDelayedCall | None = None
        self._checking: Deferred[None] | None = None
        if limits.max_age:
            age = limits.max_age * (1.0 - _JITTER * sessions.random())
            self._end = sessions.clock.callLater(age, lambda: self._expire("session_expired"))
        if limits.end_with_credential:
            self.schedule_check(_CHECK_INTERVAL * (0.5 + 0.5 * sessions.random()))

    def stop(self) -> None:
        for call in (self._end, self._check):
            if call is not None and call.active():
                call.cancel()
        checking, self._checking = self._checking, None
        if checking is not None:
            checking.cancel()

    def schedule_check(self, delay: float) -> None:
        """Authenticate again after `delay` seconds instead of the scheduled check."""
        if self._check is not None and self._check.active():
            self._check.cancel()
        self._check = self._sessions.clock.callLater(delay, self._start_check)

    def _start_check(self) -> None:
        if self._checking is None:  # otherwise a slow review of the token is running
            checking = Deferred.fromCoroutine(self._reauthenticate())
            checking.addErrback(self._check_failed)
            if not checking.called:
                self._checking = checking

    async def _reauthenticate(self) -> None:
        request, server = self._request, self._sessions.server_of(self._request)
        accepted = server is None or await _is_accepted(request, server)
        self._checking = None
        if request.exchange.ended:
            return
        if not accepted:
            self._expire("credential_ended")
        else:
            self.schedule_check(_CHECK_INTERVAL)

    def _check_failed(self, failure: Failure) -> None:
        self._checking = None
        if not isinstance(failure.value, CancelledError):
            log.failure("a bug in the authentication of a session", event="internal_error", failure=failure)
            self._expire("credential_ended")

    def _expire(self, reason: str) -> None:
        self.stop()
        self._end = self._sessions.clock.callLater(_GRACE, self._request.end_session, reason, now=True)
        self._request.end_session(reason)


async def _is_accepted(request: Request, server: VirtualServer) -> bool:
    """Return whether the server in force accepts the request's credential, for the same user."""
    try:
        caller = await reauthenticate(request, server)
    except StatusError as refusal:
        return refusal.code != 401
    return caller.user.name == request.caller.user.name
