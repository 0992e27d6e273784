"""The steps of a request, in order.

    connection (TLS, SNI) -> request head -> virtual server -> authentication -> cluster and request info
      -> impersonation -> dispatch policy -> flow control -> authorization -> forwarding -> response, record

The order is kube-apiserver's: flow control comes before authorization, so that the reviews which a request causes are
paid for from its user's own budget. The policy comes before both, because it chooses the limits and the cluster that
authorizes.

Every refusal is raised as `StatusError` and becomes a Kubernetes `Status` in one place, `Request.refuse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from mcproxy.config.model import IPNetwork
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h1.head import TLS_INSTEAD
from mcproxy.http.messages import ProtocolError
from mcproxy.kube import requestinfo
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.status import StatusError
from mcproxy.net.client_table import UNIX
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy import cluster_path
from mcproxy.proxy.aggregate_filters import admit_to_members
from mcproxy.proxy.client_connection import ClientConnectionInfo
from mcproxy.proxy.coroutines import start
from mcproxy.proxy.correlation import new_audit_id
from mcproxy.proxy.cors import is_preflight
from mcproxy.proxy.filters import (
    admit,
    authenticate,
    authorize,
    choose_plan,
    impersonate,
    is_authorized,
    try_admit,
    try_authenticate,
    until_gone,
)
from mcproxy.proxy.forward import Forward
from mcproxy.proxy.in_flight import InFlightRequests
from mcproxy.proxy.reasons import Step
from mcproxy.proxy.request import Auditor, Batch, Request, RequestTracer
from mcproxy.proxy.responses import refusal_fields
from mcproxy.proxy.routes import Routes, VirtualServer

log = Logger()

_OVER_LIMIT = {
    408: "see the network to the client; limits.headTimeout is how long a head has",
    413: "raise limits.bodyBytes, if the body is to be accepted",
    414: "raise limits.targetBytes, if the URI is to be accepted",
    431: "raise limits.headBytes or limits.headers, if the head is to be accepted",
}

_ROUTING = Step.ROUTING  # module globals: a lookup of an enum member costs four times as much
_AUTHENTICATION = Step.AUTHENTICATION
_IMPERSONATION = Step.IMPERSONATION
_POLICY = Step.POLICY
_FLOW_CONTROL = Step.FLOW_CONTROL
_AUTHORIZATION = Step.AUTHORIZATION
_FORWARDING = Step.FORWARDING
_AGGREGATE = Step.AGGREGATE

#: Size of the cache of request infos, and the longest target in it, in bytes: together 1 MiB at most.
_CACHE_SIZE = 2048
_LONGEST_CACHED = 512


class Pipeline:
    """How one listener handles requests under one Runtime; a request keeps the pipeline that it began with."""

    def __init__(
        self,
        routes: Routes,
        *,
        trusted_proxies: Sequence[IPNetwork],
        in_flight: InFlightRequests,
        recorders: Recorders,
        auditor: Auditor | None = None,
        tracer: RequestTracer | None = None,
        batch: Batch | None = None,
    ) -> None:
        """`auditor` audits each request, if there is an audit log; `tracer` makes spans, if they are exported."""
        self.routes = routes
        self.trusted_proxies = tuple(trusted_proxies)
        self._in_flight = in_flight
        self._recorders = recorders
        self._auditor = auditor
        self._tracer = tracer
        self._batch = batch
        self._cached_info = lru_cache(_CACHE_SIZE)(requestinfo.parse)

    def handle(self, exchange: Exchange) -> None:
        """Handle a request of the HTTP engine."""
        start(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        connection, in_flight = exchange.connection, self._in_flight
        client = connection.facts
        if not isinstance(client, ClientConnectionInfo) or client.routes is not self.routes:
            client = ClientConnectionInfo(connection, self.routes, self.trusted_proxies, self.handle)
            connection.facts = client
        request = Request(
            exchange, client, in_flight.requests, self._recorders, self._auditor, self._tracer, self._batch
        )
        head = exchange.head
        step = _ROUTING
        try:
            server = request.server = client.server(head.host)
            if server.cors is not None:
                request.response_fields = server.cors.response_fields(head)
                if request.response_fields and is_preflight(head):
                    request.answer_preflight()
                    return
            step = _AUTHENTICATION
            request.identity_headers = client.identity_headers(head.fields)
            whole = head.target
            try:
                cluster, target = server.destination(whole)
            except StatusError:
                if not try_authenticate(request, server, whole):  # without that they must not learn what exists
                    await authenticate(request, server, whole)
                request.reason = "no_cluster"
                raise
            request.cluster = cluster
            if target is not whole:
                request.location_prefix = cluster_path.prefix_of(whole, target)
            if not try_authenticate(request, server, target):
                await authenticate(request, server, target)
            if len(target) > _LONGEST_CACHED:
                info = request.info = requestinfo.parse(head.method, target)
            else:
                info = request.info = self._cached_info(head.method, target)
            if self._auditor is not None:
                request.begin_audit()
            if self._tracer is not None:
                self._tracer.begin(request, info)
            if info.long_running:
                exchange.set_long_running()
            if cluster is None:
                step = _AGGREGATE
                await self._aggregate(request, server, info, target)
                return
            if request.identity_headers.impersonate:
                step = _IMPERSONATION
                await impersonate(request, server, cluster)
            step = _POLICY
            plan = choose_plan(request, info, server, cluster, target)
            if plan.cluster is not cluster and request.identity_headers.impersonate:
                await impersonate(request, server, plan.cluster)
            if exchange.ended:
                return  # the client went away meanwhile; a permit taken now would never be given back
            step = _FLOW_CONTROL
            if not try_admit(request, info, plan):
                await admit(request, info, plan)
            authorizer = server.authorizer
            if authorizer is not None and not is_authorized(request, info, authorizer, plan, target):
                step = _AUTHORIZATION
                await authorize(request, info, authorizer, plan, target)
            if in_flight.draining:
                in_flight.refuse_if_unresumable(request)
            step = _FORWARDING
            forward = Forward(request, plan, target)
            if not forward.try_send():
                await forward.run()
        except CancelledError:
            pass  # the client went away meanwhile
        except Exception as error:
            request.fail(error, step)

    async def _aggregate(self, request: Request, server: VirtualServer, info: RequestInfo, target: bytes) -> None:
        """Hand a request to the server's aggregate, after the filters for each member. Raises StatusError."""
        backend, exchange = server.aggregate, request.exchange
        assert backend is not None
        request.correlate_head()
        admitted = await admit_to_members(request, server, backend, info, target)
        if exchange.ended:
            return
        if self._in_flight.draining:
            self._in_flight.refuse_if_unresumable(request)
        request.upstream = admitted
        try:
            await until_gone(request, Deferred.fromCoroutine(backend.handler.handle(admitted)))
        except StatusError:
            if exchange.responded:
                request.reason = "upstream_broken"
                exchange.abort()
                return
            raise
        if not exchange.responded and exchange.handler is None and not exchange.ended:
            raise RuntimeError("the aggregate has neither answered nor begun to")


def _malformed_todo(problem: ProtocolError) -> str:
    """Return what an operator can do about a request that is refused with this."""
    if problem.message == TLS_INSTEAD:
        return "let the client use http://, or give the listener tls"
    return _OVER_LIMIT.get(problem.status, "see what the client is")


def refusal(connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
    """Return the response to a request that violates the protocol (`http.server_factory.ServerFactory.refusal`)."""
    status = StatusError(problem.status, problem.message)
    log.info(
        "a request is refused: it breaks the protocol",
        event="request_malformed",
        listener=connection.factory.name,
        client=str(getattr(connection.client, "host", UNIX)),
        status=problem.status,
        cause=problem.message,
        todo=_malformed_todo(problem),
    )
    return refusal_fields(status, new_audit_id(), connection.wall_seconds()), status.body()
