"""The mark is the highest level of the last minute, and falls afterwards."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.http.high_water_mark import STEP, STEPS, HighWaterMark


def test_mark_rises_at_once_and_falls_after_a_minute() -> None:
    mark = HighWaterMark(100.0)
    mark.note(7)
    mark.note(3)
    assert mark.value == 7
    now = 100.0
    while now < 155:
        now += 5
        mark.advance(now, 3)
        assert mark.value == 7
    mark.advance(171.0, 3)
    assert mark.value == 3


def test_long_silence_leaves_the_level_that_lasted() -> None:
    mark = HighWaterMark(0.0)
    mark.note(9)
    mark.advance(1e6, 2)
    assert mark.value == 2
    assert mark.due == 1e6 + STEP


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 50)), min_size=1, max_size=60))
def test_mark_is_between_the_maximum_of_60_and_of_70_seconds(changes: Sequence[tuple[float, int]]) -> None:
    mark = HighWaterMark(0.0)
    now, level = 0.0, 0
    levels = [(0.0, 0)]  # when each began
    for delay, new in changes:
        now += delay
        if now >= mark.due:
            mark.advance(now, level)
        level = new
        mark.note(level)
        levels.append((now, level))

        def highest(window: float, now: float = now) -> int:
            until = [begin for begin, _ in levels[1:]] + [now]
            return max(value for (_, value), end in zip(levels, until, strict=True) if end >= now - window)

        assert highest(STEPS * STEP) <= mark.value <= highest((STEPS + 1) * STEP)
