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
from mcproxy.identity.authorization.attributes import Attributes, attributes_of, required_attributes
from mcproxy.identity.authorization.forbidden_message import forbidden
from mcproxy.identity.cross_site import check_same_origin, refuse_foreign_host
from mcproxy.identity.impersonation.requested import (
    authorize_impersonation,
    impersonation_unsupported,
    requested_impersonation,
)
from mcproxy.identity.impersonation.upstream_headers import check_extras_are_sent
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import ANONYMOUS
from mcproxy.proxy.log_fields import about

if TYPE_CHECKING:
    from mcproxy.dispatch.plan import Plan
    from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
    from mcproxy.identity.authorization.access_review import Decision
    from mcproxy.identity.authorization.authorizer import Authorizer, ImpersonationAuthorizer
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import VirtualServer
    from mcproxy.upstream.cluster import Cluster


log = Logger()

T = TypeVar("T")

_GROUPS_OF_EVENTS = ("", "events.k8s.io")  # a recorder's events are refused in other words (`dispatch.flow_control`)


def try_authenticate(request: Request, server: VirtualServer, target: bytes) -> bool:
    """Set the request's authenticated user if that needs no review; False: await `authenticate`.

    `target` is as the cluster gets it. With `Passthrough` the token is what the cluster sees, so a token decides even
    beside a good client certificate. Raises StatusError (401, 503).
    """
    client, cluster = request.client, request.cluster
    caller = server.authenticator.at_once(
        client.peer,
        request.identity_headers,
        target.partition(b"?")[0],
        client=client.address,
        server=server.name,
        token_decides=server.token_decides if cluster is None else _passes_through(cluster),
    )
    if caller is None:
        return False
    _set_caller(request, caller)
    return True


async def authenticate(request: Request, server: VirtualServer, target: bytes) -> None:
    """Do as `try_authenticate`, with the reviews that it needs."""
    client, cluster = request.client, request.cluster
    waiting = server.authenticator.authenticate(
        client.peer,
        request.identity_headers,
        target.partition(b"?")[0],
        client=client.address,
        server=server.name,
        token_decides=server.token_decides if cluster is None else _passes_through(cluster),
    )
    _set_caller(request, await _until_answered(request, waiting))


def _set_caller(request: Request, caller: AuthenticatedUser) -> None:
    cluster = request.cluster
    request.caller = caller
    request.user = caller.user if not caller.cluster or cluster is None else caller.seen_by(cluster.name)


async def reauthenticate(request: Request, server: VirtualServer) -> AuthenticatedUser:
    """Return the user that a server now accepts the credential of a request for; the request is not changed.

    Raises StatusError: 401 if it accepts it no longer, 404 for a cluster that is not the server's any more, 503.
    """
    cluster, target = server.destination(request.exchange.head.target)
    token_decides = server.token_decides if cluster is None else _passes_through(cluster)
    peer, headers, path = request.client.peer, request.identity_headers, target.partition(b"?")[0]
    return await server.authenticator.authenticate(
        peer, headers, path, client=request.client.address, server=server.name, token_decides=token_decides
    )


def _passes_through(cluster: Cluster) -> bool:
    return cluster.config.identity is Identity.PASSTHROUGH


async def impersonate(request: Request, server: VirtualServer, cluster: Cluster) -> None:
    """Let the request run as the user that the client requests, if it may impersonate that user. Raises StatusError."""
    if cluster.config.identity is Identity.PASSTHROUGH and not server.authenticates:
        return  # only the cluster knows the user, and decides
    real = _user_for(request, cluster.name)
    try:
        user = await _until_answered(request, impersonated_user(request, server.impersonation, cluster, real))
    except StatusError as refusal:
        if refusal.code == 403:  # of a 400 there is `request_malformed`; of a 503 the reviewer has logged why
            log_refusal("impersonation refused", request, cluster.name, refusal, event="impersonation_refused")
        raise
    if user is not None:
        request.user = user
        request.impersonates = True


async def impersonated_user(
    request: Request,
    authorizer: ImpersonationAuthorizer,
    cluster: Cluster,
    real: UserInfo,
    *,
    from_cache: bool = False,
) -> UserInfo | None:
    """Return the user that the client requests, if `real` may impersonate that one in a cluster. Raises StatusError.

    None: it requests none. `from_cache`: the cluster may not get the request, so it cannot decide about its headers.
    """
    identity, name = cluster.config.identity, cluster.name
    if identity is Identity.PROXY:
        raise impersonation_unsupported()
    wanted = requested_impersonation(request.identity_headers)
    if wanted is None:
        return None
    cluster_decides = identity is Identity.PASSTHROUGH and not from_cache

    async def decide(user: UserInfo, attributes: Attributes) -> Decision:
        decision = authorizer.at_once(user, attributes, name, cluster_decides=cluster_decides)
        if decision is not None:
            return decision
        return await authorizer.decide(user, attributes, name, cluster_decides=cluster_decides)

    user = await authorize_impersonation(real, wanted, decide)
    check_extras_are_sent(cluster.config, user)  # afterwards: without the right the refusal is that of Kubernetes
    return user


def _user_for(request: Request, cluster_name: str) -> UserInfo:
    """Return the authenticated user as it may be sent to a cluster. Raises StatusError (403)."""
    caller = request.caller
    if not caller.cluster:
        return caller.user
    try:
        return caller.for_cluster(cluster_name)
    except StatusError as refusal:
        request.reason = "foreign_account"
        log_refusal(
            "refused a system account of another cluster",
            request,
            cluster_name,
            refusal,
            event="foreign_account_refused",
        )
        raise


