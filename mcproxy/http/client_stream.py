"""A request to an upstream and its response, as the layers above the engines see them, whatever the protocol version.

`ClientStream` carries one request at a time: an HTTP/1.1 connection, or one stream of an HTTP/2 connection. The pool
(`http/connection_pool.py`) gives one for each request; it serves until the response has ended, failed or been
cancelled.

    stream.send_head(head, ..., sink)  -> send_body* end_body                                   (request)
    sink: response_interim* response_head -> response_data* response_flush -> response_end  (response)
          or response_whole, response_upgraded, response_failed
"""

from __future__ import annotations

from typing import Final, Protocol

from mcproxy.http.messages import Header, RequestHead, ResponseHead
from mcproxy.http.tunnel import TunnelSide

#: Interim responses (1xx) before the final one.
MAX_INTERIM: Final = 32


class ConnectionClosed(Exception):
    """The upstream closed the connection, or reset the stream, before the response was complete.

    `code` is the error code of RST_STREAM, None where there was none.
    """

    def __init__(self, cause: str, code: int | None = None) -> None:
        super().__init__(cause)
        self.code = code


class RequestNotProcessed(ConnectionClosed):
    """The upstream has not processed the request (RFC 9113 8.7): it may be sent again whatever its method."""


class HTTP1Required(RequestNotProcessed):
    """The upstream takes the request over HTTP/1.1 alone (HTTP_1_1_REQUIRED)."""


class ResponseTimeout(Exception):
    """The first byte of the response did not arrive in time, or the upstream read nothing more of the request."""


class ResponseSink(Protocol):
    """Receives a response."""

    def response_interim(self, head: ResponseHead) -> None:
        """An interim response (1xx) arrived."""

    def response_head(self, head: ResponseHead) -> None:
        """The final response begins."""

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        """The whole response, which arrived at once, with a body that is not empty; nothing else is called for it."""

    def response_data(self, data: bytes) -> None:
        """A piece of its body."""

    def response_flush(self) -> None:
        """All data that has arrived was passed on; more follows later."""

    def response_end(self, trailers: list[Header]) -> None:
        """The response is complete."""

    def response_failed(self, problem: Exception) -> None:
        """The response failed, and with it its stream.

        `problem` is ConnectionClosed (RequestNotProcessed), ResponseTimeout or UpstreamProtocolError.
        """

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        """The upstream responded with 101; `side` is its half of the tunnel."""

    def pause_request(self) -> None:
        """The upstream reads slowly: send no more of the request's body until `resume_request`."""

    def resume_request(self) -> None:
        """The upstream reads again."""


class ClientStream(Protocol):
    """Carries one request and its response."""

    @property
    def refusable(self) -> bool:
        """Whether the response may fail with RequestNotProcessed; the caller must then keep the request's body for a
        retry.
        """
        ...

    @property
    def multiplexed(self) -> bool:
        """Whether its connection carries other streams at the same time."""
        ...

    @property
    def began(self) -> bool:
        """Whether a byte of the response has arrived."""
        ...

    def send_head(
        self,
        head: RequestHead,
        target: bytes,
        authority: bytes,
        fields: tuple[bytes, ...],
        sink: ResponseSink,
        timeout: float,
    ) -> None:
        """Send the head of a request; if it has a body, that follows with `send_body` and `end_body`.

        The engine uses the method, the body's length, the upgrade, `expects_continue` and `te_trailers` of `head`, and
        does the framing. `fields` are blocks of end-to-end fields as in `RequestHead.fields`. `timeout` (seconds; 0:
        none) limits the time from the end of the request to the first byte of the response, and the time during which
        the upstream reads nothing of the request.
        """

    def send_body(self, data: bytes) -> None:
        """Send a piece of the request's body, without framing."""

    def end_body(self, trailers: list[Header]) -> None:
        """The request is complete."""

    def sibling(self) -> ClientStream | None:
        """Return a stream for a short request on the connection on which this one runs, to be used at once.

        None if the connection takes no other: over HTTP/1.1, behind GOAWAY, when the peer's limit is reached.
        """

    def doubt(self, since: float) -> None:
        """The response to a request that was sent at `since` (seconds, on the clock of the engine) is late.

        If nothing has arrived on the connection since then, on any stream, it gets no further request, and it ends
        unless the peer answers a PING. To be called before `cancel`.
        """

    def cancel(self) -> None:
        """Abandon the response, so that the upstream stops working on it. The sink is not called any more."""

    def pause(self) -> None:
        """Stop reading the response until `resume`."""

    def resume(self) -> None:
        """Read the response again."""
