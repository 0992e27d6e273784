"""Authentication of ID tokens: their users, the causes of refusals, and when keys are fetched."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.oidc_authenticator import OIDCAuthenticator
from mcproxy.identity.authentication.token_authenticator import Accepted, Refused, TokenResult, Unavailable
from mcproxy.net.connect_errors import ConnectionRefused
from mcproxy.requests.coroutines import known
from tests.identity.issuer import (
    ISSUER,
    NOW,
    b64,
    claims,
    config,
    ec_jwk,
    jwks,
    rsa_jwk,
    rsa_key,
    token,
    unsigned,
    with_signature,
)
from tests.support.clock import Clock
from tests.upstream.fakes import FakeConnector, make_upstream_context, real_pools

OTHER = "https://other.example.com"


async def answer(authenticator: OIDCAuthenticator, raw: bytes) -> TokenResult:
    found = authenticator.authenticate(raw)
    return await found if isinstance(found, Coroutine) else found


class Bench:
    """A authenticator on a network where nothing answers unless the test says so."""

    def __init__(self, *configs: model.OIDC) -> None:
        self.clock = Clock()
        self.network = FakeConnector(self.clock)
        self.shared = make_upstream_context(self.clock, connect=self.network, pool_factory=real_pools(self.clock))
        self.authenticator = OIDCAuthenticator(configs or (config(),), self.shared)

    def ask(self, raw: bytes) -> TokenResult:
        """FakeAuthenticator a token without any wait."""
        result: list[TokenResult] = []
        Deferred.fromCoroutine(answer(self.authenticator, raw)).addCallback(result.append)
        assert len(result) == 1, "it waits"
        return result[0]


def test_a_good_token_is_known_at_once() -> None:
    bench = Bench(config(username_prefix="oidc:", groups_claim="groups"))
    result = known(bench.authenticator.authenticate(token(claims(groups=["dev"], jti="1"))))
    assert isinstance(result, Accepted)
    assert (result.user.name, result.user.groups, result.until) == ("oidc:alice", ("dev",), NOW + 600)
    assert bench.ask(token(claims(groups=["dev"], jti="1"))) == result


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        (token(claims(aud="web")), "another audience"),
        (token(claims(exp=NOW - 60)), "expired"),
        (token(claims(exp=NOW - 1)), "expired"),
        (token(claims(_claim_names={"groups": "s"})), "could not expand distributed claims"),
        (token(claims(nbf=NOW + 61)), "future"),
        (token(claims(exp=None)), "no exp"),
        (token(key=rsa_key("stranger")), "signature is wrong"),
        (with_signature(unsigned(claims(), alg="none"), b""), "no algorithm"),
        (with_signature(unsigned(claims(), alg="HS256"), b"x"), "no algorithm"),
        (token(claims(sub="")), "no user name"),
    ],
)
def test_a_bad_token_of_the_issuer_is_refused_as_its_own(raw: bytes, cause: str) -> None:
    bench = Bench()
    result = known(bench.authenticator.authenticate(raw))
    assert isinstance(result, Refused)
    assert result.own
    assert cause in result.cause
    assert ISSUER in result.cause
    assert bench.ask(raw) == result
    assert bench.network.attempts == []


def test_the_cause_shows_issuer_and_key_and_no_other_claim() -> None:
    raw = token(claims(sub="alice-the-secret", aud="web", jti="secret-id"), kid="k\n" + "x" * 300)
    result = known(Bench().authenticator.authenticate(raw))
    assert isinstance(result, Refused)
    assert "k\\nxxx" in result.cause
    assert len(result.cause) < 300
    assert "secret" not in result.cause
    assert raw.decode() not in result.cause


@pytest.mark.parametrize("issuer", [OTHER, ISSUER + "/", None, 7, [ISSUER], {}])
def test_a_token_of_nobody_in_the_file_is_refused_without_a_look_at_it(issuer: Any) -> None:
    bench = Bench(config(jwks=None))
    for raw in (token(claims(iss=issuer)), with_signature(unsigned(claims(iss=issuer), alg="none"), b"")):
        assert known(bench.authenticator.authenticate(raw)) == Refused("it is of no issuer in the file")
        assert bench.ask(raw) == Refused("it is of no issuer in the file")
    assert bench.network.attempts == []


@pytest.mark.parametrize("raw", [b"", b"opaque", b"a.b.c", b"\xff" * 100, b"x" * 1_000_000])
def test_what_is_no_jwt_is_not_for_this_judge(raw: bytes) -> None:
    result = known(Bench().authenticator.authenticate(raw))
    assert isinstance(result, Refused)
    assert not result.own


def test_each_issuer_has_its_own_keys_and_rules() -> None:
    other = config(issuer=OTHER, jwks=model.JWKSFile("o", jwks(rsa_jwk("two", kid="one"))), username_prefix="other:")
    bench = Bench(config(), other)
    good = known(bench.authenticator.authenticate(token(claims(iss=OTHER), key=rsa_key("two"))))
    assert isinstance(good, Accepted)
    assert good.user.name == "other:alice"
    assert isinstance(known(bench.authenticator.authenticate(token(claims(iss=OTHER)))), Refused)
    assert isinstance(known(bench.authenticator.authenticate(token(claims(), key=rsa_key("two")))), Refused)


def test_a_key_file_is_enough_and_nothing_is_ever_fetched() -> None:
    bench = Bench()
    bench.authenticator.start()
    assert isinstance(bench.ask(token(kid="gone")), Refused)
    assert isinstance(bench.ask(token()), Accepted)
    bench.clock.advance(500)
    assert isinstance(bench.ask(token()), Accepted)
    assert bench.network.attempts == []


def test_without_keys_the_judge_cannot_tell_but_an_expired_token_is_refused_all_the_same() -> None:
    bench = Bench(config(jwks=None))
    assert known(bench.authenticator.authenticate(token())) is None
    assert isinstance(known(bench.authenticator.authenticate(token(claims(exp=NOW - 60)))), Refused)
    assert isinstance(bench.ask(token(claims(exp=NOW - 60))), Refused)
    assert isinstance(bench.ask(with_signature(unsigned(claims(), alg="none"), b"")), Refused)
    assert bench.network.attempts == []
    waiting: list[TokenResult] = []
    Deferred.fromCoroutine(answer(bench.authenticator, token())).addCallback(waiting.append)
    bench.network.attempts[0].done.errback(ConnectionRefused("login.example.com:443 refused the connection"))
    assert waiting == [Unavailable("login.example.com:443 refused the connection")]
    assert len(bench.network.attempts) == 1


def test_keys_are_fetched_before_the_first_token_if_asked_to_start() -> None:
    bench = Bench(config(jwks=None))
    bench.authenticator.start()
    (attempt,) = bench.network.attempts
    assert (attempt.host, attempt.port) == ("login.example.com", 443)
    assert attempt.tls is not None
    assert attempt.tls.verify


def test_a_reload_keeps_the_keys_of_issuers_that_stay() -> None:
    bench = Bench(config(jwks=None, jwks_url="https://keys.example.com/set"), config(issuer=OTHER, jwks=None))
    bench.authenticator.start()
    attempt = bench.network.attempts[0]
    attempt.answer(200, jwks(ec_jwk(), rsa_jwk()))
    assert isinstance(known(bench.authenticator.authenticate(token())), Accepted)
    changed = config(jwks=None, jwks_url="https://keys.example.com/set", username_prefix="new:")
    successor = OIDCAuthenticator((changed,), bench.shared, [bench.authenticator])
    result = known(successor.authenticate(token()))
    assert isinstance(result, Accepted)
    assert result.user.name == "new:alice"
    elsewhere = config(jwks=None, jwks_url="https://other-keys.example.com/set")
    assert known(OIDCAuthenticator((elsewhere,), bench.shared, [bench.authenticator]).authenticate(token())) is None


def test_stop_ends_the_fetches_that_no_successor_goes_on_with() -> None:
    bench = Bench(config(jwks=None), config(issuer=OTHER, jwks=None))
    bench.authenticator.start()
    successor = OIDCAuthenticator((config(jwks=None),), bench.shared, [bench.authenticator])
    bench.authenticator.stop([successor])
    assert [attempt.cancelled for attempt in bench.network.attempts] == [False, True]
    successor.stop([])
    assert [attempt.cancelled for attempt in bench.network.attempts] == [True, True]


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
odd_claims = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("aud", "exp", "nbf", "iat", "sub", "groups", "jti", "iss"), json_values)
)


@settings(max_examples=100, deadline=None)
@given(odd_claims)
def test_signed_claims_of_any_kind_raise_nothing(odd: dict[str, Any]) -> None:
    bench = Bench(config(groups_claim="groups"))
    result = known(bench.authenticator.authenticate(token({**claims(), **odd}, alg="RS256")))
    assert isinstance(result, Accepted | Refused)
    if isinstance(result, Accepted):
        assert result.user.name


@settings(max_examples=200)
@given(st.binary(max_size=60), st.binary(max_size=100), st.binary(max_size=80))
def test_parts_of_any_kind_raise_nothing(header: bytes, payload: bytes, signature: bytes) -> None:
    raw = ".".join(b64(part) for part in (header, payload, signature)).encode()
    assert isinstance(known(Bench().authenticator.authenticate(raw)), Refused)
