"""Buffers request bodies completely before they are sent to a member, and limits the total memory of these buffers.

A kube-apiserver reads up to 3 MiB for each request in flight, and limits the number of these requests. Here, buffers
wait for slow clients on any number of connections. So all held bytes are counted, in total and by user. A body beyond
the limits waits unread, by back-pressure, and is refused after a timeout. A body that is not complete in time is
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
"""Maximum bytes of one body, as a kube-apiserver's `--max-resource-write-bytes`."""
TOTAL = 64 * 1024 * 1024
"""Maximum bytes of held bodies on all connections of the process."""
SHARE = 16 * 1024 * 1024
"""Maximum bytes of held bodies of one user."""
RESERVED = 64 * 1024
"""Minimum bytes that are counted for an arriving body, if the body can become that long. Otherwise very many bodies
could begin at the same time, and each would exceed the limits by the size of one read.
"""
PATIENCE = 5.0
"""Maximum seconds for which a body waits for free memory."""
DEADLINE = 60.0
"""Maximum seconds until a body is complete, as a kube-apiserver's `--request-timeout` for a whole request."""
_MAX_WAITING = 1000  # maximum number of bodies that wait for free memory
_RETRY_AFTER = 1


class BodyBuffers:
    """Counts the held bodies of the process."""

    def __init__(self, clock: IReactorTime, total: int = TOTAL, share: int = SHARE, reserved: int = RESERVED) -> None:
        self.clock = clock
        self.reserved = reserved
        self._limits = total, share
        self._total = 0
        self._by_user: dict[str, int] = {}
        # The `resume` functions of waiting bodies in order of arrival; bodies that were partly read come first.
        self._begun: dict[HeldBody, Callable[[], None]] = {}
        self._unread: dict[HeldBody, Callable[[], None]] = {}

    def of(self, user: str) -> HeldBody:
        """Return a HeldBody for one request; it must be released."""
        return HeldBody(self, user)

    @property
    def total(self) -> int:
        """The number of held bytes of all users."""
        return self._total

    def add(self, user: str, size: int) -> None:
        """Count newly held bytes."""
        self._total += size
        self._by_user[user] = self._by_user.get(user, 0) + size

    def remove(self, user: str, size: int) -> None:
        """Subtract bytes that are not held any more."""
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
        """Whether more bytes of a user's bodies may be read."""
        total, share = self._limits
        return self._total < total and self._by_user.get(user, 0) < share

    def wait(self, body: HeldBody, resume: Callable[[], None], *, begun: bool) -> bool:
        """Call `resume` when there is room for a body; return False if too many bodies wait. `begun`: partly read."""
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
        """Return the refusal for a body that did not fit into the limits."""
        if self._by_user.get(user, 0) >= self._limits[1]:
            return retry_after(
                429, "too many bodies of this user's requests are being read, please try again later", _RETRY_AFTER
            )
        return retry_after(503, "too many bodies of requests are being read, please try again later", _RETRY_AFTER)


class HeldBody:
    """The body of one request: the handler of its exchange (`http.exchange.ExchangeHandler`) while it is read."""

    def __init__(self, bodies: BodyBuffers, user: str) -> None:
        self.user = user
        self._bodies = bodies
        self._pieces: list[bytes] = []
        self._size = 0
        self._counted = 0  # counted bytes, at least the held ones
        self._limit = 0
        self._exchange: Exchange | None = None
        self._done: Deferred[bytes] = Deferred()
        self._patience: IDelayedCall | None = None
        self._deadline: IDelayedCall | None = None

    async def read(self, exchange: Exchange, limit: int = MAX_BODY) -> bytes:
        """Read the body. This object becomes the exchange's handler until another handler replaces it.

        Raises StatusError: 413 for a longer body, 429 and 503 if there is no room for it, 504 if it does not arrive in
        time. Raises CancelledError if the client disconnects.
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
        """Release the memory of the body."""
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
        """Stop reading; drop bytes that still arrive."""
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
        """Do nothing: the response is written at once, and the transport buffers it."""

    def resume_response(self) -> None:
        """Do nothing, for the same reason as `pause_response`."""

    def end_gracefully(self) -> None:
        """Do nothing: a short request ends soon by itself."""


def _too_large(limit: int) -> StatusError:
    return StatusError(413, f"Request entity too large: limit is {limit}")


def _late() -> StatusError:
    return StatusError(504, f"Timeout: the body of the request did not arrive within {DEADLINE:g} s", reason="Timeout")
