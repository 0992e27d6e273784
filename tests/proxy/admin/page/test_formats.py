"""Numbers, sizes and times as people read them; charts."""

import pytest

from mcproxy.proxy.admin.page import formats
from mcproxy.proxy.admin.page.charts import charts


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formats.count(1234567), "1,234,567"),
        (formats.number(0.256), "0.26"),
        (formats.number(12.34), "12.3"),
        (formats.number(5.0), "5"),
        (formats.number(1234.5), "1,234"),
        (formats.size(0), "0 B"),
        (formats.size(1536), "1.50 KiB"),
        (formats.size(61234567), "58.4 MiB"),
        (formats.size(5 * 1024**5), "5,120 TiB"),
        (formats.seconds(0.0031), "3.10 ms"),
        (formats.seconds(0.42), "0.42 s"),
        (formats.seconds(312), "5 min 12 s"),
        (formats.duration(59.9), "59 s"),
        (formats.duration(900), "15 min"),
        (formats.duration(98342), "1 d 3 h"),
        (formats.instant("2026-11-22T11:40:10.123Z"), "2026-11-22 11:40:10Z"),
        (formats.instant("2026-11-22T11:40:10Z"), "2026-11-22 11:40:10Z"),
        (formats.share(0.815), "82 %"),
    ],
)
def test_forms(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    "form",
    [formats.count, formats.number, formats.size, formats.seconds, formats.duration, formats.instant, formats.share],
)
def test_what_is_not_known_is_a_dash(form: object) -> None:
    assert form(None) == formats.UNKNOWN  # type: ignore[operator]


def test_a_chart_is_interrupted_where_nothing_is_known_and_has_its_values_in_words() -> None:
    drawn = charts({"stepSeconds": 5.0, "p99Seconds": [0.1, 0.2, None, 0.4, 0.3]})
    assert drawn.count('class="line"') == 2
    assert "0.30 s now, at most 0.40 s in the last 25 s" in drawn
    assert drawn.count("no figures yet") == 3


def test_the_highest_value_is_at_the_top_and_zero_at_the_bottom() -> None:
    drawn = charts({"stepSeconds": 5.0, "requestsPerSecond": [0.0, 10.0, 0.0]})
    assert 'd="M0.0 72.0L180.0 4.0L360.0 72.0"' in drawn
