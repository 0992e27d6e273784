"""Which address is tried when, on a clock; the wire is in test_connect."""

from __future__ import annotations

import inspect
import socket
import sys
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred, fail

from mcproxy.net.connect_errors import ConnectionRefused
from mcproxy.net.happy_eyeballs import DELAY, MEMORY, Race, SilentAddresses, SocketAddress, in_order
from tests.support.clock import Clock


def v4(number: int) -> SocketAddress:
    return socket.AF_INET, (f"10.0.0.{number}", 6443)


def v6(number: int) -> SocketAddress:
    return socket.AF_INET6, (f"2001:db8::{number}", 6443, 0, 0)


class Bench:
    """Attempts that the test ends."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.silent = SilentAddresses()
        self.attempts: list[tuple[SocketAddress, Deferred[Any]]] = []
        self.cancelled: list[SocketAddress] = []

    def race(self, *addresses: SocketAddress) -> list[Any]:
        self.attempts.clear()
        self.cancelled.clear()
        got: list[Any] = []
        race = Race(self.clock, addresses, self.connect, self.silent)  # type: ignore[arg-type]
        race.won.addCallbacks(lambda won: got.append(won[1]), lambda failure: got.append(failure.value))
        self.won = race.won
        return got

    def connect(self, address: SocketAddress) -> Deferred[Any]:
        attempt: Deferred[Any] = Deferred(lambda _: self.cancelled.append(address))
        self.attempts.append((address, attempt))
        return attempt

    @property
    def tried(self) -> list[SocketAddress]:
        return [address for address, _ in self.attempts]

    def opens(self, index: int) -> None:
        self.attempts[index][1].callback(None)

    def refuses(self, index: int) -> None:
        self.attempts[index][1].errback(ConnectionRefused("it refused the connection"))

    def over(self) -> bool:
        return not self.clock.getDelayedCalls()


def test_the_families_take_turns_and_silent_addresses_come_last() -> None:
    addresses = [v6(1), v6(2), v4(1), v4(2), v4(3)]
    assert in_order(addresses, lambda _: False) == [v6(1), v4(1), v6(2), v4(2), v4(3)]
    assert in_order(addresses, lambda each: each == v6(1)) == [v4(1), v6(2), v4(2), v4(3), v6(1)]


def test_an_attempt_whose_connect_takes_a_moment_is_remembered_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay runs from before the attempt, so one that the timer ends has lasted it."""
    bench = Bench()
    connect = bench.connect

    def slow_connect(address: SocketAddress) -> Deferred[Any]:
        bench.clock.rightNow += 0.001 if address == v6(1) else 0
        return connect(address)

    monkeypatch.setattr(bench, "connect", slow_connect)
    bench.race(v6(1), v4(1))
    bench.clock.advance(DELAY - 0.001)
    assert bench.tried == [v6(1), v4(1)]
    bench.opens(1)
    assert bench.silent.is_silent(v6(1), bench.clock.seconds())


@pytest.mark.parametrize("dead", [[v6(1)], [v6(1), v6(2)]])
def test_the_next_address_is_tried_after_the_delay_and_the_silent_one_is_remembered(dead: list[SocketAddress]) -> None:
    bench = Bench()
    got = bench.race(*dead, v4(1))
    assert bench.tried == [v6(1)]
    bench.clock.advance(DELAY - 0.01)
    assert bench.tried == [v6(1)]
    bench.clock.advance(0.01)
    assert bench.tried == [v6(1), v4(1)]
    bench.opens(1)
    assert got == [v4(1)]
    assert bench.cancelled == [v6(1)]
    assert bench.over()
    bench.race(v6(1), v4(1))
    assert bench.tried == [v4(1)]
    bench.opens(0)
    bench.clock.advance(MEMORY)
    bench.race(v6(1), v4(1))
    assert bench.tried == [v6(1)]


def test_the_first_may_still_win() -> None:
    bench = Bench()
    got = bench.race(v6(1), v4(1))
    bench.clock.advance(DELAY)
    bench.opens(0)
    assert (got, bench.cancelled) == ([v6(1)], [v4(1)])
    bench.race(v6(1), v4(1))
    assert bench.tried == [v6(1)]  # the other had no time to answer


def test_after_a_refusal_the_next_is_tried_at_once_and_nothing_is_remembered() -> None:
    bench = Bench()
    got = bench.race(v4(1), v4(2))
    bench.refuses(0)
    bench.opens(1)
    assert got == [v4(2)]
    assert bench.over()
    bench.race(v4(1), v4(2))
    assert bench.tried == [v4(1)]


def test_the_last_failure_is_the_result_and_silent_attempts_are_waited_for() -> None:
    bench = Bench()
    got = bench.race(v4(1), v4(2))
    bench.clock.advance(DELAY)
    bench.refuses(1)
    assert not got
    bench.refuses(0)
    assert [type(each) for each in got] == [ConnectionRefused]


def test_a_silent_address_that_answers_is_forgotten() -> None:
    bench = Bench()
    bench.silent.note(v4(1), 0.0)
    bench.race(v4(1))
    bench.opens(0)
    bench.race(v4(1), v4(2))
    assert bench.tried == [v4(1)]


def test_cancelling_ends_every_attempt() -> None:
    bench = Bench()
    got = bench.race(v4(1), v4(2), v4(3))
    bench.clock.advance(DELAY)
    bench.won.cancel()
    assert [type(each) for each in got] == [CancelledError]
    assert bench.cancelled == [v4(1), v4(2)]
    assert bench.over()


def test_hundreds_of_addresses_that_fail_at_once_are_tried_up_to_a_bound() -> None:
    tried: list[SocketAddress] = []

    def connect(address: SocketAddress) -> Deferred[Any]:
        tried.append(address)
        return fail(ConnectionRefused("it refused the connection"))

    got: list[Any] = []
    clock = Clock()
    addresses = [(socket.AF_INET, (f"10.0.{number // 250}.{number % 250}", 6443)) for number in range(2000)]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 150)
    try:
        race = Race(clock, addresses, connect, SilentAddresses())  # type: ignore[arg-type]
    finally:
        sys.setrecursionlimit(limit)
    race.won.addErrback(lambda failure: got.append(failure.value))
    assert [type(each) for each in got] == [ConnectionRefused]
    assert tried == addresses[:64]
    assert not clock.getDelayedCalls()


def test_not_more_than_some_are_tried_at_once() -> None:
    bench = Bench()
    bench.race(*map(v4, range(1, 21)))
    for _ in range(19):
        bench.clock.advance(DELAY)
    assert len(bench.tried) - len(bench.cancelled) == 8
