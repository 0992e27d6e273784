"""Handles a request to a virtual API server: the steps, in order.

    connection (TLS, SNI) -> request head -> virtual server -> authentication -> cluster and request info
      -> impersonation -> dispatch policy -> flow control -> authorization -> forwarding -> response, record

The order is that of kube-apiserver. Flow control comes before authorization, so that the reviews that a request causes
count against its user's own limits. The policy comes before both, because it chooses the limits and the cluster that
authorizes.

Every refusal is raised as `StatusError` and becomes a Kubernetes `Status` in one place, `Request.refuse`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import lru_cache, partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from mcproxy.config.model import IPNetwork
from mcproxy.dispatch.plan import Plan
from mcproxy.http.exchange import Exchange, ServerConnection
from mcproxy.http.h1.head_parser import TLS_INSTEAD
from mcproxy.http.messages import ProtocolError
from mcproxy.identity.own_grants import MASTERS
from mcproxy.kube import requestinfo
from mcproxy.kube.requestinfo import RequestInfo, is_document
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.net.client_table import UNIX
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy import cluster_path
from mcproxy.proxy.aggregate_filters import admit_to_members
from mcproxy.proxy.aggregated_request import LocalAggregatedRequest, of_one_cluster
from mcproxy.proxy.api_requests import APIRequestsInFlight
from mcproxy.proxy.client_connection import ClientConnectionInfo
from mcproxy.proxy.cors import is_preflight
from mcproxy.proxy.filters import (
    admit,
    authenticate,
    authorize,
    choose_plan,
    impersonate,
    refuse_unavailable,
    user_for_api_service,
    while_connected,
)
from mcproxy.proxy.forward import Forward
from mcproxy.proxy.request import Auditor, Request, Tracer, refusal_fields
from mcproxy.proxy.routes import AggregateBackend, Routes, VirtualServer
from mcproxy.proxy.subrequest import fetch, forwarded
from mcproxy.requests.batch import RequestBatch
from mcproxy.requests.coroutines import start
from mcproxy.requests.correlation import new_audit_id
from mcproxy.requests.reasons import Step

log = Logger(__name__)

_OVER_LIMIT = {
    408: "see the network to the client; limits.headTimeout is the time for a head",
    413: "raise limits.bodyBytes, if the body is to be accepted",
    414: "raise limits.targetBytes, if the URI is to be accepted",
    431: "raise limits.headBytes or limits.headers, if the head is to be accepted",
}

_ROUTING = Step.ROUTING  # module globals, since the lookup of an enum member costs four times as much
_AUTHENTICATION = Step.AUTHENTICATION
_IMPERSONATION = Step.IMPERSONATION
_POLICY = Step.POLICY
_FLOW_CONTROL = Step.FLOW_CONTROL
_AUTHORIZATION = Step.AUTHORIZATION
_FORWARDING = Step.FORWARDING
_AGGREGATE = Step.AGGREGATE

#: Maximum number of cached request infos, and maximum bytes of a target in the cache: together at most 1 MiB.
_CACHE_SIZE = 2048
_LONGEST_CACHED = 512


class Pipeline:
    """Handles the requests of one listener under one Runtime; a request keeps the pipeline with which it began."""

    def __init__(
        self,
        routes: Routes,
        *,
        trusted_proxies: Sequence[IPNetwork],
        in_flight: APIRequestsInFlight,
        recorders: Recorders,
        auditor: Auditor | None = None,
        tracer: Tracer | None = None,
        batch: RequestBatch[Request] | None = None,
    ) -> None:
        """`auditor` is set if there is an audit log, `tracer` if spans are exported."""
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
        try:
            client = connection.handler_state
            if not isinstance(client, ClientConnectionInfo) or client.routes is not self.routes:
                client = ClientConnectionInfo(connection, self.routes, self.trusted_proxies, self.handle)
                connection.handler_state = client
            request = Request(
                exchange, client, in_flight.requests, self._recorders, self._auditor, self._tracer, self._batch
            )
        except Exception:
            log.failure("handling a request failed unexpectedly", event="internal_error")
            status = StatusError(500, "internal error")
            exchange.answer(500, refusal_fields(status, new_audit_id(), connection.wall_seconds()), status.body())
            return
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
                cluster, target, service = server.destination(whole)
            except StatusError:
                waiting = authenticate(request, server, whole)  # before a 404 shows which clusters exist
                if waiting is not None:
                    await waiting
                if await self._answered_probe(request, server, whole):
                    return
                request.reason = "no_cluster"
                raise
            request.cluster = cluster
            request.api_service = service
            if target is not whole:
                request.location_prefix = cluster_path.prefix_of(whole, target)
            waiting = authenticate(request, server, target)
            if waiting is not None:
                await waiting
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
                if server.tunnels is not None:
                    step = _AUTHORIZATION
                    await server.tunnels.serve(request, target)
                    return
                step = _AGGREGATE
                await self._aggregate(request, server, info, target)
                return
            if request.identity_headers.impersonate:
                step = _IMPERSONATION
                await impersonate(request, server, cluster, target)
            step = _POLICY
            plan = choose_plan(request, info, server, cluster, target)
            if plan.cluster is not cluster and request.identity_headers.impersonate:
                await impersonate(request, server, plan.cluster, target)
            if exchange.ended:
                return  # the client has disconnected; a permit taken now would never be released
            step = _FLOW_CONTROL
            waiting = admit(request, info, plan)
            if waiting is not None:
                await waiting
            authorizer = server.authorizer
            if authorizer is not None:
                step = _AUTHORIZATION
                waiting = authorize(request, info, authorizer, plan, target)
                if waiting is not None:
                    await waiting
            if request.api_service is not None and server.availability is not None:
                refuse_unavailable(request, request.api_service, server.availability)
            if in_flight.draining:
                in_flight.refuse_if_unresumable(request)
            probes = server.root_probes
            if probes is not None and cluster is server.only_cluster and service is None and probes.takes(info.path):
                probes.answer(request, info, target)
                return
            if (
                server.documents
                and service is None
                and plan.cluster.name in server.documents
                and is_document(info.path)
            ):
                step = _AGGREGATE
                await self._documents(request, server, plan, info, target)
                return
            step = _FORWARDING
            review_api = server.review_api
            if (
                review_api is not None
                and server.only_cluster is plan.cluster
                and (kind := review_api.kind_of(info)) is not None
            ):
                await self._answered(request, review_api.serve(request, kind, info, plan, target))
                return
            objects = server.answers_itself(info, head) if server.own_objects else None
            if objects is not None and cluster is server.only_cluster:
                await self._answered(request, objects.serve(request, info, target, partial(forwarded, plan=plan)))
                return
            user = request.user
            if request.api_service is not None and MASTERS in user.groups:
                user = await user_for_api_service(request, server, plan)
            forward = Forward(request, plan, target, user)
            waiting = forward.send()
            if waiting is not None:
                await waiting
        except CancelledError:
            pass  # the client has disconnected
        except Exception as error:
            request.fail(error, step)

    async def _aggregate(self, request: Request, server: VirtualServer, info: RequestInfo, target: bytes) -> None:
        """Pass a request to the server's aggregate, after the filters for each member. Raises StatusError."""
        backend = server.aggregate
        assert backend is not None
        request.correlate_head()
        admitted = await admit_to_members(request, server, backend, info, target)
        if request.exchange.ended:
            return
        if self._in_flight.draining:
            self._in_flight.refuse_if_unresumable(request)
        objects = server.answers_itself(info, request.exchange.head) if server.own_objects else None
        if objects is not None:
            handle = partial(_as_admitted, admitted=admitted, backend=backend)
            if objects.home:
                handle = partial(admitted.hand_to, objects.home)
            await self._answered(request, objects.serve(request, info, target, handle))
            return
        probes = server.root_probes
        if probes is not None and probes.takes(info.path):
            handle = partial(_as_admitted, admitted=admitted, backend=backend)
            fields = ((b"Accept", b"*/*"),)
            fetching = fetch(request, handle, request.exchange.head.method, target, fields=fields, name=backend.name)
            found = await while_connected(request, Deferred.fromCoroutine(fetching))
            probes.answer_with_aggregate(request, info, target, found)
            return
        request.upstream = admitted
        review_api = server.review_api
        kind = None if review_api is None else review_api.kind_of(info)
        if review_api is not None and kind is not None:
            await self._answered(request, review_api.serve_aggregate(admitted, kind))
            return
        await self._hand_over(request, backend, admitted)

    async def _documents(
        self, request: Request, server: VirtualServer, plan: Plan, info: RequestInfo, target: bytes
    ) -> None:
        """Answer a request for the merged documents of a cluster and of API services. Raises StatusError."""
        backend = server.documents[plan.cluster.name]
        request.correlate_head()
        await self._hand_over(request, backend, of_one_cluster(request, backend, plan, info, target))

    async def _hand_over(self, request: Request, backend: AggregateBackend, admitted: LocalAggregatedRequest) -> None:
        """Pass an admitted request to the aggregate's handler. Raises StatusError."""
        exchange = request.exchange
        request.upstream = admitted
        await self._answered(request, backend.handler.handle(admitted))
        if not exchange.responded and exchange.handler is None and not exchange.ended:
            raise RuntimeError("the aggregate has neither answered nor begun to")

    async def _answered_probe(self, request: Request, server: VirtualServer, target: bytes) -> bool:
        """Answer a probe at the root of a server without a root API; False: not a probe. Raises StatusError."""
        probes = server.root_probes
        if probes is None or not probes.takes(target.partition(b"?")[0].decode("latin-1")):
            return False
        info = request.info = requestinfo.parse(request.exchange.head.method, target)
        if self._auditor is not None:
            request.begin_audit()
        if server.authorizer is not None:
            waiting = probes.authorize(request, info, target, server.authorizer)
            await while_connected(request, Deferred.fromCoroutine(waiting))
        probes.answer(request, info, target)
        return True

    async def _answered(self, request: Request, answering: Coroutine[Deferred[Any], Any, None]) -> None:
        """Await a handler that sends the response itself. Raises its StatusError if no response has begun."""
        exchange = request.exchange
        try:
            await while_connected(request, Deferred.fromCoroutine(answering))
        except StatusError:
            if not exchange.responded:
                raise
            request.reason = "upstream_broken"
            exchange.abort()


