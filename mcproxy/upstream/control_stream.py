"""The response to one of the proxy's own requests, read piece by piece (`ControlClient.stream`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from mcproxy.net.causes import Cause, CauseCode

if TYPE_CHECKING:
    from mcproxy.http.client_stream import ClientStream
    from mcproxy.http.messages import Header, ResponseHead
    from mcproxy.http.tunnel import TunnelSide
    from mcproxy.upstream.endpoint import Endpoint

_HIGH_WATER = 256 * 1024  # unread bytes above which the transport is paused
_LATE = 1.0  # seconds without a response after which the connection of an abandoned request is probed


class ControlError(Exception):
    """A control request got no complete response; `cause` is a sentence for operators."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class BodyTooLarge(Exception):
    """The response's body is longer than the caller's limit."""


def broken_off(endpoint: Endpoint, path: str) -> Cause:
    """Return the cause for a response that was cut short."""
    return Cause(f"{endpoint.name} broke off the connection, or its answer, on {path}", CauseCode.BROKEN_OFF)


class ControlStream:
    """A response whose body one reader reads piece by piece; the `http.client_stream.ResponseSink` of its request.

    Without a reader it keeps at most 256 KB, plus the bytes that the server can send at once: a read of the socket, or
    the window of the HTTP/2 stream, which is not updated. Then the server waits; other streams of the connection
    continue.
    """

    __slots__ = (
        "__weakref__",
        "_ended",
        "_failure",
        "_head",
        "_path",
        "_paused",
        "_pieces",
        "_reader",
        "_seconds",
        "_sent_at",
        "_size",
        "_stream",
        "apart",
        "endpoint",
        "headers",
        "side",
        "status",
    )

    def __init__(
        self, stream: ClientStream, endpoint: Endpoint, path: str, seconds: Callable[[], float], *, apart: bool = False
    ) -> None:
        """`stream`: the stream on which the request is sent next. `seconds`: the clock.

        `apart`: whether the connection carries long responses, which a long request would delay.
        """
        self.endpoint = endpoint
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()  # names as the server wrote them, without content-length
        self.side: TunnelSide | None = None  # the tunnel after a 101, which the caller must splice at once
        self.apart = apart and stream.multiplexed
        self._stream = stream
        self._path = path
        self._seconds = seconds
        self._sent_at = seconds()
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False
        self._failure: Exception | None = None
        self._head: Deferred[None] | None = None
        self._reader: Deferred[None] | None = None

    async def head(self) -> None:
        """Wait for the head of the response. Raises the error of `response_failed`. Cancelling abandons the
        response.
        """
        if not self.status and not self._ended:
            self._head = Deferred(lambda _: self._head_cancelled())
            await self._head
        if not self.status and self._failure is not None:
            raise self._failure

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header field; `name` in lower case."""
        return next((value for known, value in self.headers if known.lower() == name), None)

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises ControlError. Cancelling closes the stream."""
        if not self._pieces and not self._ended:
            self._reader = Deferred(lambda _: self._read_cancelled())
            await self._reader
        if not self._pieces:
            if self._failure is not None:
                raise self._failure
            return b""
        pieces, self._pieces, self._size = self._pieces, [], 0
        if self._paused and not self._ended:
            self._paused = False
            self._stream.resume()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_all(self, limit: int) -> bytes:
        """Return the rest of the body. Raises ControlError, or BodyTooLarge, after which the stream is closed."""
        pieces = []
        size = 0
        while piece := await self.read():
            size += len(piece)
            if size > limit:
                self.close()
                raise BodyTooLarge
            pieces.append(piece)
        return b"".join(pieces)

    def sibling(self) -> ClientStream | None:
        """Return a stream for another request on the connection of this one (`ClientStream.sibling`)."""
        return None if self._ended else self._stream.sibling()

    def doubt(self) -> None:
        """Probe the connection of a late response, which may be dead (`ClientStream.doubt`)."""
        if not self._ended:
            self._stream.doubt(self._sent_at)

    def close(self, cause: str = "closed") -> None:
        """End the stream, unless the whole body has been received; a reader gets ControlError with `cause`."""
        if not self._ended:
            self._pieces.clear()
            self._stream.cancel()
            self._end(ControlError(cause))

    def _head_cancelled(self) -> None:
        self._head = None
        if self._seconds() - self._sent_at >= _LATE:
            self.doubt()
        self.close()

    def _read_cancelled(self) -> None:
        self._reader = None
        self.close()

    # -- ResponseSink -------------------------------------------------------------------------------------------

    def response_interim(self, head: ResponseHead) -> None:
        """Ignore interim responses."""

    def response_head(self, head: ResponseHead) -> None:
        self.status = head.status
        self.headers = _fields_of(head)
        waiting, self._head = self._head, None
        if waiting is not None:
            waiting.callback(None)

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        self._pieces.append(body)
        self._ended = True
        self.response_head(head)

    def response_data(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > _HIGH_WATER and not self._paused:
            self._paused = True
            self._stream.pause()

    def response_flush(self) -> None:
        if self._pieces:
            self._wake_reader()

    def response_end(self, trailers: list[Header]) -> None:
        self._end(None)

    def response_failed(self, problem: Exception) -> None:
        self._end(ControlError(broken_off(self.endpoint, self._path)) if self.status else problem)

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        self.side = side
        self.response_head(head)

    def pause_request(self) -> None:
        """Do nothing: the body of a request is small and sent at once."""

    def resume_request(self) -> None:
        """Do nothing, as in `pause_request`."""

    def _end(self, failure: Exception | None) -> None:
        self._ended = True
        self._failure = failure
        waiting, self._head = self._head, None
        if waiting is not None:
            waiting.callback(None)
        self._wake_reader()

    def _wake_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.callback(None)


def _fields_of(head: ResponseHead) -> tuple[tuple[bytes, bytes], ...]:
    fields = []
    for line in head.fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        fields.append((name, value.strip(b" \t")))
    return tuple(fields)
