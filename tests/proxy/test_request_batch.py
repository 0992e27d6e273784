"""Requests are told of many at once, none twice, none left at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.task import Clock

from mcproxy.proxy.request_batch import FLUSH_AFTER, RequestBatch


class Told:
    """A request that notes what is told of it."""

    reason, sent_at, upstream_status, exchange = (
        "",
        0.0,
        200,
        SimpleNamespace(completed=True, first_byte_at=0.0),
    )  # nothing to log

    def __init__(self, notes: list[str], name: str) -> None:
        self._notes = notes
        self._name = name
        self.ended_at = 0.0

    def report_begun(self, offset: float) -> None:
        self._notes.append(f"{self._name} begun")

    def report(self, offset: float) -> None:
        self._notes.append(f"{self._name} ended")


def batch(size: int) -> tuple[Clock, RequestBatch, list[str], Any]:
    clock, notes = Clock(), list[str]()
    return clock, RequestBatch(clock, size), notes, lambda name: cast(Any, Told(notes, name))


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
