"""One request and its response on an HTTP/1.1 connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h1.framing import encode_last_chunk
from mcproxy.http.messages import REASON_PHRASES, Header, RequestHead

if TYPE_CHECKING:
    from mcproxy.http.tunnel import TunnelSide


class H1ExchangeConnection(ServerConnection, Protocol):
    """The connection of an exchange (`h1_server.H1ServerConnection`)."""

    write_blocked: bool  # the send buffer towards the client is full

    @property
    def closing(self) -> bool:
        """Whether the connection closes after this response."""
        ...

    def long_running(self) -> None:
        """Note that the request is a long-running one."""

    def pause_body(self) -> None: ...
    def resume_body(self) -> None: ...
    def close_after_response(self) -> None: ...
    def exchange_done(self, exchange: H1Exchange) -> None:
        """Continue with the next request after a complete response, linger, or close."""

    def abort(self) -> None:
        """Reset the connection."""

    def become_tunnel(self) -> TunnelSide:
        """Become one side of a tunnel; bytes after the request belong to the tunnel."""
        ...


class H1Exchange(Exchange):
    """One request and its response on an HTTP/1.1 connection."""

    __slots__ = ("_chunked", "_connection", "_out")

    protocol: ClassVar[str] = "HTTP/1.1"

    def __init__(self, connection: H1ExchangeConnection, head: RequestHead, now: float) -> None:
        Exchange.__init__(self, connection, head, now)
        self._connection = connection
        self._chunked = False
        self._out: list[bytes] = []

    @property
    def write_blocked(self) -> bool:
        return self._connection.write_blocked

    def set_long_running(self) -> None:
        self.long_running = True
        self._connection.long_running()

    def pause_body(self) -> None:
        if not self.ended:
            self._connection.pause_body()

    def resume_body(self) -> None:
        if not self.ended:
            self._connection.resume_body()

    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        if self.ended or self.responded or not self.head.http11:
            return
        reason = reason or REASON_PHRASES.get(status, b"Unknown")
        self._connection.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n" % (status, reason, fields))

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
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
            # The rest of the request would have to be read before the next request; closing avoids this.
            connection.close_after_response()
        if connection.closing:
            framing += b"Connection: close\r\n"
        reason = reason or REASON_PHRASES.get(status, b"Unknown")
        self._out.append(b"HTTP/1.1 %d %b\r\n%b%b\r\n" % (status, reason, fields, framing))

    def write(self, data: bytes) -> None:
        if self.ended or not data:
            return
        self.bytes_out += len(data)
        if self._chunked:
            self._out += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            self._out.append(data)

    def write_shared(self, data: bytes, chunk: bytes) -> None:
        if not self.ended:
            self.bytes_out += len(data)
            self._out.append(chunk if self._chunked else data)
            self.flush()

    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None:
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
        out = self._out
        if out:
            self._out = []
            connection = self._connection
            if not self.first_byte_at:
                self.first_byte_at = connection.seconds()
            connection.transport.write(out[0] if len(out) == 1 else b"".join(out))

    def end(self, trailers: list[Header] | None = None) -> None:
        if self.ended:
            return
        if self._chunked:
            self._out.append(encode_last_chunk(trailers if trailers and self.head.te_trailers else []))
        self.flush()
        self.completed = True
        self._finish()
        self._connection.exchange_done(self)

    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
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
        """Abort the connection, the only way to break off a response in HTTP/1.1."""
        if not self.ended:
            self._finish()
            self._connection.abort()

    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        self.responded = self.upgraded = True
        self.status = 101
        self.first_byte_at = self._connection.seconds()
        self._connection.transport.write(
            b"HTTP/1.1 101 %b\r\n%bUpgrade: %b\r\nConnection: Upgrade\r\n\r\n"
            % (reason or b"Switching Protocols", fields, upgrade)
        )
        return self._connection.become_tunnel()

    def tunnel_closed(self, bytes_in: int, bytes_out: int) -> None:
        """Called by the engine when the tunnel is closed."""
        if not self.ended:
            self.bytes_in, self.bytes_out = bytes_in, bytes_out
            self.completed = True
            self._finish()

    def _finish(self) -> None:
        if self._out:
            self._out = []
        super()._finish()
