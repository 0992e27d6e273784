"""Memory is measured in a process of its own, which fills the tables that the daemon has."""

from __future__ import annotations

import os

import pytest

from bench.fill import adds_tokens, adds_users
from bench.memory import grown_by
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser


def test_each_token_is_another_callers_and_is_known_from_then_on() -> None:
    add = adds_tokens()
    first, second = add(1), add(2)
    assert isinstance(first, AuthenticatedUser)
    assert isinstance(second, AuthenticatedUser)
    assert first.user != second.user
    assert add(1) is first


def test_each_user_has_a_bucket_of_his_own() -> None:
    add = adds_users()
    for _ in range(10):
        add(1)
    with pytest.raises(Exception, match="too many requests"):
        add(1)
    add(2)


def test_a_process_tells_by_how_much_it_grew() -> None:
    core = min(os.sched_getaffinity(0))
    assert 500_000 < grown_by("tokens", 1000, core) < 20_000_000
