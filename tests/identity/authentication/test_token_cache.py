"""Answers kept under a keyed hash: their times, their bounds, and what they cost."""

from __future__ import annotations

import gc
import tracemalloc

from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authentication.token_authenticator import Accepted
from mcproxy.identity.authentication.token_cache import TokenCache, TokenHash
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import known
from tests.identity.fake_token_authenticators import FakeAuthenticator, union_of


def cache(entries: int = 3, size: int = 1000) -> TokenCache[str]:
    return TokenCache(max_entries=entries, max_bytes=size)


def test_the_hash_depends_on_its_key_and_on_the_whole_token() -> None:
    one, other = TokenHash(b"k" * 32), TokenHash(b"l" * 32)
    assert one(b"token") == one(b"token")
    assert len({one(b"token"), one(b"tokem"), one(b"token "), other(b"token"), one(b"")}) == 5


def test_a_value_is_there_until_its_time() -> None:
    kept = cache()
    kept.put(b"a", "x", 10.0, 1)
    assert kept.get(b"a", 9.9) == "x"
    assert kept.get(b"a", 10.0) is None
    assert len(kept) == 0
    assert kept.get(b"b", 0.0) is None


def test_the_least_recently_used_goes_first() -> None:
    kept = cache()
    for name in (b"a", b"b", b"c"):
        kept.put(name, "x", 10.0, 1)
    kept.get(b"a", 0.0)
    kept.put(b"d", "x", 10.0, 1)
    assert [name for name in (b"a", b"b", b"c", b"d") if kept.get(name, 0.0)] == [b"a", b"c", b"d"]


def test_the_size_is_bounded_too() -> None:
    kept = cache(entries=100)
    for number in range(20):
        kept.put(b"%d" % number, "x", 10.0, 300)
    assert len(kept) == 3
    kept.put(b"small", "x", 10.0, 100)
    assert len(kept) == 4
    kept.put(b"large", "x", 10.0, 1001)
    assert kept.get(b"large", 0.0) is None
    assert kept.get(b"small", 0.0) == "x"


def test_what_is_dropped_or_replaced_takes_no_room() -> None:
    kept = cache()
    for _ in range(10):
        kept.put(b"a", "x", 10.0, 900)
    kept.drop(b"a")
    kept.drop(b"a")
    kept.put(b"b", "x", 10.0, 1000)
    assert kept.get(b"b", 0.0) == "x"


def test_ten_thousand_tokens_cost_less_than_twenty_megabytes() -> None:
    """Each of its own user with four groups, a uid and a credential-id, as a cluster tells a service account."""

    def user(number: int) -> UserInfo:
        extra = (
            ("authentication.kubernetes.io/credential-id", (f"JTI={number:036d}",)),
            ("authentication.kubernetes.io/node-name", (f"node-{number}",)),
            ("authentication.kubernetes.io/pod-name", (f"pod-{number}",)),
        )
        groups = ("system:serviceaccounts", f"system:serviceaccounts:namespace-{number}", f"team-{number}")
        return UserInfo(f"system:serviceaccount:namespace-{number}:builder", groups, f"uid-{number:032d}", extra)

    authenticator = FakeAuthenticator(lambda token: Accepted(user(int(token[:6]))), cluster="east")
    union = union_of(authenticator)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(10_000):
            assert known(union.authenticate(b"%06d" % number + b"x" * 1000)) is not None
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert authenticator.asked == 10_000
    caller = known(union.authenticate(b"000077" + b"x" * 1000))
    assert caller == AuthenticatedUser(caller.user, "east")  # type: ignore[union-attr]
    assert authenticator.asked == 10_000
    assert used < 20_000_000, used
