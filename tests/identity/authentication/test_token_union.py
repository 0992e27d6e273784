"""The union of token authenticators: order, caches and their times, one review at a time, system names, reloads."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError

from mcproxy.config import model
from mcproxy.identity.authentication import token_union
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser, authenticated
from mcproxy.identity.authentication.token_authenticator import Accepted
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import known, settled
from mcproxy.upstream.cluster import Cluster
from tests.identity.conftest import Logged
from tests.identity.fake_token_authenticators import (
    ALICE,
    DOWN,
    MINE,
    NOT_MINE,
    FakeAuthenticator,
    ask,
    remote,
    union_of,
)
from tests.identity.issuer import config as oidc_config
from tests.identity.issuer import token as id_token
from tests.support.clock import Clock
from tests.support.logged import names
from tests.upstream.fakes import cluster_config, endpoint_config, make_upstream_context

GOLDEN = Path(__file__).parents[2] / "golden" / "errors"
CALLER = AuthenticatedUser(UserInfo("alice", ("dev", "system:authenticated")))


def refusal(union: UnionTokenAuthenticator, token: bytes = b"token") -> int:
    """Return the code of the refusal; asks as a request does."""
    try:
        assert known(union.authenticate(token)) is None, "accepted"
    except StatusError as error:
        return error.code
    result, _ = ask(union, token)
    assert isinstance(result[0], StatusError), result
    return result[0].code


def named(name: str, *groups: str) -> Accepted:
    return Accepted(UserInfo(name, groups))


# order


def test_the_first_that_accepts_decides() -> None:
    authenticators = FakeAuthenticator(NOT_MINE), FakeAuthenticator(ALICE), FakeAuthenticator(named("bob"))
    assert known(union_of(*authenticators).authenticate(b"token")) == CALLER
    assert [authenticator.asked for authenticator in authenticators] == [1, 1, 0]


def test_a_judge_that_must_be_asked_is_waited_for_before_the_next() -> None:
    first, second = remote(), FakeAuthenticator(ALICE)
    union = union_of(first, second)
    assert known(union.authenticate(b"token")) is None
    result, _ = ask(union)
    assert (result, second.asked) == ([], 0)
    first.running[0].callback(named("first"))
    assert result[0].user.name == "first"
    assert second.asked == 0


def test_a_refusal_has_the_words_of_a_kube_apiserver() -> None:
    recorded = json.loads((GOLDEN / "401-bad-token-anonymous-off.json").read_text())["response"]
    with pytest.raises(StatusError) as caught:
        known(union_of(FakeAuthenticator(NOT_MINE)).authenticate(b"token"))
    assert (caught.value.code, caught.value.body().decode()) == (recorded["status"], recorded["body"])


def test_every_authenticated_user_is_in_the_common_group_once() -> None:
    union = union_of(FakeAuthenticator(lambda token: named("a", "x", "system:authenticated")), allow=True)
    caller = known(union.authenticate(b"token"))
    assert caller is not None
    assert caller.user.groups == ("x", "system:authenticated")


def test_an_empty_token_asks_nobody(logged: Logged) -> None:
    authenticator = remote(ALICE)
    assert refusal(union_of(authenticator), b"") == 401
    assert authenticator.asked == 0
    assert names(logged) == [("token_refused", "info", "it is empty")]


@pytest.mark.parametrize("size", [16 * 1024, 16 * 1024 + 1, 22_924, 100_000])
def test_a_token_may_be_as_long_as_a_head_lets_it(size: int) -> None:
    authenticator = FakeAuthenticator(ALICE)
    assert known(union_of(authenticator).authenticate(b"x" * size)) == CALLER


# what is kept


def test_acceptance_and_refusal_are_kept_for_times_of_their_own() -> None:
    clock = Clock()
    authenticator = FakeAuthenticator(lambda token: ALICE if token == b"good" else NOT_MINE, times=(120.0, 10.0))
    union = union_of(authenticator, clock=clock)

    def look() -> None:
        assert known(union.authenticate(b"good")) == CALLER
        assert refusal(union, b"bad") == 401

    look()
    clock.advance(9.9)
    look()
    assert authenticator.asked == 2
    clock.advance(0.1)
    look()
    assert authenticator.asked == 3
    clock.advance(109.9)
    look()
    assert authenticator.asked == 4
    clock.advance(0.1)
    known(union.authenticate(b"good"))
    assert authenticator.asked == 5


def test_a_revoked_token_stops_working_within_its_time_however_often_it_is_used() -> None:
    clock = Clock()
    authenticator = remote(ALICE, times=(120.0, 10.0))
    union = union_of(authenticator, clock=clock)
    assert ask(union)[0] == [CALLER]
    authenticator.answer = NOT_MINE
    for _ in range(119):
        clock.advance(1)
        assert known(union.authenticate(b"token")) == CALLER
    clock.advance(1)
    assert refusal(union) == 401


def test_acceptance_ends_with_the_token_itself() -> None:
    clock = Clock()
    authenticator = FakeAuthenticator(replace(ALICE, until=clock.wall_seconds() + 30))
    union = union_of(authenticator, clock=clock)
    known(union.authenticate(b"token"))
    clock.advance(29)
    known(union.authenticate(b"token"))
    assert authenticator.asked == 1
    clock.advance(1)
    authenticator.answer = MINE
    assert refusal(union) == 401


def test_each_judge_is_asked_again_when_its_own_refusal_is_over() -> None:
    clock = Clock()
    first, second = remote(NOT_MINE, times=(120, 10)), remote(NOT_MINE, times=(120, 30))
    union = union_of(first, second, clock=clock)
    for seconds, asked in [(0, (1, 1)), (9, (1, 1)), (1, (2, 1)), (10, (3, 1)), (10, (4, 2))]:
        clock.advance(seconds)
        assert refusal(union) == 401
        assert (first.asked, second.asked) == asked
    clock.advance(10)
    first.answer = ALICE
    assert ask(union)[0] == [CALLER]
    assert known(union.authenticate(b"token")) == CALLER


def test_times_of_zero_keep_nothing() -> None:
    authenticator = FakeAuthenticator(lambda token: ALICE if token == b"good" else NOT_MINE, times=(0.0, 0.0))
    union = union_of(authenticator)
    for _ in range(3):
        assert known(union.authenticate(b"good")) == CALLER
        assert refusal(union, b"bad") == 401
    assert authenticator.asked == 6


def test_made_up_tokens_drive_out_no_accepted_one() -> None:
    authenticator = FakeAuthenticator(lambda token: ALICE if token == b"good" else NOT_MINE)
    union = union_of(authenticator)
    known(union.authenticate(b"good"))
    for number in range(17_000):
        refusal(union, b"bad %d" % number)
    before = authenticator.asked
    assert known(union.authenticate(b"good")) == CALLER
    assert authenticator.asked == before


# authenticators that are down


@pytest.mark.parametrize(
    ("authenticators", "code"),
    [
        ((DOWN,), 503),
        ((NOT_MINE, DOWN), 503),
        ((DOWN, NOT_MINE), 503),
        ((MINE, DOWN), 401),
        ((DOWN, MINE), 401),
        ((NOT_MINE, MINE, DOWN), 401),
        ((NOT_MINE, NOT_MINE), 401),
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_a_token_that_only_a_judge_that_is_down_could_accept_is_503(
    authenticators: Any, code: int, local: bool
) -> None:
    union = union_of(*[FakeAuthenticator(answer, local=local) for answer in authenticators])
    for _ in range(3):
        assert refusal(union) == code


def test_another_judge_accepts_while_one_is_down() -> None:
    assert ask(union_of(remote(DOWN), remote(ALICE)))[0] == [CALLER]


def test_503_is_not_kept_and_says_when_to_come_back() -> None:
    authenticator = remote(DOWN)
    union = union_of(authenticator)
    result, _ = ask(union)
    assert result[0].code == 503
    assert (b"Retry-After", b"1") in result[0].headers
    assert "is down" not in result[0].message  # where the reviewer is, and why it is down, is nobody's business
    authenticator.answer = ALICE
    assert ask(union)[0] == [CALLER]


# one question at a time


def test_a_token_is_asked_about_once_however_many_wait() -> None:
    authenticator = remote()
    union = union_of(authenticator)
    results = [ask(union)[0] for _ in range(10)]
    ask(union, b"another")
    assert authenticator.asked == 2
    authenticator.running[0].callback(ALICE)
    assert results == [[CALLER]] * 10
    assert authenticator.asked == 2


def test_one_who_leaves_does_not_end_the_question() -> None:
    authenticator = remote()
    union = union_of(authenticator)
    (gone, asked), (stays, _) = ask(union), ask(union)
    asked.cancel()
    assert isinstance(gone[0], CancelledError)
    authenticator.running[0].callback(ALICE)
    assert stays == [CALLER]


def test_an_answer_that_nobody_waits_for_any_more_is_kept_all_the_same() -> None:
    authenticator = remote()
    union = union_of(authenticator)
    _, asked = ask(union)
    asked.cancel()
    authenticator.running[0].callback(ALICE)
    assert known(union.authenticate(b"token")) == CALLER


def test_one_who_leaves_before_the_refusal_fails_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a stranger would never wait behind others."""
    monkeypatch.setattr(token_union, "_PLACES", 1)
    authenticator = remote()
    union = union_of(authenticator)
    for number in range(5):
        _, asked = ask(union, b"bad %d" % number, "10.0.0.9")
        asked.cancel()
        authenticator.running[number].callback(NOT_MINE)
    ask(union, b"slow", "10.0.0.2")
    refused, _ = ask(union, b"bad", "10.0.0.9")
    good, _ = ask(union, b"good", "10.0.0.1")
    authenticator.running[5].callback(ALICE)
    authenticator.running[6].callback(ALICE)
    assert (good, refused) == ([CALLER], [])


