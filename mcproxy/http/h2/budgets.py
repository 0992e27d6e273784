"""Budgets for frames that are cheap to send and costly to handle. Pure: the clock is an argument.

Both are counted in periods. A period begins with the first count after the last one has passed, so no timer is needed;
within any time of that length a peer gets at most twice the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mcproxy.http.h2.frames import DATA, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, Flood

CONTROL_FRAMES: Final = 1000
CONTROL_PERIOD: Final = 10.0
"""Seconds."""
FRAMES_A_STREAM: Final = 2
"""Control frames that each new stream adds to the bound."""

RESETS: Final = 200
RESET_PERIOD: Final = 30.0
"""Seconds."""


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
    """Frames that carry nothing and cost us an answer or a check: CONTROL_FRAMES in CONTROL_PERIOD, and some more for
    each stream.
    """

    __slots__ = ("_left", "_since")

    def __init__(self, now: float) -> None:
        self._left = CONTROL_FRAMES
        self._since = now

    def stream_begun(self) -> None:
        if self._left < CONTROL_FRAMES:
            self._left += FRAMES_A_STREAM

    def spend(self, frame_type: int, count: int, seconds: Callable[[], float]) -> None:
        """Count frames. `seconds` is the clock, which is rarely needed. Raises Flood if they are too many."""
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
    """Streams that were reset soon after they began, by the peer (CVE-2023-44487) or because of it (CVE-2025-8671).

    More than RESETS in RESET_PERIOD, and more than half of the streams begun meanwhile, are an attack.
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
        """Count a reset of a stream that began within RESET_PERIOD. Raises Flood if they are too many."""
        if now - self._since >= RESET_PERIOD:
            self._since = now
            self._begun = self._resets = 0
        self._resets += 1
        if self._resets > RESETS and 2 * self._resets > self._begun:
            raise Flood("rapid_reset", f"{self._resets} of {self._begun} streams were reset soon after they began")
