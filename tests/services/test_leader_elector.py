"""Candidates for one Lease, by a clock that the tests move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.services.leader_election import Election, LeaderElector
from tests.services.fake_lease import FakeAPI, FakeCluster
from tests.support.clock import Clock
from tests.support.logged import captured_logs


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.cluster = FakeCluster()
        self.electors: list[LeaderElector] = []
        self.told: list[tuple[str, bool]] = []

    def candidate(self, name: str) -> tuple[LeaderElector, FakeAPI]:
        api = FakeAPI(self.cluster)
        election = Election(name, self.clock.seconds)
        elector = LeaderElector(
            "east", api, election, self.clock, lambda: 0.5, lambda leads: self.told.append((name, leads))
        )
        self.electors.append(elector)
        elector.start()
        return elector, api

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            assert sum(each.leads for each in self.electors) <= 1

    @property
    def leader(self) -> str:
        return next((each.election.identity for each in self.electors if each.leads), "")


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for elector in made.electors:
        elector.stop()
    assert not made.clock.getDelayedCalls()


def test_the_first_candidate_creates_the_lease_and_leads(bench: Bench) -> None:
    bench.candidate("a")
    assert bench.leader == "a"
    assert bench.told == [("a", True)]
    record = bench.cluster.writes[0]
    assert (record.holder, record.duration, record.transitions) == ("a", 15, 0)
    assert record.acquired == record.renewed == "2026-09-21T14:13:20.000000Z"


def test_a_leader_renews_every_two_seconds_without_reading(bench: Bench) -> None:
    _, api = bench.candidate("a")
    bench.run(21.5)
    assert api.asked == ["get", "create", *["update"] * 10]
    assert bench.cluster.writes[-1].acquired == "2026-09-21T14:13:20.000000Z"
    assert bench.cluster.writes[-1].renewed > "2026-09-21T14:13:39"
    assert {each.transitions for each in bench.cluster.writes} == {0}


def test_a_second_candidate_waits_fifteen_seconds_of_silence(bench: Bench) -> None:
    first, api = bench.candidate("a")
    bench.candidate("b")
    bench.run(60)
    assert bench.leader == "a"
    api.down = True
    bench.run(12)
    assert bench.leader == ""
    assert not first.leads
    bench.run(10)
    assert bench.leader == "b"
    assert bench.cluster.writes[-1].transitions == 1
    api.down = False
    bench.run(30)
    assert bench.leader == "b"


def test_a_leader_that_cannot_renew_stops_ten_seconds_after_the_last_renewal_was_sent(bench: Bench) -> None:
    _, api = bench.candidate("a")
    bench.run(2.5)
    api.down = True
    bench.run(9)
    assert bench.leader == "a"
    bench.run(1)
    assert bench.told == [("a", True), ("a", False)]


def test_a_renewal_counts_from_when_it_was_sent(bench: Bench) -> None:
    elector, api = bench.candidate("a")
    bench.run(1.95)
    api.held = []
    bench.run(4)
    held, api.held = api.held, None
    for each in held:
        each.callback(None)
    assert elector.election.remaining == pytest.approx(10 - 3.9, abs=0.2)


def test_a_lease_that_was_released_is_taken_at_the_next_attempt(bench: Bench) -> None:
    first, _ = bench.candidate("a")
    bench.candidate("b")
    bench.run(5)
    first.stop()
    Deferred.fromCoroutine(first.release())
    assert bench.cluster.writes[-1].holder == ""
    bench.run(3.3)
    assert bench.leader == "b"
    assert bench.cluster.writes[-1].transitions == 1


def test_a_stopped_candidate_frees_no_lease_of_another(bench: Bench) -> None:
    bench.candidate("a")
    second, _ = bench.candidate("b")
    bench.run(5)
    before = len(bench.cluster.writes)
    second.stop()
    Deferred.fromCoroutine(second.release())
    assert len(bench.cluster.writes) == before


def test_a_renewal_whose_answer_is_lost_is_no_renewal_but_the_lease_stays_its_own(bench: Bench) -> None:
    _, api = bench.candidate("a")
    bench.candidate("b")
    bench.run(3)
    api.lose_answers = True
    bench.run(12)
    assert bench.leader == ""  # it is not known here that it was renewed
    api.lose_answers = False
    bench.run(5)
    assert bench.leader == "a"  # and the other one has seen renewals
    assert {each.transitions for each in bench.cluster.writes} == {0}


def test_a_conflict_stops_the_leader_until_it_has_read_that_the_lease_is_still_its_own(bench: Bench) -> None:
    elector, api = bench.candidate("a")
    bench.run(1)
    lease = bench.cluster.lease
    assert lease is not None
    bench.cluster.update(lease, _record("a"))  # a field that is nobody's, say
    api.held = []
    bench.run(1.2)
    api.held.pop().callback(None)
    assert not elector.leads
    held, api.held = api.held, None
    for each in held:
        each.callback(None)
    assert elector.leads


def test_a_leader_whose_lease_another_one_has_stops_at_once(bench: Bench) -> None:
    _, _ = bench.candidate("a")
    bench.run(1)
    lease = bench.cluster.lease
    assert lease is not None
    bench.cluster.update(lease, _record("x"))
    bench.run(1.5)
    assert bench.told[-1] == ("a", False)
    bench.run(20)
    assert bench.leader == "a"  # x never renewed it


def test_a_lease_that_was_removed_is_created_anew_by_one(bench: Bench) -> None:
    bench.candidate("a")
    bench.candidate("b")
    bench.run(1)
    bench.cluster.lease = None
    bench.run(30)
    assert bench.leader


def test_a_process_that_stood_still_does_not_lead_when_it_goes_on(bench: Bench) -> None:
    first, _ = bench.candidate("a")
    bench.run(1)
    bench.clock.rightNow += 30  # nothing of it has run
    assert not first.leads
    assert first.election.remaining == 0


def test_the_time_of_day_has_no_say(bench: Bench) -> None:
    bench.candidate("a")
    bench.candidate("b")
    bench.run(5)
    for jump in (-86400, 10 * 86400):
        bench.clock.jumped += jump
        bench.run(20)
        assert bench.leader == "a"


def test_one_line_says_that_the_lease_cannot_be_had_and_one_that_it_can(bench: Bench) -> None:
    with captured_logs() as lines:
        elector, api = bench.candidate("a")
        api.down = True
        bench.run(30)
        assert elector.cause == "refused the connection"
        api.down = False
        bench.run(10)
        assert elector.cause == ""
    assert names(lines) == ["lease_acquired", "lease_unavailable", "lease_lost", "lease_available", "lease_acquired"]


def test_a_bug_in_an_attempt_ends_no_attempts(bench: Bench, monkeypatch: Any) -> None:
    elector, api = bench.candidate("a")

    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patched, captured_logs() as lines:
        patched.setattr(api, "update", broken)
        bench.run(3)
    assert names(lines) == ["internal_error"]
    bench.run(3)
    assert elector.leads


def names(lines: Any) -> list[str]:
    return [line["event"] for line in lines if "event" in line]


def _record(holder: str) -> Any:
    from mcproxy.services.lease import Record

    return Record(holder, 15, 0, "x", "y")
