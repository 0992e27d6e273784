"""Many timeouts by one timer."""

from __future__ import annotations

import pytest

from mcproxy.http.deadlines import NEVER, RESOLUTION, Deadlines
from tests.support.clock import START, Clock


class Item:
    def __init__(self, deadlines: Deadlines) -> None:
        self.deadline = NEVER
        self.expirations: list[float] = []
        self._deadlines = deadlines

    def expired(self) -> None:
        self.expirations.append(self._deadlines.seconds() - START)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines(clock)


@pytest.fixture
def item(deadlines: Deadlines) -> Item:
    item = Item(deadlines)
    deadlines.add(item)
    return item


def test_it_expires_once_after_its_time_and_soon_after(clock: Clock, deadlines: Deadlines, item: Item) -> None:
    item.deadline = deadlines.after(1.1)
    clock.pump([0.25] * 20)
    assert item.expirations == [1.25]


def test_a_deadline_that_was_moved_counts_from_then(clock: Clock, deadlines: Deadlines, item: Item) -> None:
    item.deadline = deadlines.after(1)
    clock.pump([0.25] * 3)
    item.deadline = deadlines.after(1)
    clock.pump([0.25] * 10)
    assert item.expirations == [1.75]


def test_zero_is_no_limit(deadlines: Deadlines) -> None:
    assert deadlines.after(0) == NEVER


def test_an_item_that_another_one_moved_does_not_expire(clock: Clock, deadlines: Deadlines) -> None:
    class Mover(Item):
        def expired(self) -> None:
            super().expired()
            for other in both:
                other.deadline = NEVER

    both = [Mover(deadlines), Mover(deadlines)]
    for item in both:
        deadlines.add(item)
        item.deadline = 0.5
    clock.pump([0.25] * 4)
    assert sum(len(item.expirations) for item in both) == 1


def test_one_that_fails_does_not_end_the_watch_over_the_others(clock: Clock, deadlines: Deadlines, item: Item) -> None:
    broken = Item(deadlines)

    def fail() -> None:
        raise RuntimeError

    broken.expired = fail  # type: ignore[method-assign]
    deadlines.add(broken)
    broken.deadline = 0.2
    with pytest.raises(RuntimeError):
        clock.advance(RESOLUTION)
    item.deadline = deadlines.after(1)
    clock.pump([0.25] * 8)
    assert item.expirations == [1.25]


def test_without_items_no_timer_runs(clock: Clock, deadlines: Deadlines, item: Item) -> None:
    assert clock.getDelayedCalls()
    deadlines.remove(item)
    clock.pump([0.25] * 2)
    assert not clock.getDelayedCalls()
    deadlines.add(item)
    assert clock.getDelayedCalls()
    deadlines.stop()
    assert not clock.getDelayedCalls()
    deadlines.stop()
