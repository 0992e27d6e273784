"""Ages as kubectl shows them (the table is that of apimachinery's own tests)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.duration import human_duration

MINUTE, HOUR, DAY = 60, 3600, 86400
YEAR = 365 * DAY


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (1.9, "1s"),
        (70, "70s"),
        (119, "119s"),
        (2 * MINUTE, "2m"),
        (9 * MINUTE + 59, "9m59s"),
        (10 * MINUTE + 59, "10m"),
        (179 * MINUTE, "179m"),
        (3 * HOUR, "3h"),
        (7 * HOUR + 59 * MINUTE, "7h59m"),
        (8 * HOUR + 59 * MINUTE, "8h"),
        (47 * HOUR, "47h"),
        (2 * DAY, "2d"),
        (2 * DAY + HOUR, "2d1h"),
        (7 * DAY + 23 * HOUR, "7d23h"),
        (8 * DAY + 23 * HOUR, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR, "2y"),
        (2 * YEAR + DAY, "2y1d"),
        (8 * YEAR - HOUR, "7y364d"),
        (8 * YEAR + 364 * DAY, "8y"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


@given(st.integers(0, 10**10))
def test_a_duration_is_short_and_loses_little(seconds: int) -> None:
    units = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY, "y": YEAR}
    text, total, number = human_duration(seconds), 0, ""
    for char in text:
        if char in units:
            total, number = total + int(number) * units[char], ""
        else:
            number += char
    assert total <= seconds
    assert seconds - total <= max(seconds / 8, 1)
    assert len(text) <= 7
