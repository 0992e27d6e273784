"""The requests to API servers in flight, and their handling when an endpoint is lost or the process drains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcproxy.kube.status import retry_after
from mcproxy.proxy.request import Request
from mcproxy.requests.in_flight import RequestsInFlight

if TYPE_CHECKING:
    from mcproxy.upstream.endpoint import Endpoint

_RETRY_AFTER = 5  # seconds


class APIRequestsInFlight(RequestsInFlight[Request]):
    """All requests to servers that are in flight in the process."""

    __slots__ = ()

    def endpoint_out(self, endpoint: Endpoint) -> None:
        """Notify the requests that were sent to `endpoint` that it became unavailable (see `UpstreamContext`)."""
        for request in self.select(lambda request: request.endpoint is endpoint):
            if request.upstream is not None:
                request.upstream.endpoint_out()

    def refuse_if_unresumable(self, request: Request) -> None:
        """While the process drains, raise StatusError (503) for a tunnel or a followed log, which would be cut soon."""
        if request.exchange.head.upgrade is not None or not request.kind.resumable:
            request.reason = "draining"
            raise retry_after(503, "the proxy is shutting down and opens no tunnels or followed logs", _RETRY_AFTER)
