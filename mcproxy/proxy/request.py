"""One request in the pipeline: the exchange and all that is known about it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, cast

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.http.exchange import Exchange
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.kube.requestinfo import STREAM_SUBRESOURCES
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.recorders import Recorders
from mcproxy.proxy.correlation import Correlation, correlate, new_audit_id
from mcproxy.proxy.reasons import Step, refusal_reason
from mcproxy.proxy.responses import own_fields, refusal_fields, with_audit_id

if TYPE_CHECKING:
    from mcproxy.dispatch.permit import Permit
    from mcproxy.dispatch.plan import Plan
    from mcproxy.identity.authorization.access_review import Decision
    from mcproxy.identity.identity_headers import IdentityHeaders
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.proxy.client_connection import ClientConnectionInfo
    from mcproxy.proxy.routes import SessionRegistry, VirtualServer
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint


log = Logger()

_UNKNOWN = AuthenticatedUser(UserInfo(""))  # until authentication is done


class RequestKind(enum.Enum):
    """How a request is ended before it is done."""

    SHORT = "requests"
    """Ends by itself, soon: everything but the following. Also streams below `proxy`."""
    WATCH = "watches"
    """Is resumed by its client after a clean end."""
    LOG = "logs"
    """A followed log: ends only with its container, and cannot be resumed."""
    TUNNEL = "tunnels"
    """exec, attach, port-forward, and every connection that was upgraded: cannot be resumed."""

    @property
    def resumable(self) -> bool:
        return self is RequestKind.SHORT or self is RequestKind.WATCH


class UpstreamHandler(Protocol):
    """The handler that has sent a request to an endpoint, as far as others call it (`proxy.forward`)."""

    def endpoint_out(self) -> None:
        """The endpoint that the request was sent to went out."""

    def restart(self) -> bool:
        """Restart the request with the configuration in force; False, with nothing done, if that is not safe."""


class Auditor(Protocol):
    """Audits requests (`proxy.audit_trail.Auditor`); `offset` is what the wall clock is ahead of the reactor's."""

    def begun(self, request: Request, offset: float) -> None:
        """The user is known."""

    def started(self, request: Request, offset: float) -> None:
        """The response has begun."""

    def ended(self, request: Request, offset: float) -> None:
        """The request is over, however it ended."""


class Batch(Protocol):
    """Tells metrics and logs of many requests at once (`proxy.request_batch.RequestBatch`)."""

    def begun(self, request: Request) -> None: ...

    def ended(self, request: Request) -> None: ...

    def flush(self) -> None: ...


class RequestSpan(Protocol):
    """The span of one request (`proxy.request_spans.RequestSpan`)."""

    fields: bytes
    trace_id: str
    span: Any


class RequestTracer(Protocol):
    """Traces requests (`proxy.request_spans.RequestTracer`)."""

    def begin(self, request: Request, info: RequestInfo | None) -> None:
        """What the request is about is known."""

    def ended(self, request: Request, record: AccessRecord) -> None:
        """The request is over, however it ended."""


class ServedBy:
    """Who answered a request to an aggregate, for the access log: filled in while it is handled."""

    __slots__ = ("access_log", "aggregate", "cached", "clusters", "policy")

    def __init__(self, aggregate: str) -> None:
        self.aggregate = aggregate
        self.clusters: tuple[str, ...] = ()
        self.cached = False
        self.policy = ""  # the names of those that apply to its members
        self.access_log = True

    def added_to(self, record: AccessRecord) -> AccessRecord:
        """Return the record with what is known here; of a forwarded request it has the cluster and policy already."""
        record.cluster = record.cluster or ",".join(self.clusters)
        record.policy = record.policy or self.policy
        record.cached = self.cached
        return record


