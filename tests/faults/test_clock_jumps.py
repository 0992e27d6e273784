"""The time of day jumps, both ways: durations go on, and what depends on the date follows it."""

from __future__ import annotations

import ctypes
import errno
import re
import time
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

import mcproxy
from mcproxy.config import model
from mcproxy.dispatch.tables import mutexes
from mcproxy.http.deadlines import Deadlines
from mcproxy.identity.authentication.authenticator import Authenticator
from mcproxy.identity.authentication.oidc.oidc_authenticator import OIDCAuthenticator
from mcproxy.identity.authentication.token_authenticator import Accepted, Refused
from mcproxy.identity.authentication.x509.peer import TLSPeer
from mcproxy.identity.client_identity_headers import IdentityHeaders
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.net.reactor import LeanEpollReactor
from mcproxy.net.wall_time import wall_seconds
from mcproxy.requests.coroutines import known
from tests.identity.certificates import DAY, NOW, authority
from tests.identity.fake_token_authenticators import ALICE, FakeAuthenticator, union_of
from tests.identity.issuer import claims, config, token
from tests.support.clock import DATE, Clock
from tests.upstream.fakes import make_upstream_context
from tests.upstream.test_exec_plugin import Bench

YEAR = 365 * 86400.0
JUMPS = pytest.mark.parametrize("jump", [-YEAR, -1.0, 1.0, YEAR])


