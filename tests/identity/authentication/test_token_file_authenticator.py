"""Tokens that stand in a file."""

from __future__ import annotations

import pytest

from mcproxy.config.model import Secret, StaticToken, TokenFileConfig
from mcproxy.identity.authentication.token_authenticator import Accepted, Refused, TokenAuthenticator
from mcproxy.identity.authentication.token_file_authenticator import TokenFileAuthenticator
from mcproxy.kube.user import UserInfo

LINES = (
    StaticToken(Secret("one"), "alice", "u-1", ("dev", "ops", "dev")),
    StaticToken(Secret("two"), "bob"),
    StaticToken(Secret("zwölf"), "dora"),
)


def authenticator(*lines: StaticToken) -> TokenFileAuthenticator:
    return TokenFileAuthenticator(TokenFileConfig("/etc/mcproxy/users.csv", lines or LINES), b"k" * 32)


@pytest.mark.parametrize(
    ("token", "user"),
    [
        (b"one", UserInfo("alice", ("dev", "ops"), "u-1")),
        (b"two", UserInfo("bob")),
        ("zwölf".encode(), UserInfo("dora")),
    ],
)
def test_a_token_of_the_file_is_its_users(token: bytes, user: UserInfo) -> None:
    assert authenticator().authenticate(token) == Accepted(user)


@pytest.mark.parametrize("token", [b"", b"on", b"onee", b"One", b"one ", b"\xff", b"x" * 100_000])
def test_any_other_is_refused_but_may_be_anothers(token: bytes) -> None:
    result = authenticator().authenticate(token)
    assert isinstance(result, Refused)
    assert not result.own


def test_the_last_of_two_lines_with_one_token_counts() -> None:
    tokens = authenticator(StaticToken(Secret("t"), "alice"), StaticToken(Secret("t"), "bob"))
    assert tokens.authenticate(b"t") == Accepted(UserInfo("bob"))


def test_it_is_a_judge_of_tokens_that_never_has_to_ask() -> None:
    tokens: TokenAuthenticator = authenticator()
    assert tokens.authenticate(b"two") == Accepted(UserInfo("bob"))
    assert tokens.name == "tokenFile /etc/mcproxy/users.csv"
    assert tokens.cluster == ""
    tokens.stop(())


def test_no_token_is_kept() -> None:
    tokens = authenticator(StaticToken(Secret("very-secret"), "alice"))
    assert "very-secret" not in repr(vars(tokens))
