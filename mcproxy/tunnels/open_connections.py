"""The connections that edges have opened at a hub; their users are authenticated again as long as they are open.

As with `endWithCredential` of sessions, a connection ends within some seconds when its credential is no longer
accepted, or when its user may not open the tunnel any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from mcproxy.net.socket_stream import SocketStream

log = Logger(__name__)

_CHECK_INTERVAL: Final = 10.0
"""Seconds between two authentications of an open connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Who has opened a connection."""

    tunnel: str
    user: str
    peer: str
    """The address of the edge."""
    listener: object
    """The listener's factory, by identity."""
    is_accepted: Callable[[], Awaitable[bool]]
    """Authenticates the credential again, by the configuration in force."""


class OpenConnections:
    """The connections of control and of data that this process has accepted."""

    def __init__(
        self, clock: IReactorTime, may_open: Callable[[str, str], bool], note: Callable[[str, str], None]
    ) -> None:
        """`may_open(tunnel, user)`: by the configuration in force. `note(tunnel, cause)` is called before a connection
        is ended.
        """
        self._clock = clock
        self._may_open = may_open
        self._note = note
        self._open: dict[SocketStream, Opener] = {}
        self._checks: LoopingCall | None = None

    def add(self, stream: SocketStream, opener: Opener) -> None:
        """Check a connection from now on until it is closed."""
        self._open[stream] = opener
        stream.call_when_closed(lambda: self._forget(stream))
        if self._checks is None:
            self._checks = LoopingCall(self.check)
            self._checks.clock = self._clock
            self._checks.start(_CHECK_INTERVAL, now=False)

    def _forget(self, stream: SocketStream) -> None:
        self._open.pop(stream, None)

    def of_listeners(self, listeners: Collection[object] | None) -> list[SocketStream]:
        """Return the connections from these listeners (factories; None: all)."""
        return [stream for stream, opener in self._open.items() if listeners is None or opener.listener in listeners]

    @property
    def users(self) -> set[str]:
        """The users of all connections."""
        return {opener.user for opener in self._open.values()}

    def stop(self) -> None:
        """Check no more; connections stay."""
        if self._checks is not None:
            self._checks.stop()
            self._checks = None

    def check(self) -> None:
        """Authenticate the users of all connections again."""
        for stream, opener in list(self._open.items()):
            if not self._may_open(opener.tunnel, opener.user):
                self._end(stream, opener, "its user may not open the tunnel any more")
            else:
                checking = Deferred.fromCoroutine(self._check(stream, opener))
                checking.addErrback(self._check_failed, stream, opener)

    async def _check(self, stream: SocketStream, opener: Opener) -> None:
        if not await opener.is_accepted():
            self._end(stream, opener, "its credential is not accepted any more")

    def _check_failed(self, failure: Failure, stream: SocketStream, opener: Opener) -> None:
        log.failure("a bug in the authentication of a tunnel", event="internal_error", failure=failure)
        self._end(stream, opener, "its credential cannot be checked")

    def _end(self, stream: SocketStream, opener: Opener, cause: str) -> None:
        if stream in self._open:
            self._note(opener.tunnel, cause)
            stream.abortConnection()
