"""The streams of a connection: which are open, how they end, and what the peer may send on them.

The window of the connection is given back as frames arrive, so that a stream whose owner is slow holds no other; only
while `held_limit` bytes of paused streams are in memory the connection waits too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from mcproxy.http.h2.budgets import ControlFrameBudget
from mcproxy.http.h2.errors import ErrorCode, HTTP2ConnectionError, HTTP2StreamError
from mcproxy.http.h2.frames import DATA, DEFAULT_WINDOW, rst_stream, window_update
from mcproxy.http.h2.sending import SendingConnection
from mcproxy.http.h2.stream import Stream

S = TypeVar("S", bound=Stream)


class StreamsConnection(SendingConnection[S]):
    """`connection.Connection` without frames that are not of a stream."""

    __slots__ = (
        "_budget",
        "_held",
        "_receive_window",
        "_remembered_resets",
        "_resets",
        "seconds",
    )

    #: Receive windows (bytes): of each stream, of the connection, and how much of paused streams may be in memory.
    stream_window = 64 * 1024
    connection_window = 1024 * 1024
    held_limit = 1024 * 1024

    def __init__(self, seconds: Callable[[], float], remembered_resets: int) -> None:
        """`seconds` is the clock. The last `remembered_resets` streams that were reset are remembered."""
        super().__init__()
        self.seconds = seconds
        self._budget = ControlFrameBudget(seconds())
        self._receive_window = DEFAULT_WINDOW
        self._held = 0  # bytes of paused streams' bodies
        self._remembered_resets = remembered_resets
        self._resets: dict[int, bool] = {}  # streams that were reset lately, True: by us

    # -- for subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def is_idle(self, stream_id: int) -> bool:
        """Whether a stream that is not open has not been opened yet by the side that may."""

    @abstractmethod
    def was_opened(self, stream_id: int) -> bool:
        """Whether a stream that is neither open nor idle was open once; if not, its id was skipped."""

    @abstractmethod
    def stream_removed(self, stream: S) -> None:
        """A stream has ended on both sides or was reset, and is not in `streams` any more."""

    def reset_because_of_peer(self, stream_id: int) -> None:
        """An error of the peer made us reset a stream. May raise Flood."""

    def spend(self, kind: int, count: int = 1) -> None:
        """Count frames that cost us something and carry nothing. Raises Flood."""
        self._budget.spend(kind, count, self.seconds)

    # -- DATA ---------------------------------------------------------------------------------------------------

    def _data(self, stream: S, data: bytes, size: int, end_stream: int) -> None:
        """DATA on an open stream; `size` is what it takes of the windows, with padding."""
        stream.receive_window -= size
        if stream.receive_window < 0:
            self.stream_error(stream.stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream's window")
            return
        if end_stream:
            stream.remote_closed = True
        elif not data:
            self.spend(DATA)
        try:
            stream.data_received(data, bool(end_stream))
        except HTTP2StreamError as error:
            self.stream_error(stream.stream_id, error.code, error.cause)
            return
        if stream.receive_paused:
            if stream.stream_id in self.streams:
                stream.held += size
                self._held += size
        elif not end_stream and stream.receive_window < stream.receive_low:
            self._give_back_stream(stream)
        if end_stream and stream.send_closed and stream.stream_id in self.streams:
            self.remove(stream)

    def _data_on_closed(self, stream_id: int, size: int) -> None:
        if size < 1024:  # larger ones may have been on their way, and cost less than their sender pays
            self.spend(DATA)
        self._frame_on_closed(stream_id, "DATA")

    def _frame_on_closed(self, stream_id: int, name: str) -> None:
        """DATA or HEADERS where none may come (RFC 9113 5.1); ignored after our own RST_STREAM."""
        if stream_id in self.streams:  # half-closed (remote)
            self.stream_error(stream_id, ErrorCode.STREAM_CLOSED, f"{name} behind the end of a stream")
            return
        if not stream_id or self.is_idle(stream_id):
            raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{name} on an idle stream")
        by_us = self._resets.get(stream_id)
        if by_us is None:
            if not self.was_opened(stream_id):
                raise HTTP2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"{name} on a stream whose id was skipped")
            raise HTTP2ConnectionError(ErrorCode.STREAM_CLOSED, f"{name} on a closed stream")
        if not by_us:
            self.stream_error(stream_id, ErrorCode.STREAM_CLOSED, f"{name} behind RST_STREAM")

    # -- the end of streams ---------------------------------------------------------------------------------------

    def stream_error(self, stream_id: int, code: int, cause: str) -> None:
        """End a stream because of an error of the peer (RFC 9113 5.4.2). Raises Flood."""
        stream = self.streams.get(stream_id)
        self._remember_reset(stream_id, by_us=True)
        self.put_answer(rst_stream(stream_id, code))
        if stream is not None:
            self.remove(stream)
            stream.stream_failed(code, cause)
        self.reset_because_of_peer(stream_id)

    def reset_stream(self, stream: S, code: int) -> None:
        """End an open stream for a reason of our own."""
        if self.streams.get(stream.stream_id) is stream:
            self._remember_reset(stream.stream_id, by_us=True)
            self.put_answer(rst_stream(stream.stream_id, code))
            self.remove(stream)

    def remove(self, stream: S) -> None:
        """Forget a stream that has ended on both sides or was reset."""
        if self.streams.pop(stream.stream_id, None) is None:
            return
        if stream.held:
            self._held -= stream.held
            stream.held = 0
            self._give_back_connection()
        if not stream.send_closed or stream.queued:
            self.forget_unsent(stream)
        self.stream_removed(stream)

    def _remember_reset(self, stream_id: int, *, by_us: bool) -> None:
        resets = self._resets
        resets[stream_id] = by_us
        if len(resets) > self._remembered_resets:
            del resets[next(iter(resets))]

    # -- receive windows ------------------------------------------------------------------------------------------

    def give_back(self, stream: Stream) -> None:
        """A stream that was paused is read again."""
        if stream.held:
            self._held -= stream.held
            stream.held = 0
            self._give_back_connection()
        if not stream.remote_closed and not self.closed and stream.receive_window < stream.receive_low:
            self._give_back_stream(stream)

    def _give_back_stream(self, stream: Stream) -> None:
        if stream.stream_id in self.streams:
            self.put_answer(window_update(stream.stream_id, stream.receive_target - stream.receive_window))
            stream.receive_window = stream.receive_target

    def _give_back_connection(self) -> None:
        window = self._receive_window
        if window * 2 < self.connection_window and self._held < self.held_limit and not self.closed:
            self.put_answer(window_update(0, self.connection_window - window))
            self._receive_window = self.connection_window
