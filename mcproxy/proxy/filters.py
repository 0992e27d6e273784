"""The filters between finding a request's server and forwarding it: authentication, impersonation, flow control,
authorization.

A filter with a result from a cache, the usual case, records it in the request and returns None. Otherwise it returns a
coroutine that must be awaited for the result. A filter that refuses the request raises `StatusError`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.config.model import UpstreamIdentity
from mcproxy.dispatch.request_limits import Permit
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.identity.authorization.access_review import Decision
from mcproxy.identity.authorization.attributes import Attributes, attributes_of, forbidden, required_attributes
from mcproxy.identity.cross_site import check_same_origin, refuse_foreign_host
from mcproxy.identity.impersonation import (
    authorize_impersonation,
    impersonation_unsupported,
    requested_impersonation,
)
from mcproxy.identity.upstream_identity_headers import check_extras_are_sent
from mcproxy.kube.status import StatusError
from mcproxy.requests.coroutines import settled

if TYPE_CHECKING:
    from mcproxy.apiservices.availability import Availability
    from mcproxy.config.model import APIService
    from mcproxy.dispatch.plan import Plan
    from mcproxy.identity.authorization.authorizer import Authorizer, ImpersonationAuthorizer
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.proxy.request import Request
    from mcproxy.proxy.routes import VirtualServer
    from mcproxy.upstream.cluster import Cluster


log = Logger(__name__)

T = TypeVar("T")

Pending = Coroutine[Deferred[Any], Any, None]
"""A coroutine that must be awaited before a filter has its result."""

#: Compiled code reads these faster than an enumeration.
_PASSTHROUGH: Final = UpstreamIdentity.PASSTHROUGH
_PROXY: Final = UpstreamIdentity.PROXY
#: Event recorders get another refusal message (`dispatch.flow_controller`).
_GROUPS_OF_EVENTS: Final = ("", "events.k8s.io")


def authenticate(request: Request, server: VirtualServer, target: bytes) -> Pending | None:
    """Set the request's authenticated user.

    `target` is the target for the cluster. With `Passthrough` the cluster sees the token, so the token identifies the
    user even with a valid client certificate. Raises StatusError (401, 503).
    """
    client, cluster = request.client, request.cluster
    caller = server.authenticator.authenticate(
        client.peer,
        request.identity_headers,
        target.partition(b"?")[0],
        client=client.address,
        server=server.name,
        token_decides=_token_decides(server, cluster),
    )
    if not isinstance(caller, AuthenticatedUser):
        return _authenticated(request, caller)
    _set_caller(request, caller)
    return None


async def _authenticated(request: Request, review: Coroutine[Deferred[Any], Any, AuthenticatedUser]) -> None:
    _set_caller(request, await _await_review(request, review))


def _set_caller(request: Request, caller: AuthenticatedUser) -> None:
    cluster = request.cluster
    request.caller = caller
    request.user = caller.user
    if caller.cluster and cluster is not None:
        request.user = caller.seen_by(_authority(request, cluster))


def _authority(request: Request, cluster: Cluster) -> str:
    """Return the cluster whose accounts are valid in `cluster` for a request (`config.model.APIService`)."""
    return cluster.name if request.api_service is None else request.api_service.authority


async def reauthenticate(request: Request, server: VirtualServer) -> AuthenticatedUser:
    """Return the user for whom a server now accepts a request's credential; the request is not changed.

    Raises StatusError: 401 if it is not accepted any more, 404 for a cluster that the server no longer has, 503.
    """
    cluster, target, _ = server.destination(request.exchange.head.target)
    token_decides = _token_decides(server, cluster)
    peer, headers, path = request.client.peer, request.identity_headers, target.partition(b"?")[0]
    found = server.authenticator.authenticate(
        peer, headers, path, client=request.client.address, server=server.name, token_decides=token_decides
    )
    return await settled(found)


def _token_decides(server: VirtualServer, cluster: Cluster | None) -> bool:
    """Whether a token takes precedence over a valid client certificate; `cluster` is None for an aggregate."""
    if cluster is None:
        return server.token_decides
    return cluster.config.identity is _PASSTHROUGH


async def impersonate(request: Request, server: VirtualServer, cluster: Cluster, target: bytes) -> None:
    """Let the request run as the requested user, if the client may impersonate that user. Raises StatusError."""
    if cluster.config.identity is _PASSTHROUGH and not server.authenticates:
        return  # only the cluster knows the caller, so it decides itself
    authority = _authority(request, cluster)
    real = _user_for(request, authority)
    wanted = impersonated_user(request, server.impersonation, cluster, real, target=target, authority=authority)
    try:
        user = await _await_review(request, wanted)
    except StatusError as refusal:
        if refusal.code == 403:  # a 400 is logged as `request_malformed`, and a 503 by the reviewer
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
    target: bytes,
    from_cache: bool = False,
    authority: str = "",
) -> UserInfo | None:
    """Return the requested user, if `real` may impersonate that user in a cluster. Raises StatusError.

    Returns None without a requested user. `from_cache`: the cluster may not get the request, so it cannot decide about
    its headers. `target` is the target for the cluster; `authority` is the reviewing cluster, if it is another one.
    """
    identity, name = cluster.config.identity, cluster.name
    if identity is _PROXY:
        raise impersonation_unsupported()
    wanted = requested_impersonation(request.identity_headers)
    if wanted is None:
        return None
    cluster_decides = identity is _PASSTHROUGH and not from_cache

    async def decide(user: UserInfo, attributes: Attributes) -> Decision:
        found = authorizer.decide(user, attributes, name, authority, cluster_decides=cluster_decides)
        return found if isinstance(found, Decision) else await found

    info = request.info
    assert info is not None
    # A kube-apiserver uses the first attributes as the request's own: `get` for an exec over WebSocket.
    on = required_attributes(info, target)[0]
    user = await authorize_impersonation(real, wanted, decide, on, authorizer.last_modes, authority or name)
    check_extras_are_sent(
        cluster.config, user
    )  # after the check, so that users without the right get Kubernetes' own refusal
    return user


def _user_for(request: Request, cluster_name: str) -> UserInfo:
    """Return the authenticated user for a cluster. Raises StatusError (403) if the user must not be sent to it."""
    caller = request.caller
    if not caller.cluster:
        return caller.user
    try:
        return caller.for_cluster(cluster_name)
    except StatusError as refusal:
        request.reason = "foreign_account"
        log_refusal(
            "a system account of another cluster was refused",
            request,
            cluster_name,
            refusal,
            event="foreign_account_refused",
        )
        raise


def log_refusal(what: str, request: Request, cluster_name: str, refusal: StatusError, *, event: str) -> None:
    log.info(what, event=event, **{**request.log_fields(), "cluster": cluster_name, "cause": refusal.message})


def choose_plan(request: Request, info: RequestInfo, server: VirtualServer, cluster: Cluster, target: bytes) -> Plan:
    """Return the plan of the dispatch policy that applies; from then on the request's cluster is the plan's cluster.

    `cluster` is the cluster that the request names. A policy can send the request to another cluster, for which
    impersonation must be authorized again (`impersonate`). Raises StatusError: 403 if no policy matches, or the
    policy's own rejection. Both come before flow control and authorization, so they cost no permit and no review.
    """
    user = request.user
    if request.api_service is None:
        plan = request.plan = server.dispatch.plan(user, info, cluster.name)
    else:
        plan = request.plan = server.dispatch.plan_of_service(user, info, request.api_service)
    if plan is None:
        request.reason = "no_policy"
        raise forbidden(user, attributes_of(info, target), f'no dispatch policy of server "{server.name}" matches')
    cluster = plan.cluster
    if request.caller.cluster:
        named = _user_for(request, plan.authority)
        if not request.impersonates:
            request.user = named
    if plan.reject is not None:
        request.reason = "rejected"
        raise StatusError(plan.reject.code, plan.reject.message, details={})
    if cluster.config.identity is _PROXY:
        refuse_pages(request)
    request.cluster = cluster
    return plan


def refuse_pages(request: Request) -> None:
    """Refuse cross-site requests to a cluster that gets the proxy's identity. Raises StatusError (403).

    A request with a token is allowed, since a web page does not have the token. A client certificate is no proof, since
    a browser presents it for any page's requests. Pages from the server's `cors.allowedOrigins` are allowed.
    """
    host = request.exchange.head.host
    try:
        if request.client.foreign_host:
            raise refuse_foreign_host(host)
        if request.caller.ambient and not request.response_fields:
            check_same_origin(request.identity_headers, host)
    except StatusError:
        request.reason = "cross_site"
        raise


def resource_for_limits(info: RequestInfo) -> str:
    """Return the resource for flow control (`RequestLimits`); "" in groups without events."""
    return info.resource if info.group in _GROUPS_OF_EVENTS else ""


def admit(request: Request, info: RequestInfo, plan: Plan) -> Pending | None:
    """Get the permit of flow control. Raises StatusError (429), and CancelledError if the client disconnects.

    Only resource and verb make a request long-running, never headers, since a client could use them to evade a limit.
    """
    permit = plan.limits.acquire(request.user.name, info.long_running, resource_for_limits(info))
    if not isinstance(permit, Permit):
        return _admitted(request, permit)
    request.permit = permit
    return None


async def _admitted(request: Request, waiting: Deferred[Permit]) -> None:
    request.permit = await while_connected(request, waiting)


def authorize(request: Request, info: RequestInfo, authorizer: Authorizer, plan: Plan, target: bytes) -> Pending | None:
    """Authorize the request. Raises StatusError (403, 503), and then releases the permit immediately."""
    if info.verb != info.request_verb:
        return _authorize_all(request, authorizer, required_attributes(info, target), plan)
    return _authorize_one(request, authorizer, attributes_of(info, target), plan)


async def _authorize_all(request: Request, authorizer: Authorizer, wanted: Sequence[Attributes], plan: Plan) -> None:
    for attributes in wanted:
        waiting = _authorize_one(request, authorizer, attributes, plan)
        if waiting is not None:
            await waiting


def _authorize_one(request: Request, authorizer: Authorizer, attributes: Attributes, plan: Plan) -> Pending | None:
    """Record the decision. Raises StatusError: 403 if it refuses the request, 503 if a reviewer does not answer."""
    user, reviewer, cluster_name = request.user, authorizer.reviewer, plan.cluster.name
    if reviewer is not None and request.caller.cluster and not request.impersonates:
        # Any cluster other than the user's own would treat the user's `system:` names as its own accounts.
        if authorizer.allowed_by_rules(user, attributes, cluster_name):
            return None
        user = _user_for(request, reviewer)
    decision = authorizer.decide(user, attributes, cluster_name, plan.authority)
    if not isinstance(decision, Decision):
        return _reviewed(request, decision, user, attributes)
    _note(request, decision, user, attributes)
    return None


async def _reviewed(
    request: Request, review: Coroutine[Deferred[Any], Any, Decision], user: UserInfo, attributes: Attributes
) -> None:
    _note(request, await _await_review(request, review), user, attributes)


def _note(request: Request, decision: Decision, user: UserInfo, attributes: Attributes) -> None:
    request.decision = decision
    if not decision.allowed:
        raise forbidden(user, attributes, decision.reason)


def refuse_unavailable(request: Request, service: APIService, known: Availability) -> None:
    """Refuse a request to an API service that is known to be unavailable. Raises StatusError (503).

    This check runs after authorization, so a client without the right learns nothing, and before the body is read.
    While the availability is unknown, requests pass and get the API server's answer.
    """
    refusal = known.refusal(service)
    if refusal is not None:
        request.reason = "api_service_unavailable"
        raise refusal


async def user_for_api_service(request: Request, server: VirtualServer, plan: Plan) -> UserInfo:
    """Return the user for an API service, without system:masters if the backend does not get this group."""
    grant = server.masters_grants.get(plan.authority)
    if grant is None or plan.cluster.name == plan.authority:
        return request.user
    return await _await_review(request, grant.told(request.user))


async def _await_review(request: Request, review: Coroutine[Deferred[Any], Any, T]) -> T:
    """Wait for a review. Raises its errors, and CancelledError if the client disconnects first.

    In that case, a review that is still queued is cancelled, and the request ends.
    """
    return await while_connected(request, Deferred.fromCoroutine(review))


async def while_connected(request: Request, waiting: Deferred[T]) -> T:
    """Wait for `waiting`. If the client disconnects first, cancel `waiting` and raise CancelledError."""
    request.waiting = waiting
    try:
        return await waiting
    finally:
        request.waiting = None
