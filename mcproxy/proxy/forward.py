"""Forwarding: one request to one endpoint of a cluster, and the answer back, streaming both ways.

    pick endpoint -> idle or new connection -> send head -> body ... ; response head -> body ... -> end
          ^                                                              |
          '---- nothing was sent, or nothing came back and it is safe ---'

`Forward` stands between the two engines: it is the handler of the client's exchange and the sink of the upstream's
response. What passes, what changes and what goes wrong is the table of docs/architecture.md, "Forwarding".
"""

from __future__ import annotations

from twisted.internet.defer import CancelledError

from mcproxy.config.model import Identity
from mcproxy.dispatch.plan import Plan
from mcproxy.http.client import ClientConnection, ConnectionClosed
from mcproxy.http.framing import encode_chunk, encode_last_chunk
from mcproxy.http.messages import CHUNKED, Header, ResponseHead
from mcproxy.http.tunnel import TunnelSide
from mcproxy.identity.cross_site import refuse_cross_site
from mcproxy.kube.status import retry_after
from mcproxy.kube.watch import EventBorder
from mcproxy.net.errors import ConnectError
from mcproxy.proxy.coroutines import start
from mcproxy.proxy.failures import no_credential, refuse_unanswered, refuse_unknown_proxy
from mcproxy.proxy.outgoing import framing, response_timeout
from mcproxy.proxy.request import Request
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint, EndpointGone, is_ready

_REPEATABLE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_WITH_OWN_CREDENTIAL = frozenset({Identity.IMPERSONATE, Identity.PROXY})
_SPEAKS_FOR_CLIENTS = frozenset({Identity.IMPERSONATE, Identity.REQUEST_HEADER})


