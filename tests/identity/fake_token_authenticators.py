"""Token authenticators for tests of the union: they count their calls, and return what the test sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused, TokenResult, Unavailable
from mcproxy.identity.authentication.token_union import UnionTokenAuthenticator
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending, settled
from tests.support.clock import Clock
from tests.upstream.fakes import make_upstream_context

ALICE = Accepted(UserInfo("alice", ("dev",)))
NOT_MINE = Refused("not mine")
MINE = Refused("expired", own=True)
DOWN = Unavailable("it is down")


class FakeAuthenticator:
    """`answer` gives the result, at once for a `local` authenticator; None: the test answers `running`."""

    def __init__(
        self,
        answer: Callable[[bytes], TokenResult | None] | TokenResult | None = None,
        *,
        name: str = "fake",
        cluster: str = "",
        times: tuple[float, float] = (120.0, 10.0),
        local: bool = True,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.cache_times = CacheTimes(*times)
        self.answer = answer
        self.local = local
        self.asked = 0
        self.running: list[Deferred[TokenResult]] = []
        self.closed = False

    def authenticate(self, token: bytes) -> OrPending[TokenResult]:
        if self.local and (result := self._result(token)) is not None:
            self.asked += 1
            return result
        return self._ask(token)

    async def _ask(self, token: bytes) -> TokenResult:
        self.asked += 1
        result = self._result(token)
        if result is not None:
            return result
        running: Deferred[TokenResult] = Deferred()
        self.running.append(running)
        return await running

    def start(self) -> None:
        pass

    def stop(self, successors: object) -> None:
        self.closed = True

    def _result(self, token: bytes) -> TokenResult | None:
        return self.answer(token) if callable(self.answer) else self.answer


def remote(answer: TokenResult | None = None, **more: Any) -> FakeAuthenticator:
    """A authenticator that must be asked."""
    return FakeAuthenticator(answer, local=False, **more)


def union_of(
    *authenticators: FakeAuthenticator, clock: Clock | None = None, allow: bool = False, share: bool = False
) -> UnionTokenAuthenticator:
    return UnionTokenAuthenticator(
        authenticators,
        allow_system_names=allow,
        share_service_accounts=share,
        shared=make_upstream_context(clock or Clock()),
    )


def ask(union: UnionTokenAuthenticator, token: bytes = b"token", client: str = "") -> tuple[list[Any], Deferred[Any]]:
    """Ask; the list gets the caller or the error when there is one."""
    result: list[Any] = []
    asked = Deferred.fromCoroutine(settled(union.authenticate(token, client)))
    asked.addCallbacks(result.append, lambda failure: result.append(failure.value))
    return result, asked
