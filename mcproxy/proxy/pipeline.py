"""The way of a request, told in order.

    connection (TLS, SNI) -> request head -> virtual server -> user -> cluster and request info
      -> dispatch policy -> authorized? -> flow-control permit -> handler -> response, record

A policy is found before authorization is asked, because it may send the request to another cluster, and that one's
word is asked for; what the policy says (reject, limits) comes after.

Every refusal on that way is raised as `StatusError` and becomes a Kubernetes `Status` in one place, `Request.refuse`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from twisted.internet.defer import CancelledError
from twisted.logger import Logger

from mcproxy.config.model import IPNetwork
from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import ProtocolError
from mcproxy.http.server import ServerConnection
from mcproxy.kube import requestinfo
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.status import StatusError
from mcproxy.observe.record import Recorder
from mcproxy.proxy.client_facts import ClientFacts
from mcproxy.proxy.coroutines import start
from mcproxy.proxy.filters import admit, authenticate, authorize, impersonate
from mcproxy.proxy.forward import Forward
from mcproxy.proxy.request import Request, refusal_fields
from mcproxy.proxy.routes import Routes, VirtualServer
from mcproxy.proxy.running import Running
from mcproxy.upstream.cluster import Cluster

log = Logger()

#: Request infos that are kept, and how long a target may be that is worth keeping: 1 MiB at the most.
_REMEMBERED = 2048
_LONGEST_REMEMBERED = 512


class Pipeline:
    """What one listener does with requests under one Runtime; a request keeps the one that it began with."""

    def __init__(
        self, routes: Routes, *, trusted_proxies: Sequence[IPNetwork], running: Running, recorder: Recorder | None
    ) -> None:
        self.routes = routes
        self.trusted_proxies = tuple(trusted_proxies)
        self._running = running
        self._recorder = recorder
        self._remembered_info = lru_cache(_REMEMBERED)(requestinfo.parse)

    def handle(self, exchange: Exchange) -> None:
        """Take a request from the engine."""
        start(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        connection = exchange.connection
        client = connection.facts
        if not isinstance(client, ClientFacts) or client.pipeline is not self:
            client = connection.facts = ClientFacts(connection, self)
        request = Request(exchange, client, self._running, self._recorder)
        head = exchange.head
        try:
            server = request.server = client.server(head.host)
            request.identity_headers = client.identity_headers(head.fields)
            cluster, target = await self._asked(request, server)
            info = request.info = self._request_info(head.method, target)
            if request.identity_headers.impersonate:
                await impersonate(request, server, cluster)
            request.plan = server.dispatch.plan(request.user, info, cluster.name)
            plan = await authorize(request, info, server, cluster, target)
            if exchange.ended:
                return  # the client went away meanwhile; a permit taken now would never be given back
            await admit(request, info, plan)
            forward = Forward(request, plan, target)
            if not forward.sent_at_once():
                await forward.run()
        except CancelledError:
            pass  # the client went away meanwhile
        except Exception as error:
            request.fail(error)

    async def _asked(self, request: Request, server: VirtualServer) -> tuple[Cluster, bytes]:
        """Find out who asks, and which cluster for what."""
        whole = request.exchange.head.target
        try:
            cluster, target = server.destination(whole)
        except StatusError:
            await authenticate(request, server, whole)  # which clusters there are is nobody else's business
            raise
        request.cluster = cluster
        await authenticate(request, server, target)
        return cluster, target

    def _request_info(self, method: bytes, target: bytes) -> RequestInfo:
        if len(target) > _LONGEST_REMEMBERED:
            return requestinfo.parse(method, target)
        return self._remembered_info(method, target)


def refusal(connection: ServerConnection, problem: ProtocolError) -> tuple[bytes, bytes]:
    """Word the answer to what is no proper request (`http.server_factory.ServerFactory.refusal`)."""
    status = StatusError(problem.status, problem.message)
    log.info(
        "refused a request that breaks the protocol",
        client=str(getattr(connection.client, "host", "")),
        cause=problem.message,
        status=problem.status,
    )
    return refusal_fields(status), status.body()