@JUMPS
def test_the_reactors_timers_do_not_follow_the_time_of_day(jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    reactor = LeanEpollReactor()
    fired: list[str] = []
    reactor.callLater(0.0, fired.append, "due")
    reactor.callLater(3600.0, fired.append, "later")
    before, real = reactor.seconds(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    reactor.runUntilCurrent()
    assert fired == ["due"]
    assert 0 <= reactor.seconds() - before < 60
    timeout = reactor.timeout()
    assert timeout is not None
    assert 3500 < timeout <= 3600
    reactor._poller.close()


def test_the_reactor_has_the_time_of_day_too() -> None:
    reactor = LeanEpollReactor()
    assert abs(wall_seconds(reactor) - time.time()) < 60
    assert wall_seconds(reactor) - reactor.seconds() > YEAR
    reactor._poller.close()


@JUMPS
def test_timeouts_last_as_long_as_before(jump: float) -> None:
    clock = Clock()
    deadlines = Deadlines(clock)
    expired: list[float] = []

    class Item:
        deadline = deadlines.after(10)

        def expired(self) -> None:
            expired.append(clock.seconds())

    deadlines.add(Item())
    clock.jumped = jump
    clock.pump([0.25] * 39)
    assert not expired
    clock.pump([0.25] * 2)
    assert expired


class TestTokens:
    def authenticator(self, clock: Clock) -> OIDCAuthenticator:
        return OIDCAuthenticator((config(),), make_upstream_context(clock))

    def test_an_id_token_expires_by_the_date(self) -> None:
        clock = Clock()
        authenticator = self.authenticator(clock)
        good = token(claims())
        assert isinstance(known(authenticator.authenticate(good)), Accepted)
        clock.jumped = 700
        refused = known(authenticator.authenticate(good))
        assert isinstance(refused, Refused)
        assert "expired" in refused.cause

    def test_one_of_a_future_date_is_good_once_the_clock_is_set(self) -> None:
        clock = Clock()
        clock.jumped = -YEAR  # as on a machine without a battery, before NTP
        authenticator = self.authenticator(clock)
        early = token(claims(nbf=clock.wall_seconds() + YEAR - 60))
        assert isinstance(known(authenticator.authenticate(early)), Refused)
        clock.jumped = 0
        assert isinstance(known(authenticator.authenticate(early)), Accepted)

    def test_a_cached_one_ends_with_a_jump_over_its_expiry(self) -> None:
        clock = Clock()
        expires = clock.wall_seconds() + 600
        source = FakeAuthenticator(lambda _: Accepted(UserInfo("alice"), expires), times=(3600.0, 10.0))
        union = union_of(source, clock=clock)
        for _ in range(2):
            known(union.authenticate(b"token"))
        assert source.asked == 1
        clock.jumped = 601
        known(union.authenticate(b"token"))
        assert source.asked == 2, "an expired token was taken from the cache"

    @JUMPS
    def test_a_reviewed_one_is_cached_for_its_time(self, jump: float) -> None:
        clock = Clock()
        source = FakeAuthenticator(ALICE)
        union = union_of(source, clock=clock)
        known(union.authenticate(b"token"))
        clock.jumped = jump
        clock.advance(119)
        known(union.authenticate(b"token"))
        assert source.asked == 1
        clock.advance(2)
        known(union.authenticate(b"token"))
        assert source.asked == 2


class TestCertificates:
    def test_a_client_certificate_is_valid_by_the_date(self) -> None:
        clock = Clock()
        clock.jumped = NOW - DATE
        ca = authority()
        config = model.Authentication(name="corp", client_ca=model.PEMFile("ca.crt", ca.pem))
        authenticator = Authenticator.build(config, tokens=None, clock=clock)
        peer = TLSPeer(ca.client("alice").certificate, ())
        headers = IdentityHeaders(b"")
        assert known(authenticator.authenticate(peer, headers, b"/api")) is not None
        for days in (400, -2):  # it is good from one day before NOW to 365 days after
            clock.jumped = NOW - DATE + days * DAY.total_seconds()
            with pytest.raises(StatusError) as caught:
                known(authenticator.authenticate(peer, headers, b"/api"))
            assert caught.value.code == 401
        clock.jumped = NOW - DATE
        assert known(authenticator.authenticate(peer, headers, b"/api")) is not None


class TestExecPlugins:
    def test_a_credential_expires_by_the_date_and_is_renewed(self) -> None:
        bench = Bench()
        bench.start("first", life=600)
        bench.clock.jumped = 601
        assert not bench.source.is_ready
        waiting = bench.wait()
        bench.clock.advance(6)  # runs are apart
        waiting = bench.wait()
        bench.give(600, token="second")
        assert waiting.called

    @JUMPS
    def test_the_pause_after_a_failure_lasts_its_seconds(self, jump: float) -> None:
        bench = Bench()
        failed = bench.wait()
        failed.addErrback(lambda _: None)
        bench.runner.runs[-1].errback(ZeroDivisionError())
        bench.clock.jumped = jump
        Deferred.fromCoroutine(bench.source.ready()).addErrback(lambda _: None)
        assert bench.runs == 1
        bench.clock.advance(6)
        Deferred.fromCoroutine(bench.source.ready()).addErrback(lambda _: None)
        assert bench.runs == 2


@pytest.mark.parametrize("has_clock_lock", [True, False])
def test_waiting_for_a_mutex_ends_by_the_monotonic_clock(has_clock_lock: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pthread_mutex_timedlock`, which waits by the time of day, is not used."""
    library: Any = ctypes.PyDLL(None)

    class Without:
        pthread_mutex_trylock = library.pthread_mutex_trylock

    made = mutexes._timed_lock(library if has_clock_lock else Without())
    mutex = ctypes.create_string_buffer(64)
    pointer = ctypes.c_void_p(ctypes.addressof(mutex))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert made(pointer, 0.05) == 0
    began = time.monotonic()
    assert made(pointer, 0.05) == errno.ETIMEDOUT
    assert 0.04 < time.monotonic() - began < 60
    library.pthread_mutex_unlock(pointer)
    assert made(pointer, 0.05) == 0


DATES = {
    "config/load.py": "validity of certificates at the check",
    "daemon/lazy_parts.py": "ages of saved decisions, which outlive the process",
    "daemon/log_lines.py": "the time of a log line, as the terminal's user has it",
    "daemon/daemon_log.py": "the time of a log line",
    "daemon/main.py": "the time of a line before there is a log",
    "net/reactor.py": "the source of wall_seconds",
    "net/tls_contexts.py": "validity of another path from a server's certificate to an authority",
}
_ASKED = re.compile(r"\btime\.(?:time|time_ns|localtime)\b|\bdatetime\.(?:now|utcnow|today)\b|^from time import", re.M)


def test_the_date_is_asked_for_only_where_it_is_meant() -> None:
    """Everything else measures durations: by the reactor, or by time.monotonic. A new use of the date is named here.

    Commands and simulated clusters are no daemons.
    """
    root = Path(mcproxy.__file__).parent
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if _ASKED.search(path.read_text())}
    assert {name for name in found if not name.startswith(("cli/", "demo/"))} == set(DATES)
