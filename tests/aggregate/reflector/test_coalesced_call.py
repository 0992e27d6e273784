"""Calls that several wait for."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.aggregate.reflector.member_calls import CoalescedCall


class Calls:
    def __init__(self) -> None:
        self.made: list[Deferred[int]] = []

    async def __call__(self) -> int:
        self.made.append(Deferred())
        return await self.made[-1]


def results(*waiters: Deferred[int]) -> list[object]:
    found: list[object] = []
    for waiter in waiters:
        waiter.addBoth(found.append)
    return found


def test_one_call_serves_who_came_before_it_was_made() -> None:
    calls = Calls()
    flight = CoalescedCall(calls)
    first = flight.join()
    late = [flight.join(), flight.join()]
    assert len(calls.made) == 1
    found = results(first)
    calls.made[0].callback(1)
    assert found == [1]
    assert len(calls.made) == 2
    found = results(*late)
    calls.made[1].callback(2)
    assert found == [2, 2]
    assert len(calls.made) == 2


def test_a_waiter_that_leaves_takes_nothing_from_the_others() -> None:
    calls = Calls()
    flight = CoalescedCall(calls)
    first = flight.join()
    second, third = flight.join(), flight.join()
    cancelled = results(first, second)
    first.cancel()
    second.cancel()
    assert [failure.type for failure in cancelled] == [CancelledError, CancelledError]  # type: ignore[attr-defined]
    found = results(third)
    calls.made[0].callback(1)
    assert found == []
    calls.made[1].callback(2)
    assert found == [2]


def test_a_failure_reaches_all_and_the_next_call_is_made() -> None:
    calls = Calls()
    flight = CoalescedCall(calls)
    first = flight.join()
    seen: list[type] = []
    first.addErrback(lambda failure: seen.append(failure.type))  # type: ignore[call-overload]
    second = flight.join()
    calls.made[0].errback(LookupError())
    assert seen == [LookupError]
    found = results(second)
    calls.made[1].callback(5)
    assert found == [5]


def test_the_end_cancels_the_call_and_who_waits() -> None:
    calls = Calls()
    flight = CoalescedCall(calls)
    waiters = [flight.join(), flight.join()]
    found = results(*waiters)
    flight.stop()
    assert [failure.type for failure in found] == [CancelledError, CancelledError]  # type: ignore[attr-defined]
    assert calls.made[0].called
    assert len(calls.made) == 1


@pytest.mark.parametrize("value", [0, 7])
def test_a_call_that_returns_at_once(value: int) -> None:
    async def at_once() -> int:
        return value

    flight = CoalescedCall(at_once)
    assert results(flight.join(), flight.join()) == [value, value]