class Forward:
    """One request's way to a cluster and back."""

    __slots__ = (
        "_authorization",
        "_balancer",
        "_border",
        "_chunked_body",
        "_cluster",
        "_connection",
        "_exchange",
        "_fields",
        "_finishing",
        "_fresh",
        "_lends",
        "_picked",
        "_renewed",
        "_repeated",
        "_request",
        "_target",
        "_tried",
        "_tunnel",
    )

    def __init__(self, request: Request, plan: Plan, target: bytes) -> None:
        """Prepare; `target` is the path and query as the cluster is asked. Raises StatusError."""
        self._request = request
        self._exchange = exchange = request.exchange
        self._cluster = cluster = plan.cluster
        self._balancer = plan.balancer
        self._target = target
        client = request.client
        identity = cluster.config.identity
        if identity is Identity.PROXY and (client.foreign_host or exchange.head.upgrade is not None):
            refuse_cross_site(exchange.head, client.foreign_host)
        presented, server = request.identity_headers, request.server
        assert server is not None
        if identity is Identity.PASSTHROUGH:
            self._fields = presented.fields + presented.own
        else:
            self._fields = presented.fields + server.upstream_headers[cluster.name].headers_for(request.user)
        self._lends = identity in _WITH_OWN_CREDENTIAL
        self._authorization: bytes | None = None
        self._connection: ClientConnection | None = None
        self._fresh = False  # the connection was opened for this request
        self._picked: Endpoint | None = None  # whose turn it is, but a connection must be opened
        self._tried: list[Endpoint] = []
        self._renewed = False
        self._repeated = False
        self._chunked_body = exchange.head.length == CHUNKED
        self._border: EventBorder | None = None
        self._finishing = False
        self._tunnel: TunnelSide | None = None

    def sent_at_once(self) -> bool:
        """Send the request if that needs no waiting: the usual case, a credential and an idle connection at hand.

        False: nothing was done, and `run` must be awaited. All that follows comes through the callbacks below.
        Raises StatusError.
        """
        cluster = self._cluster
        if self._lends:
            if not cluster.credentials.is_ready:
                return False
            self._lend_credential()
        endpoint = self._pick()
        if endpoint is None:
            self._nowhere_to_send()
            return True
        connection = endpoint.pool.take()
        if connection is None:
            self._picked = endpoint
            return False
        self._send(endpoint, connection)
        return True

    async def run(self) -> None:
        """Send the request, waiting for what has to be waited for. Raises StatusError."""
        request, cluster = self._request, self._cluster
        if self._lends:
            if not cluster.credentials.is_ready:
                await self._credential_ready()
            self._lend_credential()
        while not self._exchange.ended:
            endpoint, self._picked = self._picked or self._pick(), None
            if endpoint is None:
                self._nowhere_to_send()
                return
            # Once one kept connection was found dead, others may be: the second try gets a new one.
            connection = None if self._repeated else endpoint.pool.take()
            self._fresh = connection is None
            if connection is None:
                request.waiting = opening = endpoint.open()
                try:
                    connection = await opening
                except ConnectError as problem:
                    if not isinstance(problem, EndpointGone):
                        endpoint.record_connect_failure(problem.cause)
                    self._tried.append(endpoint)
                    continue
                except CancelledError:
                    return  # the client went away
                finally:
                    request.waiting = None
                endpoint.record_connect_success()
            self._send(endpoint, connection)
            return

    def _pick(self) -> Endpoint | None:
        request = self._request
        return self._balancer.pick(self._tried, request.user.name, request.info, self._target)

    async def _credential_ready(self) -> None:
        try:
            await self._cluster.credentials.ready()
        except CredentialError as problem:
            raise no_credential(self._request, self._cluster, problem) from None

    def _lend_credential(self) -> None:
        try:
            self._authorization = self._cluster.credentials.authorization()
        except CredentialError as problem:
            raise no_credential(self._request, self._cluster, problem) from None

    # -- the request --------------------------------------------------------------------------------------------

    def _send(self, endpoint: Endpoint, connection: ClientConnection) -> None:
        request, exchange, cluster = self._request, self._exchange, self._cluster
        head = exchange.head
        self._connection = connection
        request.send_to(endpoint)
        host = head.host if cluster.config.preserve_host and head.host else endpoint.authority
        authorization = b"" if self._authorization is None else b"Authorization: %b\r\n" % self._authorization
        connection.send(
            b"%b %b%b HTTP/1.1\r\nHost: %b\r\n%b%b%b%b\r\n"
            % (
                head.method,
                endpoint.path_prefix if self._target != b"*" else b"",
                self._target,
                host,
                self._fields,
                request.client.forwarded(head),
                authorization,
                framing(head),
            ),
            self,
            head.method,
            response_timeout(head, request.info, self._target, cluster.config.connections.response_timeout),
            head.length != 0,
            head.upgrade is not None,
        )
        if exchange.handler is None:
            exchange.attach(self)
        elif exchange.connection.write_blocked:
            connection.pause()

    def body_data(self, data: bytes) -> None:
        connection = self._connection
        if connection is not None:
            connection.send_body(encode_chunk(data) if self._chunked_body else data)

    def body_end(self, trailers: list[Header]) -> None:
        connection = self._connection
        if connection is not None and self._exchange.head.length:
            if self._chunked_body:
                connection.send_body(encode_last_chunk(trailers))
            connection.end_body()

    def pause_request(self) -> None:
        self._exchange.pause_body()

    def resume_request(self) -> None:
        self._exchange.resume_body()

    # -- the response -------------------------------------------------------------------------------------------

    def response_interim(self, head: ResponseHead) -> None:
        self._exchange.send_interim(head.status, head.reason, head.fields)

    def response_head(self, head: ResponseHead) -> None:
        if head.status == 401 and self._answered_unauthorized():
            return
        info = self._request.info
        if info is not None and info.verb == "watch" and head.status == 200 and head.length < 0:
            self._border = EventBorder(head.header(b"content-type"), head.header(b"content-encoding"))
        self._exchange.respond(head.status, head.reason, head.fields, head.length, head.declared_length)

    def response_whole(self, head: ResponseHead, body: bytes) -> None:
        self._connection = None
        if head.status == 401 and self._answered_unauthorized():
            return
        self._exchange.answer(head.status, head.fields, body, head.reason)

    def response_data(self, data: bytes) -> None:
        if self._border is not None:
            self._border.passed(data)
        self._exchange.write(data)

    def response_flush(self) -> None:
        self._exchange.flush()
        if self._finishing:
            self.finish_up()

    def response_end(self, trailers: list[Header]) -> None:
        self._connection = None
        self._exchange.end(trailers)

    def response_upgraded(self, head: ResponseHead, side: TunnelSide) -> None:
        self._connection = None
        upgrade = head.upgrade or self._exchange.head.upgrade or b""
        self._tunnel = self._exchange.switch_protocols(head.reason, head.fields, upgrade)
        self._tunnel.join(side)

    def response_failed(self, problem: Exception) -> None:
        connection, self._connection = self._connection, None
        exchange, request = self._exchange, self._request
        if exchange.responded:
            self._broken_off(problem)
            return
        began = connection is not None and connection.began
        endpoint = request.endpoint
        assert endpoint is not None
        if isinstance(problem, ConnectionClosed) and not began:
            if self._fresh:
                endpoint.request_check()  # not a failure: a request that breaks its connection must not eject it
            if self._repeatable:
                self._repeated = True
                if self._fresh:  # so each endpoint is asked once, and a kept connection that had died counts for none
                    self._tried.append(endpoint)
                self._again()
                return
        refuse_unanswered(request, self._cluster, endpoint, problem)

    def _broken_off(self, problem: Exception) -> None:
        """End a response whose rest will not come, so that the client cannot take it for whole.

        A watch between two events has lost nothing: it ends cleanly, and an informer resumes instead of relisting.
        """
        if self._border is not None and isinstance(problem, ConnectionClosed):
            self._end_watch(self._border)
        else:
            self._request.reason = "upstream_broken"
            self._exchange.abort()

    def _end_watch(self, border: EventBorder) -> None:
        if border.clean:
            self._request.reason = "upstream_closed_watch"
            self._exchange.end()
        else:
            self._request.reason = "upstream_broken"
            self._exchange.abort()

    # -- the client ---------------------------------------------------------------------------------------------

    def finish_up(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close(clean=True)
        elif not self._exchange.responded or (self._border is not None and not self._border.clean):
            self._finishing = True  # inside an event: at the next border
        elif self._border is not None or self._is_log():
            self._hang_up()
            self._exchange.end()
        # else: what comes from below proxy has an end that cannot be told early; it has until the time is over

    def _is_log(self) -> bool:
        info = self._request.info
        return info is not None and info.subresource == "log" and self._exchange.open_ended

    def cancelled(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close(clean=False)
        self._hang_up()

    def _hang_up(self) -> None:
        """Let go of the connection to the cluster, if an answer on it is still to come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cancel()

    def pause_response(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume_response(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def endpoint_out(self) -> None:
        """The endpoint went out. If it has not begun to answer, ask another one that is ready, where that is safe.

        A watch on an endpoint that has fallen silent would hear nothing for ever: it ends, and is resumed elsewhere.
        """
        connection, endpoint = self._connection, self._request.endpoint
        if connection is None or endpoint is None:
            return
        if connection.began or self._exchange.responded:
            if self._border is not None and endpoint.silent and any(map(is_ready, self._balancer.endpoints)):
                self._hang_up()
                self._end_watch(self._border)
            return
        if not self._repeatable:
            return
        self._tried.append(endpoint)
        self._picked = self._pick()
        if self._picked is not None:  # else it may still answer
            self._hang_up()
            self._again()

    def start_over(self) -> bool:
        """Let the configuration in force serve the request from its beginning, if no answer came and that is safe.

        False: it is not, or the request began under that one; nothing was done then.
        """
        connection = self._connection
        if connection is None or connection.began or not self._repeatable or not self._request.begin_anew():
            return False
        self._hang_up()
        return True

    # -- once more ----------------------------------------------------------------------------------------------

    @property
    def _repeatable(self) -> bool:
        """Whether the request may have been carried out once already without harm. A tunnel's GET runs a command."""
        head = self._exchange.head
        return head.method in _REPEATABLE and head.length == 0 and head.upgrade is None

    def _answered_unauthorized(self) -> bool:
        """After a 401: whether that is the proxy's own affair, which the client need not see; then it was seen to.

        Where the proxy speaks for its client, a 401 means that the cluster does not know the proxy. Below `proxy` it is
        the word of somebody else's server.
        """
        if self._authorization is not None and self._credential_renewed():
            return True
        info = self._request.info
        if (
            self._cluster.config.identity not in _SPEAKS_FOR_CLIENTS
            or info is None
            or "proxy" in (info.verb, info.subresource)
        ):
            return False
        self._hang_up()
        refuse_unknown_proxy(self._request, self._cluster)
        return True

    def _credential_renewed(self) -> bool:
        """After a 401 to the proxy's own credential: ask again with a newer one, if there is one and it is safe."""
        if self._renewed or self._exchange.head.length != 0:
            self._cluster.credentials.invalidate(self._authorization)
            return False
        if not self._cluster.credentials.invalidate(self._authorization):
            return False
        self._renewed = True
        self._hang_up()
        self._again()
        return True

    def _again(self) -> None:
        start(self._run_again())

    async def _run_again(self) -> None:
        try:
            await self.run()
        except Exception as error:
            self._request.fail(error)

    def _nowhere_to_send(self) -> None:
        """Begin anew if a reload has come between, which may have brought other endpoints. Raises StatusError."""
        if self._request.begin_anew():
            return
        self._request.reason = "upstream_unreachable"
        raise retry_after(503, self._cluster.unavailable_message(self._balancer.endpoints), self._cluster.RETRY_AFTER)
