"""Failures between the proxy and a cluster: the client's Status, and the operator's log line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from twisted.logger import Logger

from mcproxy.http.client_stream import ConnectionClosed, ResponseTimeout
from mcproxy.kube.status import StatusError, read_status, retry_after
from mcproxy.net.causes import CauseCode
from mcproxy.upstream.remedies import keys_of, remedy

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.proxy.request import Request
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint

log = Logger(__name__)

_GO_STRING = r'"(?:[^"\\]|\\.)*"'  # as printed by %q, so that a name cannot end the string
_CANNOT_IMPERSONATE = re.compile(
    rf'(?s)(?:[^\s"]+(?: {_GO_STRING})? is )?forbidden: User {_GO_STRING} cannot '
    r'(?:(?P<verb>impersonate(?:-on)?)(?::\S+)? resource "(?P<resource>[^"\\]*)" in API group "'
    r'|impersonate-on:\S+ path ")'
)
_MASTERS_REFUSED = ": impersonating the system:masters group is not allowed"  # by constrained impersonation
_PLAIN_NAME = re.compile(r"[\w.-]*")
_RETRY_AFTER = 1  # second; a kube-apiserver that has just started grants the right by then
_MAX_RIGHTS = 16  # maximum number of rights with separate log lines, per cluster
_QUIET = 60.0  # seconds without the failure, after which it is logged again
_MAX_MESSAGE = 1024  # maximum characters of a message
_MAX_SHOWN = 300  # maximum characters of a cluster's message in the log


def no_credential(request: Request, cluster: Cluster) -> StatusError:
    """Return the refusal for a request for which the proxy has no usable credential; the credential's source has logged
    the cause.

    Paths, commands and output of plugins are only for the log, since the client can be unauthenticated.
    """
    request.reason = "no_credential"
    return StatusError(503, f'cluster "{cluster.name}" is unavailable: the proxy has no usable credential for it')


def refuse_proxy_unauthorized(request: Request, cluster: Cluster) -> None:
    """Answer a request that the cluster refused with 401 because it does not accept the proxy's credential.

    The 401 is not passed on, since the client would discard its own valid credential.
    """
    log.warn(
        "a cluster does not accept the proxy's own credential",
        event="upstream_credential_refused",
        **request.log_fields(),
        cause="it answered 401",
        todo=remedy(CauseCode.UNAUTHORIZED, keys_of(cluster.config)),
    )
    message = f'cluster "{cluster.name}" is unavailable: it does not accept the proxy\'s credential'
    request.refuse(StatusError(503, message), "credential_refused")


def missing_impersonation_right(body: bytes) -> str:
    """Return the message of a 403 that refuses the *proxy* the right to impersonate; "" for any other 403.

    Since the proxy removes the client's own Impersonate-*, such a refusal can only concern the proxy. The texts are
    those of kube-apiserver with and without ConstrainedImpersonation (recorded): `users "bob" is forbidden: User
    "mcproxy" cannot impersonate resource "users" …`, `pods is forbidden: User "mcproxy" cannot
    impersonate-on:user-info:list …`,
    and for a non-resource path `forbidden: User "mcproxy" cannot impersonate-on:user-info:get path "/api"`
    (responsewriters.ForbiddenStatusError).
    """
    if b" cannot impersonate" not in body:  # the same in JSON and in protobuf
        return ""
    status = read_status(body)
    if status is None or status.reason != "Forbidden" or len(status.message) > _MAX_MESSAGE:
        return ""
    return status.message if _CANNOT_IMPERSONATE.match(status.message) else ""


def can_forge_refusal(info: RequestInfo) -> bool:
    """Return whether a request's path could forge the beginning of a 403's message.

    A kube-apiserver's message begins with the path's group and resource, the only parts that it does not quote.
    """
    return _PLAIN_NAME.fullmatch(info.resource) is None or _PLAIN_NAME.fullmatch(info.group) is None


def refuse_impersonation_not_granted(request: Request, cluster: Cluster, message: str) -> None:
    """Answer a request that the cluster refused because the proxy itself may not impersonate users.

    `message` is the message of the cluster's 403.

    The 403 would mislead the client, since it names another user. Each missing right is logged once, and again only
    after a minute without this failure.
    """
    found = _CANNOT_IMPERSONATE.match(message)
    assert found is not None
    right = f"impersonate {found['resource']}" if found["verb"] == "impersonate" else "impersonate-on"
    refused, now = cluster.impersonation_refused_at, request.exchange.connection.seconds()
    last = refused.get(right)
    if last is not None or len(refused) < _MAX_RIGHTS:
        refused[right] = now
        if last is None or now - last > _QUIET:
            todo = f"grant the proxy what `mcproxy rbac --cluster {cluster.name}` prints"
            if _MASTERS_REFUSED in message:
                todo = f"{todo} (without --constrained, which never gives the group), or take the user out of the group"
            if request.endpoint is not None and not request.endpoint.ready:
                todo = f"nothing while the API server starts; if this continues, {todo}"
            log.warn(
                "a cluster does not allow the proxy to impersonate users",
                event="impersonation_not_permitted",
                cluster=cluster.name,
                endpoint=request.endpoint.name if request.endpoint is not None else "",
                cause=message[:_MAX_SHOWN],
                todo=todo,
                log_subject=("impersonation", cluster.name, right),
            )
    sentence = f'cluster "{cluster.name}" is unavailable: it does not let the proxy impersonate users'
    request.refuse(retry_after(503, sentence, _RETRY_AFTER), "impersonation_not_granted")


def refuse_silent(request: Request, cluster: Cluster, endpoint: Endpoint) -> None:
    """Answer a request whose endpoint fell silent and was declared unavailable before it answered.

    Only for requests that must not be sent twice: it is unknown whether this one took effect.
    """
    message = (
        f'endpoint {endpoint.name} of cluster "{cluster.name}" went out before it answered; '
        "the request may have taken effect"
    )
    request.refuse(StatusError(504, message), "upstream_silent")


def answer_not_processed(request: Request, cluster: Cluster, endpoint: Endpoint, problem: Exception) -> None:
    """Answer a request that the endpoint refused without processing it, and that cannot be sent again.

    Either it was refused several times, or more of its body was sent than is kept for a retry.
    """
    message = f'endpoint {endpoint.name} of cluster "{cluster.name}" did not take the request: {problem}'
    request.refuse(retry_after(503, message, _RETRY_AFTER), "upstream_refused")


def refuse_redirect(request: Request, cluster: Cluster, endpoint: Endpoint) -> None:
    """Answer a request that an API server wants to redirect; the text is kube-aggregator's."""
    log.warn(
        "an endpoint answered a request with a redirect",
        event="upstream_no_answer",
        **{**request.log_fields(), "cluster": cluster.name, "endpoint": endpoint.name},
        cause="a 3xx with Location: an API server that is told the user must answer itself",
        todo="see why that API server redirects, or what is between it and here",
    )
    message = "the backend attempted to redirect this request, which is not permitted"
    request.refuse(StatusError(502, message, reason="BadGateway"), "upstream_redirect")


def refuse_unanswered(request: Request, cluster: Cluster, endpoint: Endpoint, problem: Exception) -> None:
    """Answer a request that was sent but got no answer, or a malformed answer.

    If the discovery of an API service hangs, the answer is 503, as in kube-aggregator: the service is unavailable.
    """
    request.suspect_api_service()
    name = f'endpoint {endpoint.name} of cluster "{cluster.name}"'
    if isinstance(problem, ResponseTimeout):
        refusal = StatusError(504, f"{name}: {problem}")
        if request.of_service_discovery:
            refusal = retry_after(503, refusal.message, _RETRY_AFTER)
        reason = "upstream_timeout"
    else:
        refusal = StatusError(502, f"{name}: {problem}", reason="BadGateway")
        reason = "upstream_closed" if isinstance(problem, ConnectionClosed) else "upstream_malformed"
    log.warn(
        "an endpoint did not answer a request",
        event="upstream_no_answer",
        **{**request.log_fields(), "cluster": cluster.name, "endpoint": endpoint.name},
        cause=str(problem),
        todo="see whether that API server hangs or is overloaded; connections.responseTimeout is how long it has"
        if reason == "upstream_timeout"
        else "see that API server's log, and what is between it and here",
    )
    request.refuse(refusal, reason)
