"""The interface of a request to an upstream and its response, independent of the protocol version.

A `ClientStream` carries one request at a time: it is an HTTP/1.1 connection, or one stream of an HTTP/2 connection. The
pool (`http/connection_pool.py`) returns one for each request. It is used until the response has ended, failed or been
cancelled.

    stream.send_head(head, ..., sink)  -> send_body* end_body                                   (request)
    sink: response_interim* response_head -> response_data* response_flush -> response_end  (response)
          or response_whole, response_upgraded, response_failed
"""

from __future__ import annotations

from typing import Final, Protocol

from mcproxy.http.messages import Header, RequestHead, ResponseHead
from mcproxy.http.tunnel import TunnelSide

#: Maximum of interim responses (1xx) before the final response.
MAX_INTERIM: Final = 32


class ConnectionClosed(Exception):
    """The upstream closed the connection, or reset the stream, before the response was complete.

    `code` is the error code of RST_STREAM; None if no RST_STREAM was received.
    """

    def __init__(self, cause: str, code: int | None = None) -> None:
        super().__init__(cause)
        self.code = code


class RequestNotProcessed(ConnectionClosed):
    """The upstream has not processed the request (RFC 9113 8.7), which can be repeated whatever its method."""


class HTTP1Required(RequestNotProcessed):
    """The upstream accepts the request only over HTTP/1.1 (HTTP_1_1_REQUIRED)."""


class ResponseTimeout(Exception):
    """The first byte of the response did not arrive in time, or the upstream stopped reading the request."""


class ResponseSink(Protocol):
    """Receives a response."""

    def response_interim(self, head: ResponseHead) -> None:
        """Called with an interim response (1xx)."""

    def response_head(self, head: ResponseHead) -> None:
        """Called with the head of the final response."""

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        """Called with a complete response that arrived at once, with a non-empty body; no other method is called."""

    def response_data(self, data: bytes) -> None:
        """Called with a piece of the response's body."""

    def response_flush(self) -> None:
        """Called when all received data was passed on; more data follows later."""

    def response_end(self, trailers: list[Header]) -> None:
        """Called when the response is complete."""

    def response_failed(self, problem: Exception) -> None:
        """Called when the response and its stream have failed.

        `problem` is ConnectionClosed (RequestNotProcessed), ResponseTimeout or UpstreamProtocolError.
        """

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        """Called after a response with 101; `side` is the upstream's half of the tunnel."""

    def pause_request(self) -> None:
        """Stop sending the request's body until `resume_request`, because the upstream reads slowly."""

    def resume_request(self) -> None:
        """Continue sending the request's body."""


class ClientStream(Protocol):
    """Carries one request and its response."""

    @property
    def refusable(self) -> bool:
        """Whether the response can fail with RequestNotProcessed. Then the caller must keep the request's body for a
        retry.
        """
        ...

    @property
    def multiplexed(self) -> bool:
        """Whether the connection of this stream carries other streams at the same time."""
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
        """Send the head of a request; its body, if any, follows with `send_body` and `end_body`.

        Of `head` the engine uses the method, the body's length, the upgrade, `expects_continue` and `te_trailers`; it
        adds the framing. `fields` are blocks of end-to-end fields as in `RequestHead.fields`. `timeout` (seconds; 0: no
        limit) limits the time from the end of the request to the first byte of the response, and the time in which
        the upstream reads none of the request.
        """

    def send_body(self, data: bytes) -> None:
        """Send a piece of the request's body, without framing."""

    def end_body(self, trailers: list[Header]) -> None:
        """End the request's body."""

    def sibling(self) -> ClientStream | None:
        """Return another stream of the same connection for a short request, to be used at once.

        Returns None if the connection accepts no other stream: over HTTP/1.1, after GOAWAY, at the peer's limit.
        """

    def doubt(self, since: float) -> None:
        """Check the connection of a late response. `since`: when the request was sent (seconds of the engine's clock).

        If no stream of the connection has received anything since then, it gets no further request, and is closed
        unless the peer answers a PING. Call this before `cancel`.
        """

    def cancel(self) -> None:
        """Abandon the response, so that the upstream stops its work. The sink is not called any more."""

    def pause(self) -> None:
        """Stop reading the response until `resume`."""

    def resume(self) -> None:
        """Continue reading the response."""
