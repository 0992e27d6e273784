"""The hub's end of a control connection: sends POST /dial and POST /drain to the edge.

It is an HTTP/2 connection on which the hub is the client. Both ends send a PING after a silence, so that each notices
the loss of the other. Its end does not end data connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred

from mcproxy.http.client_stream import ConnectionClosed
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h2.h2_client import H2ClientConnection, H2ClientResources
from mcproxy.net.alpn import H2
from mcproxy.net.connect_errors import ConnectFailed
from mcproxy.tunnels import protocol
from mcproxy.tunnels.turned import TurnedConnection
from mcproxy.upstream.control import request_head

if TYPE_CHECKING:
    from mcproxy.http.messages import Header, ResponseHead
    from mcproxy.http.tunnel import TunnelSide

_STREAMS: Final = 100
"""Dials at the same time before the edge has announced its limit."""
_RESOURCES: Final = H2ClientResources(most_head=16 * 1024)


def at_limit(cause: str) -> ConnectFailed:
    """Return the error of a connection that a limit forbids: the endpoint is not at fault, and stays in service."""
    problem = ConnectFailed(cause)
    problem.recorded = True
    return problem


class ControlConnection:
    """One control connection, the owner of its engine (`h2_client.H2ConnectionOwner`)."""

    __slots__ = ("_lost", "_violation", "engine", "instance", "opened_at", "peer", "presumed_limit", "usable")

    def __init__(
        self,
        connection: TurnedConnection,
        deadlines: Deadlines,
        *,
        instance: bytes,
        peer: str,
        lost: Callable[[ControlConnection, str], None],
    ) -> None:
        """`lost(self, cause)` is called once, when the connection accepts no further request. `peer`: the address."""
        self.instance = instance
        self.peer = peer
        self.opened_at = deadlines.seconds()
        self.presumed_limit = _STREAMS
        self.usable = True
        self._lost = lost
        self._violation = ""
        self.engine = H2ClientConnection(self, deadlines, _RESOURCES, self._violated)
        connection.attach(self.engine, H2)
        self.engine.keep_alive(protocol.HUB_KEEP_ALIVE, protocol.ANSWER_SECONDS)
        self.engine.ask_peer()  # so that the round trip is known soon

    async def post(self, path: str, body: bytes) -> None:
        """Send a request. Raises ConnectFailed if the edge does not do it, with its cause. The caller sets a limit of
        time, and cancels.
        """
        engine = self.engine
        if not self.usable or len(engine.streams) >= engine.limit:
            raise at_limit("the edge accepts no further dials at the moment")
        head = request_head("POST", len(body))
        stream = engine.new_request(lasting=False)
        answer = _Answer(stream.cancel)
        stream.send_head(head, path.encode(), b"edge", (b"Content-Type: application/json\r\n",), answer, 0.0)
        stream.send_body(body)
        stream.end_body([])
        await answer.done
        if answer.status != 200:
            cause = protocol.decode_cause(answer.body) or f"the edge answers {answer.status} on {path}"
            raise at_limit(cause) if answer.status in (429, 503) else ConnectFailed(cause)

    def close(self) -> None:
        """Accept no further request; close after those in progress."""
        self.engine.retire()

    def abort(self, cause: str) -> None:
        """Reset the connection."""
        self._violation = cause
        self.engine.abort(cause)

    # -- H2ConnectionOwner --------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether a request waits for a stream: never, because dials beyond the limit are refused."""
        return False

    def room(self, connection: H2ClientConnection) -> None:
        """Do nothing: nothing waits."""

    def limit_announced(self, connection: H2ClientConnection) -> None:
        """Do nothing: `post` reads the limit."""

    def connection_unusable(self, connection: H2ClientConnection) -> None:
        self.usable = False
        self._lost(self, self._violation or "the edge has closed the control connection")

    def connection_ended(self, connection: H2ClientConnection) -> None:
        """Do nothing: `connection_unusable` was called before."""

    def _violated(self, cause: str) -> None:
        self._violation = cause


class _Answer:
    """Receives the answer to one request (`client_stream.ResponseSink`); a short one."""

    __slots__ = ("_cancel", "_pieces", "_size", "done", "status")

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._pieces: list[bytes] = []
        self._size = 0
        self.status = 0
        self.done: Deferred[None] = Deferred(lambda _: cancel())

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    def response_interim(self, head: ResponseHead) -> None:
        """Ignore interim responses."""

    def response_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        self.response_head(head)
        self._pieces.append(body)
        self._end()

    def response_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= protocol.MAX_BODY:
            self._pieces.append(data)
        elif not self.done.called:
            self._cancel()
            self.done.errback(ConnectFailed("the edge sends a long answer on its control connection"))

    def response_flush(self) -> None:
        """Wait for the rest."""

    def response_end(self, trailers: list[Header]) -> None:
        self._end()

    def response_failed(self, problem: Exception) -> None:
        if not self.done.called:
            ended = isinstance(problem, ConnectionClosed)
            self.done.errback(
                ConnectFailed("the control connection has ended" if ended else f"the edge's answer is bad: {problem}")
            )

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        """Never called: HTTP/2 has no upgrade."""

    def pause_request(self) -> None:
        """Do nothing: the body is small."""

    def resume_request(self) -> None:
        """Do nothing: the body is small."""

    def _end(self) -> None:
        if not self.done.called:
            self.done.callback(None)
