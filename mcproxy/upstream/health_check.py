"""One health check of an endpoint: its request, its connection, and the meaning of the response.

Over HTTP/1.1 each check opens a new connection, and closes it as soon as the result is known. Over HTTP/2 it shares a
connection with requests, but its result must concern the endpoint rather than that connection. So if the connection
ends, the stream is refused, or the response is late, the check is also made over a new connection, and the first
response counts. A connection that has received no bytes meanwhile gets no further request, and ends unless its peer
answers a PING (`ClientStream.doubt`).

The timeout of the response begins when the connection is open: a slow opening, for example because one of several
addresses fails, does not make the endpoint unhealthy. The opening has the same timeout in addition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from mcproxy import __version__
from mcproxy.http.client_stream import ConnectionClosed, HTTP1Required
from mcproxy.http.connection_pool import Use
from mcproxy.http.messages import UpstreamProtocolError
from mcproxy.net.causes import Cause, CauseCode, code_of_status
from mcproxy.net.connect_errors import ConnectTimeout
from mcproxy.upstream.control import request_head
from mcproxy.upstream.control_stream import ControlError, ControlStream
from mcproxy.upstream.endpoint import Endpoint

if TYPE_CHECKING:
    from mcproxy.http.client_stream import ClientStream

_MAX_BYTES = 64 * 1024  # maximum of bytes of a response; responses of health endpoints are much shorter
_USER_AGENT = b"User-Agent: mcproxy-health/%b\r\n" % __version__.encode()

Answer = tuple[int, bytes]
"""The status code, and the body unless the code is 2xx."""


_NOT_HTTP = Cause("answered something that is not HTTP", CauseCode.NOT_HTTP)
_CLOSED = Cause("closed the connection without an answer", CauseCode.BROKEN_OFF)
_RESET = Cause("connection reset before an answer", CauseCode.BROKEN_OFF)
_ENDLESS = Cause("answered with an endless head", CauseCode.OTHER_ANSWER)
_STOOD_STILL = 1.0  # if a timeout fires this many seconds late, this process was stopped or blocked


class CheckError(Exception):
    """A check got no usable response; `cause` is a sentence for operators."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class StoodStill(CheckError):
    """A check got no response in time, perhaps because this process was stopped meanwhile."""


async def get_health(
    endpoint: Endpoint,
    path: str,
    authorization: bytes | None,
    clock: IReactorTime,
    *,
    timeout: float,
    new_connection: bool,
) -> Answer:
    """GET `path` from the endpoint over a new connection, or over any one and after half of `timeout` also a new one.

    `timeout` (seconds) limits the time for a response after a connection is open. Before that it limits the time for
    the connection, unless the cluster's `connectTimeout` is shorter. Raises CheckError and
    `net.connect_errors.ConnectError`.
    """
    target = endpoint.path_prefix + path.encode()
    pool = endpoint.control_pool
    late = partial(
        _Limit, clock, timeout, CheckError(Cause(f"no answer on {path} within {timeout:g} s", CauseCode.NO_ANSWER))
    )
    opening_limit = min(timeout, endpoint.connect_timeout)
    no_connection = f"no connection to {endpoint.name} within {opening_limit:g} s"
    unopened = partial(
        _Limit, clock, opening_limit, ConnectTimeout(Cause(no_connection, CauseCode.NO_CONNECTION_IN_TIME))
    )

    def send(stream: ClientStream) -> Deferred[Answer]:
        response = ControlStream(stream, endpoint, path, clock.seconds)
        fields = [_USER_AGENT, b"Accept: */*\r\n", *endpoint.own_fields]
        if not stream.multiplexed:
            fields.append(b"Connection: close\r\n")
        if authorization is not None:
            fields.append(b"Authorization: %b\r\n" % authorization)
        stream.send_head(request_head("GET"), target, endpoint.host_header, tuple(fields), response, 0.0)
        return late().of(Deferred.fromCoroutine(_answer(response)))

    async def over_new_connection(opening: Deferred[ClientStream]) -> Answer:
        try:
            return await send(await unopened().of(opening))
        except _NotOverHTTP2:
            return await over_http1()

    async def over_http1() -> Answer:
        return await send(await unopened().of(pool.open_own(Use.SHORT, http1=True)))

    if pool.over_http1:
        return await over_http1()
    if new_connection:
        return await over_new_connection(pool.open_apart())
    stream = pool.take_own(Use.SHORT)
    if stream is None:
        try:
            return await over_new_connection(pool.open_own(Use.SHORT))
        except CheckError:  # requests of clients may have filled the shared connection, or caused its end
            return await over_new_connection(pool.open_apart())
    return await _FirstAnswer(
        send(stream), lambda: Deferred.fromCoroutine(over_new_connection(pool.open_apart())), clock, timeout / 2
    ).result


