"""Ends a stream on which nothing arrives."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from mcproxy.upstream.control_stream import ControlStream


class StallTimer:
    """Closes `stream` when it was not heard of for `seconds`, or up to a quarter longer.

    The timer is not moved with each piece that arrives, since a busy watch has thousands in a second.
    """

    __slots__ = ("_call", "_cause", "_clock", "_heard_at", "_stream", "seconds")

    def __init__(self, clock: IReactorTime, stream: ControlStream, seconds: float, cause: str) -> None:
        self._clock = clock
        self._stream = stream
        self._cause = cause
        self._heard_at = clock.seconds()
        self.seconds = seconds
        self._call = clock.callLater(seconds, self._look)

    def heard(self) -> None:
        """Note that something arrived."""
        self._heard_at = self._clock.seconds()

    def change(self, seconds: float, cause: str) -> None:
        """Allow another time from now on."""
        self.stop()
        self.seconds, self._cause = seconds, cause
        self._heard_at = self._clock.seconds()
        self._call = self._clock.callLater(seconds, self._look)

    def stop(self) -> None:
        """End the timer; may be called again."""
        if self._call.active():
            self._call.cancel()

    def _look(self) -> None:
        silent = self._clock.seconds() - self._heard_at
        if silent >= self.seconds:
            self._stream.close(self._cause)
        else:
            self._call = self._clock.callLater(max(self.seconds - silent, self.seconds / 4), self._look)
