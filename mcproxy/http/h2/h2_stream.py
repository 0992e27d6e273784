"""The base class of HTTP/2 streams of both sides: flow-control windows, and data that is not sent yet.

`frame_sender.FrameSender` sends the data added to a stream. `stream_table.StreamTable` receives on the stream and ends
it. The server's exchange and the client's stream are subclasses of `H2Stream`, which calls its abstract methods.
`H2Stream` declares no slots; its subclasses must include `STREAM_SLOTS` in their `__slots__`. The reason: Python allows
only one base class with slots, and an idle watch should be a single object (exchange and stream).
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr, trait

if TYPE_CHECKING:
    from mcproxy.http.h2.hpack.decoder import DecodedFields

STREAM_WINDOW: Final = 64 * 1024
"""The receive window (bytes) with which a stream begins."""

STREAM_SLOTS = (
    "end_follows",
    "held",
    "pending_head",
    "is_ready",
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


@trait
@mypyc_attr(allow_interpreted_subclasses=True)
class H2Stream(metaclass=ABCMeta):
    """An open or half-closed stream, in `H2Connection.streams` until both sides have ended or it is reset."""

    __slots__ = _NO_SLOTS  # not a literal, with which mypy would reject the annotations below

    stream_id: int

    # Sending
    send_window: int  # bytes that the peer's window of this stream permits; negative after a change of its settings
    unsent: int  # bytes of the body that were added and are in no frame yet
    queued: int  # the part of `unsent` that the sender counts as waiting
    is_ready: bool  # whether the stream is in the sender's `ready`
    send_paused: bool  # whether `pause_sending` was called, so that no data may be added
    end_follows: bool  # whether the added data is complete
    send_closed: bool  # END_STREAM was sent, or the stream was reset
    trailer_block: bytes | None  # a header block to follow the body
    pending_head: bytes  # a header block to send before the body; b"" for none
    pieces: list[bytes] | None  # pieces of the body: `unsent` bytes from `offset` on; most streams need no list
    offset: int  # number of sent bytes of the first piece

    # Receiving
    receive_window: int  # bytes that the peer may still send on this stream
    receive_low: int  # the value of `receive_window` below which the window is opened again
    receive_target: int  # the value to which the window is opened
    held: int  # bytes that arrived since `pause_receiving`; they count for the connection's limit
    receive_paused: bool
    remote_closed: bool  # the peer's END_STREAM has arrived

    def open_stream(self, stream_id: int, send_window: int) -> None:
        """Set all attributes (instead of `__init__`, which another base class has); `send_window` is in bytes."""
        self.stream_id = stream_id
        self.send_window = send_window
        self.unsent = self.queued = self.offset = self.held = 0
        self.is_ready = self.end_follows = self.send_closed = self.send_paused = False
        self.receive_paused = self.remote_closed = False
        self.trailer_block = self.pieces = None
        self.pending_head = b""
        self.receive_window = self.receive_target = STREAM_WINDOW
        self.receive_low = STREAM_WINDOW >> 1

    # -- for subclasses: events of the peer ---------------------------------------------------------------------

    @abstractmethod
    def headers_received(self, fields: DecodedFields, end_stream: bool) -> None:
        """Called with a header block; `remote_closed` is set already. May raise HTTP2StreamError."""

    @abstractmethod
    def data_received(self, data: bytes, end_stream: bool) -> None:
        """Called with DATA, perhaps empty; `remote_closed` is set already. May raise HTTP2StreamError."""

    @abstractmethod
    def reset_received(self, code: int) -> None:
        """Called when the peer has reset the stream, after its removal from the connection."""

    @abstractmethod
    def stream_failed(self, code: int, cause: str) -> None:
        """Called when the peer has violated the protocol on the stream, after RST_STREAM and its removal."""

    @abstractmethod
    def connection_ended(self, cause: str) -> None:
        """Called when the connection is closed, or was ended by an error of either side."""

    # -- for subclasses: sending --------------------------------------------------------------------------------

    @abstractmethod
    def pause_sending(self) -> None:
        """Add no more data until `resume_sending`, because too many bytes wait."""

    @abstractmethod
    def resume_sending(self) -> None:
        """Continue to add data: most of the waiting bytes are sent."""

    @abstractmethod
    def sending_waits(self) -> None:
        """Called when added data cannot be sent at once, and again each time more is added."""

    @abstractmethod
    def sending_proceeds(self) -> None:
        """Called when a part of the waiting data was sent."""

    @abstractmethod
    def sending_ended(self) -> None:
        """Called after END_STREAM was sent."""

    # -- sending ------------------------------------------------------------------------------------------------

    def add_head(self, block: bytes) -> None:
        """Add a header block to be sent before the body, with the first `FrameSender.send` or `finish`."""
        self.pending_head = block

    def add(self, data: bytes) -> None:
        """Add a non-empty piece of the body; `FrameSender.send` or `finish` sends it."""
        if self.pieces is None:
            self.pieces = [data]
        else:
            self.pieces.append(data)
        self.unsent += len(data)

    def add_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        """Add pieces of the body with `size` bytes in total."""
        if self.pieces is None:
            self.pieces = list(pieces)
        else:
            self.pieces += pieces
        self.unsent += size

    def take(self, size: int, out: list[bytes]) -> None:
        """Called by the sender: move the next `size` bytes to `out`; at least so many are unsent."""
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
        """Called by the sender or the table: drop all unsent data."""
        self.send_closed = True
        self.pending_head = b""
        self.pieces = self.trailer_block = None
        self.unsent = 0

    @property
    def waiting(self) -> bool:
        """Whether there is unsent data."""
        return bool(self.unsent or self.pending_head or self.end_follows) and not self.send_closed

    # -- receiving ----------------------------------------------------------------------------------------------

    def pause_receiving(self) -> None:
        """Let the peer's window of this stream run out; data in transit still arrives.

        `StreamTable.resume_receiving` opens it again.
        """
        self.receive_paused = True

    @abstractmethod
    def receive_window_used(self) -> None:
        """Called before a mostly used-up window is opened again; it can raise `receive_target`."""
