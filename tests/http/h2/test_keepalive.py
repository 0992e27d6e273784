"""PING of a silent peer."""

from __future__ import annotations

from mcproxy.http.h2.keepalive import ALIVE, DEAD, PING_DUE, KeepAlive


def test_a_peer_that_sends_is_not_asked() -> None:
    keepalive = KeepAlive()
    assert keepalive.check(20.0, 0.0) == (ALIVE, 30.0)
    assert keepalive.check(30.0, 10.0) == (ALIVE, 40.0)


def test_a_silent_peer_is_asked_once_and_then_dead() -> None:
    keepalive = KeepAlive()
    assert keepalive.check(30.0, 0.0) == (PING_DUE, 45.0)
    assert keepalive.check(40.0, 0.0) == (ALIVE, 45.0)
    assert keepalive.check(45.0, 0.0) == (DEAD, 45.0)


def test_whatever_it_sends_is_an_answer() -> None:
    keepalive = KeepAlive()
    assert keepalive.check(30.0, 0.0)[0] == PING_DUE
    assert keepalive.check(45.0, 31.0) == (ALIVE, 61.0)
    assert keepalive.check(61.0, 31.0) == (PING_DUE, 76.0)
