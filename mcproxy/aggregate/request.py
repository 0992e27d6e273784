"""The interface of an aggregated request: the user, the exchange, and access to the members.

A handler uses nothing else of the process that received the request, so requests can also come from another process.
The worker process with the client's connection authenticates, finds the policies and authorizes; the process with the
caches answers.
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
    """A member's complete response to one request of the user.

    `fields` are its end-to-end header fields in wire order, with names as sent by the member, without framing fields.
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
    """The reason, as text for the client."""
    undecided: bool = False
    """True: the request could not be authorized in this member. False: it was refused."""


class AggregatedRequest(Protocol):
    """One request to an aggregate: authenticated, and admitted by the server's policies and authorizer."""

    @property
    def exchange(self) -> Exchange:
        """The exchange with the request's body and its response. A handler attaches itself to it, or answers it."""

    @property
    def head(self) -> RequestHead:
        """The request head as the client sent it; the target in it can differ from the property `target`."""

    @property
    def info(self) -> RequestInfo:
        """The parsed `target`: verb, resource, namespace and name."""

    @property
    def target(self) -> bytes:
        """Path and query in the aggregate's API, in origin-form."""

    @property
    def members(self) -> tuple[str, ...]:
        """The members that policies and the server's authorizer allow for this request, in the aggregate's order.

        Later, each member decides whether the user may read from its cache (`authorization`).
        """

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The members left out of this request: first by policies and the authorizer, then also by `leave_out`."""

    def leave_out(self, left_out: Sequence[LeftOut]) -> None:
        """Leave more members out, each with a reason, and remove them from `members`."""

    async def decide_again(self) -> None:
        """Determine the allowed members again with the configuration in force, for a watch that outlives a reload.

        This replaces `members` and `left_out`. Raises StatusError if no member is allowed.
        """

    def user_for(self, member: str) -> UserInfo:
        """Return the user's identity for `member`. Raises StatusError (403) if the member does not know the user."""

    def user_at(self, cluster: str) -> UserInfo:
        """Return the user's identity for any cluster. Raises StatusError (403) if it does not know the user."""

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        """Return header fields for the proxy's own response, as a block: Audit-Id, Cache-Control, `more`, Date, CORS.

        `more` is a block of whole lines, each with its CRLF; `cache_control` is the value of Cache-Control.
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
        """Send a request of the user to a member, and return its complete response with any status.

        The identity is the user's, as in forwarded requests; `fields` are additional header fields. `timeout` is the
        total time in seconds; None: as for forwarded requests. Raises StatusError: 403 for a user whom the member does
        not know and for a cluster outside `members`, 429 over the member's limits, 502 to 504 if it does not answer.
        """

    async def forward(self, member: str, target: bytes, body: bytes | None = None) -> None:
        """Send the client's request to a member and stream its response unchanged to the client, including upgrades.

        Returns when the request was sent; the exchange ends later. If `body` is given, it replaces the client's body,
        which was already read. Then the response is read completely before it is sent on, and the exchange has ended on
        return. Raises StatusError as `send`.
        """

    def served_by(self, *members: str, cached: bool) -> None:
        """Record for the access log which members the response comes from, and whether it comes from their caches."""

    def long_running(self) -> None:
        """Record that the response to a watch has begun: from now on the server's `sessions` limits apply.

        The exchange's handler ends the watch cleanly in `end_gracefully`, and stops its work in `cancelled`.
        """

    async def while_connected(self, waiting: Deferred[T]) -> T:
        """Wait for `waiting`. If the client disconnects first, `waiting` is cancelled and CancelledError is raised."""


class AggregateHandler(Protocol):
    """The handler of the requests to one aggregate."""

    def handle(self, request: AggregatedRequest) -> Coroutine[Deferred[Any], Any, None]:
        """Answer a request, or start its answer (a watch). Raises StatusError, which the caller sends."""