def test_an_address_whose_token_was_accepted_waits_behind_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_union, "_PLACES", 1)
    monkeypatch.setattr(token_union, "_MAX_WAITING", 3)
    authenticator = remote()
    union = union_of(authenticator)
    ask(union, b"first", "10.0.0.1")
    authenticator.running[0].callback(ALICE)
    strangers = [ask(union, b"bad %d" % number, f"2001:db8:0:{number}::1")[0] for number in range(4)]
    good, _ = ask(union, b"good", "10.0.0.1")
    assert [result and result[0].code for result in strangers] == [[], [], [], 503]  # it made room
    authenticator.running[1].callback(NOT_MINE)
    authenticator.running[2].callback(ALICE)
    assert good == [CALLER]


def test_a_judge_that_never_answers_is_503_in_the_end(logged: Logged) -> None:
    clock = Clock()
    authenticator = remote()
    union = union_of(authenticator, clock=clock)
    results = [ask(union, token)[0] for token in (b"one", b"two")]
    clock.advance(29)
    assert results == [[], []]
    clock.advance(1)
    assert [result[0].code for result in results] == [503, 503]
    assert len(logged.texts("warn")) == 1
    authenticator.answer = ALICE
    assert ask(union)[0] == [CALLER]
    assert len(logged.texts("info")) == 1


