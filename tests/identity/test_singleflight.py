"""Calls that are made once however many wait."""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from mcproxy.identity.singleflight import FairSemaphore, SingleFlight, SingleFlightError
from tests.support.clock import Clock


def places(number: int, **more: Any) -> FairSemaphore:
    usual: dict[str, Any] = {"share": number, "max_waiting": 1000, "seconds": Clock().seconds}
    return FairSemaphore(number, **{**usual, **more})


class Calls:
    """Calls of a SingleFlight, which the test ends; `begun` has their names in order."""

    def __init__(self, number: int = 1, **more: Any) -> None:
        self.clock = Clock()
        self.places = places(number, **more)
        self.singleflight: SingleFlight[str, str] = SingleFlight(self.clock, self.places, timeout=10.0)
        self.begun: list[str] = []
        self.running: dict[str, Deferred[str]] = {}
        self.results: dict[str, list[Any]] = {}

    def join(self, name: str, turn: str) -> Deferred[str]:
        waiter = self.singleflight.join(name, lambda: self._run(name), turn=turn)
        assert isinstance(waiter, Deferred)
        results = self.results.setdefault(f"{name} {turn}", [])
        waiter.addCallbacks(results.append, lambda failure: results.append(failure.value))
        return waiter

    async def _run(self, name: str) -> str:
        self.begun.append(name)
        self.running[name] = Deferred()
        return await self.running[name]


def test_turns_are_taken_by_key() -> None:
    calls = Calls()
    for number in range(10):
        calls.join(f"s{number}", "stranger")
    calls.join("a", "alice")
    calls.running["s0"].callback("")
    calls.running["s1"].callback("")
    assert calls.begun == ["s0", "s1", "a"]


def test_calls_that_wait_are_told_from_those_that_run() -> None:
    calls = Calls(2)
    for name in ("a", "b", "c"):
        calls.join(name, "alice")
    assert (len(calls.singleflight), calls.singleflight.waiting) == (3, 1)
    calls.running["a"].callback("")
    assert (len(calls.singleflight), calls.singleflight.waiting) == (2, 0)


def test_who_joins_a_call_that_waits_lends_it_a_turn_of_its_own() -> None:
    calls = Calls()
    for number in range(10):
        calls.join(f"s{number}", "stranger")
    calls.join("s9", "alice")
    calls.running["s0"].callback("")
    calls.running["s1"].callback("")
    assert calls.begun == ["s0", "s1", "s9"]
    calls.running["s9"].callback("yes")
    assert calls.results["s9 stranger"] == calls.results["s9 alice"] == ["yes"]
    for number in range(2, 9):
        calls.running[f"s{number}"].callback("")
    assert (len(calls.singleflight), len(calls.places), calls.clock.getDelayedCalls()) == (0, 0, [])
    calls.join("again", "alice")
    assert calls.begun[-1] == "again"


def test_a_call_without_a_place_or_a_result_in_time_fails() -> None:
    calls = Calls()
    calls.join("first", "a")
    calls.join("second", "b")
    calls.clock.advance(10)
    for name in ("first a", "second b"):
        (error,) = calls.results[name]
        assert isinstance(error, SingleFlightError)
        assert str(error) == "no answer within 10 s"
    calls.join("third", "b")
    assert calls.begun == ["first", "second", "third"]


def test_a_full_queue_makes_room_at_the_cost_of_who_has_most_in_it() -> None:
    calls = Calls(max_waiting=3)
    for number in range(4):
        calls.join(f"s{number}", "stranger")
    calls.join("s4", "stranger")
    assert isinstance(calls.results["s4 stranger"][0], SingleFlightError)
    calls.join("a", "alice")
    assert isinstance(calls.results["s3 stranger"][0], SingleFlightError)
    calls.running["s0"].callback("")
    calls.running["s1"].callback("")
    assert calls.begun == ["s0", "s1", "a"]


