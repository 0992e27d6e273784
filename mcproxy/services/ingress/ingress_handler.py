"""Handles requests to an Ingress listener in these steps:

    connection (TLS, SNI) -> request head -> host -> rule -> redirect? -> backend -> endpoint -> forwarding -> record

Every refusal is short plain text, never a Kubernetes Status: 400 for an ambiguous path, 404 if no rule matches, 413 for
a body beyond the rule's limit, 421 if the connection's certificate does not cover the host, 503 without endpoints. gRPC
calls get a gRPC status (`ingress_request.grpc_answer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from mcproxy.config.model import IPNetwork
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h1.head_parser import TLS_INSTEAD
from mcproxy.http.messages import CHUNKED, ProtocolError
from mcproxy.net.client_table import UNIX
from mcproxy.observe.metrics.ingress_counts import IngressCounts
from mcproxy.observe.recorders import Recorder
from mcproxy.requests.batch import RequestBatch
from mcproxy.services.ingress.client_connection import CertificateCoverage, Client
from mcproxy.services.ingress.ingress_forward import is_call
from mcproxy.services.ingress.ingress_request import IngressRequest, answer
from mcproxy.services.ingress.live_route import LiveRoute
from mcproxy.services.ingress.request_paths import BadPath
from mcproxy.services.ingress.router import Router

if TYPE_CHECKING:
    from mcproxy.requests.in_flight import RequestsInFlight
    from mcproxy.services.ingress.ingress_request import IngressTracer

log = Logger(__name__)

_TODO = {
    408: "see the network to the client; limits.headTimeout is the time for a head",
    413: "raise filters.bodyBytes of the rule, or limits.bodyBytes, if the body is to be accepted",
    414: "raise limits.targetBytes, if the URI is to be accepted",
    431: "raise limits.headBytes or limits.headers, if the head is to be accepted",
}


class IngressHandler:
    """Handles the requests of one Ingress listener under one Runtime; a request keeps its handler until it ends."""

    def __init__(
        self,
        router: Router[LiveRoute],
        *,
        coverage: CertificateCoverage | None,
        trusted_proxies: Sequence[IPNetwork],
        in_flight: RequestsInFlight[IngressRequest],
        request_ids: Callable[[], bytes],
        counts: IngressCounts | None = None,
        log: Recorder | None = None,
        batch: RequestBatch[IngressRequest] | None = None,
        tracer: IngressTracer | None = None,
    ) -> None:
        """`coverage`: set for a listener with TLS. `log`: the access log. `tracer`: makes spans, if they are exported.

        `request_ids` returns a new identifier for a request.
        """
        self._router = router
        self._coverage = coverage
        self._trusted = tuple(trusted_proxies)
        self._in_flight = in_flight
        self._request_ids = request_ids
        self._counts = counts
        self._log = log
        self._batch = batch
        self._tracer = tracer
        self.refusal = refusal

    def routes_of(self, connection: ServerConnection, host: bytes) -> Any:
        """Return the routes for a host on a connection; None if this connection must not serve the host.

        A host without a rule and without a certificate of the listener has no routes on another connection either. It
        gets the response for unknown hosts (Gateway API conformance, HTTPRouteHTTPSListenerDetectMisdirectedRequests).
        """
        coverage, router = self._coverage, self._router
        if (
            coverage is not None
            and coverage.misdirected(connection.transport.server_name, host)
            and (router.knows(host) or coverage.covers(host))
        ):
            return None
        return router.table(host)

    def handle(self, exchange: Exchange) -> None:
        """Handle a request of the HTTP engine."""
        connection = exchange.connection
        client = connection.handler_state
        if not isinstance(client, Client) or client.handler is not self:
            client = connection.handler_state = Client(connection, self, self._trusted)
        request = IngressRequest(
            exchange, client, self._in_flight.requests, self._counts, self._log, self._batch, self._tracer
        )
        try:
            self._route(request, client, exchange)
        except BadPath as problem:
            request.deny(400, str(problem), "bad_request")
        except Exception:
            request.fail()

    def _route(self, request: IngressRequest, client: Client, exchange: Exchange) -> None:
        head = exchange.head
        noted = request.noted = client.noted(exchange.connection, head)
        request.request_id = noted.request_id or self._request_ids()
        routes = client.routes
        if routes is None:
            request.deny(421, "open another connection for this host", "misdirected")
            return
        found = routes.find(head.target, head.method, noted.fields)
        if found is None:
            request.deny(404, "no rule for this host and path", "no_rule")
            return
        route, target = found
        request.route = route
        if not noted.https and route.tls_hosts is not None:
            location = route.location(client.host, target)
            if location is not None:
                request.redirect(308, location)
                return
        changes = route.changes
        if changes is not None and changes.redirect is not None:
            redirect = changes.redirect
            request.redirect(redirect.code, redirect.location(head.host, target, https=noted.https))
            return
        limit = route.body_bytes
        if limit and head.length and (route.limits_calls or not is_call(head)):
            if head.length > limit or exchange.bytes_in > limit:  # in HTTP/2, a part of the body can be here already
                request.deny(413, f"the request body is longer than {limit} bytes", "refused")
                return
            if head.length == CHUNKED:
                exchange.body_limit = limit
        if head.upgrade is not None and self._in_flight.draining:
            request.deny(503, "the proxy is shutting down and opens no tunnels", "draining")
            return
        request.send(route, target)


def refusal(connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
    """Return the response to a request that violates the protocol (`http.server_factory.ServerFactory.refusal`)."""
    if problem.status == 503:
        todo = "see which clients send bodies that nothing reads"
    elif problem.message == TLS_INSTEAD:
        todo = "let the client use http://, or give the listener tls"
    else:
        todo = _TODO.get(problem.status, "see what the client is")
    log.info(
        "a request is refused: it violates the protocol",
        event="request_malformed",
        listener=connection.factory.name,
        client=str(getattr(connection.client, "host", UNIX)),
        status=problem.status,
        cause=problem.message,
        todo=todo,
    )
    return answer(problem.status, problem.message, connection.wall_seconds())
