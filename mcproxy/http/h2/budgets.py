"""Limits the rates of control frames and stream resets, which are cheap to send and costly to handle. Pure.

The clock is an argument. Both classes count in periods. A period begins with the first count after the end of the
last one, so no timer is needed. In any time span of a period's length, a peer can send at most twice the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mcproxy.http.h2.frames import DATA, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, Flood

CONTROL_FRAMES: Final = 1000
CONTROL_PERIOD: Final = 10.0
"""Length of a period of `ControlFrameBudget` in seconds."""
FRAMES_A_STREAM: Final = 2
"""Control frames by which each new stream raises the limit."""

RESETS: Final = 200
RESET_PERIOD: Final = 30.0
"""Length of a period of `ResetCount` in seconds."""


_KINDS = {
    DATA: "empty_data_flood",
    HEADERS: "headers_flood",
    PRIORITY: "priority_flood",
    RST_STREAM: "reset_flood",
    SETTINGS: "settings_flood",
    PING: "ping_flood",
    GOAWAY: "goaway_flood",
    WINDOW_UPDATE: "window_update_flood",
}


class ControlFrameBudget:
    """Limits the frames without content that cost an answer or a check: CONTROL_FRAMES in CONTROL_PERIOD, and
    FRAMES_A_STREAM more for each new stream.
    """

    __slots__ = ("_left", "_since")

    def __init__(self, now: float) -> None:
        self._left = CONTROL_FRAMES
        self._since = now

    def stream_begun(self) -> None:
        if self._left < CONTROL_FRAMES:
            self._left += FRAMES_A_STREAM

    def spend(self, frame_type: int, count: int, seconds: Callable[[], float]) -> None:
        """Count frames. `seconds` returns the time; it is rarely called. Raises Flood if there are too many."""
        self._left -= count
        if self._left >= 0:
            return
        now = seconds()
        if now - self._since >= CONTROL_PERIOD:
            self._since = now
            self._left = CONTROL_FRAMES - count
            if self._left >= 0:
                return
        raise Flood(_KINDS.get(frame_type, "unknown_frame_flood"), "too many frames that carry nothing")


class ResetCount:
    """Counts streams reset soon after their begin, by the peer (CVE-2023-44487) or because of it (CVE-2025-8671).

    The resets are an attack if they exceed RESETS in RESET_PERIOD and also half of the streams begun in that period.
    """

    __slots__ = ("_begun", "_resets", "_since")

    def __init__(self, now: float) -> None:
        self._begun = self._resets = 0
        self._since = now

    def stream_begun(self, now: float) -> None:
        if now - self._since >= RESET_PERIOD:
            self._since = now
            self._begun = self._resets = 0
        self._begun += 1

    def stream_reset(self, now: float) -> None:
        """Count a reset of a stream that began within RESET_PERIOD. Raises Flood if there are too many."""
        if now - self._since >= RESET_PERIOD:
            self._since = now
            self._begun = self._resets = 0
        self._resets += 1
        if self._resets > RESETS and 2 * self._resets > self._begun:
            raise Flood("rapid_reset", f"{self._resets} of {self._begun} streams were reset soon after they began")