def test_a_long_queue_of_calls_that_end_at_once_is_served_without_recursion() -> None:
    calls = Calls(max_waiting=2000)  # twice as deep as Python may recurse; each timer of the test's clock sorts all
    calls.join("first", "a")
    done: list[int] = []
    failed: list[object] = []

    async def at_once(number: int) -> str:
        done.append(number)
        raise ValueError("down")

    for number in range(2000):
        waiter = calls.singleflight.join(f"{number}", partial(at_once, number), turn="a")
        assert isinstance(waiter, Deferred)
        waiter.addErrback(lambda failure: failed.append(failure.type))
    calls.running["first"].callback("")
    assert (done, failed) == (list(range(2000)), [ValueError] * 2000)


def test_a_function_that_breaks_gives_its_place_back() -> None:
    calls = Calls()

    def breaks() -> Any:
        raise RuntimeError("a bug")

    failed: list[Failure] = []
    for _ in range(3):
        waiter = calls.singleflight.join("broken", breaks, turn="a")
        assert isinstance(waiter, Deferred)
        waiter.addErrback(failed.append)
    assert [failure.type for failure in failed] == [RuntimeError] * 3
    assert (len(calls.singleflight), calls.clock.getDelayedCalls()) == (0, [])
    calls.join("good", "a")
    assert calls.begun == ["good"]


def test_a_waiter_whose_answer_makes_another_one_leave_takes_nothing_from_the_rest() -> None:
    singleflight: SingleFlight[str, str] = SingleFlight(Clock(), places(1), timeout=10.0)
    answer: Deferred[str] = Deferred()
    seen: list[object] = []

    async def ask() -> str:
        return await answer

    first, second, third = (singleflight.join("question", ask, turn="a") for _ in range(3))
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
    assert len(singleflight) == 0


def test_a_failure_reaches_everybody_and_the_next_question_is_asked_anew() -> None:
    singleflight: SingleFlight[str, str] = SingleFlight(Clock(), places(1), timeout=10.0)
    asked: list[Deferred[str]] = []
    failed: list[Failure] = []

    async def ask() -> str:
        asked.append(Deferred())
        return await asked[-1]

    for _ in range(2):
        waiter = singleflight.join("question", ask, turn="a")
        assert isinstance(waiter, Deferred)
        waiter.addErrback(failed.append)
    asked[0].errback(ValueError("no"))
    assert [failure.type for failure in failed] == [ValueError, ValueError]
    singleflight.join("question", ask, turn="a")
    assert len(asked) == 2


def test_a_question_that_nobody_waits_for_any_more_gives_up_its_place() -> None:
    """Whoever asks and leaves, again and again, must not fill the queue for those who stay."""
    clock = Clock()
    singleflight: SingleFlight[str, str] = SingleFlight(clock, places(1), timeout=10.0)
    running: Deferred[str] = Deferred()
    asked: list[str] = []
    left: list[Failure] = []

    async def ask(name: str) -> str:
        asked.append(name)
        return await running

    stays = singleflight.join("first", lambda: ask("first"), turn="a")
    for number in range(100):
        gone = singleflight.join(f"{number}", lambda: ask("of one who leaves"), turn="a")
        assert isinstance(gone, Deferred)
        gone.addErrback(left.append)
        gone.cancel()
        assert len(singleflight) == 1
    assert isinstance(stays, Deferred)
    seen: list[str] = []
    stays.addCallback(seen.append)
    running.callback("yes")
    assert (seen, asked, len(singleflight), clock.getDelayedCalls()) == (["yes"], ["first"], 0, [])
    assert {failure.type for failure in left} == {CancelledError}


def test_a_question_under_way_is_not_broken_off_by_one_who_leaves() -> None:
    singleflight: SingleFlight[str, str] = SingleFlight(Clock(), places(1), timeout=10.0)
    running: Deferred[str] = Deferred()
    kept: list[str] = []
    left: list[Failure] = []

    async def ask() -> str:
        kept.append(await running)
        return kept[-1]

    gone = singleflight.join("first", ask, turn="a")
    assert isinstance(gone, Deferred)
    gone.addErrback(left.append)
    gone.cancel()
    running.callback("yes")
    assert (kept, len(left)) == (["yes"], 1)
