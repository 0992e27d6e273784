"""Numbers, sizes and times as people read them; charts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.views import above, charts


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (markup.count(1234567), "1,234,567"),
        (markup.number(0.256), "0.26"),
        (markup.number(12.34), "12.3"),
        (markup.number(5.0), "5"),
        (markup.number(1234.5), "1,234"),
        (markup.size(0), "0 B"),
        (markup.size(1536), "1.50 KiB"),
        (markup.size(61234567), "58.4 MiB"),
        (markup.size(5 * 1024**5), "5,120 TiB"),
        (markup.seconds(0.0031), "3.10 ms"),
        (markup.seconds(0.42), "0.42 s"),
        (markup.seconds(312), "5 min 12 s"),
        (markup.duration(59.9), "59 s"),
        (markup.duration(900), "15 min"),
        (markup.duration(98342), "1 d 3 h"),
        (markup.instant("2026-11-22T11:40:10.123Z"), "2026-11-22 11:40:10Z"),
        (markup.instant("2026-11-22T11:40:10Z"), "2026-11-22 11:40:10Z"),
        (markup.share(0.815), "82 %"),
    ],
)
def test_forms(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    "form",
    [markup.count, markup.number, markup.size, markup.seconds, markup.duration, markup.instant, markup.share],
)
def test_what_is_not_known_is_a_dash(form: object) -> None:
    assert form(None) == markup.UNKNOWN  # type: ignore[operator]


def test_a_chart_is_interrupted_where_nothing_is_known_and_has_its_values_in_words() -> None:
    drawn = charts({"stepSeconds": 5.0, "p99Seconds": [0.1, 0.2, None, 0.4, 0.3]})
    assert drawn.count('class="line"') == 2
    assert "0.30 s now, at most 0.40 s in the last 25 s" in drawn
    assert drawn.count("no figures yet") == 4


def test_a_chart_has_axes_with_their_values() -> None:
    drawn = charts({"stepSeconds": 5.0, "requestsPerSecond": [0.0, 7.0, 3.0]})
    assert '<div class="upright"><span>10</span><span>5</span><span>0</span></div>' in drawn
    assert '<div class="level"><span>15 s ago</span><span>now</span></div>' in drawn
    assert 'd="M0.0 72.0L180.0 21.6L360.0 50.4"' in drawn


@given(st.floats(1e-6, 1e15), st.sampled_from([1000, 1024]))
def test_an_axis_ends_soon_above_the_highest_value(value: float, unit: int) -> None:
    assert value * (1 - 1e-6) <= above(value, unit) <= value * 2.6


def test_an_axis_of_nothing_has_an_end() -> None:
    assert above(0.0) == 1.0
