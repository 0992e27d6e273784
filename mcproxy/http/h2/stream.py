"""One stream of a connection, as the connection sees it: its flow-control windows and what waits to be sent on it.

Both sides' streams (the server's exchange, the client's stream) derive from `Stream`. It is a base without attributes
of its own: `STREAM_SLOTS` are to be among the `__slots__` of the class that derives from it and from an exchange,
because Python lets only one base have slots, and an idle watch should be one object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mcproxy.http.h2.frames import END_STREAM, MAX_FRAME

if TYPE_CHECKING:
    from mcproxy.http.h2.connection import Connection
    from mcproxy.http.h2.hpack.decoder import DecodedFields

STREAM_SLOTS = (
    "end_follows",
    "held",
    "held_head",
    "in_turn",
    "offset",
    "pieces",
    "queued",
    "receive_low",
    "receive_paused",
    "receive_target",
    "receive_window",
    "remote_closed",
    "send_closed",
    "send_paused",
    "send_window",
    "stream_id",
    "trailer_block",
    "unsent",
)


_NO_SLOTS: tuple[str, ...] = ()


class Stream(ABC):
    """A stream that is open or half-closed; `connection.streams` has it until both sides have ended or it was reset."""

    __slots__ = _NO_SLOTS  # no literal: mypy would hold the annotations below against it

    _connection: Connection[Any]
    stream_id: int

    # Sending
    send_window: int  # bytes that the peer's window of this stream permits; negative after a change of its settings
    unsent: int  # bytes of the body that were added and are in no frame yet
    queued: int  # those of them that the connection counts as waiting
    in_turn: bool  # it is in the connection's `turns`
    send_paused: bool  # add nothing: `pause_sending` was called
    end_follows: bool  # what was added is all
    send_closed: bool  # END_STREAM was sent, or the stream was reset
    trailer_block: bytes | None  # a header block to follow the body
    held_head: bytes  # a header block that is to be sent before the body, b"" for none
    pieces: list[bytes] | None  # of the body, `unsent` bytes from `offset` on; most streams need no list
    offset: int  # bytes of the first piece that are sent

    # Receiving
    receive_window: int  # bytes that the peer may still send on this stream
    receive_low: int  # below which the window is opened again
    receive_target: int  # to which
    held: int  # bytes that arrived since `pause_receiving`; the connection's bound counts them
    receive_paused: bool
    remote_closed: bool  # the peer's END_STREAM has arrived

    def open_stream(self, connection: Connection[Any], stream_id: int) -> None:
        """Set all attributes (in place of `__init__`, which another base has)."""
        self.stream_id = stream_id
        self.send_window = connection.peer_stream_window
        self.unsent = self.queued = self.offset = self.held = 0
        self.in_turn = self.end_follows = self.send_closed = self.send_paused = False
        self.receive_paused = self.remote_closed = False
        self.trailer_block = self.pieces = None
        self.held_head = b""
        self.receive_window = self.receive_target = window = connection.stream_window
        self.receive_low = window >> 1

    # -- for subclasses: what the peer does ---------------------------------------------------------------------

    @abstractmethod
    def headers_received(self, fields: DecodedFields, end_stream: bool) -> None:
        """A header block arrived; `remote_closed` is set already. May raise HTTP2StreamError."""

    @abstractmethod
    def data_received(self, data: bytes, end_stream: bool) -> None:
        """DATA arrived, perhaps empty; `remote_closed` is set already. May raise HTTP2StreamError."""

    @abstractmethod
    def reset_received(self, code: int) -> None:
        """The peer has reset the stream; the connection does not have it any more."""

    @abstractmethod
    def stream_failed(self, code: int, cause: str) -> None:
        """The peer has violated the protocol on this stream: RST_STREAM was sent, the connection has it no more."""

    @abstractmethod
    def connection_ended(self, cause: str) -> None:
        """The connection is gone, or was ended by an error of either side."""

    # -- for subclasses: sending --------------------------------------------------------------------------------

    @abstractmethod
    def pause_sending(self) -> None:
        """Add no more until `resume_sending`: too much waits."""

    @abstractmethod
    def resume_sending(self) -> None:
        """What waited is sent, or most of it."""

    @abstractmethod
    def sending_waits(self) -> None:
        """Something that was added could not be sent at once; called again each time more is added."""

    @abstractmethod
    def sending_proceeds(self) -> None:
        """Some of what waited was sent."""

    @abstractmethod
    def sending_ended(self) -> None:
        """END_STREAM was sent."""

    # -- sending ------------------------------------------------------------------------------------------------

    def hold_head(self, block: bytes) -> None:
        """Send a header block before what follows: with the first `send` or `finish`, or the connection's turn."""
        self.held_head = block

    def add(self, data: bytes) -> None:
        """Add a piece of the body, not empty; it is sent by `send` or `finish`."""
        if self.pieces is None:
            self.pieces = [data]
        else:
            self.pieces.append(data)
        self.unsent += len(data)

    def add_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        """As `add`, for pieces of `size` bytes together."""
        if self.pieces is None:
            self.pieces = list(pieces)
        else:
            self.pieces += pieces
        self.unsent += size

    def send(self) -> None:
        """Send what was added as far as the windows permit now, the rest in turn with other streams."""
        size = self.unsent
        connection = self._connection
        if (
            size > MAX_FRAME
            or size > self.send_window
            or size > connection.send_window
            or connection.blocked
            or connection.turns
            or self.queued
        ):
            if not self.send_closed:
                connection.enqueue(self)
            return
        if self.send_closed:
            return
        if self.held_head:
            block, self.held_head = self.held_head, b""
            if self.end_follows and not size and self.trailer_block is None:
                self.send_closed = True
                connection.put_headers(self.stream_id, block, END_STREAM)
                self.sending_ended()
                return
            connection.put_headers(self.stream_id, block, 0)
        if self.end_follows:
            self.send_closed = True
            if self.trailer_block is None:
                connection.put_data(self, size, END_STREAM)
            else:
                if size:
                    connection.put_data(self, size, 0)
                connection.put_headers(self.stream_id, self.trailer_block, END_STREAM)
            self.sending_ended()
        elif size:
            connection.put_data(self, size, 0)

    def finish(self, trailer_block: bytes | None = None) -> None:
        """What was added is all: send it, then the trailers if there are any, and END_STREAM."""
        self.end_follows = True
        self.trailer_block = trailer_block
        self.send()

    def take(self, size: int, out: list[bytes]) -> None:
        """Connection: move the next `size` bytes to `out`; there are so many."""
        pieces = self.pieces
        assert pieces is not None
        if size == self.unsent:
            if self.offset:
                pieces[0] = pieces[0][self.offset :]
                self.offset = 0
            out += pieces
            self.pieces = None
            self.unsent = 0
            return
        self.unsent -= size
        offset, index = self.offset, 0
        while size:
            piece = pieces[index]
            length = len(piece) - offset
            if length > size:
                out.append(piece[offset : offset + size])
                offset += size
                break
            out.append(piece[offset:] if offset else piece)
            size -= length
            offset = 0
            index += 1
        del pieces[:index]
        self.offset = offset

    def drop(self) -> None:
        """Connection: nothing more is sent."""
        self.send_closed = True
        self.held_head = b""
        self.pieces = self.trailer_block = None
        self.unsent = 0

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self.unsent or self.held_head or self.end_follows) and not self.send_closed

    # -- receiving ----------------------------------------------------------------------------------------------

    def pause_receiving(self) -> None:
        """Let the peer's window of this stream run out; what is on its way still arrives."""
        self.receive_paused = True

    def resume_receiving(self) -> None:
        """Open the window again."""
        if self.receive_paused:
            self.receive_paused = False
            self._connection.give_back(self)

    # -- the end ------------------------------------------------------------------------------------------------

    def reset(self, code: int) -> None:
        """End the stream with RST_STREAM; what waits is dropped."""
        self._connection.reset_stream(self, code)
