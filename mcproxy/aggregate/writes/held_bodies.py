"""Request bodies that are read whole before they go to a member, and the memory that they may take together.

A kube-apiserver reads 3 MiB for each of the requests that it works on, whose number it limits; here they wait for slow
clients on as many connections as there are. So all held bytes are counted, in total and by user. A body beyond the
bounds waits unread, by back-pressure, and is refused after a while; a body that does not become complete in time is
refused, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from mcproxy.http.messages import CHUNKED
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.net.failures import failure

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

    from mcproxy.http.exchange import Exchange
    from mcproxy.http.messages import Header

MAX_BODY = 3 * 1024 * 1024
"""Bytes; a kube-apiserver's `--max-resource-write-bytes`."""
TOTAL = 64 * 1024 * 1024
"""Bytes of bodies that are held at the same time, of all connections of the process."""
SHARE = 16 * 1024 * 1024
"""… and of one user."""
RESERVED = 64 * 1024
"""The least bytes that an arriving body counts for, if it may become as long. Else very many could begin at once, each
beyond the bounds by one read.
"""
PATIENCE = 5.0
"""Seconds for which a body waits for room."""
DEADLINE = 60.0
"""Seconds for a body to arrive, as long as a kube-apiserver has for a whole request (`--request-timeout`)."""
_MAX_WAITING = 1000  # bodies that wait for room
_RETRY_AFTER = 1


class HeldBodies:
    """The bodies that are held, one for the process."""

    def __init__(self, clock: IReactorTime, total: int = TOTAL, share: int = SHARE, reserved: int = RESERVED) -> None:
        self.clock = clock
        self.reserved = reserved
        self._limits = total, share
        self._total = 0
        self._by_user: dict[str, int] = {}
        # The `resume` functions of waiting bodies in order of arrival; those that were partly read go first.
        self._begun: dict[HeldBody, Callable[[], None]] = {}
        self._unread: dict[HeldBody, Callable[[], None]] = {}

    def of(self, user: str) -> HeldBody:
        """Return a HeldBody for one request; it must be released."""
        return HeldBody(self, user)

    @property
    def total(self) -> int:
        """Bytes that are held."""
        return self._total

    def add(self, user: str, size: int) -> None:
        """Count bytes that are held from now on."""
        self._total += size
        self._by_user[user] = self._by_user.get(user, 0) + size

    def remove(self, user: str, size: int) -> None:
        """Count bytes that are held no longer."""
        self._total -= size
        left = self._by_user.get(user, 0) - size
        if left > 0:
            self._by_user[user] = left
        else:
            self._by_user.pop(user, None)
        for waiting in (self._begun, self._unread):
            for body in list(waiting):
                if self._total >= self._limits[0]:
                    return
                if self.has_room(body.user) and (resume := waiting.pop(body, None)) is not None:
                    resume()

    def has_room(self, user: str) -> bool:
        """Whether more of a user's bodies may be read."""
        total, share = self._limits
        return self._total < total and self._by_user.get(user, 0) < share

    def wait(self, body: HeldBody, resume: Callable[[], None], *, begun: bool) -> bool:
        """Call `resume` once there is room for a body; return False if too many wait. `begun`: it was partly read."""
        waiting = self._begun if begun else self._unread
        if len(waiting) >= _MAX_WAITING:
            return False
        waiting[body] = resume
        return True

    def leave(self, body: HeldBody) -> None:
        """Cancel the wait of a body."""
        self._begun.pop(body, None)
        self._unread.pop(body, None)

    def refusal(self, user: str) -> StatusError:
        """Return the refusal where there was no room."""
        if self._by_user.get(user, 0) >= self._limits[1]:
            return retry_after(
                429, "too many bodies of this user's requests are being read, please try again later", _RETRY_AFTER
            )
        return retry_after(503, "too many bodies of requests are being read, please try again later", _RETRY_AFTER)


