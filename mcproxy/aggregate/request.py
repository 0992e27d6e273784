"""The interface of an aggregated request: the user, the exchange, and access to the members.

A handler gets nothing else of the process, so that requests can also come from another process: the worker with the
client's connection authenticates, finds the policies and admits; the process with the caches answers.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from twisted.internet.defer import Deferred

from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header, RequestHead
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.user import UserInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemberResponse:
    """A member's whole response to one request of the user.

    `fields` are its end-to-end fields in the order of the wire, with names as the member wrote them; without framing.
    """

    member: str
    status: int
    fields: tuple[Header, ...]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a field (name in lower case), None if it is absent."""
        return next((value for known, value in self.fields if known.lower() == name), None)


class LeftOut(NamedTuple):
    """A member that is left out of an answer."""

    member: str
    why: str
    """The reason in words for the client."""
    undecided: bool = False
    """The request could not be authorized there; False: it was refused."""


class AggregatedRequest(Protocol):
    """One request to an aggregate: authenticated, and admitted by the server's policies and authorizer."""

    @property
    def exchange(self) -> Exchange:
        """The request's body and its response. A handler attaches itself to it, or answers it."""

    @property
    def head(self) -> RequestHead:
        """The head as the client sent it; `target` below may differ from its own."""

    @property
    def info(self) -> RequestInfo:
        """What `target` is about."""

    @property
    def target(self) -> bytes:
        """Path and query on the aggregate's API, in origin-form."""

    @property
    def members(self) -> tuple[str, ...]:
        """The members that policies and the server's authorizer let this request touch, in the aggregate's order.

        Whether the member itself allows the user the read from its cache is decided later (`authorization`).
        """

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The members that policies and authorizer keep from this request."""

    def leave_out(self, left_out: Sequence[LeftOut]) -> None:
        """Leave more members out, each with the reason; `members` no longer has them."""

    async def decide_again(self) -> None:
        """Decide about the members again, by the configuration in force: for a watch that outlives a reload.

        `members` and `left_out` are others afterwards. Raises StatusError if the request may touch none.
        """

    def user_for(self, member: str) -> UserInfo:
        """Return the user as `member` knows it. Raises StatusError (403) for a user who is unknown there."""

    def user_at(self, cluster: str) -> UserInfo:
        """Return the user as any cluster knows it. Raises StatusError (403) for a user who is unknown there."""

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        """Return the fields of a response made here, as a block: Audit-Id, Cache-Control, `more`, Date, and CORS.

        `more` is a block of whole lines, each with its CRLF; `cache_control` the value of that field.
        """

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
        """Send a request of the user to a member, and return its whole response, whatever the status.

        The identity is the user's as in forwarded requests; `fields` are the other fields to send. `timeout` is in
        seconds for all of it; None: that of forwarded requests. Raises StatusError: 403 for a user who is unknown there
        and for a cluster outside `members`, 429 over the member's own limits, 502 to 504 if it does not answer.
        """

    async def forward(self, member: str, target: bytes, body: bytes | None = None) -> None:
        """Send the client's request to a member and stream its response through unchanged, upgrades included.

        Returns when the request was sent; the exchange ends later. `body` is sent in place of the client's, which was
        read; then the response is read whole before it is sent on, and the exchange has ended at the return. Raises
        StatusError as `send`.
        """

    def served_by(self, *members: str, cached: bool) -> None:
        """Note, for the access log, which members the response is from, and whether from their caches."""

    def long_running(self) -> None:
        """Note that the response to a watch has begun: from now on `sessions` of the server limits it.

        The exchange's handler ends it cleanly in `end_gracefully`, and stops in `cancelled`.
        """

    async def while_connected(self, waiting: Deferred[T]) -> T:
        """Wait for `waiting`. If the client goes away first, it is cancelled and CancelledError is raised."""


class AggregateHandler(Protocol):
    """The handler of the requests to one aggregate."""

    def handle(self, request: AggregatedRequest) -> Coroutine[Deferred[Any], Any, None]:
        """Answer a request, or begin to. Raises StatusError, which the caller turns into the response."""
