"""The sketch of who has most: what it promises, whatever comes, and in how much memory."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.observe.heavy_hitters import Sketch, Windows
from tests.support.clock import Clock

amounts = st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 5), st.integers(0, 1))


@given(st.lists(st.tuples(st.integers(0, 40), amounts), max_size=400))
def test_who_has_much_is_there_and_nobody_has_more_than_it_had(added: list[tuple[int, tuple[int, ...]]]) -> None:
    kept = 3
    sketch = Sketch(kept, most=13)
    real: list[Counter[str]] = [Counter() for _ in range(4)]
    for name, (one, two, three, four) in added:
        sketch.add(str(name), one, two, three, four)
        for measure, amount in enumerate((one, two, three, four)):
            real[measure][str(name)] += amount
    sketch.compact()
    found = dict(sketch)
    assert len(found) <= 4 * kept
    for measure, counter in enumerate(real):
        total = counter.total()
        assert all(found[name][measure] <= counter[name] for name in found)
        assert {name for name, amount in counter.items() if amount > total / (kept + 1)} <= set(found)


def test_a_flood_of_names_takes_a_bounded_place_and_hides_nobody() -> None:
    sketch = Sketch()
    for number in range(50_000):
        sketch.add(f"bot-{number}", 1, 10, 0.0, 1)
        assert len(sketch) <= 2048
        if number % 20 == 0:
            sketch.add("jane", 1, 5, 0.0, 0)
    sketch.compact()
    found = dict(sketch)
    assert found["jane"][0] >= 2400
    assert len(found) < 600


def test_many_that_have_the_same_do_not_vanish_together() -> None:
    sketch = Sketch(kept=10)
    for number in range(100):
        sketch.add(str(number), 5, 0, 0, 0)
    sketch.compact()
    assert len(sketch) == 10


def test_what_is_some_minutes_old_is_forgotten() -> None:
    clock = Clock()
    windows = Windows(1, clock.seconds, seconds=60.0, windows=5)
    for minute in range(8):
        windows.current()[0].add(f"minute-{minute}", 1, 0, 0, 0)
        clock.advance(60)
    assert set(windows.all_of(0)[0]) == {f"minute-{minute}" for minute in range(4, 8)}
    assert 240 <= windows.span() <= 300
    clock.advance(61)  # nobody sends, so nothing rotates
    assert set(windows.all_of(0)[0]) == {f"minute-{minute}" for minute in range(5, 8)}
    clock.advance(1000)
    assert set(windows.all_of(0)[0]) == set()
