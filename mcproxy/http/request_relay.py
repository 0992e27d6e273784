"""Relays one request and its response between the server and client engines, for API servers and pods.

`RequestRelay` is the handler of the client's exchange and the sink of the upstream's response. It streams both bodies
with back-pressure, and keeps the beginning of the request's body for an upstream that has not processed the request.
Subclasses choose the upstream, change heads, and handle failures.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from mcproxy.http.client_stream import ClientStream
from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header, ResponseHead
from mcproxy.http.tunnel import TunnelSide

#: Maximum of bytes of a request's body that are kept until the response begins, to repeat an unprocessed request.
MAX_KEPT: Final = 64 * 1024
#: Maximum of repetitions of a request that no upstream has processed.
MAX_RESENDS: Final = 4


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestRelay:
    """One request and its response, streamed both ways."""

    __slots__ = (
        "_exchange",
        "_kept",
        "_kept_size",
        "_stream",
        "_times_not_processed",
        "_trailers",
        "_tunnel_side",
        "_upstream_reads",
    )

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._stream: ClientStream | None = None  # the stream with an outstanding response
        self._tunnel_side: TunnelSide | None = None
        self._kept: list[bytes] | None = None  # the received body, if the request may have to be sent again
        self._kept_size = 0
        self._trailers: list[Header] | None = None  # the body's trailers, after its end
        self._upstream_reads = True  # whether the upstream reads more of the body
        self._times_not_processed = 0  # number of RequestNotProcessed failures

    # -- the request's body -------------------------------------------------------------------------------------

    def body_data(self, data: bytes) -> None:
        stream = self._stream
        if self._kept is not None:
            self._kept_size += len(data)
            if stream is None or (self._kept_size <= MAX_KEPT and not stream.began):
                self._kept.append(data)
            else:
                self._kept = None
        if stream is not None:
            stream.send_body(data)

    def body_end(self, trailers: list[Header]) -> None:
        stream = self._stream
        self._trailers = trailers
        if stream is not None and self._exchange.head.length:
            stream.end_body(trailers)

    def _continue_on(self, stream: ClientStream) -> None:
        """Send the body from its beginning on another stream, after the head was sent again, and continue reading."""
        exchange = self._exchange
        if exchange.head.length:
            self._upstream_reads = True
            for data in self._kept or ():
                stream.send_body(data)
            if self._trailers is not None:
                stream.end_body(self._trailers)
            elif self._upstream_reads:
                exchange.resume_body()
        if exchange.write_blocked:
            stream.pause()

    def _may_send_again(self) -> bool:
        """Count an attempt that an upstream has not processed; return whether the request can be sent again.

        The method does not matter, but the sent part of the body must be buffered.
        """
        self._times_not_processed += 1
        return self._times_not_processed <= MAX_RESENDS and (not self._exchange.head.length or self._kept is not None)

    def pause_request(self) -> None:
        self._upstream_reads = False
        self._exchange.pause_body()

    def resume_request(self) -> None:
        self._upstream_reads = True
        self._exchange.resume_body()

    # -- the response ---------------------------------------------------------------------------------------------

    def response_interim(self, head: ResponseHead) -> None:
        self._exchange.send_interim(head.status, head.reason, head.fields)

    # -- the client ---------------------------------------------------------------------------------------------

    def cancelled(self) -> None:
        if self._tunnel_side is not None:
            self._tunnel_side.close(clean=False)
        self._cancel_upstream()

    def _cancel_upstream(self) -> None:
        """Cancel the outstanding response of the upstream, if there is one."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def pause_response(self) -> None:
        if self._stream is not None:
            self._stream.pause()

    def resume_response(self) -> None:
        if self._stream is not None:
            self._stream.resume()
