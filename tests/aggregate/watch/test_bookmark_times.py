"""The times of a watch's bookmarks."""

from __future__ import annotations

from mcproxy.aggregate.watch.bookmark_times import LAST_BOOKMARK, BookmarkTimes
from mcproxy.http.deadlines import NEVER


def test_bookmarks_come_regularly_and_before_the_end() -> None:
    times = BookmarkTimes(100.0, 90.0, wanted=True, spread=0.5)
    assert times.next == 160.0
    assert times.needed(160.0, lags=False)
    times.tried(160.0, sent=True)
    assert times.next == 190.0 - LAST_BOOKMARK
    times.tried(times.next, sent=False)
    assert times.next == 190.0 - LAST_BOOKMARK + 0.25, "it is tried again"
    assert BookmarkTimes(0.0, LAST_BOOKMARK, wanted=True, spread=0.5).next > LAST_BOOKMARK, "none in a shorter watch"
    assert BookmarkTimes(0.0, 90.0, wanted=False, spread=0.5).next == NEVER


def test_a_bookmark_follows_an_event_that_lags_unless_another_event_does() -> None:
    times = BookmarkTimes(100.0, 900.0, wanted=True, spread=0.5)
    assert times.may_be_sooner
    times.event_lags(110.0)
    assert not bool(times.may_be_sooner)
    assert times.next == 110.5
    assert not times.needed(110.5, lags=False)
    assert times.next == 160.0
    times.event_lags(120.0)
    assert times.needed(120.5, lags=True)
    times.tried(120.5, sent=True)
    times.event_lags(120.6)
    assert times.next == 121.5, "at most one a second"
