"""Requests to members on behalf of one client's request to an aggregate.

`send` uses `proxy.forward.Forward` with an in-memory exchange, so credentials, impersonation, retries, health checks
and error texts are the same as for forwarded requests. `forward` streams the client's own request to a cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.request import MemberResponse
from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import Header, RequestHead
from mcproxy.http.tunnel import TunnelSide
from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy.cors import replace_fields
from mcproxy.proxy.filters import while_connected
from mcproxy.proxy.forward import Forward
from mcproxy.proxy.request import Request
from mcproxy.requests.coroutines import start

if TYPE_CHECKING:
    from mcproxy.dispatch.plan import Plan
    from mcproxy.dispatch.request_limits import Permit
    from mcproxy.http.exchange import ServerConnection

MAX_RESPONSE = 64 * 1024 * 1024
"""Maximum bytes of a response body. A list can be large, but it is held in memory."""

_TARGET = re.compile(rb"/[!-\"$-~]*")  # no space, control character or fragment
_ORIGIN = re.compile(rb"(?im)^(?:forwarded|x-forwarded-[a-z-]+|x-real-ip):[^\n]*\n")
_METHOD = re.compile(rb"[A-Z]+")
_FIELD_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_VALUE = re.compile(rb"[\t -~\x80-\xff]*")
#: Fields that the forwarding path sets itself.
_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"upgrade", b"te", b"expect"})


async def send(
    parent: Request,
    plan: Plan,
    user: UserInfo,
    method: bytes,
    target: bytes,
    *,
    clock: IReactorTime,
    fields: Sequence[Header] | None = (),
    body: bytes = b"",
    timeout: float | None = None,
    permit: Permit | None = None,
    limit: int = MAX_RESPONSE,
) -> MemberResponse:
    """Send a request with the identity of `parent`'s client to `plan.cluster`, and return the whole response.

    `user` is the user for that cluster. `fields` are the end-to-end fields (None: all fields of the client); fields of
    identity and origin are always the client's. `timeout`, in seconds, is for the whole response, in addition to the
    forwarding path's timeouts. `permit` is released at the end; `limit` is in bytes. Cancelling ends the request.

    Raises StatusError: 502 to 504 if the cluster does not answer, or if its body exceeds `limit`. Raises ValueError for
    a target or fields that would not form exactly one request.
    """
    finished: Deferred[MemberResponse] = Deferred(lambda _: exchange.cancel())
    try:
        head = _head(parent, method, target, len(body))
        info = requestinfo.parse(method, target)
        identity_headers = parent.headers_for_members()
        if fields is not None:
            identity_headers = identity_headers.with_fields(_block(fields))
    except BaseException:
        if permit is not None:
            permit.release()
        raise
    exchange = _MemoryExchange(_MemoryConnection(parent.exchange), head, body, plan.cluster.name, limit, finished)
    request = _Subrequest(parent, exchange)
    request.server, request.cluster, request.plan, request.permit = parent.server, plan.cluster, plan, permit
    request.caller, request.user, request.impersonates = parent.caller, user, parent.impersonates
    request.identity_headers, request.info = identity_headers, info
    if timeout is not None:
        finished.addTimeout(timeout, clock)
    start(_run(request, plan, target))
    try:
        return await finished
    except DeferredTimeoutError:
        raise StatusError(504, f'cluster "{plan.cluster.name}" did not answer within {timeout:g} s') from None


Handle = Callable[["Request"], "Coroutine[Deferred[Any], Any, None]"]
"""Answers a request, or begins the answer; raises StatusError."""


class StreamSink(Protocol):
    """Gets a response piece by piece (`stream`)."""

    @property
    def blocked(self) -> bool:
        """Whether the reader does not accept more data now."""

    def head(self, status: int, fields: bytes) -> None:
        """The head has arrived; `fields` are as in `http.exchange.Exchange.respond`."""

    def data(self, data: bytes) -> None:
        """A piece of the body."""

    def flush(self) -> None:
        """The data since the last flush belongs together."""

    def ended(self) -> None:
        """The response is complete."""

    def failed(self, refusal: StatusError) -> None:
        """The response failed or was broken off."""


async def fetch(
    parent: Request,
    handle: Handle,
    method: bytes,
    target: bytes,
    *,
    fields: Sequence[Header],
    body: bytes = b"",
    name: str,
    limit: int = MAX_RESPONSE,
) -> MemberResponse:
    """Return the whole response to another request of `parent`'s client; `handle` answers it like a client's request.

    `name` is the responder's name in the message about a broken-off response. Raises as `send`; cancelling ends the
    request.
    """
    finished: Deferred[MemberResponse] = Deferred(lambda _: exchange.cancel())
    head = _head(parent, method, target, len(body), fields)
    exchange = _MemoryExchange(_MemoryConnection(parent.exchange), head, body, name, limit, finished)
    request = _made_for(parent, exchange, method, target, fields)
    start(_handled(request, handle))
    return await finished


def stream(
    parent: Request, handle: Handle, target: bytes, *, fields: Sequence[Header], name: str, sink: StreamSink
) -> Exchange:
    """Begin another GET request of `parent`'s client, as `fetch` does; `sink` gets the response.

    `Exchange.cancel` of the returned exchange ends the request. Pause its handler while the sink is blocked.
    """
    exchange = _StreamExchange(_MemoryConnection(parent.exchange), _head(parent, b"GET", target, 0, fields), name, sink)
    exchange.long_running = True
    request = _made_for(parent, exchange, b"GET", target, fields)
    start(_handled(request, handle))
    return exchange


def _made_for(
    parent: Request, exchange: _MemoryExchange, method: bytes, target: bytes, fields: Sequence[Header]
) -> _Subrequest:
    request = _Subrequest(parent, exchange)
    request.server, request.cluster, request.plan = parent.server, parent.cluster, parent.plan
    request.caller, request.user, request.impersonates = parent.caller, parent.user, parent.impersonates
    request.identity_headers = parent.headers_for_members().with_fields(_block(fields))
    request.info = requestinfo.parse(method, target)
    return request


def relay(parent: Request, response: MemberResponse) -> None:
    """Answer the client with the response to another request of the same client."""
    fields = parent.with_audit_id(b"".join([b"%b: %b\r\n" % field for field in response.fields]))
    if parent.response_fields:
        fields = replace_fields(fields, parent.response_fields)
    parent.exchange.answer(response.status, fields, response.body)


async def forwarded(request: Request, plan: Plan) -> None:
    """Forward a request from `fetch` or `stream` according to a plan."""
    request.cluster, request.plan = plan.cluster, plan
    forwarding = Forward(request, plan, request.exchange.head.target)
    waiting = forwarding.send()
    if waiting is not None:
        await waiting


async def _handled(request: _Subrequest, handle: Handle) -> None:
    try:
        await while_connected(request, Deferred.fromCoroutine(handle(request)))
    except CancelledError:
        pass  # the client has disconnected
    except Exception as error:
        request.fail(error)


async def forward(parent: Request, plan: Plan, user: UserInfo, target: bytes) -> None:
    """Send the client's request to `plan.cluster` as `user`, and stream the response unchanged to the client.

    The exchange must not have a handler yet. Returns when the request was sent. Raises StatusError.
    """
    assert parent.exchange.handler is None
    parent.cluster, parent.plan, parent.user = plan.cluster, plan, user
    forwarding = Forward(parent, plan, target)
    waiting = forwarding.send()
    if waiting is not None:
        await waiting


async def _run(request: _Subrequest, plan: Plan, target: bytes) -> None:
    try:
        forwarding = Forward(request, plan, target)
        waiting = forwarding.send()
        if waiting is not None:
            await waiting
    except Exception as error:
        request.fail(error)


def _head(
    parent: Request, method: bytes, target: bytes, length: int, fields: Sequence[Header] | None = None
) -> RequestHead:
    """Return the head of a subrequest; with `fields`, it has these and the fields of origin."""
    if not _TARGET.fullmatch(target) or not _METHOD.fullmatch(method):
        raise ValueError("not a method and a target of a request")
    client = parent.exchange.head
    head = RequestHead()
    head.method, head.target, head.length = method, target, length
    head.http11 = head.keep_alive = True
    head.host, head.fields = client.host, client.fields  # for X-Forwarded-*; no other field is sent
    if fields is not None:
        head.fields = b"".join(_ORIGIN.findall(client.fields)) + _block(fields)
    head.upgrade = None
    head.expects_continue = head.te_trailers = False
    return head


def _block(fields: Sequence[Header]) -> bytes:
    for name, value in fields:
        if not _FIELD_NAME.fullmatch(name) or not _FIELD_VALUE.fullmatch(value) or name.lower() in _FRAMING:
            raise ValueError(f"not a field of a request to a member: {name!r}")
    return b"".join([b"%b: %b\r\n" % field for field in fields])


class _OfAnyListener(Protocol):
    """A client's connection. In the keeper it has the link to a worker instead of a listener."""

    @property
    def factory(self) -> object: ...


