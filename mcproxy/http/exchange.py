"""One request and its response, as a handler sees them, independent of the protocol version.

An engine (HTTP/1.1 today) makes an `Exchange` for each request and owns it until it is done; a handler reads the body,
responds, and is called when the client disconnects. Both directions have back-pressure and no body is buffered whole.

    engine:  Exchange(head) -> handle(exchange)
    handler: exchange.attach(handler) -> body_data* body_end        (request body)
             respond -> write* -> flush / end                      (response)
             or switch_protocols -> Tunnel                         (upgrade)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mcproxy.http.h1.framing import encode_last_chunk
from mcproxy.http.messages import CHUNKED, REASON_PHRASES, Header, RequestHead

if TYPE_CHECKING:
    from mcproxy.http.h1.server import ServerConnection
    from mcproxy.http.tunnel import TunnelSide


class ExchangeHandler(Protocol):
    """Receives the request's body and gives the response."""

    def body_data(self, data: bytes) -> None:
        """A piece of the request's body."""

    def body_end(self, trailers: list[Header]) -> None:
        """The request's body is complete; not called for a request without a body."""

    def cancelled(self) -> None:
        """The client has disconnected: stop all work for the request; no response is possible."""

    def pause_response(self) -> None:
        """The client reads slowly: write no more until `resume_response`."""

    def resume_response(self) -> None:
        """The client reads again."""

    def finish_up(self) -> None:
        """End the response as soon as it can be ended in an orderly way (drain)."""