class HeldBody:
    """The body of one request: the handler of its exchange (`http.exchange.ExchangeHandler`) while it is read."""

    def __init__(self, bodies: HeldBodies, user: str) -> None:
        self.user = user
        self._bodies = bodies
        self._pieces: list[bytes] = []
        self._size = 0
        self._counted = 0  # bytes: at least what is held
        self._limit = 0
        self._exchange: Exchange | None = None
        self._done: Deferred[bytes] = Deferred()
        self._patience: IDelayedCall | None = None
        self._deadline: IDelayedCall | None = None

    async def read(self, exchange: Exchange, limit: int = MAX_BODY) -> bytes:
        """Read the body. This object is the exchange's handler from then on, until another replaces it.

        Raises StatusError: 413 for a longer one, 429 and 503 if there is no room for it, 504 if it does not arrive; and
        CancelledError if the client goes away.
        """
        head = exchange.head
        if head.length == 0:
            return b""
        if head.length > limit:
            raise _too_large(limit)
        self._exchange, self._limit = exchange, limit
        if self._bodies.has_room(self.user):
            self._begin()
        else:  # unread
            self._wait(self._begin)
        try:
            return await self._done
        finally:
            self._stop()

    def release(self) -> None:
        """The body is no longer needed."""
        self._stop()
        self._pieces = []
        self._bodies.leave(self)
        self._count(0)

    def _begin(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._stop()
        if self._done.called or exchange.ended:
            return
        if exchange.head.expects_continue and not exchange.body_complete:
            exchange.send_interim(100, b"Continue", b"")
        if not exchange.body_complete:
            self._deadline = self._bodies.clock.callLater(DEADLINE, self._fail, _late())
            length, reserved = exchange.head.length, self._bodies.reserved
            self._count(reserved if length == CHUNKED else min(length, reserved))
        exchange.attach(self)

    def _wait(self, resume: Callable[[], None]) -> None:
        if not self._bodies.wait(self, resume, begun=self._counted > 0):
            self._fail(self._bodies.refusal(self.user))
            return
        self._patience = self._bodies.clock.callLater(PATIENCE, self._no_room)

    def _no_room(self) -> None:
        self._patience = None
        self._bodies.leave(self)
        self._fail(self._bodies.refusal(self.user))

    def _resume(self) -> None:
        self._cancel_patience()
        if self._exchange is not None and not self._done.called:
            self._exchange.resume_body()

    def _fail(self, problem: Exception) -> None:
        """End the reading; bytes that still arrive are dropped."""
        if self._done.called:
            return
        exchange = self._exchange
        self._pieces = []
        self._done.errback(failure(problem))
        if exchange is not None and exchange.handler is self and not exchange.ended:
            exchange.resume_body()

    def _count(self, size: int) -> None:
        before, self._counted = self._counted, size
        if size > before:
            self._bodies.add(self.user, size - before)
        elif size < before:
            self._bodies.remove(self.user, before - size)

    def _cancel_patience(self) -> None:
        patience, self._patience = self._patience, None
        if patience is not None and patience.active():
            patience.cancel()

    def _stop(self) -> None:
        self._cancel_patience()
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()

    # -- http.exchange.ExchangeHandler ----------------------------------------------------------------------------

    def body_data(self, data: bytes) -> None:
        if self._done.called:
            return
        self._size += len(data)
        self._count(max(self._counted, self._size))
        self._pieces.append(data)
        exchange = self._exchange
        assert exchange is not None
        if self._size > self._limit:
            self._fail(_too_large(self._limit))
        elif not exchange.body_complete and self._patience is None and not self._bodies.has_room(self.user):
            exchange.pause_body()
            self._wait(self._resume)

    def body_end(self, trailers: list[Header]) -> None:
        if not self._done.called:
            self._bodies.leave(self)
            self._count(self._size)
            pieces, self._pieces = self._pieces, []
            self._done.callback(b"".join(pieces))

    def cancelled(self) -> None:
        if not self._done.called:
            self._done.errback(failure(CancelledError()))

    def pause_response(self) -> None:
        """The response is written at once; the transport buffers it."""

    def resume_response(self) -> None:
        """As `pause_response`."""

    def end_gracefully(self) -> None:
        """A short request is waited for."""


def _too_large(limit: int) -> StatusError:
    return StatusError(413, f"Request entity too large: limit is {limit}")


def _late() -> StatusError:
    return StatusError(504, f"Timeout: the body of the request did not arrive within {DEADLINE:g} s", reason="Timeout")
