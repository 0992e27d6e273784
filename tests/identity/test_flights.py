"""Questions that are asked once however many wait."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mcproxy.identity.flights import Flights


def test_a_waiter_whose_answer_makes_another_one_leave_takes_nothing_from_the_rest() -> None:
    flights: Flights[str, str] = Flights(Clock(), at_once=1, timeout=10.0)
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
    flights: Flights[str, str] = Flights(Clock(), at_once=1, timeout=10.0)
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
