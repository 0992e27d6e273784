"""The fields of a log line about a request: where it went, and who sent what. What a client chose is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcproxy.observe.format import mask_query

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request

_LONGEST_URI = 512
"""Characters; the access log has more."""


def about(request: Request) -> dict[str, Any]:
    """Return them, as far as they are known; the URI without what may be a credential."""
    server, cluster, endpoint = request.server, request.cluster, request.endpoint
    head = request.exchange.head
    uri = head.target.decode("latin-1")
    masked = mask_query(uri[:_LONGEST_URI])
    return {
        "server": server.name if server is not None else "",
        "cluster": cluster.name if cluster is not None else "",
        "endpoint": endpoint.name if endpoint is not None else "",
        "client": request.client.log_address,  # lines that have it are limited
        "user": request.caller.user.name if server is not None and server.authenticates else "",
        "method": head.method.decode("latin-1"),
        "uri": masked if len(uri) <= _LONGEST_URI else masked + "...",
    }