class _MemoryConnection:
    """The properties of a client's connection that a subrequest uses."""

    __slots__ = ("factory", "seconds", "wall_seconds")

    def __init__(self, parent: Exchange) -> None:
        connection: _OfAnyListener = parent.connection
        self.factory = connection.factory
        self.seconds: Callable[[], float] = parent.connection.seconds
        self.wall_seconds: Callable[[], float] = parent.connection.wall_seconds


class _MemoryExchange(Exchange):
    """An exchange whose response is collected; `finished` fires with it, or with a StatusError."""

    protocol = "HTTP/1.1"

    __slots__ = ("_cluster", "_collected", "_finished", "_limit", "_response_fields")

    def __init__(
        self,
        connection: _MemoryConnection,
        head: RequestHead,
        body: bytes,
        cluster: str,
        limit: int,
        finished: Deferred[MemberResponse],
    ) -> None:
        super().__init__(cast("ServerConnection", connection), head, connection.seconds())
        self.body_complete = True
        self._early = [body] if body else None
        self._cluster = cluster
        self._limit = limit
        self._finished = finished
        self._collected: list[bytes] = []
        self._response_fields = b""

    @property
    def write_blocked(self) -> bool:
        return False

    def set_long_running(self) -> None:
        self.long_running = True

    def _unread_bodies(self) -> None:
        """Return None: the client's exchange counts the body."""

    def pause_body(self) -> None:
        """Do nothing: the body is in memory, and the connection to the member buffers sent data."""

    def resume_body(self) -> None:
        """Do nothing, for the same reasons as `pause_body`."""

    def send_interim(self, status: int, reason: bytes, fields: bytes) -> None:
        pass

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        if self.ended:
            return
        self.responded = True
        self.status = status
        self._response_fields = fields
        if length > self._limit:
            self._too_large()

    def write(self, data: bytes) -> None:
        if self.ended:
            return
        self.bytes_out += len(data)
        self._collected.append(data)
        if self.bytes_out > self._limit:
            self._too_large()

    def write_shared(self, data: bytes, chunk: bytes) -> None:
        self.write(data)

    def write_pieces(self, pieces: Sequence[bytes], size: int) -> None:
        self.write(b"".join(pieces))

    def flush(self) -> None:
        pass

    def end(self, trailers: list[Header] | None = None) -> None:
        if self.ended:
            return
        self.completed = True
        self._finish()
        response = MemberResponse(
            self._cluster, self.status, tuple(_split(self._response_fields)), b"".join(self._collected)
        )
        self._collected = []
        self._finished.callback(response)

    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
        self.respond(status, reason, fields, len(body))
        self.write(body)
        self.end()

    def abort(self) -> None:
        self.fail(StatusError(502, f'cluster "{self._cluster}" broke off its response', reason="BadGateway"))

    def fail(self, refusal: StatusError) -> None:
        """The request failed, or was refused."""
        if not self.ended:
            self._collected = []
            self._finish()
            self._finished.errback(refusal)

    def switch_protocols(self, reason: bytes, fields: bytes, upgrade: bytes) -> TunnelSide:
        raise AssertionError("no such request asks for an upgrade")

    def _too_large(self) -> None:
        handler = self.handler
        mib = self._limit / 1024**2
        self.fail(
            StatusError(502, f'cluster "{self._cluster}" answered with more than {mib:g} MiB', reason="BadGateway")
        )
        if handler is not None:
            handler.cancelled()


