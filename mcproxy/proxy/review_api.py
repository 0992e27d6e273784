"""Serves the review APIs for API servers that delegate authentication and authorization to a server: answers some
reviews itself, and forwards the others to the backend.

The client has already been authenticated, admitted and authorized. Then the backend decides whether the client may
create reviews. The body is read only after this decision.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from mcproxy.aggregate.writes.held_bodies import BodyBuffers
from mcproxy.http.messages import Header, split_fields
from mcproxy.identity.authorization.attributes import attributes_of
from mcproxy.identity.review_api import review_body
from mcproxy.identity.review_api.review_body import KINDS, LOCAL_ACCESS_REVIEW, TOKEN_REVIEW, JSONDict, ReviewKind
from mcproxy.kube.status import StatusError
from mcproxy.proxy import subrequest
from mcproxy.requests.reasons import Step, refusal_reason

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.dispatch.plan import Plan
    from mcproxy.identity.review_api.server_reviewer import ServerReviewer
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.proxy.aggregated_request import LocalAggregatedRequest
    from mcproxy.proxy.request import Request

TOTAL, SHARE = 16 * 1024 * 1024, 4 * 1024 * 1024
"""Maximum bytes of bodies in memory, in total and of one user."""

#: The client's header fields about its own connection, or about its request's framing.
_NOT_PASSED = frozenset(
    {b"host", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect", b"proxy-connection"}
    | {b"content-length", b"transfer-encoding"}
)

Send = Callable[[Sequence[Header], bytes], Coroutine[Deferred[Any], Any, "MemberResponse"]]
"""Sends the review to the backend as the user: fields and body."""


class ReviewAPI:
    """The review APIs of one server."""

    __slots__ = ("_bodies", "_clock", "_reviewer", "_server", "home")

    def __init__(self, server: str, reviewer: ServerReviewer, bodies: BodyBuffers, clock: IReactorTime) -> None:
        """`server` is the server's name; all servers of the process share `bodies`."""
        self._server = server
        self._reviewer = reviewer
        self._bodies = bodies
        self._clock = clock
        #: the cluster to which reviews go that are not answered here
        self.home = reviewer.home

    def kind_of(self, info: RequestInfo) -> ReviewKind | None:
        """Return the kind of review that a request creates; None if only the backend can answer it."""
        if info.verb != "create" or info.version != "v1" or info.name or info.subresource:
            return None
        kind = KINDS.get((info.group, info.resource))
        if kind is None or (kind is LOCAL_ACCESS_REVIEW) != bool(info.namespace):
            return None
        known = self._reviewer.knows_tokens if kind is TOKEN_REVIEW else self._reviewer.decides_access
        return kind if known else None

    async def serve(self, request: Request, kind: ReviewKind, info: RequestInfo, plan: Plan, target: bytes) -> None:
        """Answer a review on a server with one cluster. Raises StatusError."""

        async def send(fields: Sequence[Header], body: bytes) -> MemberResponse:
            return await subrequest.send(
                request, plan, request.user, b"POST", target, clock=self._clock, fields=fields, body=body
            )

        await self._serve(request, kind, info, target, request.user, send)

    async def serve_aggregate(self, admitted: LocalAggregatedRequest, kind: ReviewKind) -> None:
        """Answer a review on a server with an aggregate. Raises StatusError."""
        info, target = admitted.info, admitted.target
        user = admitted.user_for(self.home)
        admitted.served_by(self.home, cached=False)

        async def send(fields: Sequence[Header], body: bytes) -> MemberResponse:
            return await admitted.send(self.home, b"POST", target, fields=fields, body=body)

        await self._serve(admitted.request, kind, info, target, user, send)

    async def _serve(
        self, request: Request, kind: ReviewKind, info: RequestInfo, target: bytes, user: UserInfo, send: Send
    ) -> None:
        try:
            await self._reviewer.check_right(user, attributes_of(info, target))
        except StatusError as error:
            request.reason = refusal_reason(Step.AUTHORIZATION, error.code)
            raise
        exchange = request.exchange
        fields = split_fields(request.upstream_fields())
        accept = b",".join([value for name, value in fields if name == b"accept"])
        content_type = next((value for name, value in fields if name == b"content-type"), None)
        media_type = review_body.answer_type(accept)
        held = self._bodies.of(user.name)
        try:
            body = await held.read(exchange, review_body.MAX_BODY)
            spec = review_body.read(kind, body, content_type)
            status = None if spec is None else await self._status(request, kind, spec, info.namespace)
            if spec is None or status is None:
                passed = [(name, value) for name, value in fields if name not in _NOT_PASSED]
                response = await send(passed, body)
                block = b"".join([b"%b: %b\r\n" % field for field in response.fields])
                block = request.with_audit_id(block) + request.response_fields
                exchange.answer(response.status, block, response.body)
                return
        finally:
            held.release()
        answer = review_body.answer(kind, spec, status, info.namespace, media_type)
        exchange.answer(201, request.own_fields(b"Content-Type: %b\r\n" % media_type.encode()), answer)

    async def _status(self, request: Request, kind: ReviewKind, spec: JSONDict, namespace: str) -> JSONDict | None:
        """Return the status of a review; None if the backend must answer the review. Raises StatusError (503)."""
        if kind is TOKEN_REVIEW:
            token = review_body.token_review(spec)
            if token is None:
                return None
            return await self._reviewer.token_status(token, request.client.address, self._server)
        access = review_body.access_review(kind, spec, namespace)
        return None if access is None else await self._reviewer.access_status(access)
