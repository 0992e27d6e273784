"""The fake of one aggregated request; tests of each part of the aggregate add what their part does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from mcproxy.aggregate.request import LeftOut, MemberResponse
from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header, RequestHead
from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo

T = TypeVar("T")


class FakeRequest:
    """Has the `AggregatedRequest` interface; `foreign` are the members where the user is nobody."""

    exchange: Exchange

    def __init__(
        self,
        target: bytes,
        user: UserInfo,
        members: Sequence[str],
        *,
        method: bytes = b"GET",
        left_out: Sequence[tuple[str, str] | LeftOut] = (),
        foreign: Sequence[str] = (),
    ) -> None:
        self.head = RequestHead()
        self.head.method, self.head.target, self.head.fields = method, target, b""
        self.target = target
        self.info = requestinfo.parse(method, target)
        self.members = tuple(members)
        self.left_out = tuple(LeftOut(*each) for each in left_out)
        self._user = user
        self._foreign = frozenset(foreign)
        self.waiting: Deferred[Any] | None = None
        self.sessions_begun = 0
        self.forwarded: list[tuple[str, bytes]] = []

    def leave_out(self, left_out: Sequence[LeftOut]) -> None:
        gone = {each.member for each in left_out}
        self.members = tuple(name for name in self.members if name not in gone)
        self.left_out = (*self.left_out, *left_out)

    async def decide_again(self) -> None:
        pass

    def user_for(self, member: str) -> UserInfo:
        if member in self._foreign:
            raise StatusError(403, f"forbidden: nobody in {member}", details={})
        return self._user

    def user_at(self, cluster: str) -> UserInfo:
        return self.user_for(cluster)

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        return more

    async def send(
        self,
        member: str,
        method: bytes,
        target: bytes,
        *,
        fields: Sequence[Header] = (),
        body: bytes = b"",
        timeout: float | None = None,
    ) -> MemberResponse:
        raise AssertionError("nothing is sent")

    async def forward(self, member: str, target: bytes, body: bytes | None = None) -> None:
        self.forwarded.append((member, target))

    def served_by(self, *members: str, cached: bool) -> None:
        pass

    def long_running(self) -> None:
        self.sessions_begun += 1

    async def while_connected(self, waiting: Deferred[T]) -> T:
        self.waiting = waiting
        return await waiting
