"""Questions that are asked once however many wait."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mcproxy.identity.singleflight import SingleFlight


def test_a_waiter_whose_answer_makes_another_one_leave_takes_nothing_from_the_rest() -> None:
    flights: SingleFlight[str, str] = SingleFlight(Clock(), at_once=1, timeout=10.0)
    answer: Deferred[str] = Deferred()
    seen: list[object] = []

    async def ask() -> str:
        return await answer

    first, second, third = (flights.join("question", ask) for _ in range(3))
    assert isinstance(first, Deferred)
    assert isinstance(second, Deferred)
    assert isinstance(third, Deferred)

    def note_and_make_leave(result: str) -> None:
        seen.append(result)
        second.cancel()

    first.addCallback(note_and_make_leave)
    second.addErrback(lambda failure: seen.append(failure.type))
    third.addCallback(seen.append)
    answer.callback("yes")
    assert seen == ["yes", CancelledError, "yes"]
    assert len(flights) == 0


def test_a_failure_reaches_everybody_and_the_next_question_is_asked_anew() -> None:
    flights: SingleFlight[str, str] = SingleFlight(Clock(), at_once=1, timeout=10.0)
    asked: list[Deferred[str]] = []
    failed: list[Failure] = []

    async def ask() -> str:
        asked.append(Deferred())
        return await asked[-1]

    for _ in range(2):
        waiter = flights.join("question", ask)
        assert isinstance(waiter, Deferred)
        waiter.addErrback(failed.append)
    asked[0].errback(ValueError("no"))
    assert [failure.type for failure in failed] == [ValueError, ValueError]
    flights.join("question", ask)
    assert len(asked) == 2


def test_a_question_that_nobody_waits_for_any_more_gives_up_its_place() -> None:
    """Whoever asks and leaves, again and again, must not fill the queue for those who stay."""
    clock = Clock()
    flights: SingleFlight[str, str] = SingleFlight(clock, at_once=1, timeout=10.0)
    running: Deferred[str] = Deferred()
    asked: list[str] = []
    left: list[Failure] = []

    async def ask(name: str) -> str:
        asked.append(name)
        return await running

    stays = flights.join("first", lambda: ask("first"))
    for number in range(100):
        gone = flights.join(f"{number}", lambda: ask("of one who leaves"))
        assert isinstance(gone, Deferred)
        gone.addErrback(left.append)
        gone.cancel()
        assert len(flights) == 1
    assert isinstance(stays, Deferred)
    seen: list[str] = []
    stays.addCallback(seen.append)
    running.callback("yes")
    assert (seen, asked, len(flights), clock.getDelayedCalls()) == (["yes"], ["first"], 0, [])
    assert {failure.type for failure in left} == {CancelledError}


def test_a_question_under_way_is_not_broken_off_by_one_who_leaves() -> None:
    flights: SingleFlight[str, str] = SingleFlight(Clock(), at_once=1, timeout=10.0)
    running: Deferred[str] = Deferred()
    kept: list[str] = []
    left: list[Failure] = []

    async def ask() -> str:
        kept.append(await running)
        return kept[-1]

    gone = flights.join("first", ask)
    assert isinstance(gone, Deferred)
    gone.addErrback(left.append)
    gone.cancel()
    running.callback("yes")
    assert (kept, len(left)) == (["yes"], 1)