async def _as_admitted(request: Request, admitted: LocalAggregatedRequest, backend: AggregateBackend) -> None:
    """Let the aggregate answer another request of a client, with the decisions about the client's admitted request."""
    request.correlate_head()
    assert request.info is not None
    await backend.handler.handle(admitted.for_request(request))


def _malformed_todo(problem: ProtocolError) -> str:
    """Return the log line's remedy for a request that is refused with this error."""
    if problem.message == TLS_INSTEAD:
        return "let the client use http://, or give the listener tls"
    return _OVER_LIMIT.get(problem.status, "see what the client is")


def refusal(connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
    """Return the response to a request that violates the protocol (`http.exchange.ServerContext.refusal`)."""
    if problem.status == 503:
        return _no_room(connection, problem)
    status = StatusError(problem.status, problem.message)
    log.info(
        "a request is refused: it violates the protocol",
        event="request_malformed",
        listener=connection.factory.name,
        client=str(getattr(connection.client, "host", UNIX)),
        status=problem.status,
        cause=problem.message,
        todo=_malformed_todo(problem),
    )
    return refusal_fields(status, new_audit_id(), connection.wall_seconds()), status.body()


def _no_room(connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
    """Return the response to a request whose body exceeds the memory for bodies (`http.exchange`)."""
    factory, client = connection.factory, str(getattr(connection.client, "host", UNIX))
    if factory.log_once.allows("unread bodies", connection.seconds()):
        log.warn(
            "unread request bodies reached their limit: requests are refused",
            event="unread_bodies_limit_reached",
            listener=factory.name,
            client=client,
            cause=problem.message,
            todo="see what requests wait for: a reviewer that is slow, a flow control; and which clients send them",
        )
    status = retry_after(problem.status, problem.message, 1)
    return refusal_fields(status, new_audit_id(), connection.wall_seconds()), status.body()