def test_what_is_known_of_a_token_is_not_found_out_again_for_the_judge_that_must_be_asked() -> None:
    local, asked = FakeAuthenticator(MINE), remote(NOT_MINE)
    assert refusal(union_of(local, asked)) == 401
    assert (local.asked, asked.asked) == (1, 1)


def test_questions_under_way_and_those_who_wait_are_bounded() -> None:
    authenticator = remote()
    union = union_of(authenticator)
    waiting = [ask(union, b"%d" % number) for number in range(1024)]
    assert authenticator.asked == 64
    assert ask(union, b"one more")[0][0].code == 503
    authenticator.running[0].callback(ALICE)
    assert waiting[0][0] == [CALLER]
    assert authenticator.asked == 65


# names


@pytest.mark.parametrize("name", ["system:admin", "system:serviceaccount:demo:builder", "system:node:a", "system:"])
def test_a_system_user_is_refused_from_a_stranger_even_while_another_judge_is_down(name: str, logged: Logged) -> None:
    union = union_of(FakeAuthenticator(named(name, "dev")), remote(DOWN))
    assert refusal(union) == 401
    assert f"it names the user {name}, and allowSystemNames is off" in logged.texts("info")[0]


def test_a_system_group_from_a_stranger_is_dropped() -> None:
    caller = known(
        union_of(FakeAuthenticator(named("alice", "system:masters", "dev", "system:nodes"))).authenticate(b"token")
    )
    assert caller == CALLER


