"""The keys of an issuer over time: fetched once for all who wait, renewed, kept while the issuer is down."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.key_source import FetchedKeys, FileKeys, KeySet, parse_keys
from mcproxy.identity.reviewer_log import UnavailableError
from tests.identity.conftest import Logged
from tests.identity.issuer import ISSUER, ec_jwk, jwks
from tests.support.clock import Clock

FIRST = parse_keys(jwks(ec_jwk(name="first")))
SECOND = parse_keys(jwks(ec_jwk(name="second")))
DOWN = UnavailableError("connection", "login.example.com:443 refused the connection", "see that it runs")
TIMEOUT = UnavailableError("connection", "no answer within 10 s", "see that it runs")


class Bench:
    """A source with a fetch that the test ends."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.fetches: list[Deferred[KeySet]] = []
        self.source = FetchedKeys(ISSUER, self._fetch, self.clock)

    async def _fetch(self) -> KeySet:
        fetch: Deferred[KeySet] = Deferred()
        self.fetches.append(fetch)
        return await fetch

    def ask(self, renewed: bool = False) -> tuple[list[Any], Deferred[Any]]:
        """Ask for the keys; the list gets them, or the error."""
        result: list[Any] = []
        asked = Deferred.fromCoroutine(self.source.refreshed() if renewed else self.source.get())
        asked.addCallbacks(result.append, lambda failure: result.append(failure.value))
        return result, asked

    def with_keys(self) -> None:
        self.source.start()
        self.fetches.pop().callback(FIRST)
        assert self.source.cached() is FIRST


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_who_wait_share_one_fetch(bench: Bench) -> None:
    results = [bench.ask()[0] for _ in range(5)]
    assert len(bench.fetches) == 1
    assert bench.source.cached() is None
    bench.fetches[0].callback(FIRST)
    assert results == [[FIRST]] * 5
    assert bench.source.cached() is FIRST


def test_one_who_leaves_does_not_end_the_fetch_for_the_others(bench: Bench) -> None:
    gone, asked = bench.ask()
    stays, _ = bench.ask()
    asked.cancel()
    assert isinstance(gone[0], CancelledError)
    bench.fetches[0].callback(FIRST)
    assert stays == [FIRST]


def test_nobody_waits_for_an_issuer_that_was_waited_for_in_vain_a_moment_ago(bench: Bench) -> None:
    first, _ = bench.ask()
    bench.clock.advance(20)
    bench.fetches.pop().errback(TIMEOUT)
    bench.clock.advance(10)
    for renewed in (False, True):
        assert bench.ask(renewed)[0] == [TIMEOUT]
    assert (first, len(bench.fetches)) == ([TIMEOUT], 1)
    bench.fetches.pop().callback(FIRST)
    assert bench.ask()[0] == [FIRST]
    bench.clock.advance(1000)
    assert bench.ask()[0] == []  # it is well again, and waited for again


def test_known_keys_are_used_without_waiting_for_such_an_issuer(bench: Bench) -> None:
    bench.with_keys()
    bench.clock.advance(1000)
    waits, _ = bench.ask()
    bench.clock.advance(20)
    bench.fetches.pop().errback(TIMEOUT)
    bench.clock.advance(10)
    assert (waits, bench.ask()[0], len(bench.fetches)) == ([FIRST], [FIRST], 1)


def test_one_who_gets_the_keys_may_make_another_leave(bench: Bench) -> None:
    _, first = bench.ask()
    gone, second = bench.ask()
    third, _ = bench.ask()
    first.addCallback(lambda _: second.cancel())
    bench.fetches[0].callback(FIRST)
    assert isinstance(gone[0], CancelledError)
    assert third == [FIRST]


def test_before_the_first_keys_an_issuer_that_is_down_is_trouble(bench: Bench, logged: Logged) -> None:
    result, _ = bench.ask()
    bench.fetches[0].errback(DOWN)
    assert result == [DOWN]
    assert bench.ask()[0] == [DOWN]
    assert len(bench.fetches) == 1  # tried a moment ago
    bench.clock.advance(10)
    result, _ = bench.ask()
    bench.fetches[1].callback(FIRST)
    assert result == [FIRST]
    assert [event["log_level"].name for event in logged] == ["warn", "info"]
    assert logged[0]["todo"] == "see that it runs"
    assert "503" in logged.texts("warn")[0]


