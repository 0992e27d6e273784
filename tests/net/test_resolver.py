"""Names: never in the reactor's thread, one look-up for all who wait, and the last known addresses if it fails."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.net.connect import connect
from mcproxy.net.connect_errors import ConnectTimeout, DNSError
from mcproxy.net.reactor import LeanEpollReactor
from mcproxy.net.resolver import FRESH, MAX_NAMES, MAX_THREADS, PATIENCE, Resolver, start_thread, system_look_up
from tests.net.peers import Recorder
from tests.support.clock import Clock
from tests.support.logged import captured_logs


class Reactor(Clock):
    """A clock whose threads are run by the test, one after the other."""

    def callFromThread(self, function: Callable[..., object], *arguments: object) -> None:
        function(*arguments)


class Names:
    """A name server, and the resolver that asks it."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.table: dict[str, Sequence[str] | Exception] = {}
        self.asked: list[str] = []
        self.threads: list[Callable[[], None]] = []
        self.resolver = Resolver(self.reactor, self._look_up, self.threads.append)

    def _look_up(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        found = self.table.get(host, ())
        if isinstance(found, Exception):
            raise found
        return found

    def answer(self) -> None:
        """Let the look-ups that run come to their end."""
        threads, self.threads[:] = list(self.threads), []
        for work in threads:
            work()

    def ask(self, host: str = "api.test") -> list[Any]:
        """Ask; the list gets the addresses, or the error."""
        result: list[Any] = []
        asked = Deferred.fromCoroutine(self.resolver.addresses(host))
        asked.addCallbacks(result.append, lambda failure: result.append(failure.value))
        return result

    def known(self, *addresses: str) -> None:
        self.table["api.test"] = addresses
        self.ask()
        self.answer()
        self.reactor.advance(FRESH)


@pytest.fixture
def names() -> Names:
    return Names()


def test_all_who_wait_share_one_look_up(names: Names) -> None:
    names.table["api.test"] = ("192.0.2.1", "2001:db8::1")
    results = [names.ask() for _ in range(5)]
    assert results == [[]] * 5
    names.answer()
    assert results == [[("192.0.2.1", "2001:db8::1")]] * 5
    assert names.asked == ["api.test"]


def test_an_answer_is_used_for_a_while_and_then_the_name_may_have_moved(names: Names) -> None:
    names.known("192.0.2.1")
    names.table["api.test"] = ("192.0.2.2",)
    moved = names.ask()
    names.answer()
    assert moved == [("192.0.2.2",)]
    names.reactor.advance(FRESH - 0.1)
    assert names.ask() == [("192.0.2.2",)]
    assert len(names.asked) == 2


@pytest.mark.parametrize(
    "failure", [socket.gaierror(-3, "Temporary failure in name resolution"), (), OSError("dead"), ValueError("odd")]
)
def test_the_last_known_addresses_stay_in_use_while_it_fails(names: Names, failure: Any) -> None:
    names.known("192.0.2.1")
    names.table["api.test"] = failure
    with captured_logs() as logged:
        for _ in range(4):
            asked = names.ask()
            names.answer()
            assert asked == [("192.0.2.1",)]
            names.reactor.advance(3600)
        names.known("192.0.2.9")
    assert [event["event"] for event in logged] == ["name_not_resolved", "name_resolved"]
    assert logged[0]["addresses"] == "192.0.2.1"
    assert logged[0]["cause"]


def test_addresses_of_a_name_that_is_no_more_are_not_used(names: Names) -> None:
    names.known("192.0.2.1")
    names.table["api.test"] = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    asked = names.ask()
    names.answer()
    (error,) = asked
    assert str(error) == "Name or service not known"


def test_a_slow_one_holds_up_only_who_knows_nothing(names: Names) -> None:
    names.known("192.0.2.1")
    asked, stranger = names.ask(), names.ask("other.test")
    names.reactor.advance(PATIENCE - 0.01)
    assert not asked
    names.reactor.advance(0.02)
    assert asked == [("192.0.2.1",)]
    assert names.ask() == []
    names.reactor.advance(60)
    assert stranger == []
    assert len(names.threads) == 2, "a look-up that runs is not begun again"


def test_a_name_that_never_had_an_address_says_why(names: Names) -> None:
    names.table["api.test"] = socket.gaierror(-2, "Name or service not known")
    with captured_logs() as logged:
        asked = names.ask()
        names.answer()
    assert str(asked[0]) == "Name or service not known"
    assert not logged, "who wanted to connect says it"
    names.table["api.test"] = ("192.0.2.1",)
    again = names.ask()
    names.answer()
    assert again == [("192.0.2.1",)]


def test_threads_and_names_are_bounded(names: Names) -> None:
    results = [names.ask(f"n{number}.test") for number in range(MAX_THREADS + 5)]
    assert len(names.threads) == MAX_THREADS
    names.answer()
    assert len(names.threads) == 5
    names.answer()
    assert all(len(result) == 1 for result in results)
    for number in range(MAX_NAMES + 10):
        names.ask(f"m{number}.test")
        names.answer()
    assert len(names.resolver._names) == MAX_NAMES


def test_without_a_thread_it_is_a_failure(names: Names) -> None:
    def none(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    resolver = Resolver(names.reactor, lambda _: (), none)
    result: list[Any] = []
    Deferred.fromCoroutine(resolver.addresses("a")).addErrback(lambda failure: result.append(failure.value))
    assert isinstance(result[0], OSError)


def test_the_system_is_asked() -> None:
    assert "127.0.0.1" in system_look_up("localhost")
    for wrong in ("no-such-name.invalid", "a..b", "x" * 300, "ä" * 100):
        with pytest.raises(OSError, match=r"."):
            system_look_up(wrong)


def test_the_daemons_reactor_has_it_and_is_never_blocked() -> None:
    """A name server that is dead: getaddrinfo stands still in its thread, timers and the process's end do not."""
    reactor = LeanEpollReactor()
    assert isinstance(reactor.nameResolver, Resolver)
    released = threading.Event()

    def dead(host: str) -> Sequence[str]:
        released.wait(30)
        return ()

    reactor.installNameResolver(Resolver(reactor, dead, start_thread))
    problems: list[Any] = []
    twisted: Any = reactor
    asked = connect(twisted, "api.test", 1, Recorder(), tls=None, timeout=0.1)
    asked.addErrback(lambda failure: problems.append(failure.value)).addBoth(lambda _: reactor.stop())
    begun = time.monotonic()
    reactor.run(installSignalHandlers=False)
    assert time.monotonic() - begun < 25
    assert isinstance(problems[0], ConnectTimeout)
    assert "resolving its name" in problems[0].cause
    released.set()


def test_a_connection_says_what_the_name_server_says() -> None:
    names = Names()
    names.table["api.test"] = socket.gaierror(-2, "Name or service not known")
    names.reactor.nameResolver = names.resolver  # type: ignore[attr-defined]
    problems: list[Any] = []
    asked = connect(names.reactor, "api.test", 1, Recorder(), tls=None, timeout=60)  # type: ignore[arg-type]
    asked.addErrback(lambda failure: problems.append(failure.value))
    names.answer()
    assert isinstance(problems[0], DNSError)
    assert problems[0].cause == "the name api.test has no address: Name or service not known"
