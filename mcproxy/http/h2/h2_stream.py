"""The state of one stream that both sides of a connection have: flow-control windows, and what is not sent yet.

`frame_sender.FrameSender` sends what is added to a stream, `stream_table.StreamTable` receives on it and ends it. The
streams of both sides (the server's exchange, the client's stream) derive from `H2Stream`, and it calls them through its
abstract methods. `H2Stream` declares no slots: `STREAM_SLOTS` are to be among the `__slots__` of a class that derives
from it and from an exchange, because Python lets only one base have slots, and an idle watch should be one object.
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
    """A stream that is open or half-closed; `Connection.streams` has it until both sides have ended or it was reset."""

    __slots__ = _NO_SLOTS  # no literal: mypy would hold the annotations below against it

    stream_id: int

    # Sending
    send_window: int  # bytes that the peer's window of this stream permits; negative after a change of its settings
    unsent: int  # bytes of the body that were added and are in no frame yet
    queued: int  # those of them that the sender counts as waiting
    is_ready: bool  # it is in the sender's `ready`
    send_paused: bool  # add nothing: `pause_sending` was called
    end_follows: bool  # what was added is all
    send_closed: bool  # END_STREAM was sent, or the stream was reset
    trailer_block: bytes | None  # a header block to follow the body
    pending_head: bytes  # a header block that is to be sent before the body, b"" for none
    pieces: list[bytes] | None  # of the body, `unsent` bytes from `offset` on; most streams need no list
    offset: int  # bytes of the first piece that are sent

    # Receiving
    receive_window: int  # bytes that the peer may still send on this stream
    receive_low: int  # below which the window is opened again
    receive_target: int  # to which
    held: int  # bytes that arrived since `pause_receiving`; the connection's bound counts them
    receive_paused: bool
    remote_closed: bool  # the peer's END_STREAM has arrived

    def open_stream(self, stream_id: int, send_window: int) -> None:
        """Set all attributes (in place of `__init__`, which another base has); `send_window` is in bytes."""
        self.stream_id = stream_id
        self.send_window = send_window
        self.unsent = self.queued = self.offset = self.held = 0
        self.is_ready = self.end_follows = self.send_closed = self.send_paused = False
        self.receive_paused = self.remote_closed = False
        self.trailer_block = self.pieces = None
        self.pending_head = b""
        self.receive_window = self.receive_target = STREAM_WINDOW
        self.receive_low = STREAM_WINDOW >> 1

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

    def add_head(self, block: bytes) -> None:
        """Add a header block to be sent before the body, with the first `FrameSender.send` or `finish`."""
        self.pending_head = block

    def add(self, data: bytes) -> None:
        """Add a piece of the body, not empty; `FrameSender.send` or `finish` sends it."""
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

    def take(self, size: int, out: list[bytes]) -> None:
        """Sender: move the next `size` bytes to `out`; there are so many."""
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
        """Sender, table: nothing more is sent."""
        self.send_closed = True
        self.pending_head = b""
        self.pieces = self.trailer_block = None
        self.unsent = 0

    @property
    def waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self.unsent or self.pending_head or self.end_follows) and not self.send_closed

    # -- receiving ----------------------------------------------------------------------------------------------

    def pause_receiving(self) -> None:
        """Let the peer's window of this stream run out; what is on its way still arrives.

        `StreamTable.resume_receiving` opens it again.
        """
        self.receive_paused = True

    @abstractmethod
    def receive_window_used(self) -> None:
        """The window is used up so far that it is opened again; `receive_target` may be raised before."""
