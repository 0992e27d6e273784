"""Reloads come one at a time, and all who ask during one share the next."""

import pytest
from twisted.internet.defer import Deferred

from mcproxy.daemon.reload import OneAtATime, ReloadResult


class Script:
    """A reload that ends when the test says so."""

    def __init__(self) -> None:
        self.runs: list[Deferred[ReloadResult]] = []

    async def __call__(self) -> ReloadResult:
        run: Deferred[ReloadResult] = Deferred()
        self.runs.append(run)
        return await run


@pytest.fixture
def script() -> Script:
    return Script()


def outcome(deferred: Deferred[ReloadResult]) -> list[ReloadResult]:
    """The result so far: empty while there is none."""
    results: list[ReloadResult] = []
    deferred.addCallback(results.append)
    return results


def test_request_starts_a_reload_and_gets_its_outcome(script: Script) -> None:
    result = outcome(OneAtATime(script).request())
    assert result == []
    script.runs[0].callback(ReloadResult(warnings=("old",)))
    assert result == [ReloadResult(warnings=("old",))]


def test_all_requests_during_a_reload_share_exactly_one_more(script: Script) -> None:
    one_at_a_time = OneAtATime(script)
    first = outcome(one_at_a_time.request())
    later = [outcome(one_at_a_time.request()) for _ in range(5)]
    assert len(script.runs) == 1
    script.runs[0].callback(ReloadResult(errors=("wrong",)))
    assert first == [ReloadResult(errors=("wrong",))]
    assert later == [[]] * 5
    assert len(script.runs) == 2
    script.runs[1].callback(ReloadResult())
    assert later == [[ReloadResult()]] * 5
    assert len(script.runs) == 2


def test_request_from_within_an_answer_starts_the_next(script: Script) -> None:
    one_at_a_time = OneAtATime(script)
    again: list[Deferred[ReloadResult]] = []
    one_at_a_time.request().addCallback(lambda _: again.append(one_at_a_time.request()))
    script.runs[0].callback(ReloadResult())
    assert len(script.runs) == 2
    script.runs[1].callback(ReloadResult())
    assert outcome(again[0]) == [ReloadResult()]


def test_unforeseen_error_reaches_who_asked_and_does_not_end_reloading(script: Script) -> None:
    one_at_a_time = OneAtATime(script)
    failed = one_at_a_time.request()
    script.runs[0].errback(ZeroDivisionError())
    caught: list[object] = []
    failed.addErrback(lambda failure: caught.append(failure.type))
    assert caught == [ZeroDivisionError]
    assert outcome(one_at_a_time.request()) == []
    assert len(script.runs) == 2
