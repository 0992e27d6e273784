"""Computes the times at which a watch on an aggregate sends bookmarks. Pure: `Watcher` sends them."""

from __future__ import annotations

from mcproxy.http.deadlines import NEVER

BOOKMARK_INTERVAL = 60.0
"""Approximate seconds between two bookmarks; they are spread so that not all watches get bookmarks at once."""
LAST_BOOKMARK = 2.0
"""Seconds before the deadline at which a last bookmark is sent."""
LAG_DELAY = 0.5
"""Seconds until a bookmark follows an event whose lead is not the greatest part of its vector. Clients compare the last
version that they saw with that of their write (KEP-5504), and the last event can come from another cluster."""
LAG_INTERVAL = 1.0
"""Minimum seconds between two bookmarks after lagging events in one watch."""
_RETRY = 1.0  # seconds until the next try if a bookmark could not be sent because the client is behind


class BookmarkTimes:
    """The times of a watch's bookmarks: regular bookmarks, one before the watch's end, and one after lagging events
    (see `event_lags`). All times are in seconds of one clock."""

    __slots__ = ("_last", "_regular", "_sent_at", "_wanted", "after_lag")

    def __init__(self, now: float, timeout: float, *, wanted: bool, spread: float) -> None:
        """`timeout`: the watch's duration. `wanted`: the client accepts bookmarks. `spread`: a random number from 0 to
        1."""
        self._wanted = wanted
        self._regular = now + BOOKMARK_INTERVAL * (0.9 + 0.2 * spread) if wanted else NEVER
        # Like a kube-apiserver, send no last bookmark in a watch that is not longer than LAST_BOOKMARK seconds.
        self._last = now + timeout - LAST_BOOKMARK if wanted and timeout > LAST_BOOKMARK else NEVER
        self.after_lag = NEVER
        """The time of the bookmark after a lagging event."""
        self._sent_at = -NEVER

    @property
    def next(self) -> float:
        """The time of the next bookmark."""
        return min(self._regular, self._last, self.after_lag)

    @property
    def may_be_sooner(self) -> bool:
        """Whether a lagging event can make the next bookmark due earlier."""
        return self._wanted and self.after_lag == NEVER

    def event_lags(self, now: float) -> None:
        """Record that a lagging event was sent: its version compares less than a bookmark's at the same position."""
        self.after_lag = max(now + LAG_DELAY, self._sent_at + LAG_INTERVAL)

    def needed(self, now: float, *, lags: bool) -> bool:
        """Whether to send a bookmark now. A bookmark for a lagging event is not sent if the last event does not lag any
        more.
        """
        if self.after_lag <= now < min(self._regular, self._last) and not lags:
            self.after_lag = NEVER
            return False
        return now >= self.next

    def tried(self, now: float, *, sent: bool) -> None:
        """Record that a due bookmark was sent, or could not be sent, and compute the next time."""
        if sent:
            self._sent_at = now
        if now >= self.after_lag:
            self.after_lag = NEVER if sent else now + _RETRY / 4
        if now >= self._last:
            self._last = NEVER if sent else now + _RETRY / 4
        if now >= self._regular:
            self._regular = now + (BOOKMARK_INTERVAL if sent else _RETRY)