class _Limit:
    """The timeout of one step of a check. It raises `problem`, or StoodStill if its timer fires late."""

    __slots__ = ("_begun", "_clock", "_problem", "_seconds")

    def __init__(self, clock: IReactorTime, seconds: float, problem: Exception) -> None:
        self._clock = clock
        self._seconds = seconds
        self._problem = problem
        self._begun: float = clock.seconds()

    def of(self, work: Deferred[Any]) -> Deferred[Any]:
        """Return `work`; cancel it at the timeout."""
        return work.addTimeout(self._seconds, self._clock, self._ended)

    def _ended(self, result: Any, seconds: float) -> Any:
        if isinstance(result, Failure) and not isinstance(result.value, CancelledError):
            return result
        if self._clock.seconds() - self._begun > seconds + _STOOD_STILL:
            raise StoodStill(str(self._problem))
        raise self._problem


class _NotOverHTTP2(CheckError):
    """The endpoint responds to the check only over HTTP/1.1."""


async def _answer(response: ControlStream) -> Answer:
    try:
        await response.head()
        if 200 <= response.status < 300:
            return response.status, b""
        pieces = []
        size = 0
        while size < _MAX_BYTES and (piece := await response.read()):
            pieces.append(piece)
            size += len(piece)
    except HTTP1Required:
        raise _NotOverHTTP2("answers only over HTTP/1.1") from None
    except UpstreamProtocolError:
        raise CheckError(_NOT_HTTP) from None
    except (ConnectionClosed, ControlError):
        raise CheckError(_CLOSED) from None
    finally:
        response.close()
    return response.status, b"".join(pieces)


class _FirstAnswer:
    """Makes two attempts, and returns the first response, or the last failure if there is none.

    The second attempt begins when the first has failed, or has no response after `patience` seconds.
    """

    def __init__(
        self, first: Deferred[Answer], second: Callable[[], Deferred[Answer]], clock: IReactorTime, patience: float
    ) -> None:
        self.result: Deferred[Answer] = Deferred(lambda _: self._stop())
        self._second = second
        self._running: list[Deferred[Answer]] = []
        self._begun = False  # whether the second attempt has begun
        self._late = clock.callLater(patience, self._begin_second)
        self._follow(first)

    def _follow(self, attempt: Deferred[Answer]) -> None:
        self._running.append(attempt)
        attempt.addCallbacks(self._answered, self._failed, callbackArgs=(attempt,), errbackArgs=(attempt,))

    def _begin_second(self) -> None:
        self._begun = True
        if self._late.active():
            self._late.cancel()
        self._follow(self._second())

    def _answered(self, answer: Answer, attempt: Deferred[Answer]) -> None:
        if not self.result.called:
            self._running.remove(attempt)
            self._stop()
            self.result.callback(answer)

    def _failed(self, failure: Failure, attempt: Deferred[Answer]) -> None:
        if attempt not in self._running:  # the attempt was cancelled
            return
        self._running.remove(attempt)
        if not self._begun:
            self._begin_second()
        elif not self._running:
            self.result.errback(failure)

    def _stop(self) -> None:
        if self._late.active():
            self._late.cancel()
        running, self._running = self._running, []
        for attempt in running:
            attempt.cancel()


def is_refused(status: int) -> bool:
    """Return whether the status shows a refused credential; then the API server's health is unknown."""
    return status in (401, 403)


def failure_message(status: int, body: bytes, path: str) -> Cause | None:
    """Return why a response means that the endpoint is not ready, for operators; None for 2xx.

    A kube-apiserver lists its checks line by line; a failed one is ``[-]etcd failed: reason withheld``.
    """
    if 200 <= status < 300:
        return None
    failed = [line[3:].split(b" ", 1)[0] for line in body.split(b"\n") if line.startswith(b"[-]")]
    names = b", ".join(failed[:5]).decode("ascii", "replace")
    printable = "".join(c for c in names if c.isprintable())[:200]
    cause = f"answered {status} on {path}" + (f": {printable} failed" if printable else "")
    return Cause(cause, code_of_status(status))
