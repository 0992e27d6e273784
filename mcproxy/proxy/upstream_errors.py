"""Failures between the proxy and a cluster: the client's Status, and the operator's log line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from mcproxy.http.client import ResponseTimeout
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint

log = Logger()


def no_credential(request: Request, cluster: Cluster) -> StatusError:
    """Return the refusal of a request that cannot be sent with the proxy's credential; its source has logged why.

    Paths, commands and what a plugin printed are for the log: the client may be anybody.
    """
    request.reason = "no_credential"
    return StatusError(503, f'cluster "{cluster.name}" cannot be asked: the proxy has no usable credential for it')


def refuse_proxy_unauthorized(request: Request, cluster: Cluster) -> None:
    """Answer a request that the cluster refused with 401 because it does not accept the proxy's credential.

    A client that got this 401 would discard its own, good credential.
    """
    log.warn(
        "cluster {cluster} does not accept the proxy's own credential",
        cluster=cluster.name,
        endpoint=request.endpoint.name if request.endpoint is not None else "",
        todo="give the cluster a valid credential, in `credentials` or `frontProxy`",
    )
    message = f'cluster "{cluster.name}" cannot be asked: it does not accept the proxy\'s credential'
    request.refuse(StatusError(503, message), "credential_refused")


def refuse_unanswered(request: Request, cluster: Cluster, endpoint: Endpoint, problem: Exception) -> None:
    """Answer a request that was sent and got no answer, or a malformed one."""
    name = f'endpoint {endpoint.name} of cluster "{cluster.name}"'
    if isinstance(problem, ResponseTimeout):
        refusal, reason = StatusError(504, f"{name}: {problem}"), "upstream_timeout"
    else:
        refusal, reason = StatusError(502, f"{name}: {problem}", reason="BadGateway"), "upstream_broken"
    log.warn(
        "no answer from endpoint {endpoint} of cluster {cluster}",
        server=request.server.name if request.server is not None else "",
        cluster=cluster.name,
        endpoint=endpoint.name,
        client=request.client.address,
        cause=str(problem),
        todo="see that API server's log; it broke off or did not answer a request that had been sent",
    )
    request.refuse(refusal, reason)
