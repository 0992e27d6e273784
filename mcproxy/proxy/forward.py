"""Forwarding: one request to one endpoint of a cluster, and the response back, streamed both ways.

    pick endpoint -> stream of the pool -> send head -> body ... ; response head -> body ... -> end
          ^                                                              |
          '---- nothing was sent, it was refused unprocessed, -----------'
                or nothing came back and it is safe

`Forward` connects the two HTTP engines: it is the handler of the client's exchange and the sink of the upstream's
response (`response_relay`). docs/architecture.md describes the forwarded and changed data, and the error handling.

A watch has no timeout of its own. A silent one ends if its endpoint no longer answers anything and another one is ready
(`endpoint_out`), or if its connection is found dead (PING of HTTP/2, keepalive of TCP).
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import CancelledError, Deferred

from mcproxy.config.model import UpstreamIdentity
from mcproxy.dispatch.plan import Plan
from mcproxy.http.client_stream import ClientStream, ConnectionClosed, HTTP1Required, RequestNotProcessed
from mcproxy.http.messages import CHUNKED, RequestHead
from mcproxy.kube import duration
from mcproxy.kube.requestinfo import RequestInfo, timeout_parameter
from mcproxy.kube.status import retry_after
from mcproxy.kube.user import ANONYMOUS_NAME, UNAUTHENTICATED, UserInfo
from mcproxy.net.connect_errors import ConnectError
from mcproxy.proxy.filters import Pending, while_connected
from mcproxy.proxy.request import Request
from mcproxy.proxy.response_relay import ResponseRelay
from mcproxy.proxy.upstream_errors import (
    answer_not_processed,
    missing_impersonation_right,
    no_credential,
    refuse_impersonation_not_granted,
    refuse_proxy_unauthorized,
    refuse_redirect,
    refuse_silent,
    refuse_unanswered,
)
from mcproxy.requests.coroutines import start
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint, EndpointGone, is_ready
from mcproxy.upstream.trials import TRIAL_SECONDS

if TYPE_CHECKING:
    from mcproxy.identity.upstream_identity_headers import UpstreamIdentityHeaders

#: Compiled code reads these faster than an enumeration.
_IMPERSONATE: Final = UpstreamIdentity.IMPERSONATE
_PASSTHROUGH: Final = UpstreamIdentity.PASSTHROUGH
_REQUEST_HEADER: Final = UpstreamIdentity.REQUEST_HEADER
_REPEATABLE: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_DISCOVERY_TIMEOUT = 5.0  # seconds for the document of an API service's group-version, as in kube-aggregator
_WITH_OWN_CREDENTIAL: Final = frozenset({_IMPERSONATE, UpstreamIdentity.PROXY})
#: Bytes of a request's fields, or of its target: with one field of more than 8 KiB, or 32 KiB together, nginx ends the
#: connection (large_client_header_buffers).
_LARGE_HEAD: Final = 8000
_ASSERTS_THE_USER: Final = frozenset({_IMPERSONATE, _REQUEST_HEADER})
#: What a hub says of a request whose credential is the client's own: the edge's authenticators decide.
_ANONYMOUS_FIELDS: Final = b"X-Remote-User: %b\r\nX-Remote-Group: %b\r\n" % (
    ANONYMOUS_NAME.encode(),
    UNAUTHENTICATED.encode(),
)


class Forward(ResponseRelay):
    """The forwarding of one request."""

    __slots__ = (
        "_alone",
        "_authorization",
        "_balancer",
        "_cluster",
        "_fresh",
        "_http1",
        "_impersonation_retried",
        "_names",
        "_own_connection",
        "_picked",
        "_renewed",
        "_repeated",
        "_target",
        "_tried",
        "_user_fields",
        "_uses_own_credential",
    )

    def __init__(self, request: Request, plan: Plan, target: bytes, user: UserInfo | None = None) -> None:
        """Prepare to forward; `target` is the path and query for the cluster. Raises StatusError.

        `user` is the user to send to the cluster, if it differs from the request's user.
        """
        self._cluster = cluster = plan.cluster
        self._balancer = plan.balancer
        self._target = target
        identity = cluster.config.identity
        super().__init__(request, impersonates=identity is _IMPERSONATE)
        headers, server = request.identity_headers, request.server
        assert server is not None
        self._names: UpstreamIdentityHeaders | None = None
        self._alone: UserInfo | None = None  # the user for a cluster that possibly gets only the user's name
        self._own_connection = False  # whether to use a separate connection, which a kube-apiserver can end with GOAWAY
        if identity is _PASSTHROUGH:
            self._own_connection = self._is_unknown()
            self._user_fields = headers.passed_through(
                authenticates=server.authenticates, by_token=request.caller.by_token
            )
            if cluster.has_tunnels:  # a request without a token must not have the rights of this hub
                self._user_fields += _ANONYMOUS_FIELDS
        else:
            self._names = server.upstream_headers[cluster.name]
            told = user or request.user
            self._user_fields = self._names.headers_for(told)
            if not (request.impersonates and (told.uid or told.extra)):  # uid and extra that the client requested
                self._alone = self._names.alone(told)
            if identity is _REQUEST_HEADER:
                self._own_connection = request.user.name == ANONYMOUS_NAME or UNAUTHENTICATED in request.user.groups
        self._uses_own_credential = identity in _WITH_OWN_CREDENTIAL
        self._authorization: bytes | None = None
        self._fresh = False  # the connection was opened for this request
        self._picked: Endpoint | None = None  # the chosen endpoint, which needs a new connection
        self._tried: tuple[Endpoint, ...] = ()
        self._renewed = False
        self._repeated = False
        # Requests that could end a shared HTTP/2 connection are sent over HTTP/1.1: requests with a large head, since
        # nginx ends the connection, and requests below `proxy`, since a tenant's server can send a too large head.
        self._http1 = (
            self._is_below_proxy
            or len(headers.fields) + len(self._user_fields) > _LARGE_HEAD
            or len(target) > _LARGE_HEAD
            or _needs_http1(request.exchange.head)
        )
        self._impersonation_retried = False  # impersonation was refused, and another endpoint is tried

    def send(self) -> Pending | None:
        """Send the request immediately if a credential and an idle connection are available, as usual.

        Otherwise return a coroutine that must be awaited. The callbacks below do the rest. Raises StatusError.
        """
        cluster = self._cluster
        alone = self._alone
        if alone is not None:
            names = self._names
            assert names is not None
            assert names.grant is not None
            by_name = names.grant.by_name(alone.name)
            if by_name is True:
                self._user_fields = names.headers_for(alone)
            elif by_name is not False:
                return self._send_named(by_name, names, alone)
        if self._uses_own_credential:
            if not cluster.credentials.is_ready:
                return self._send_when_ready()
            self._attach_credential()
        endpoint = self._pick() or self._last_resort()
        if endpoint is None:
            self._no_endpoint()
            return None
        info = self._request.info
        lasting = info is not None and info.long_running
        stream = endpoint.pool.take(lasting=lasting, upgrade=self._http1, apart=self._own_connection)
        if stream is None:
            self._picked = endpoint
            return self._send_when_ready()
        self._send(endpoint, stream)
        return None

    async def _send_named(
        self, asking: Coroutine[Deferred[Any], Any, bool], names: UpstreamIdentityHeaders, alone: UserInfo
    ) -> None:
        try:
            if await while_connected(self._request, Deferred.fromCoroutine(asking)):
                self._user_fields = names.headers_for(alone)
        except CancelledError:
            return  # the client went away
        await self._send_when_ready()

    async def _send_when_ready(self) -> None:
        """Wait for a credential or a connection if necessary, and send the request. Raises StatusError."""
        request, cluster = self._request, self._cluster
        lasting = request.info is not None and request.info.long_running
        if self._uses_own_credential:
            if not cluster.credentials.is_ready:
                await self._credential_ready()
            self._attach_credential()
        while not self._exchange.ended:
            endpoint, self._picked = self._picked or self._pick() or self._last_resort(), None
            if endpoint is None:
                self._no_endpoint()
                return
            # If one idle connection was dead, others can be dead, too. So the second attempt uses a new connection.
            stream = None
            if not self._repeated:
                stream = endpoint.pool.take(lasting=lasting, upgrade=self._http1, apart=self._own_connection)
            self._fresh = stream is None
            if stream is None:
                opening = endpoint.open(lasting=lasting, upgrade=self._http1, apart=self._own_connection)
                try:
                    stream = await while_connected(request, opening)
                except ConnectError as problem:
                    if not isinstance(problem, EndpointGone):
                        endpoint.record_connect_failure(problem)
                    self._tried = (*self._tried, endpoint)
                    continue
                except CancelledError:
                    return  # the client went away
                endpoint.record_connect_success()
            self._send(endpoint, stream)
            return

    def _is_unknown(self) -> bool:
        """Whether the cluster gets no client token, or a token that it has just refused."""
        request, refused = self._request, self._cluster.refused_tokens
        headers, server = request.identity_headers, request.server
        token = headers.token
        if server is not None and server.authenticates and not request.caller.by_token:
            return True
        if token is None:
            return not headers.bad_token
        return bool(refused) and refused.has(token, self._exchange.connection.seconds())

    def _pick(self) -> Endpoint | None:
        request = self._request
        if not request.sent_at:
            request.sent_at = self._exchange.connection.seconds()
        return self._balancer.pick(self._tried, request.user.name, request.info, self._target)

    def _last_resort(self) -> Endpoint | None:
        """Return an unavailable endpoint that may still serve, if no endpoint is ready.

        None for a request that has waited for a connection or was sent before: such requests would multiply the load.
        """
        request = self._request
        if request.attempts > 1 or self._exchange.connection.seconds() >= request.sent_at + TRIAL_SECONDS:
            return None
        return self._cluster.last_resort(self._tried, self._balancer.endpoints, request)

    async def _credential_ready(self) -> None:
        try:
            await self._cluster.credentials.ready()
        except CredentialError:
            raise no_credential(self._request, self._cluster) from None

    def _attach_credential(self) -> None:
        try:
            self._authorization = self._cluster.credentials.authorization()
        except CredentialError:
            raise no_credential(self._request, self._cluster) from None

    # -- the request --------------------------------------------------------------------------------------------

    def _send(self, endpoint: Endpoint, stream: ClientStream) -> None:
        request, exchange, cluster = self._request, self._exchange, self._cluster
        head = exchange.head
        self._stream = stream
        request.assign_endpoint(endpoint)
        request.attempts += 1
        fields: tuple[bytes, ...] = (
            request.upstream_fields(),
            self._user_fields,
            request.client.forwarded_fields(head),
        )
        if self._authorization is not None:
            fields = (*fields, cluster.authorization_field(self._authorization))
        if head.upgrade is not None:
            fields = (*fields, b"X-Forwarded-Uri: %b\r\n" % head.target)
        stream.send_head(
            head,
            endpoint.path_prefix + self._target if self._target != b"*" else self._target,
            head.host if cluster.config.preserve_host and head.host else endpoint.host_header,
            fields,
            self,
            self._response_timeout(),
        )
        if exchange.handler is None:
            if head.length and stream.refusable:
                self._kept = []
            request.upstream = self
            exchange.attach(self)
            return
        self._continue_on(stream)

    def _response_timeout(self) -> float:
        """Return the maximum seconds until the response's first byte; 0: no limit."""
        request = self._request
        seconds = response_timeout(request.info, self._target, self._cluster.config.connections.response_timeout)
        if request.of_service_discovery:
            return min(seconds or _DISCOVERY_TIMEOUT, _DISCOVERY_TIMEOUT)
        return seconds

    # -- failures -----------------------------------------------------------------------------------------------

    def response_failed(self, problem: Exception) -> None:
        stream, self._stream = self._stream, None
        try:
            self._failed(stream, problem)
        except Exception as error:
            self._broken(error)

    def _failed(self, stream: ClientStream | None, problem: Exception) -> None:
        """The response on `stream` failed: refuse the request, send it again, or break off the client's response."""
        exchange, request = self._exchange, self._request
        if exchange.responded:
            self._truncated(problem)
            return
        if isinstance(problem, RequestNotProcessed):
            self._not_processed(problem)
            return
        began = stream is not None and stream.began
        endpoint = request.endpoint
        assert endpoint is not None
        if isinstance(problem, ConnectionClosed) and not began:
            if self._fresh:
                endpoint.request_check()  # no failure: a request that breaks connections must not eject endpoints
            if self._repeatable:
                self._repeated = True
                if self._fresh:  # each endpoint is tried once; a dead reused connection does not count
                    self._tried = (*self._tried, endpoint)
                self._retry()
                return
        refuse_unanswered(request, self._cluster, endpoint, problem)

    def _not_processed(self, problem: RequestNotProcessed) -> None:
        """The endpoint has not processed the request: send it again with any method, if its body is still available."""
        request, exchange, endpoint = self._request, self._exchange, self._request.endpoint
        assert endpoint is not None
        if not self._may_send_again():
            answer_not_processed(request, self._cluster, endpoint, problem)
            return
        if isinstance(problem, HTTP1Required):
            self._http1 = True
        elif self._times_not_processed > 1:
            self._picked = self._balancer.pick(
                [*self._tried, endpoint], request.user.name, request.info, self._target
            )  # None: no other endpoint
        if not exchange.body_complete:
            exchange.pause_body()
        self._retry()

    def endpoint_out(self) -> None:
        """The endpoint became unavailable: retry on a ready endpoint if no response has begun and a retry is safe.

        A watch on a silent endpoint would never get an event, so it ends, and the client resumes on another endpoint.
        """
        stream, endpoint = self._stream, self._request.endpoint
        if stream is None or endpoint is None:
            return
        if stream.began or self._exchange.responded:
            if self._boundary is not None and endpoint.silent and any(map(is_ready, self._balancer.endpoints)):
                self._cancel_upstream()
                self._end_watch(self._boundary)
            return
        if not self._repeatable:
            if endpoint.silent:  # otherwise the endpoint may still answer
                self._cancel_upstream()
                refuse_silent(self._request, self._cluster, endpoint)
            return
        self._tried = (*self._tried, endpoint)
        self._picked = self._pick()
        if self._picked is not None:  # otherwise wait: the endpoint may still answer
            self._cancel_upstream()
            self._retry()

    def restart(self) -> bool:
        """Restart the request with the configuration in force, if no response has begun and a repetition is safe.

        Otherwise, or if the request began under this configuration, do nothing and return False.
        """
        stream = self._stream
        if stream is None or stream.began or not self._repeatable or not self._request.restart():
            return False
        self._cancel_upstream()
        return True

    # -- retries ------------------------------------------------------------------------------------------------

    @property
    def _repeatable(self) -> bool:
        """Whether the request can safely be sent twice (RFC 9110 9.2.2). A tunnel's GET cannot: it runs a command."""
        head = self._exchange.head
        return head.method in _REPEATABLE and head.length == 0 and head.upgrade is None

    def _handled_unauthorized(self) -> bool:
        """Handle a 401 that rejects the proxy's own credential; return whether this is such a 401.

        If the proxy asserts the user, a 401 means that the cluster rejects the proxy. Below `proxy`, the response comes
        from another server, perhaps a tenant's, which must not trigger the exec plugin.
        """
        if self._is_below_proxy:
            return False
        if self._authorization is not None and self._credential_renewed():
            return True
        identity = self._cluster.config.identity
        if identity is not _PASSTHROUGH:
            self._cluster.credentials.note_refusal(self._exchange.connection.seconds(), self._authorization)
        elif self._request.identity_headers.token is not None:
            self._cluster.refused_tokens.note(self._request.identity_headers.token, self._exchange.connection.seconds())
        if identity not in _ASSERTS_THE_USER:
            return False
        self._cancel_upstream()
        refuse_proxy_unauthorized(self._request, self._cluster)
        return True

    def _handled_redirect(self) -> bool:
        """Refuse a redirect of an API server that gets the user in X-Remote-*; return whether the response is one.

        As kube-aggregator (`pkg/util/proxy.UpgradeAwareHandler`, RejectForwardingRedirects): clients would take the
        redirect's target for a part of the API.
        """
        request, endpoint = self._request, self._request.endpoint
        if request.api_service is None and self._cluster.config.identity is not _REQUEST_HEADER:
            return False
        assert endpoint is not None
        self._cancel_upstream()
        refuse_redirect(request, self._cluster, endpoint)
        return True

    def _handled_impersonation_refusal(self, body: bytes) -> bool:
        """Handle a 403 that refuses the proxy (not the user) the right to impersonate; return whether it was one.

        The request had no effect, so another ready endpoint is tried once: a kube-apiserver that has just started
        refuses all requests.
        """
        self._stream = None
        request, endpoint = self._request, self._request.endpoint
        message = "" if self._may_be_forged else missing_impersonation_right(body)
        if not message:
            return False
        self._held = None
        if not self._impersonation_retried and self._exchange.head.length == 0 and endpoint is not None:
            self._impersonation_retried = True
            self._tried = (*self._tried, endpoint)
            other = self._pick()
            if other is not None and other.ready:
                self._picked = other
                self._retry()
                return True
        refuse_impersonation_not_granted(request, self._cluster, message)
        return True

    def _credential_renewed(self) -> bool:
        """After a 401 to the proxy's own credential, retry with a newer one, if there is one and a retry is safe."""
        if self._renewed or self._exchange.head.length != 0:
            self._cluster.credentials.invalidate(self._authorization)
            return False
        if not self._cluster.credentials.invalidate(self._authorization):
            return False
        self._renewed = True
        self._cancel_upstream()
        self._retry()
        return True

    def _retry(self) -> None:
        start(self._run_again())

    async def _run_again(self) -> None:
        try:
            await self._send_when_ready()
        except Exception as error:
            self._request.fail(error)

    def _no_endpoint(self) -> None:
        """Restart the request if a reload may have added endpoints since its begin. Raises StatusError."""
        if self._request.restart(self._kept):
            return
        self._request.reason = "upstream_unreachable"
        raise retry_after(503, self._cluster.unavailable_message(self._balancer.endpoints), self._cluster.RETRY_AFTER)


def _needs_http1(head: RequestHead) -> bool:
    """Whether a request needs HTTP/1.1, because it upgrades or announces trailers (`H2ClientStream.end_body`)."""
    return head.upgrade is not None or (head.length == CHUNKED and head.header(b"trailer") is not None)


def response_timeout(info: RequestInfo | None, target: bytes, usual: float) -> float:
    """Return the maximum seconds until the response's first byte; 0: no limit, for long-running requests.

    A request with an Upgrade header has the limit of a short request until the cluster answers.

    `target` is the target for the cluster; `timeout` in its query takes precedence over `usual`.
    """
    if info is None or info.long_running:
        return 0.0
    if target.find(b"timeout=") < 0:  # `in` costs twice as much
        return usual
    asked = timeout_parameter(target)
    seconds = duration.parse(asked) if asked else None
    return seconds or usual
