"""A response that is read piece by piece. Made by `ControlClient.stream`; does not import treq."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from mcproxy.upstream.endpoint import Endpoint

_HIGH_WATER = 256 * 1024  # bytes that wait for their reader before the server is made to wait


class ControlError(Exception):
    """A control request got no complete answer; `cause` is a sentence for operators."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class BodyTooLarge(Exception):
    """The answer's body is longer than the caller wants."""


def broken_off(endpoint: Endpoint, path: str) -> str:
    """Return the cause of a response that ended before its end."""
    return f"{endpoint.name} broke off the connection, or its answer, on {path}"


def fields_of(response: Any) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header fields of a response, as `ControlResponse.headers`."""
    return tuple((name, value) for name, values in response.headers.getAllRawHeaders() for value in values)


class ControlStream(Protocol):
    """A response whose body is read piece by piece, by one reader (`ControlClient.stream`).

    While nobody reads, no more than 256 KB (and a read of the socket) are kept: then TCP makes the server wait.
    """

    def __init__(self, response: Any, endpoint: Endpoint, path: str) -> None:
        self.endpoint = endpoint
        self.status: int = response.code
        self.headers = fields_of(response)
        self._path = path
        self._pieces: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False
        self._failure: ControlError | None = None
        self._reader: Deferred[None] | None = None
        response.deliverBody(self)

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header field; `name` in lower case."""
        return next((value for known, value in self.headers if known.lower() == name), None)

    async def read(self) -> bytes:
        """Return the next bytes of the body, b"" at its end; raises ControlError. Cancelling closes the stream."""
        if not self._pieces and not self._ended:
            self._reader = Deferred(lambda _: self._cancelled())
            await self._reader
        if not self._pieces:
            if self._failure is not None:
                raise self._failure
            return b""
        pieces, self._pieces, self._size = self._pieces, [], 0
        if self._paused and not self._ended:
            self._paused = False
            assert self.transport is not None
            self.transport.resumeProducing()  # type: ignore[attr-defined]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_all(self, limit: int) -> bytes:
        """Return the rest of the body; raises BodyTooLarge, after which the stream is closed, or ControlError."""
        pieces = []
        size = 0
        while piece := await self.read():
            size += len(piece)
            if size > limit:
                self.close()
                raise BodyTooLarge
            pieces.append(piece)
        return b"".join(pieces)

    def close(self, cause: str = "closed") -> None:
        """End the connection, unless the whole body has been received; a reader gets ControlError with `cause`."""
        if not self._ended:
            self._pieces.clear()
            self._end(ControlError(cause))
            if self.transport is not None:
                self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if self._ended:
            return
        self._pieces.append(data)
        self._size += len(data)
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.callback(None)
        if self._size > _HIGH_WATER and not self._paused and not self._ended:
            self._paused = True
            assert self.transport is not None
            self.transport.pauseProducing()  # type: ignore[attr-defined]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        from twisted.web.client import ResponseDone
        from twisted.web.http import PotentialDataLoss

        if not self._ended:
            whole = isinstance(reason.value, ResponseDone | PotentialDataLoss)
            self._end(None if whole else ControlError(broken_off(self.endpoint, self._path)))

    def _cancelled(self) -> None:
        self._reader = None
        self.close()

    def _end(self, failure: ControlError | None) -> None:
        self._ended = True
        self._failure = failure
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.callback(None)
