"""Requests are told of many at once, none twice, none left at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcproxy.requests.batch import FLUSH_AFTER, RequestBatch
from mcproxy.requests.in_flight import RequestInFlight, RequestKind
from tests.support.clock import Clock


class Reporter:
    """Notes what is reported."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def begun(self, request: Any, offset: float) -> None:
        self.notes.append(f"{request.name} begun")

    def ended(self, request: Any, offset: float) -> None:
        self.notes.append(f"{request.name} ended")


class Request(RequestInFlight):
    """Has a name and nothing to be ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended_at = 0.0

    @property
    def kind(self) -> RequestKind:
        return RequestKind.SHORT

    def end_gracefully(self) -> bool:
        return False

    def begin_again(self) -> bool:
        return False


def batch(size: int) -> tuple[Clock, RequestBatch[Any], list[str], Callable[[str], Any]]:
    clock, reporter = Clock(), Reporter()
    requests: RequestBatch[Any] = RequestBatch(clock, reporter, size)
    return clock, requests, reporter.notes, Request


def test_what_has_begun_or_ended_is_told_after_a_while() -> None:
    clock, requests, notes, made = batch(10)
    one, two = made("one"), made("two")
    requests.begun(one)
    one.ended_at = 1.0
    requests.ended(one)
    requests.begun(two)
    assert notes == []
    clock.advance(FLUSH_AFTER)
    assert notes == ["two begun", "one ended"]  # of one that has ended both are told together
    clock.advance(FLUSH_AFTER)
    assert clock.getDelayedCalls() == []


def test_many_are_told_at_once() -> None:
    _, requests, notes, made = batch(3)
    for number in range(4):
        requests.ended(made(str(number)))
    assert notes == ["0 ended", "1 ended", "2 ended"]


def test_what_is_closed_tells_of_each_at_once() -> None:
    clock, requests, notes, made = batch(10)
    requests.ended(made("one"))
    requests.close()
    requests.ended(made("late"))
    assert notes == ["one ended", "late ended"]
    assert clock.getDelayedCalls() == []
