"""The table of an HTTP/2 connection's streams: open streams, recent resets, and the flow control of receiving.

The connection's window is opened again as frames arrive, so that a stream with a slow owner does not block others. Only
while `held_limit` bytes of paused streams are in memory, the whole connection waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from mcproxy.http.h2.budgets import ControlFrameBudget
from mcproxy.http.h2.frame_sender import FrameSender
from mcproxy.http.h2.frames import (
    DATA,
    DEFAULT_WINDOW,
    ErrorCode,
    HTTP2ConnectionError,
    HTTP2StreamError,
    rst_stream,
    window_update,
)
from mcproxy.http.h2.h2_stream import H2Stream

S = TypeVar("S", bound=H2Stream)
T = TypeVar("T", bound=H2Stream, contravariant=True)


class TableOwner(Protocol[T]):
    """The connection of a table, which knows its side's rules for the ids of streams."""

    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream that is not open is idle: the side that can open it has not done so yet."""

    def was_opened(self, stream_id: int) -> bool:
        """Whether a stream that is neither open nor idle was once open; if not, its id was skipped."""

    def stream_removed(self, stream: T) -> None:
        """Called when a stream has ended on both sides or was reset, after its removal from `streams`."""

    def reset_because_of_peer(self, stream_id: int) -> None:
        """Called when a stream was reset because of an error of the peer. May raise Flood."""


class StreamTable(Generic[S]):
    """The open streams of a connection, and those that were reset last."""

    __slots__ = (
        "_budget",
        "_held_limit",
        "_owner",
        "_remembered_resets",
        "_resets",
        "_seconds",
        "_sender",
        "connection_window",
        "held",
        "receive_window",
        "streams",
    )
    __deletable__ = ("_owner",)  # `release` deletes it, which mypyc requires to be declared

    def __init__(
        self,
        owner: TableOwner[S],
        sender: FrameSender,
        streams: dict[int, S],
        budget: ControlFrameBudget,
        seconds: Callable[[], float],
        *,
        connection_window: int,
        held_limit: int,
        remembered_resets: int,
    ) -> None:
        """`connection_window`: the connection's receive window in bytes. `held_limit`: maximum of held bytes of paused
        streams. `remembered_resets`: number of the last reset streams that are remembered."""
        self._owner = owner
        self._sender = sender
        self._budget = budget
        self._seconds = seconds
        self._held_limit = held_limit
        self._remembered_resets = remembered_resets
        self._resets: dict[int, bool] = {}  # streams that were reset last; True: by mcproxy
        self.streams = streams
        self.connection_window = connection_window
        self.receive_window = DEFAULT_WINDOW  # bytes that the peer may still send
        self.held = 0  # bytes of paused streams' bodies

    def release(self) -> None:
        """Delete the reference to the closed connection, so that its memory is freed without the garbage collector."""
        del self._owner

    # -- DATA ---------------------------------------------------------------------------------------------------

    def data_received(self, stream: S, data: bytes, size: int, end_stream: int) -> None:
        """Process DATA on an open stream; `size`: the bytes that count for the windows, with padding."""
        stream.receive_window -= size
        if stream.receive_window < 0:
            self.stream_error(stream.stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream's window")
            return
        if end_stream:
            stream.remote_closed = True
        elif not data:
            self._budget.spend(DATA, 1, self._seconds)
        try:
            stream.data_received(data, bool(end_stream))
        except HTTP2StreamError as error:
            self.stream_error(stream.stream_id, error.code, error.cause)
            return
        if stream.receive_paused:
            if stream.stream_id in self.streams:
                stream.held += size
                self.held += size
        elif not end_stream and stream.receive_window < stream.receive_low:
            self._open_window(stream)
        if end_stream and stream.send_closed and stream.stream_id in self.streams:
            self.remove(stream)

    def data_on_closed(self, stream_id: int, size: int) -> None:
        if size < 1024:  # larger frames may have been in transit, and cost the sender more than mcproxy
            self._budget.spend(DATA, 1, self._seconds)
        self.frame_on_closed(stream_id, "DATA")

    def frame_on_closed(self, stream_id: int, name: str) -> None:
        """Handle DATA or HEADERS on a closed stream (RFC 9113 5.1); ignore it after mcproxy's own RST_STREAM."""
        if stream_id in self.streams:  # half-closed (remote)
            self.stream_error(stream_id, ErrorCode.STREAM_CLOSED, f"{name} behind the end of a stream")
            return
        if not stream_id or self._owner.is_idle(stream_id):
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{name} on an idle stream")
        by_us = self._resets.get(stream_id)
        if by_us is None:
            if not self._owner.was_opened(stream_id):
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{name} on a stream whose id was skipped")
            raise HTTP2ConnectionError(ErrorCode.STREAM_CLOSED, f"{name} on a closed stream")
        if not by_us:
            self.stream_error(stream_id, ErrorCode.STREAM_CLOSED, f"{name} behind RST_STREAM")

    # -- the end of streams ---------------------------------------------------------------------------------------

    def stream_error(self, stream_id: int, code: int, cause: str) -> None:
        """End a stream because of an error of the peer (RFC 9113 5.4.2). Raises Flood."""
        stream = self.streams.get(stream_id)
        self.remember_reset(stream_id, by_us=True)
        self._sender.write_control(rst_stream(stream_id, code))
        if stream is not None:
            self.remove(stream)
            stream.stream_failed(code, cause)
        self._owner.reset_because_of_peer(stream_id)

    def reset_stream(self, stream: S, code: int) -> None:
        """Reset an open stream, for another reason than an error of the peer."""
        if self.streams.get(stream.stream_id) is stream:
            self.remember_reset(stream.stream_id, by_us=True)
            self._sender.write_control(rst_stream(stream.stream_id, code))
            self.remove(stream)

    def remove(self, stream: S) -> None:
        """Remove a stream that has ended on both sides or was reset."""
        if self.streams.pop(stream.stream_id, None) is None:
            return
        if stream.held:
            self.held -= stream.held
            stream.held = 0
            self.give_back_connection()
        if not stream.send_closed or stream.queued:
            self._sender.discard_unsent(stream)
        self._owner.stream_removed(stream)

    def was_reset_by_us(self, stream_id: int) -> bool:
        """Whether mcproxy has reset a stream recently."""
        return self._resets.get(stream_id, False)

    def end_all(self, cause: str) -> None:
        """End all streams with their connection."""
        streams = list(self.streams.values())
        self.streams.clear()
        self._sender.forget_streams()
        self.held = 0
        for stream in streams:
            stream.queued = stream.held = 0
            stream.drop()
            stream.connection_ended(cause)

    def remember_reset(self, stream_id: int, *, by_us: bool) -> None:
        """Remember a stream as reset, so that a further frame on it counts as in transit, or as its error alone."""
        resets = self._resets
        resets[stream_id] = by_us
        if len(resets) > self._remembered_resets:
            del resets[next(iter(resets))]

    # -- receive windows ------------------------------------------------------------------------------------------

    def resume_receiving(self, stream: H2Stream) -> None:
        """Open the window of a stream that was paused."""
        if not stream.receive_paused:
            return
        stream.receive_paused = False
        if stream.held:
            self.held -= stream.held
            stream.held = 0
            self.give_back_connection()
        if not stream.remote_closed and not self._sender.closed and stream.receive_window < stream.receive_low:
            self._open_window(stream)

    def _open_window(self, stream: H2Stream) -> None:
        if stream.stream_id in self.streams:
            stream.receive_window_used()
            self._sender.write_control(window_update(stream.stream_id, stream.receive_target - stream.receive_window))
            stream.receive_window = stream.receive_target

    def give_back_connection(self) -> None:
        """Open the connection's window again, if half of it is used up and not too many bytes are held."""
        window = self.receive_window
        if window * 2 < self.connection_window and self.held < self._held_limit and not self._sender.closed:
            self._sender.write_control(window_update(0, self.connection_window - window))
            self.receive_window = self.connection_window