def log_refusal(what: str, request: Request, cluster_name: str, refusal: StatusError, *, event: str) -> None:
    log.info(what, event=event, **{**about(request), "cluster": cluster_name, "cause": refusal.message})


def choose_plan(request: Request, info: RequestInfo, server: VirtualServer, cluster: Cluster, target: bytes) -> Plan:
    """Return the plan of the dispatch policy that applies, whose cluster is the request's from then on.

    `cluster` is the one that the request names; a policy may send it to another one, for which impersonation must be
    authorized again (`impersonate`). Raises StatusError: 403 if no policy matches, and what a policy rejects with. Both
    come before flow control and authorization: such a request costs neither a permit nor a review.
    """
    user = request.user
    plan = request.plan = server.dispatch.plan(user, info, cluster.name)
    if plan is None:
        request.reason = "no_policy"
        raise forbidden(user, attributes_of(info, target), f'no dispatch policy of server "{server.name}" matches')
    goal = plan.cluster
    if request.caller.cluster:
        named = _user_for(request, goal.name)
        if not request.impersonates:
            request.user = named
    if plan.reject is not None:
        request.reason = "rejected"
        raise StatusError(plan.reject.code, plan.reject.message, details={})
    if goal.config.identity is Identity.PROXY:
        refuse_pages(request)
    request.cluster = goal
    return plan


def refuse_pages(request: Request) -> None:
    """Refuse cross-site requests to a cluster that gets the proxy's identity. Raises StatusError (403).

    A request with a token is allowed: a page does not have it. A client certificate is no such proof, since a browser
    shows it whichever page sends the request. Pages of the server's `cors.allowedOrigins` are allowed.
    """
    host, caller, peer = request.exchange.head.host, request.caller, request.client.peer
    of_browser = caller.user is ANONYMOUS or (peer is not None and caller is peer.certificate_user().authenticated)
    try:
        if request.client.foreign_host:
            raise refuse_foreign_host(host)
        if of_browser and not request.response_fields:
            check_same_origin(request.identity_headers, host)
    except StatusError:
        request.reason = "cross_site"
        raise


def resource_of_limits(info: RequestInfo) -> str:
    """Return the resource as flow control wants to know it."""
    return info.resource if info.group in _GROUPS_OF_EVENTS else ""


def try_admit(request: Request, info: RequestInfo, plan: Plan) -> bool:
    """Get the permit of flow control if that needs no waiting; False: await `admit`. Raises StatusError (429).

    Whether a request is long-running depends on its resource and verb, never on headers: a client could escape a limit.
    """
    resource = info.resource if info.group in _GROUPS_OF_EVENTS else ""
    request.permit = plan.limits.try_acquire(request.user.name, info.long_running, resource)
    return request.permit is not None


async def admit(request: Request, info: RequestInfo, plan: Plan) -> None:
    """Wait for the permit of flow control. Raises StatusError (429), and CancelledError if the client goes away."""
    waiting = plan.limits.acquire(request.user.name, info.long_running, resource_of_limits(info))
    request.permit = await until_gone(request, waiting)


def is_authorized(request: Request, info: RequestInfo, authorizer: Authorizer, plan: Plan, target: bytes) -> bool:
    """Return whether the authorizer is known to allow the request; False: `authorize` must be awaited."""
    if info.verb != info.request_verb or (authorizer.reviewer is not None and request.caller.cluster):
        return False  # it needs more than one decision
    decision = request.decision = authorizer.at_once(request.user, attributes_of(info, target), plan.cluster.name)
    return decision is not None and decision.allowed


async def authorize(request: Request, info: RequestInfo, authorizer: Authorizer, plan: Plan, target: bytes) -> None:
    """Have the request authorized. Raises StatusError (403, 503); its permit is then given back at once."""
    cluster_name = plan.cluster.name
    attributes = attributes_of(info, target)
    if info.verb != info.request_verb:
        for each in required_attributes(info, target)[:-1]:
            await _authorize_one(request, authorizer, each, cluster_name)
    await _authorize_one(request, authorizer, attributes, cluster_name)


async def _authorize_one(request: Request, authorizer: Authorizer, attributes: Attributes, cluster_name: str) -> None:
    """Raises StatusError: 403 if it is not allowed, 503 if a reviewer does not answer."""
    user, reviewer = request.user, authorizer.reviewer
    if reviewer is not None and request.caller.cluster and not request.impersonates:
        # Another cluster than the user's own would take its `system:` names for those of its own accounts.
        if authorizer.allowed_by_rules(user, attributes, cluster_name):
            return
        user = _user_for(request, reviewer)
    decision = authorizer.at_once(user, attributes, cluster_name)
    if decision is None:
        decision = await _until_answered(request, authorizer.decide(user, attributes, cluster_name))
    request.decision = decision
    if not decision.allowed:
        raise forbidden(user, attributes, decision.reason)


async def _until_answered(request: Request, review: Coroutine[Deferred[Any], Any, T]) -> T:
    """Wait for a review. Raises what it does, and CancelledError if the client goes away first.

    A review that is still queued is then cancelled, and the request ends.
    """
    return await until_gone(request, Deferred.fromCoroutine(review))


async def until_gone(request: Request, waiting: Deferred[T]) -> T:
    """Wait. If the client goes away first, `waiting` is cancelled, and CancelledError raised."""
    request.waiting = waiting
    try:
        return await waiting
    finally:
        request.waiting = None