def test_system_names_are_believed_where_the_file_says_so() -> None:
    caller = known(
        union_of(FakeAuthenticator(named("system:admin", "system:masters")), allow=True).authenticate(b"token")
    )
    assert caller == AuthenticatedUser(UserInfo("system:admin", ("system:masters", "system:authenticated")))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("name", "group", "cluster"),
    [
        ("system:serviceaccount:demo:builder", "dev", "east"),
        ("system:node:a", "dev", "east"),
        ("system:admin", "dev", "east"),
        ("system:bootstrap:abcdef", "system:bootstrappers", "east"),
        ("alice", "system:masters", "east"),
        ("alice", "system:authenticated", ""),
        ("alice", "dev", ""),
    ],
)
def test_system_names_that_a_cluster_vouches_for_are_noted_as_its_own(
    name: str, group: str, cluster: str, share: bool
) -> None:
    user = named(name, group, "system:authenticated")
    found = known(union_of(FakeAuthenticator(user, cluster="east"), share=share).authenticate(b"t"))
    assert found == AuthenticatedUser(authenticated(user.user), cluster, share and bool(cluster))
    assert found.by_token


def test_a_service_account_by_another_authenticator_is_of_no_cluster() -> None:
    caller = known(union_of(FakeAuthenticator(named("system:serviceaccount:a:b")), allow=True).authenticate(b"t"))
    assert caller is not None
    assert caller.cluster == ""


# logs


def test_each_refusal_is_one_line_that_says_what_each_judge_said(logged: Logged) -> None:
    union = union_of(FakeAuthenticator(NOT_MINE, name="one"), remote(MINE, name="two"))
    for _ in range(2):
        assert refusal(union, b"s3cret-token") == 401
    assert names(logged)[-2:] == [("token_refused", "info", "one: not mine; two: expired")] * 2
    assert "s3cret" not in logged.everything()


async def test_a_refusal_names_the_client_by_which_the_log_limits_it(logged: Logged) -> None:
    union = union_of(FakeAuthenticator(NOT_MINE, name="one"))
    with pytest.raises(StatusError):
        await settled(union.authenticate(b"token", "10.0.0.9"))
    with pytest.raises(StatusError):
        known(union.authenticate(b"", "10.0.0.9"))
    assert [event["client"] for event in logged if event["log_level"].name == "info"] == ["10.0.0.9"] * 2


def test_no_token_is_kept_or_shown(logged: Logged) -> None:
    tokens = [id_token(), id_token(kid="gone"), b"opaque-s3cret-%d" % id(logged), b"carols"]
    union = Reload().to(token_file=token_file(), oidc=(oidc_config(),))
    before = [sys.getrefcount(token) for token in tokens]
    for number in (*range(4), *range(4)):
        with suppress(StatusError):
            known(union.authenticate(tokens[number]))
    assert [sys.getrefcount(token) for token in tokens] == before
    kept = [getattr(union, name) for name in dir(union) if not name.startswith("__")]  # a native object has no `vars`
    shown = logged.everything() + repr(union) + repr(kept)
    assert not any(part in shown for token in tokens for part in token.decode().split("."))


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_only_ever_refused(token: bytes) -> None:
    clock = Clock()
    shared = make_upstream_context(clock)
    config = model.Authentication(name="corp", oidc=(oidc_config(),))
    union = UnionTokenAuthenticator.build(config, cluster=None, live=None, shared=shared)
    assert union is not None
    assert refusal(union, token) == 401


def test_what_only_some_tokens_need_is_not_loaded_before_they_come() -> None:
    module = "mcproxy.identity.authentication.token_union"
    code = f"import sys, {module}; print({{'joserfc', 'twisted.web.client'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout == "set()\n"