def test_keys_are_renewed_beside_the_requests_when_they_are_no_longer_fresh(bench: Bench) -> None:
    bench.with_keys()
    bench.clock.advance(299)
    assert bench.source.cached() is FIRST
    assert bench.fetches == []
    bench.clock.advance(1)
    assert bench.source.cached() is FIRST
    assert bench.source.cached() is FIRST
    assert len(bench.fetches) == 1
    bench.fetches[0].callback(SECOND)
    assert bench.source.cached() is SECOND


def test_old_keys_are_not_used_before_another_look(bench: Bench) -> None:
    """A key that the issuer took back days ago must not be good once more because nobody came in between."""
    bench.with_keys()
    bench.clock.advance(900)
    assert bench.source.cached() is None
    result, _ = bench.ask()
    assert result == []
    bench.fetches[0].callback(SECOND)
    assert result == [SECOND]
    assert len(bench.fetches) == 1


def test_the_last_known_keys_stay_in_use_while_the_issuer_is_down(bench: Bench, logged: Logged) -> None:
    bench.with_keys()
    bench.clock.advance(100_000)
    result, _ = bench.ask()
    bench.fetches[0].errback(DOWN)
    assert result == [FIRST]
    assert bench.source.cached() is FIRST
    for _ in range(5):
        bench.clock.advance(10)
        result, _ = bench.ask()
        bench.fetches[-1].errback(DOWN)
        assert result == [FIRST]
    assert len(logged.texts("warn")) == 1
    assert "last known keys" in logged.texts("warn")[0]


def test_a_key_that_is_not_known_has_them_fetched_but_not_more_often_than_every_ten_seconds(bench: Bench) -> None:
    bench.with_keys()
    assert bench.ask(renewed=True)[0] == [FIRST]  # fetched a moment ago
    bench.clock.advance(10)
    results = [bench.ask(renewed=True)[0] for _ in range(3)]
    assert len(bench.fetches) == 1
    bench.fetches[0].callback(SECOND)
    assert results == [[SECOND]] * 3
    assert bench.ask(renewed=True)[0] == [SECOND]
    assert len(bench.fetches) == 1


def test_a_key_that_is_not_known_cannot_be_judged_while_the_issuer_is_down(bench: Bench) -> None:
    bench.with_keys()
    bench.clock.advance(10)
    result, _ = bench.ask(renewed=True)
    bench.fetches[0].errback(DOWN)
    assert result == [DOWN]
    assert bench.ask(renewed=True)[0] == [DOWN]
    assert bench.source.cached() is FIRST


def test_a_fetch_that_breaks_in_an_unforeseen_way_is_trouble_too(bench: Bench, logged: Logged) -> None:
    result, _ = bench.ask()
    bench.fetches[0].errback(RuntimeError("a bug"))
    assert isinstance(result[0], UnavailableError)
    assert len(logged.texts("critical")) == 1


def test_stop_ends_the_fetch_and_tells_who_waits(bench: Bench, logged: Logged) -> None:
    result, _ = bench.ask()
    bench.source.stop()
    bench.source.stop()
    assert isinstance(result[0], UnavailableError)
    assert bench.fetches[0].called
    assert logged == []


def test_keys_of_a_file_are_there_and_stay(logged: Logged) -> None:
    source = FileKeys(model.JWKSFile("/etc/jwks.json", jwks(ec_jwk())), ISSUER)
    source.start()
    keys = source.cached()
    assert keys is not None
    assert len(keys) == 1
    assert logged == []


def test_a_file_without_a_key_that_can_be_used_is_said_once(logged: Logged) -> None:
    source = FileKeys(model.JWKSFile("/etc/jwks.json", b"{}"), ISSUER)
    keys = source.cached()
    assert keys is not None
    assert len(keys) == 0
    assert "/etc/jwks.json" in logged.texts("warn")[0]
