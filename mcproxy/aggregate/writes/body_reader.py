"""Reading the whole body of a client's request, as far as a kube-apiserver reads one."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred

from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header
from mcproxy.kube.status import StatusError
from mcproxy.net.failures import failure

MAX_BODY = 3 * 1024 * 1024
"""Bytes; a kube-apiserver's `--max-resource-write-bytes`."""


async def read_body(exchange: Exchange, limit: int = MAX_BODY) -> bytes:
    """Return the request's body. The exchange's handler is this reader then, until another takes its place.

    Raises StatusError (413) for a longer one, and CancelledError if the client goes away.
    """
    head = exchange.head
    if head.length == 0:
        return b""
    if head.length > limit:
        raise _too_large(limit)
    if head.expects_continue and not exchange.body_complete:
        exchange.send_interim(100, b"Continue", b"")
    reader = _BodyReader(limit)
    exchange.attach(reader)
    return await reader.done


class _BodyReader:
    """The handler of an exchange (`http.exchange.ExchangeHandler`) that only collects the body."""

    def __init__(self, limit: int) -> None:
        self.done: Deferred[bytes] = Deferred()
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0

    def body_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._pieces = []
            if not self.done.called:
                self.done.errback(failure(_too_large(self._limit)))
        else:
            self._pieces.append(data)

    def body_end(self, trailers: list[Header]) -> None:
        if not self.done.called:
            self.done.callback(b"".join(self._pieces))

    def cancelled(self) -> None:
        if not self.done.called:
            self.done.errback(failure(CancelledError()))

    def pause_response(self) -> None:
        """The response is written at once; the transport buffers it."""

    def resume_response(self) -> None:
        """As `pause_response`."""

    def finish_up(self) -> None:
        """A short request is waited for."""


def _too_large(limit: int) -> StatusError:
    return StatusError(413, f"Request entity too large: limit is {limit}")
