"""Coroutines are driven to their end through results, failures and cancellation, at once or later."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.python.failure import Failure

from mcproxy.requests.coroutines import gather, start


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


async def result_of(waiting: Deferred[str]) -> str:
    return await waiting


def errors_of(waiting: Deferred[list[str]]) -> list[BaseException]:
    """Return a list that gets the exception that `waiting` fails with."""
    caught: list[BaseException] = []

    def note(failure: Failure) -> list[str]:
        assert failure.value is not None
        caught.append(failure.value)
        return []

    waiting.addErrback(note)
    return caught


def test_results_of_several_are_in_their_order() -> None:
    first: Deferred[str] = Deferred()
    gathered = Deferred.fromCoroutine(gather(result_of(each) for each in (first, succeed("two"))))
    assert not gathered.called
    first.callback("one")
    assert gathered.result == ["one", "two"]


def test_the_first_exception_of_several_is_raised_itself_and_the_others_continue() -> None:
    other: Deferred[str] = Deferred()
    caught = errors_of(Deferred.fromCoroutine(gather(result_of(each) for each in (other, fail(ValueError("bad"))))))
    assert [type(error) for error in caught] == [ValueError]
    assert not other.called


def test_cancelling_several_raises_cancelled_error() -> None:
    waits: list[Deferred[str]] = [Deferred(), Deferred()]
    gathered = Deferred.fromCoroutine(gather(map(result_of, waits)))
    caught = errors_of(gathered)
    gathered.cancel()
    assert [type(error) for error in caught] == [CancelledError]
    assert all(each.called for each in waits)
