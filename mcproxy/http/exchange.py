"""One request and its response, as a handler sees them: the seam between protocol versions and everything above.

An engine (HTTP/1.1 today) makes an `Exchange` for each request and owns it until it is done; a handler reads the body,
answers, and is told when the client goes away. Both directions carry back-pressure and nothing is buffered whole.

    engine:  Exchange(head) -> handle(exchange)
    handler: exchange.attach(handler) -> body_data* body_end        (request body)
             respond -> write* -> flush / end                      (response)
             or switch_protocols -> Tunnel                         (upgrade)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mcproxy.http.framing import encode_last_chunk
from mcproxy.http.messages import CHUNKED, REASON_PHRASES, Header, RequestHead

if TYPE_CHECKING:
    from mcproxy.http.server import ServerConnection
    from mcproxy.http.tunnel import TunnelSide


class ExchangeHandler(Protocol):
    """Whoever answers an exchange and takes the request's body."""

    def body_data(self, data: bytes) -> None:
        """A piece of the request's body."""

    def body_end(self, trailers: list[Header]) -> None:
        """The request's body is complete; not called where there is none."""

    def cancelled(self) -> None:
        """The client is gone or broke its request off: end all work for it; nothing more can be answered."""

    def pause_response(self) -> None:
        """The client reads slowly: produce no more until `resume_response`."""

    def resume_response(self) -> None:
        """The client reads again."""

    def finish_up(self) -> None:
        """The exchange should end soon: end the response as soon as that can be done in an orderly way."""


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
        "on_done",
        "responded",
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
        self.responded = False  # a final response head was given
        self.ended = False  # complete, broken off or upgraded and over
        self.completed = False  # ended as it should
        self.upgraded = False
        self.status = 0  # of the final response; 0 before it
        self.bytes_in = 0
        self.bytes_out = 0
        self.started_at = now
        self.first_byte_at = 0.0
        self._chunked = False
        self._out: list[bytes] = []
        self._early: list[bytes] = []  # body that came before the handler
        self._trailers: list[Header] = []

    @property
    def connection(self) -> ServerConnection:
        """The connection; for facts about the client (address, TLS), never to write on."""
        return self._connection

    @property
    def open_ended(self) -> bool:
        """Whether the response may end after any byte, as far as its framing goes."""
        return self._chunked or not self.head.http11

    # -- the request's body -------------------------------------------------------------------------------------

    def attach(self, handler: ExchangeHandler) -> None:
        """Let `handler` take the body and hear of the client from now on; what has come already is given at once."""
        self.handler = handler
        if self.head.length:
            early, self._early = self._early, []
            if early:  # before they are passed on, which may stop the client again
                self._connection.resume_body()
            for data in early:
                handler.body_data(data)
            if self.body_complete:
                handler.body_end(self._trailers)
        if self._connection.write_blocked:
            handler.pause_response()

    def body_received(self, data: bytes) -> None:
        """Engine: a piece of the body came."""
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

    def inform(self, status: int, reason: bytes, fields: bytes) -> None:
        """Send an interim response (1xx, but not 101) at once; `fields` is a block as in `ResponseHead`."""
        if self.ended or self.responded or not self.head.http11:
            return
        self._connection.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, fields))

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        """Begin the response; it goes out with the first `flush` or `end`.

        `fields` is a block of end-to-end fields as in `ResponseHead`, without framing. `length` is the body's size in
        bytes, or any negative number where it is not known. `declared` is a Content-Length to be shown although no
        body follows (HEAD, 304).
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
            # The rest of the request would have to be read first; a client that sends much of it is better cut off.
            connection.close_after_response()
        if connection.closing:
            framing += b"Connection: close\r\n"
        reason = reason or REASON_PHRASES.get(status, b"Unknown")
        self._out.append(b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (status, reason, fields, framing))

    def write(self, data: bytes) -> None:
        """Add a piece of the body; it goes out with the next `flush` or `end`."""
        if self.ended or not data:
            return
        self.bytes_out += len(data)
        if self._chunked:
            self._out += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            self._out.append(data)

    def flush(self) -> None:
        """Send what was added since the last flush."""
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
        """Give a whole response at once; the body is left out where the method is HEAD."""
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
        """Break the connection off, so that the client cannot take what it has for a whole response."""
        if not self.ended:
            self._finish()
            self._connection.abort()

    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        """Answer 101 and hand the connection over as one side of a tunnel; the exchange lasts as long as that."""
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
        """Engine: the client is gone, or its request can never be completed."""
        if self.ended:
            return
        handler = self.handler
        self._finish()
        if handler is not None:
            handler.cancelled()

    def tunnel_closed(self, bytes_in: int, bytes_out: int) -> None:
        """Engine: the tunnel that this exchange became is over."""
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
    """Whoever wants to know the end of an exchange: log, metrics, permits."""

    def exchange_done(self, exchange: Exchange) -> None:
        """Called exactly once, whatever the exchange's fate."""


__all__ = ["CHUNKED", "Exchange", "ExchangeHandler", "ExchangeObserver"]
