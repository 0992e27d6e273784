"""Ages in cells, worked out anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.encoding.columns import aged, aged_restarts, granularity, parse_human_duration, timestamps
from mcproxy.kube.duration import human_duration

NOW = 1_700_000_000.0
LONGEST = 20 * 365 * 86400


@given(st.integers(0, LONGEST))
def test_what_human_duration_writes_is_read_again(seconds: int) -> None:
    least = parse_human_duration(human_duration(seconds))
    assert least is not None
    assert least <= seconds < least + granularity(least)


@pytest.mark.parametrize("text", ["", "<none>", "<unknown>", "5", "5x", "5m ", "m", "5m5d", "1/1", "\u0665m"])
def test_what_is_no_duration_stays(text: str) -> None:
    assert parse_human_duration(text) is None
    assert aged(text, NOW, NOW + 1000, [NOW]) == text


@given(st.integers(0, LONGEST), st.integers(0, LONGEST), st.floats(-4, 4))
def test_an_age_is_what_the_member_would_print_now(seconds: int, passed: int, skew: float) -> None:
    printed = aged(human_duration(seconds), NOW + skew, NOW + passed, [NOW - 5 * seconds - 1000, NOW - seconds])
    shown = parse_human_duration(printed)
    assert shown is not None
    assert shown <= seconds + passed + 5
    if passed > 60:
        # Where another timestamp agrees, too, it is as close as the member's own text was.
        assert shown + granularity(shown) + granularity(seconds) + 10 > seconds + passed


@given(st.integers(0, LONGEST), st.integers(0, LONGEST))
def test_without_a_timestamp_the_text_itself_is_aged(seconds: int, passed: int) -> None:
    shown = parse_human_duration(aged(human_duration(seconds), NOW, NOW + passed, []))
    assert shown is not None
    assert shown <= seconds + passed < shown + granularity(shown) + granularity(seconds) + 1


def test_the_timestamp_that_agrees_is_used() -> None:
    start, finished = NOW - 179 * 60 - 50, NOW - 40
    assert aged("179m", NOW, NOW + 20, [finished, start]) == "3h"
    assert aged("179m", NOW, NOW + 20, [finished]) == "179m"


def test_a_clock_that_is_ahead_is_no_invalid_age() -> None:
    assert aged("0s", NOW, NOW - 3, [NOW]) == "0s"


def test_restarts() -> None:
    assert aged_restarts("3 (5m ago)", NOW, NOW + 60, [NOW - 300]) == "3 (6m ago)"
    assert aged_restarts("0", NOW, NOW + 60, []) == "0"
    assert aged_restarts("3 (x ago)", NOW, NOW + 60, []) == "3 (x ago)"


def test_timestamps_in_json() -> None:
    document = b'{"a":"2023-11-14T22:13:20Z","b":"2023-11-14T22:13:20.123456Z","c":"2023-13-99T99:99:99Z","d":"x"}'
    assert list(timestamps(document)) == [NOW, NOW]
    assert len(list(timestamps(b'"2023-11-14T22:13:20Z",' * 1000))) == 200
