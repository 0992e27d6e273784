"""The filters between finding a request's server and forwarding it: authentication, impersonation, flow control,
authorization.

Each decides from its cache if it can, since most users were here a moment ago, and waits only for a review that has to
be sent. A filter that refuses the request raises `StatusError`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.config.model import Identity
from mcproxy.identity.authorization.attributes import Attributes, attributes_of
from mcproxy.identity.authorization.forbidden_message import forbidden
from mcproxy.identity.impersonation.requested import (
    authorize_impersonation,
    impersonation_unsupported,
    requested_impersonation,
)
from mcproxy.identity.impersonation.upstream_headers import check_authenticating_cluster
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.dispatch.plan import Plan
    from mcproxy.identity.authorization.access_review import Decision
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import VirtualServer
    from mcproxy.upstream.cluster import Cluster


log = Logger()

T = TypeVar("T")

_GROUPS_OF_EVENTS = ("", "events.k8s.io")  # a recorder's events are refused in other words (`dispatch.flow_control`)


async def authenticate(request: Request, server: VirtualServer, target: bytes) -> None:
    """Find out who calls; `target` is as the cluster is asked. Raises StatusError (401, 503)."""
    peer, presented = request.client.peer, request.identity_headers
    path = target.partition(b"?")[0]
    caller = server.authenticator.at_once(peer, presented, path)
    if caller is None:
        caller = await _told(request, server.authenticator.authenticate(peer, presented, path))
    request.caller = caller
    request.user = caller.user


async def impersonate(request: Request, server: VirtualServer, cluster: Cluster) -> None:
    """Let the request run as the user that the client asks to be, if the real one may. Raises StatusError."""
    if cluster.config.identity is Identity.PASSTHROUGH and not server.authenticates:
        return  # the cluster alone knows who asks, and judges
    _at_home(request, cluster)
    try:
        await _reviewed(request, server, cluster)
    except StatusError as refusal:
        if refusal.code < 500:  # else who could not be asked has told so
            _tell("impersonation refused", request, cluster, refusal)
        raise


async def _reviewed(request: Request, server: VirtualServer, cluster: Cluster) -> None:
    """Read what the client asks for, and have its questions answered."""
    if cluster.config.identity is Identity.PROXY:
        raise impersonation_unsupported()
    wanted = requested_impersonation(request.identity_headers)
    if wanted is None:
        return
    judge, name = server.impersonation, cluster.name

    async def decide(user: UserInfo, attributes: Attributes) -> Decision:
        decision = judge.at_once(user, attributes, name)
        return await _told(request, judge.decide(user, attributes, name)) if decision is None else decision

    request.user = await authorize_impersonation(request.caller.user, wanted, decide)


def _at_home(request: Request, cluster: Cluster) -> None:
    """Refuse a service account or node of another cluster. Raises StatusError."""
    if request.caller.cluster:
        try:
            check_authenticating_cluster(request.caller, cluster.name)
        except StatusError as refusal:
            _tell("refused an account that is another cluster's", request, cluster, refusal)
            raise


def _tell(what: str, request: Request, cluster: Cluster, refusal: StatusError) -> None:
    user, client = request.caller.user.name, request.client.address
    log.info(what, cause=refusal.message, user=user, client=client, cluster=cluster.name)


async def choose_plan(
    request: Request, info: RequestInfo, server: VirtualServer, cluster: Cluster, target: bytes
) -> Plan:
    """Return the plan of the dispatch policy that applies, whose cluster is the request's from then on.

    `cluster` is the one that the request names; a policy may send it to another one, to which the user must be allowed
    to go, too. Raises StatusError: 403 if no policy matches, and what a policy rejects with. Both come before flow
    control and authorization: such a request costs neither a permit nor a review.
    """
    user = request.user
    plan = request.plan = server.dispatch.plan(user, info, cluster.name)
    if plan is None:
        raise forbidden(user, attributes_of(info, target), f'no dispatch policy of server "{server.name}" matches')
    goal = plan.cluster
    _at_home(request, goal)
    if plan.reject is not None:
        raise StatusError(plan.reject.code, plan.reject.message, details={})
    if goal is not cluster and request.identity_headers.impersonate:
        await impersonate(request, server, goal)
    request.cluster = goal
    return plan


async def admit(request: Request, info: RequestInfo, plan: Plan) -> None:
    """Get the permit that flow control asks for. Raises StatusError (429), and CancelledError if the client left.

    A request is long-running by what it asks for, never by its headers: a client could escape a limit otherwise.
    """
    user, long_running = request.user.name, info.long_running
    resource = info.resource if info.group in _GROUPS_OF_EVENTS else ""
    permit = plan.limits.try_acquire(user, long_running, resource)
    if permit is None:
        permit = await _until_gone(request, plan.limits.acquire(user, long_running, resource))
    request.permit = permit


async def authorize(request: Request, info: RequestInfo, server: VirtualServer, plan: Plan, target: bytes) -> None:
    """Ask the server's authorizer, if it has one. Raises StatusError (403, 503); the permit then goes back at once."""
    authorizer = server.authorizer
    if authorizer is None:
        return
    user, cluster = request.user, plan.cluster.name
    attributes = attributes_of(info, target)
    decision = authorizer.at_once(user, attributes, cluster)
    if decision is None:
        decision = await _told(request, authorizer.decide(user, attributes, cluster))
    if not decision.allowed:
        raise forbidden(user, attributes, decision.reason)


async def _told(request: Request, question: Coroutine[Deferred[Any], Any, T]) -> T:
    """Wait for somebody's answer. Raises what that does, and CancelledError if the client goes away first.

    So a question that has not had its turn is not asked for a client that is gone, and a request does not go on for it.
    """
    return await _until_gone(request, Deferred.fromCoroutine(question))


async def _until_gone(request: Request, waiting: Deferred[T]) -> T:
    request.waiting = waiting
    try:
        return await waiting
    finally:
        request.waiting = None