class _StreamExchange(_MemoryExchange):
    """An exchange whose response goes to a sink as it arrives."""

    __slots__ = ("_sink",)

    def __init__(self, connection: _MemoryConnection, head: RequestHead, name: str, sink: StreamSink) -> None:
        super().__init__(connection, head, b"", name, 0, Deferred())
        self._sink = sink

    @property
    def write_blocked(self) -> bool:
        return self._sink.blocked

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        if not self.ended:
            self.responded = True
            self.status = status
            self._sink.head(status, fields)

    def write(self, data: bytes) -> None:
        if not self.ended:
            self.bytes_out += len(data)
            self._sink.data(data)

    def flush(self) -> None:
        if not self.ended:
            self._sink.flush()

    def end(self, trailers: list[Header] | None = None) -> None:
        if not self.ended:
            self.completed = True
            self._finish()
            self._sink.ended()

    def fail(self, refusal: StatusError) -> None:
        if not self.ended:
            self._finish()
            self._sink.failed(refusal)


class _Subrequest(Request):
    """A request in the pipeline on behalf of another one, its `parent`. It is not in the access log."""

    __slots__ = ()

    def __init__(self, parent: Request, exchange: _MemoryExchange) -> None:
        super().__init__(exchange, parent.client, parent._in_flight, Recorders())
        self._audit_id = parent.audit_id

    def with_audit_id(self, fields: bytes) -> bytes:
        """Return the fields unchanged, since they are not sent to the client."""
        return fields

    def refuse(self, refusal: StatusError, reason: str) -> None:
        self.reason = reason
        cast(_MemoryExchange, self.exchange).fail(refusal)

    def begin_session(self) -> None:
        """Do nothing: the client's own request is the session."""

    def restart(self, body: list[bytes] | None = None) -> bool:
        """Return False: only the client's own request can restart with another configuration."""
        return False


def _split(fields: bytes) -> list[Header]:
    """Return the fields of a block, with names as written."""
    result = []
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        result.append((name, value.strip(b" \t")))
    return result