class Request:
    """An exchange and what the pipeline knows about it. It observes the exchange's end, whatever that is."""

    __slots__ = (
        "_audit_id",
        "_auditor",
        "_batch",
        "_correlation",
        "_in_flight",
        "_recorders",
        "_tracer",
        "addresses",
        "answered_at",
        "attempts",
        "audited",
        "caller",
        "client",
        "cluster",
        "decision",
        "ended_at",
        "endpoint",
        "exchange",
        "identity_headers",
        "impersonates",
        "info",
        "location_prefix",
        "permit",
        "plan",
        "reason",
        "refusal",
        "response_fields",
        "sent_at",
        "served",
        "server",
        "sessions",
        "span",
        "trail",
        "upstream",
        "upstream_status",
        "user",
        "waiting",
        "was_cut",
    )

    def __init__(
        self,
        exchange: Exchange,
        client: ClientConnectionInfo,
        in_flight: set[Request],
        recorders: Recorders,
        auditor: Auditor | None = None,
        tracer: RequestTracer | None = None,
        batch: Batch | None = None,
    ) -> None:
        """`in_flight`: the requests of the process, to which this one belongs until it ends.

        `batch` tells recorders and auditor of it.
        """
        self.exchange = exchange
        self.client = client
        self.server: VirtualServer | None = None
        self.cluster: Cluster | None = None
        self.endpoint: Endpoint | None = None  # where it was sent; counted in its in_flight
        self.upstream: UpstreamHandler | None = None  # set when it was sent
        self.identity_headers: IdentityHeaders
        self.caller = _UNKNOWN  # who sent it
        self.impersonates = False  # the user is one that the client requested
        self.user = _UNKNOWN.user  # who it runs as: the caller, or the user that the caller may impersonate
        self.info: RequestInfo | None = None
        self.plan: Plan | None = None
        self.served: ServedBy | None = None  # of a request to an aggregate
        self.permit: Permit | None = None
        self.reason = ""  # one of `reasons.REASONS`, for the access log; "" until it is known
        self.response_fields = b""  # added to every response (CORS)
        self.location_prefix = b""  # what routing removed from the path; restored in redirects
        self.waiting: Deferred[Any] | None = None  # cancelled when the client goes away
        self.was_cut = False
        self._audit_id = b""
        self._correlation: Correlation | None = None
        self._auditor = auditor
        self._tracer = tracer
        self._batch = batch
        self.ended_at = 0.0  # of a request that is told of
        self.audited = False  # the audit log is told that it has begun
        self.addresses: tuple[str, ...] | None = None  # where it came from, if a trusted proxy says so
        self.trail: object = None  # what the audit log has of it
        self.span: RequestSpan | None = None
        if exchange.carried is not None:  # it began, before a reload, as another object
            self.trail, self.span = cast("tuple[object, RequestSpan | None]", exchange.carried)
        self.refusal: StatusError | None = None  # what it was refused with, here
        self.decision: Decision | None = None  # of the server's authorizer
        self.sessions: SessionRegistry | None = None  # where it is kept as a session whose length is limited
        self.sent_at = 0.0  # when an endpoint was first chosen for it
        self.answered_at = 0.0  # when the endpoint's response had arrived
        self.upstream_status = 0  # of that response
        self.attempts = 0  # how often it was sent to an endpoint
        self._recorders = recorders
        self._in_flight = in_flight
        exchange.on_done = self
        in_flight.add(self)

    def assign_endpoint(self, endpoint: Endpoint) -> None:
        """Count the request with the endpoint that it goes to, and no longer with an earlier one."""
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        self.endpoint = endpoint
        endpoint.in_flight += 1

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        """Return the fields of a response of our own, as a block; `more` are whole lines to add to them."""
        now = self.exchange.connection.wall_seconds()
        return own_fields(self.audit_id, now, more, cache_control=cache_control) + self.response_fields

    @property
    def correlation(self) -> Correlation:
        """The Audit-ID and trace context of the client's head; asked for first while the head is there."""
        found = self._correlation
        if found is None:
            headers: IdentityHeaders | None = getattr(self, "identity_headers", None)
            if headers is None:  # refused before they were split
                found = correlate(self.exchange.head.fields)
            else:
                noted = headers.noted
                if not isinstance(noted, Correlation):
                    noted = headers.noted = correlate(headers.fields)
                found = noted
            self._correlation = found
        return found

    @property
    def audit_id(self) -> bytes:
        """The Audit-ID: the client's, else one made for this request."""
        if not self._audit_id:
            self._audit_id = self.correlation.audit_id or new_audit_id()
        return self._audit_id

    def with_audit_id(self, fields: bytes) -> bytes:
        """Return the fields of a cluster's response with the Audit-ID, if they have none."""
        return with_audit_id(fields, self.audit_id)

    def upstream_fields(self) -> bytes:
        """Return the client's fields as a cluster gets them, with the Audit-ID; none of identity or origin."""
        return self._correlated(self.correlation)

    def correlate_head(self) -> None:
        """Put the Audit-ID into the head, for a handler that makes requests of its own from that."""
        head = self.exchange.head
        head.fields = self._correlated(correlate(head.fields))

    def _correlated(self, noted: Correlation) -> bytes:
        fields = noted.fields if self.span is None else noted.untraced + self.span.fields
        return fields if noted.audit_id else b"%bAudit-Id: %b\r\n" % (fields, self.audit_id)

    def answer_preflight(self) -> None:
        """Answer a CORS preflight from an allowed origin."""
        self.exchange.respond(204, b"", self.own_fields(), 0)
        self.exchange.end()

    def refuse(self, refusal: StatusError, reason: str) -> None:
        """Answer with a Status object; `reason` is one of `reasons.REASONS`."""
        self.reason = reason
        self.refusal = refusal
        exchange = self.exchange
        fields = refusal_fields(refusal, self.audit_id, exchange.connection.wall_seconds()) + self.response_fields
        exchange.answer(refusal.code, fields, refusal.body())

    def fail(self, error: Exception, step: Step = Step.FORWARDING) -> None:
        """Answer with what was raised in `step`: a refusal, or a bug, whose traceback is logged. For except clauses."""
        if isinstance(error, StatusError):
            self.refuse(error, self.reason or refusal_reason(step, error.code))
        else:
            log.failure("a bug in the handling of a request", event="internal_error")
            self.refuse(StatusError(500, "internal error"), "internal_error")

    def restart(self, body: list[bytes] | None = None) -> bool:
        """Handle the request from its beginning with the configuration in force now; `body` is what was read of it.

        For a request whose own configuration was replaced and has no endpoint left: it may be authorized differently
        now, or go elsewhere. Returns False, with nothing done, if that is the configuration it began with, or if a
        response has begun.
        """
        exchange = self.exchange
        handle = exchange.connection.factory.handle
        if handle == self.client.handle or exchange.ended or exchange.responded:
            return False
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.cancel()
            if exchange.ended:  # the cancellation was answered
                return True
        exchange.on_done = None
        if self._batch is not None:
            self._batch.flush()
        exchange.carried = self.trail, self.span
        exchange.detach(body or [])
        self._release()
        handle(exchange)
        return True

    @property
    def kind(self) -> RequestKind:
        """How it is to be ended, as far as is known yet."""
        if self.exchange.upgraded:
            return RequestKind.TUNNEL
        return kind_of(self.info)

    def end_gracefully(self) -> bool:
        """End a watch cleanly, now or at the end of its current event; False if it has no response yet."""
        handler = self.exchange.handler
        if handler is None:
            return False
        self.reason = "drained"
        handler.finish_up()
        return True

    def cut(self, *, now: bool = False) -> None:
        """End the request before it is done: close a tunnel (with `now` at once), close the connection of any other.

        A followed log is broken off, never ended cleanly: its client would take what it has for the whole log.
        """
        exchange = self.exchange
        if exchange.ended:
            return
        first, self.was_cut = not self.was_cut, True
        self.reason = "drained"
        handler = exchange.handler
        if exchange.upgraded and not now:
            if first and handler is not None:
                handler.finish_up()
            return
        exchange.abort()
        if handler is not None:
            handler.cancelled()

    @property
    def is_session(self) -> bool:
        """Whether it is long-running (a watch, a followed log, a tunnel, …) and its response has begun."""
        exchange = self.exchange
        return exchange.responded and (exchange.upgraded or (self.info is not None and self.info.long_running))

    def begin_session(self) -> None:
        """Note that the response to a long-running request has begun."""
        if self._auditor is not None:
            if self._batch is not None:
                self._batch.flush()  # which begins its trail
            self._auditor.started(self, self._wall_offset())
        if self.server is not None and self.server.session_registry is not None:
            self.server.session_registry.begin(self)

    def end_session(self, reason: str, *, now: bool = False) -> None:
        """End a session: a watch cleanly, between two events; close a tunnel; break off anything else.

        `now`: do not wait for the end of the event, nor for a tunnel to send what is queued.
        """
        exchange, handler = self.exchange, self.exchange.handler
        if exchange.ended or handler is None:
            return
        self.reason = reason
        if not now and (self.kind is RequestKind.WATCH or exchange.upgraded):
            handler.finish_up()
        else:
            exchange.abort()
            handler.cancelled()

    def exchange_done(self, exchange: Exchange) -> None:
        """The exchange is over (`http.exchange.ExchangeObserver`): release what it holds, and log it."""
        self._release()
        if self.sessions is not None:
            self.sessions.end(self)
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.cancel()
        self.ended_at = exchange.connection.seconds()
        if self._batch is None:
            return  # nobody is told of it
        if self._correlation is None:
            self.correlation  # noqa: B018 (while the head has its fields)
        if self.client.trusted and self._auditor is not None and self.addresses is None:
            self.addresses = self.client.addresses(exchange.head)
        self._batch.ended(self)

    def begin_audit(self) -> None:
        """The user is known, and nothing is decided yet."""
        if self._batch is not None:
            if self.client.trusted:
                self.addresses = self.client.addresses(self.exchange.head)
            self.audited = True
            self._batch.begun(self)

    def _wall_offset(self) -> float:
        connection = self.exchange.connection
        return connection.wall_seconds() - connection.seconds()

    def report_begun(self, offset: float) -> None:
        """Tell the audit log that it has begun; `offset` is what the wall clock is ahead of the reactor's."""
        if self._auditor is not None:
            self._auditor.begun(self, offset)

    def report(self, offset: float) -> None:
        """Tell metrics and logs that it has ended."""
        # A policy can switch logging off; a request that reached none is logged by its server's setting.
        shown = self.plan or self.served or self.server
        recorders = self._recorders
        recorder = recorders.logged if shown is None or shown.access_log else recorders.unlogged
        if recorder is not None or self._tracer is not None:
            # Metrics alone want less, and get it in less time.
            of_metrics = recorder is recorders.unlogged and self._tracer is None
            record = self._record_of_metrics() if of_metrics else self._record(offset)
            if self._tracer is not None:
                self._tracer.ended(self, record)
            if recorder is not None:
                recorder.finished(record)
        if self._auditor is not None:
            self._auditor.ended(self, offset)

    @property
    def outcome(self) -> str:
        """How it ended, one of `reasons.REASONS`."""
        return self.reason or _reason(self.exchange)

    def _release(self) -> None:
        """Stop counting the request everywhere."""
        self.upstream = None  # which refers back: without this each request would be left to the garbage collector
        self._in_flight.discard(self)
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.release()

    def _record(self, offset: float) -> AccessRecord:
        exchange, now = self.exchange, self.ended_at
        head, started_at = exchange.head, exchange.started_at
        info, caller, user = self.info, self.caller, self.user
        real = caller.user.name if self.server is not None and self.server.authenticates else ""
        record = AccessRecord(  # by position: keywords would cost as much again
            started_at + offset,
            self.client.log_address,
            head.method.decode("latin-1"),
            head.target.decode("latin-1"),
            exchange.status,
            self.outcome,
            self.server.name if self.server else "",
            self.cluster.name if self.cluster else "",
            self.endpoint.name if self.endpoint else "",
            real,
            len(user.groups),
            user.name if self.impersonates else "",
            self.plan.policy if self.plan else "",
            info.request_verb if info and info.is_resource else "",
            info.label if info else "",
            exchange.upgraded or (info is not None and info.long_running),
            self.audit_id.decode("ascii"),
            self.span.trace_id if self.span is not None else "",
            self.correlation.user_agent,
            exchange.bytes_in,
            exchange.bytes_out,
            exchange.first_byte_at - started_at if exchange.first_byte_at else None,
            (self.answered_at or now) - self.sent_at if self.sent_at else None,
            self.upstream_status,
            self.attempts,
            now - started_at,
            exchange.upgraded,
            None,
            exchange.protocol if head.http11 else "HTTP/1.0",
            caller.authenticator or self._refused_credential(),
        )
        return record if self.served is None else self.served.added_to(record)

    def _record_of_metrics(self) -> AccessRecord:
        """Return a record that has no more than metrics read of it (`observe.metrics.request_counts`)."""
        exchange, now, info = self.exchange, self.ended_at, self.info
        of_resource = info if info is not None and info.is_resource else None
        verb = of_resource.request_verb if of_resource is not None else ""
        record = AccessRecord(
            time=0.0,
            client="",
            method="" if verb else exchange.head.method.decode("latin-1"),
            uri="",
            status=exchange.status,
            reason=self.outcome,
            server=self.server.name if self.server else "",
            cluster=self.cluster.name if self.cluster else "",
            endpoint=self.endpoint.name if self.endpoint else "",
            policy=self.plan.policy if self.plan else "",
            verb=verb,
            resource=of_resource.label if of_resource is not None else "",
            bytes_in=exchange.bytes_in,
            bytes_out=exchange.bytes_out,
            total=now - exchange.started_at,
            upstream=(self.answered_at or now) - self.sent_at if self.sent_at else None,
            attempts=self.attempts,
            long_running=exchange.upgraded or (info is not None and info.long_running),
            authenticator=self.caller.authenticator or self._refused_credential(),
        )
        return record if self.served is None else self.served.added_to(record)

    def _refused_credential(self) -> str:
        """Return the kind of the credential that no authenticator has accepted; "" if none was asked."""
        if self.reason not in ("unauthenticated", "authenticator_unavailable"):
            return ""
        headers = self.identity_headers
        if headers.token is not None or headers.bad_token:
            return "token"
        if headers.remote:
            return "requestHeader"
        return "none" if self.client.peer is None else "clientCertificates"


def _reason(exchange: Exchange) -> str:
    if exchange.status and exchange.completed:
        return "ok"
    if exchange.status and not exchange.responded and not exchange.stalled:
        return "bad_request"  # the engine has answered
    return "client_stalled" if exchange.stalled else "client_closed"


def kind_of(info: RequestInfo | None) -> RequestKind:
    """Return the kind of a request that is not upgraded yet."""
    if info is None or not info.long_running:
        return RequestKind.SHORT
    if info.verb == "watch":
        return RequestKind.WATCH
    if info.subresource == "log":
        return RequestKind.LOG
    return RequestKind.TUNNEL if info.subresource in STREAM_SUBRESOURCES else RequestKind.SHORT
