"""When an aggregated watch sends bookmarks. Pure: `Watcher` sends them."""

from __future__ import annotations

from mcproxy.http.deadlines import NEVER

BOOKMARK_INTERVAL = 60.0
"""Seconds between two bookmarks, approximately: they are spread so that not all watches get theirs at once."""
LAST_BOOKMARK = 2.0
"""Seconds before the deadline at which a last bookmark is sent."""
LAG_DELAY = 0.5
"""Seconds after an event whose lead is not the greatest part of its vector until a bookmark is sent: clients compare
what they saw last with what they wrote (KEP-5504), and the last event may be another cluster's."""
LAG_INTERVAL = 1.0
"""The least seconds between two such bookmarks of one watch."""
_RETRY = 1.0  # seconds until a bookmark is tried again that could not be sent because the client is behind


class BookmarkTimes:
    """When a watch gets bookmarks: regular ones, one before its end, and one after events that lag. Times are those of
    one clock, in seconds."""

    __slots__ = ("_last", "_regular", "_sent_at", "_wanted", "after_lag")

    def __init__(self, now: float, timeout: float, *, wanted: bool, spread: float) -> None:
        """`timeout`: how long the watch lasts. `wanted`: the client takes bookmarks. `spread`: a random number from 0
        to 1."""
        self._wanted = wanted
        self._regular = now + BOOKMARK_INTERVAL * (0.9 + 0.2 * spread) if wanted else NEVER
        # A kube-apiserver sends none in a watch that is not longer than that.
        self._last = now + timeout - LAST_BOOKMARK if wanted and timeout > LAST_BOOKMARK else NEVER
        self.after_lag = NEVER
        """When one is due because the last event lags."""
        self._sent_at = -NEVER

    @property
    def next(self) -> float:
        """When the next one is due."""
        return min(self._regular, self._last, self.after_lag)

    @property
    def may_be_sooner(self) -> bool:
        """Whether an event that lags makes the next one due sooner."""
        return self._wanted and self.after_lag == NEVER

    def event_lags(self, now: float) -> None:
        """An event was sent whose version compares less than a bookmark at the same position."""
        self.after_lag = max(now + LAG_DELAY, self._sent_at + LAG_INTERVAL)

    def needed(self, now: float, *, lags: bool) -> bool:
        """Whether a bookmark is to be sent now. One that is due only after a lagging event is not, if no event lags any
        more.
        """
        if self.after_lag <= now < min(self._regular, self._last) and not lags:
            self.after_lag = NEVER
            return False
        return now >= self.next

    def tried(self, now: float, *, sent: bool) -> None:
        """A bookmark that was due was sent, or could not be sent."""
        if sent:
            self._sent_at = now
        if now >= self.after_lag:
            self.after_lag = NEVER if sent else now + _RETRY / 4
        if now >= self._last:
            self._last = NEVER if sent else now + _RETRY / 4
        if now >= self._regular:
            self._regular = now + (BOOKMARK_INTERVAL if sent else _RETRY)