# reloads


class Reload:
    """Builds unions as a daemon does, one configuration after the other."""

    def __init__(self) -> None:
        self.shared = make_upstream_context()
        self.union: UnionTokenAuthenticator | None = None
        self.cluster = cluster_config()

    def to(self, cluster: model.ClusterConfig | None = None, **fields: Any) -> UnionTokenAuthenticator:
        config = model.Authentication(name="corp", **fields)
        union = UnionTokenAuthenticator.build(
            config,
            cluster=cluster or self.cluster,
            live=_asked_by_nobody,
            shared=self.shared,
            previous=self.union,
        )
        assert union is not None
        if self.union is not None:
            self.union.stop(union)
        union.start()
        self.union = union
        return union


def _asked_by_nobody() -> Cluster:
    raise AssertionError("no token here goes to a cluster")


def token_file(user: str = "carol") -> model.TokenFileConfig:
    return model.TokenFileConfig("/etc/users.csv", (model.StaticToken(model.Secret("carols"), user),))


def test_a_set_without_token_authenticators_has_no_union() -> None:
    config = model.Authentication(name="corp", anonymous=model.Anonymous(enabled=True))
    assert UnionTokenAuthenticator.build(config, cluster=None, live=None, shared=make_upstream_context()) is None


def test_the_judges_are_asked_in_their_order() -> None:
    """A file and an issuer that know the same token: the file is asked first; clusters and webhooks come after."""
    raw = id_token().decode()
    file = model.TokenFileConfig("/etc/users.csv", (model.StaticToken(model.Secret(raw), "from-file"),))
    union = Reload().to(token_file=file, oidc=(oidc_config(),), token_review=model.TokenReview(cluster="east"))
    caller = known(union.authenticate(raw.encode()))
    assert caller is not None
    assert caller.user.name == "from-file"


def test_answers_survive_a_reload_that_changes_nothing_of_them() -> None:
    reload = Reload()
    first = reload.to(oidc=(oidc_config(),), token_review=model.TokenReview())
    assert reload.to(oidc=(oidc_config(),), token_review=model.TokenReview()) is first
    assert reload.to(oidc=(oidc_config(),), token_review=model.TokenReview(), anonymous=model.Anonymous()) is first
    healthier = replace(reload.cluster, health_check=model.HealthCheck(interval=1.0))
    assert reload.to(healthier, oidc=(oidc_config(),), token_review=model.TokenReview()) is first


@pytest.mark.parametrize(
    "changed",
    [
        {"allow_system_names": True},
        {"share_service_accounts": True},
        {"token_file": token_file()},
        {"oidc": (oidc_config(audiences=("web",)),)},
        {"token_review": model.TokenReview(audiences=("x",))},
        {"cluster": cluster_config(endpoint_config(host="10.9.9.9"))},
        {"cluster": cluster_config(tls=model.ClusterTLS(insecure_skip_verify=True))},
        {"cluster": replace(cluster_config(), name="west")},
    ],
)
def test_answers_do_not_survive_a_change_of_what_they_depend_on(changed: dict[str, Any]) -> None:
    reload = Reload()
    usual: dict[str, Any] = {"oidc": (oidc_config(),), "token_review": model.TokenReview()}
    first = reload.to(**usual)
    assert reload.to(**{**usual, **changed}) is not first


def test_a_static_token_works_and_stops_with_the_reload_that_takes_it_out() -> None:
    reload = Reload()
    caller = known(reload.to(token_file=token_file()).authenticate(b"carols"))
    assert caller == AuthenticatedUser(UserInfo("carol", ("system:authenticated",)))
    assert refusal(reload.to(token_file=replace(token_file(), tokens=())), b"carols") == 401
    assert refusal(reload.to(token_file=token_file("system:admin")), b"carols") == 401


def test_stop_closes_the_judges_unless_the_chain_stays() -> None:
    authenticator = FakeAuthenticator(ALICE)
    union = union_of(authenticator)
    union.stop(union)
    assert not authenticator.closed
    union.stop(union_of(FakeAuthenticator(ALICE)))
    assert authenticator.closed