class Exchange:
    """One request and its response on an HTTP/1.1 connection."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_early",
        "_out",
        "_trailers",
        "body_complete",
        "bytes_in",
        "bytes_out",
        "completed",
        "ended",
        "first_byte_at",
        "handler",
        "head",
        "long_running",
        "on_done",
        "responded",
        "stalled",
        "started_at",
        "status",
        "upgraded",
    )

    def __init__(self, connection: ServerConnection, head: RequestHead, now: float) -> None:
        self._connection = connection
        self.head = head
        self.handler: ExchangeHandler | None = None
        self.on_done: ExchangeObserver | None = None
        self.body_complete = head.length == 0
        self.responded = False  # the final response head was written
        self.ended = False  # complete, aborted, or upgraded and closed
        self.completed = False  # the response was sent completely
        self.upgraded = False
        self.long_running = False
        self.stalled = False  # it was aborted because the client neither read nor sent
        self.status = 0  # of the final response; 0 before it
        self.bytes_in = 0
        self.bytes_out = 0
        self.started_at = now
        self.first_byte_at = 0.0
        self._chunked = False
        self._out: list[bytes] = []
        self._early: list[bytes] = []  # body received before a handler was attached
        self._trailers: list[Header] = []

    @property
    def connection(self) -> ServerConnection:
        """The connection, for its properties (address, TLS); never to write to."""
        return self._connection

    @property
    def open_ended(self) -> bool:
        """Whether the framing lets the response end after any byte (chunked, or until close)."""
        return self._chunked or not self.head.http11

    def set_long_running(self) -> None:
        """Exempt the request from `limits.stallTimeout`: a watch, a followed log, a tunnel."""
        self.long_running = True
        self._connection.long_running()

    # -- the request's body -------------------------------------------------------------------------------------

    def attach(self, handler: ExchangeHandler) -> None:
        """Set the handler, and pass on what has arrived already."""
        self.handler = handler
        if self.head.length:
            early, self._early = self._early, []
            if early:  # resume first: passing them on may pause the client again
                self._connection.resume_body()
            for data in early:
                handler.body_data(data)
            if self.body_complete:
                handler.body_end(self._trailers)
        if self._connection.write_blocked:
            handler.pause_response()

    def body_received(self, data: bytes) -> None:
        """Engine: a piece of the body arrived."""
        self.bytes_in += len(data)
        if self.ended:
            return
        if self.handler is None:
            self._early.append(data)
            self._connection.pause_body()
        else:
            self.handler.body_data(data)

    def body_finished(self, trailers: list[Header]) -> None:
        """Engine: the body is complete."""
        self.body_complete = True
        self._trailers = trailers
        if self.handler is not None and not self.ended:
            self.handler.body_end(trailers)

    def pause_body(self) -> None:
        """Stop reading the request's body until `resume_body`."""
        if not self.ended:
            self._connection.pause_body()

    def resume_body(self) -> None:
        if not self.ended:
            self._connection.resume_body()

    # -- the response -------------------------------------------------------------------------------------------

    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        """Send an interim response (1xx, but not 101); `fields` is a block as in `ResponseHead`."""
        if self.ended or self.responded or not self.head.http11:
            return
        self._connection.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, fields))

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        """Start the response; it is sent with the first `flush` or `end`.

        `fields` is a block of end-to-end fields as in `ResponseHead`, without framing. `length` is the body's size in
        bytes, or any negative number if it is not known. `declared` is the Content-Length of a response without a body
        (HEAD, 304).
        """
        if self.ended:
            return
        self.responded = True
        self.status = status
        connection = self._connection
        if length > 0:
            framing = b"Content-Length: %d\r\n" % length
        elif length < 0:
            framing = b""
            if self.head.http11:
                self._chunked = True
                framing = b"Transfer-Encoding: chunked\r\n"
            else:
                connection.close_after_response()
        elif declared is not None and status != 204:
            framing = b"Content-Length: %d\r\n" % declared
        else:
            bodiless = self.head.method == b"HEAD" or status in (204, 304)
            framing = b"" if bodiless else b"Content-Length: 0\r\n"
        if not self.body_complete:
            # The rest of the request would have to be read before the next one; closing bounds that.
            connection.close_after_response()
        if connection.closing:
            framing += b"Connection: close\r\n"
        reason = reason or REASON_PHRASES.get(status, b"Unknown")
        self._out.append(b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (status, reason, fields, framing))

    def write(self, data: bytes) -> None:
        """Add a piece of the body; it is sent with the next `flush` or `end`."""
        if self.ended or not data:
            return
        self.bytes_out += len(data)
        if self._chunked:
            self._out += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            self._out.append(data)

    def write_shared(self, data: bytes, chunk: bytes) -> None:
        """Send a piece of the body that many exchanges get; `chunk` is `data` as `framing.encode_chunk` makes it."""
        if not self.ended:
            self.bytes_out += len(data)
            self._out.append(chunk if self._chunked else data)
            self.flush()

    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        """Add pieces of the body that are `size` bytes together, as one chunk; they are joined once, by `flush`."""
        if self.ended or not size:
            return
        self.bytes_out += size
        if self._chunked:
            self._out.append(b"%x\r\n" % size)
            self._out += pieces
            self._out.append(b"\r\n")
        else:
            self._out += pieces

    def flush(self) -> None:
        """Send what was written since the last flush."""
        out = self._out
        if out:
            self._out = []
            connection = self._connection
            if not self.first_byte_at:
                self.first_byte_at = connection.seconds()
            connection.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def end(self, trailers: list[Header] | None = None) -> None:
        """The response is complete."""
        if self.ended:
            return
        if self._chunked:
            self._out.append(encode_last_chunk(trailers if trailers and self.head.te_trailers else []))
        self.flush()
        self.completed = True
        self._finish()
        self._connection.exchange_done(self)

    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
        """Send a whole response; without its body if the method is HEAD."""
        if self.head.method == b"HEAD":
            self.respond(status, reason, fields, 0, len(body))
            self.end()
            return
        if self.ended:
            return
        connection = self._connection
        if not self.body_complete:
            connection.close_after_response()
        self.responded = self.completed = True
        self.status = status
        self.bytes_out = len(body)
        self.first_byte_at = connection.seconds()
        connection.transport.write(
            b"HTTP/1.1 %d %b\r\n%bContent-Length: %d\r\n%b\r\n%b"
            % (
                status,
                reason or REASON_PHRASES.get(status, b"Unknown"),
                fields,
                len(body),
                b"Connection: close\r\n" if connection.closing else b"",
                body,
            )
        )
        self._finish()
        connection.exchange_done(self)

    def abort(self) -> None:
        """Abort the connection, so that the client does not take what it has for a complete response."""
        if not self.ended:
            self._finish()
            self._connection.abort()

    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        """Respond with 101 and make the connection one side of a tunnel; the exchange lasts as long as the tunnel."""
        self.responded = self.upgraded = True
        self.status = 101
        self.first_byte_at = self._connection.seconds()
        self._connection.transport.write(
            b"HTTP/1.1 101 %b\r\n%bUpgrade: %b\r\nConnection: Upgrade\r\n\r\n"
            % (reason or b"Switching Protocols", fields, upgrade)
        )
        return self._connection.become_tunnel()

    # -- the end ------------------------------------------------------------------------------------------------

    def lost(self) -> None:
        """Engine: the client has disconnected, or its request cannot be completed."""
        if self.ended:
            return
        handler = self.handler
        self._finish()
        if handler is not None:
            handler.cancelled()

    def tunnel_closed(self, bytes_in: int, bytes_out: int) -> None:
        """Engine: the tunnel is closed."""
        if not self.ended:
            self.bytes_in, self.bytes_out = bytes_in, bytes_out
            self.completed = True
            self._finish()

    def _finish(self) -> None:
        self.ended = True
        self._out = []
        self._early = []
        self.handler = None
        observer, self.on_done = self.on_done, None
        if observer is not None:
            observer.exchange_done(self)


class ExchangeObserver(Protocol):
    """Is called at the end of an exchange: log, metrics, permits."""

    def exchange_done(self, exchange: Exchange) -> None:
        """Called exactly once, however the exchange ended."""


__all__ = ["CHUNKED", "Exchange", "ExchangeHandler", "ExchangeObserver"]
