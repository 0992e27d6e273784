"""Coroutines are driven to their end through results, failures and cancellation, at once or later."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred, fail, succeed

from mcproxy.proxy.coroutines import start


class Story:
    """A coroutine that notes what each of its waits gave."""

    def __init__(self, *waits: Deferred[str]) -> None:
        self.told: list[str] = []
        self._waits = waits

    async def run(self) -> None:
        for wait in self._waits:
            try:
                self.told.append(await wait)
            except (ValueError, CancelledError) as error:
                self.told.append(f"{type(error).__name__}: {error}")
        self.told.append("end")


def test_what_is_there_already_is_taken_without_waiting() -> None:
    story = Story(succeed("one"), fail(ValueError("bad")), succeed("two"))
    start(story.run())
    assert story.told == ["one", "ValueError: bad", "two", "end"]


def test_results_that_come_later_are_taken_when_they_come() -> None:
    first: Deferred[str] = Deferred()
    second: Deferred[str] = Deferred()
    story = Story(first, second)
    start(story.run())
    assert story.told == []
    first.callback("one")
    assert story.told == ["one"]
    second.callback("two")
    assert story.told == ["one", "two", "end"]


def test_failures_that_come_later_are_raised_where_they_were_awaited() -> None:
    first: Deferred[str] = Deferred()
    second: Deferred[str] = Deferred()
    story = Story(first, second)
    start(story.run())
    first.errback(ValueError("bad"))
    assert story.told == ["ValueError: bad"]
    second.callback("two")
    assert story.told == ["ValueError: bad", "two", "end"]


def test_cancelling_what_is_awaited_is_raised_too() -> None:
    wait: Deferred[str] = Deferred()
    story = Story(wait)
    start(story.run())
    wait.cancel()
    assert story.told == ["CancelledError: ", "end"]


@pytest.mark.parametrize("later", [False, True])
def test_result_of_a_deferred_that_waits_for_another_is_the_others(later: bool) -> None:
    outer: Deferred[str] = Deferred()
    inner: Deferred[str] = Deferred()
    outer.addCallback(lambda _: inner)
    story = Story(outer)
    if later:
        start(story.run())
        outer.callback("begun")
    else:
        outer.callback("begun")
        start(story.run())
    assert story.told == []
    inner.errback(ValueError("bad"))
    assert story.told == ["ValueError: bad", "end"]
