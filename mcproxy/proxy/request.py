"""The state of one request in the pipeline, and its refusal."""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Protocol, cast

from mypy_extensions import mypyc_attr
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.apiservices.availability import Registration
from mcproxy.http.exchange import Exchange
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.kube.media_types import prefers_yaml
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.log_values import LONGEST_IN_EVENTS, masked
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.recorders import Recorders
from mcproxy.requests.correlation import Correlation, correlate, new_audit_id
from mcproxy.requests.in_flight import RequestInFlight, RequestKind, kind_of
from mcproxy.requests.reasons import Step, refusal_reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcproxy.config.model import APIService
    from mcproxy.dispatch.plan import Plan
    from mcproxy.dispatch.request_limits import Permit
    from mcproxy.http.messages import RequestHead
    from mcproxy.identity.authentication.x509.peer import TLSPeer
    from mcproxy.identity.authorization.access_review import Decision
    from mcproxy.identity.client_identity_headers import IdentityHeaders
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.net.wall_time import WallSeconds
    from mcproxy.proxy.routes import SessionRegistry, VirtualServer
    from mcproxy.requests.batch import RequestBatch
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint


log = Logger(__name__)

# The fields that a kube-apiserver sends with a refusal (recorded): nosniff only with 403.
_OWN_FIELDS = b"Audit-Id: %b\r\nCache-Control: %b\r\n%bDate: %b\r\n"
_JSON_FIELD = b"Content-Type: application/json\r\n"
_YAML_FIELD = b"Content-Type: application/yaml\r\n"
_NO_SNIFF_FIELD = b"X-Content-Type-Options: nosniff\r\n"

_UNKNOWN = AuthenticatedUser(UserInfo(""))  # until authentication is done


class RequestClient(Protocol):
    """The client of a request: a `ClientConnectionInfo`, or in the keeper a `RelayedClient` with less data."""

    address: str
    audited: tuple[object, Any, Any] | None
    foreign_host: bool
    handle: Callable[[Exchange], None]
    log_address: str
    own_address: tuple[str, ...]
    peer: TLSPeer | None
    scheme: str
    trusted: bool

    def addresses(self, head: RequestHead) -> tuple[str, ...]:
        """Return the source addresses of a request, for the audit log."""
        ...

    def forwarded_fields(self, head: RequestHead) -> bytes:
        """Return the X-Forwarded-* fields to send, as a block."""
        ...


class UpstreamHandler(Protocol):
    """The interface of a handler that has sent a request to an endpoint (`proxy.forward`)."""

    def endpoint_out(self) -> None:
        """The endpoint to which the request was sent has become unavailable."""

    def restart(self) -> bool:
        """Restart the request with the configuration in force; if that is not safe, do nothing and return False."""


class Auditor(Protocol):
    """Audits requests (`audit_trail.RequestAuditor`); `offset` is the wall clock's time minus the reactor's."""

    def begun(self, request: Request, offset: float) -> None:
        """The user is known."""

    def started(self, request: Request, offset: float) -> None:
        """The response has begun."""

    def ended(self, request: Request, offset: float) -> None:
        """The request has ended, in whatever way."""


class Span(Protocol):
    """The span of one request (`proxy.request_spans.RequestSpan`)."""

    fields: bytes
    trace_id: str
    span: Any


class Tracer(Protocol):
    """Traces requests (`proxy.request_spans.RequestTracer`)."""

    def begin(self, request: Request, info: RequestInfo | None) -> None:
        """The request info is known."""

    def ended(self, request: Request, record: AccessRecord) -> None:
        """The request has ended, in whatever way."""


class ServedBy:
    """The clusters and policies that served a request to an aggregate, for the access log; filled during handling."""

    __slots__ = ("access_log", "aggregate", "cached", "clusters", "policy")

    def __init__(self, aggregate: str) -> None:
        self.aggregate = aggregate
        self.clusters: tuple[str, ...] = ()
        self.cached = False
        self.policy = ""  # the names of the policies that apply to its members
        self.access_log = True

    def added_to(self, record: AccessRecord) -> AccessRecord:
        """Return the record with these values; a forwarded request's record already has its cluster and policy."""
        record.cluster = record.cluster or ",".join(self.clusters)
        record.policy = record.policy or self.policy
        record.cached = self.cached
        return record


@mypyc_attr(allow_interpreted_subclasses=True)  # KeeperRequest
class Request(RequestInFlight):
    """An exchange and its state in the pipeline. It observes the end of the exchange."""

    __slots__ = (
        "_audit_id",
        "_batch",
        "_correlation",
        "_in_flight",
        "addresses",
        "answered_at",
        "api_service",
        "attempts",
        "audited",
        "auditor",
        "caller",
        "client",
        "cluster",
        "decision",
        "endpoint",
        "identity_headers",
        "impersonates",
        "info",
        "location_prefix",
        "permit",
        "plan",
        "recorders",
        "refusal",
        "response_fields",
        "sent_at",
        "served",
        "server",
        "sessions",
        "span",
        "tracer",
        "trail",
        "upstream",
        "upstream_status",
        "user",
        "waiting",
    )

    def __init__(
        self,
        exchange: Exchange,
        client: RequestClient,
        in_flight: set[Request],
        recorders: Recorders,
        auditor: Auditor | None = None,
        tracer: Tracer | None = None,
        batch: RequestBatch[Request] | None = None,
    ) -> None:
        """`in_flight`: the requests of the process, to which this one belongs until it ends.

        `batch` reports the request to recorders, auditor and tracer.
        """
        self.exchange = exchange
        self.client = client
        self.server: VirtualServer | None = None
        self.cluster: Cluster | None = None
        self.api_service: APIService | None = None  # the server's API service that owns its group-version, if any
        self.endpoint: Endpoint | None = None  # the endpoint to which it was sent, and which counts it in `in_flight`
        self.upstream: UpstreamHandler | None = None  # set when it was sent
        self.identity_headers: IdentityHeaders
        self.caller = _UNKNOWN  # the user that sent it
        self.impersonates = False  # the client requested another user
        self.user = _UNKNOWN.user  # the user that it runs as: the caller, or the user that the caller impersonates
        self.info: RequestInfo | None = None
        self.plan: Plan | None = None
        self.served: ServedBy | None = None  # only for a request to an aggregate
        self.permit: Permit | None = None
        self.reason = ""  # one of `reasons.REASONS`, for the access log; "" until it is known
        self.response_fields = b""  # added to every response (CORS)
        self.location_prefix = b""  # what routing removed from the path; restored in redirects
        self.waiting: Deferred[Any] | None = None  # cancelled when the client disconnects
        self.was_cut = False
        self._audit_id = b""
        self._correlation: Correlation | None = None
        self.auditor = auditor
        self.tracer = tracer
        self._batch = batch
        self.ended_at = 0.0
        self.audited = False  # its beginning is in the audit log, or in the batch for the audit log
        self.addresses: tuple[str, ...] | None = None  # source addresses from a trusted proxy
        self.trail: object = None  # its state in the audit log
        self.span: Span | None = None
        if exchange.handler_state is not None:  # the request was restarted: its earlier Request left these values
            self.trail, self.span = cast("tuple[object, Span | None]", exchange.handler_state)
        self.refusal: StatusError | None = None  # the proxy's own refusal
        self.decision: Decision | None = None  # the decision of the server's authorizer
        self.sessions: SessionRegistry | None = None  # the registry that limits its duration, if it is a session
        self.sent_at = 0.0  # when an endpoint was first chosen for it
        self.answered_at = 0.0  # when the endpoint's response had arrived
        self.upstream_status = 0  # the status of the endpoint's response
        self.attempts = 0  # times that it was sent to an endpoint
        self.recorders = recorders
        self._in_flight = in_flight
        exchange.on_done = self
        in_flight.add(self)

    def assign_endpoint(self, endpoint: Endpoint) -> None:
        """Count the request at its new endpoint instead of the earlier one."""
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        self.endpoint = endpoint
        endpoint.in_flight += 1

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        """Return header fields for the proxy's own response, as a block; `more` are additional whole lines."""
        now = self.exchange.connection.wall_seconds()
        return own_fields(self.audit_id, now, more, cache_control=cache_control) + self.response_fields

    def log_fields(self) -> dict[str, Any]:
        """Return the known fields of a log line about the request: upstream, client, user and target.

        Texts from the client are truncated, and parameters that can be credentials are removed from the URI.
        """
        server, cluster, endpoint, head = self.server, self.cluster, self.endpoint, self.exchange.head
        return {
            "server": server.name if server is not None else "",
            "cluster": cluster.name if cluster is not None else "",
            "endpoint": endpoint.name if endpoint is not None else "",
            "client": self.client.log_address,  # log lines with this field are limited
            "user": self.caller.user.name if server is not None and server.authenticates else "",
            "method": head.method.decode("latin-1"),
            "uri": masked(head.target.decode("latin-1"), LONGEST_IN_EVENTS),
        }

    def headers_for_members(self) -> IdentityHeaders:
        """Return the client's identity headers, for this request's subrequests to members of an aggregate."""
        return self.identity_headers

    @property
    def correlation(self) -> Correlation:
        """The Audit-ID and trace context of the client's head; the first read must happen while the head exists."""
        found = self._correlation
        if found is None:
            headers: IdentityHeaders | None = getattr(self, "identity_headers", None)
            if headers is None:  # refused before the identity headers were parsed
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
        """The Audit-ID: the client's, else a new one for this request."""
        if not self._audit_id:
            self._audit_id = self.correlation.audit_id or new_audit_id()
        return self._audit_id

    def with_audit_id(self, fields: bytes) -> bytes:
        """Return the fields of a cluster's response with the Audit-ID, if they have none."""
        return with_audit_id(fields, self.audit_id)

    def upstream_fields(self) -> bytes:
        """Return the client's fields for a cluster, with the Audit-ID and without fields of identity and origin."""
        return self._correlated(self.correlation)

    def correlate_head(self) -> None:
        """Put the Audit-ID into the head, for a handler that makes other requests from this head."""
        head = self.exchange.head
        head.fields = self._correlated(correlate(head.fields))

    def _correlated(self, noted: Correlation) -> bytes:
        fields = noted.fields if self.span is None else noted.untraced + self.span.fields
        return fields if noted.audit_id else b"%bAudit-Id: %b\r\n" % (fields, self.audit_id)

    @property
    def of_service_discovery(self) -> bool:
        """Whether the request is for the discovery document of an API service's group-version."""
        return self.api_service is not None and self.info is not None and not self.info.is_resource

    def suspect_api_service(self) -> None:
        """Request an early probe of the request's API service, since it did not answer, or not completely."""
        service, server = self.api_service, self.server
        if service is not None and server is not None and server.availability is not None:
            server.availability.suspect(Registration.of(service))

    def answer_preflight(self) -> None:
        """Answer a CORS preflight from an allowed origin."""
        self.exchange.respond(204, b"", self.own_fields(), 0)
        self.exchange.end()

    def refuse(self, refusal: StatusError, reason: str) -> None:
        """Answer with a Status object, in YAML if the client prefers that; `reason` is one of `reasons.REASONS`."""
        self.reason = reason
        self.refusal = refusal
        exchange = self.exchange
        accept = exchange.head.header(b"accept")
        in_yaml = accept is not None and b"yaml" in accept and prefers_yaml(accept.decode("latin-1"))
        now = exchange.connection.wall_seconds()
        fields = refusal_fields(refusal, self.audit_id, now, _YAML_FIELD if in_yaml else _JSON_FIELD)
        body = refusal.yaml_body() if in_yaml else refusal.body()
        exchange.answer(refusal.code, fields + self.response_fields, body)

    def fail(self, error: Exception, step: Step = Step.FORWARDING) -> None:
        """Answer an exception that was raised in `step`: a refusal, or a bug, whose traceback is logged. Call it in an
        except clause.

        After a bug, a response that has begun is broken off, and its handler is stopped.
        """
        if not isinstance(error, StatusError):
            self._break_off()
            return
        try:
            self.refuse(error, self.reason or refusal_reason(step, error.code))
        except Exception:
            self._break_off()

    def _break_off(self) -> None:
        """In an except clause: log the exception, which is a bug, and end the exchange in any case."""
        log.failure("handling a request failed unexpectedly", event="internal_error")
        exchange = self.exchange
        handler = exchange.handler
        if exchange.ended:
            return
        self.reason = "internal_error"
        try:
            if exchange.responded:
                exchange.abort()
            else:
                self.refuse(StatusError(500, "internal error"), "internal_error")
        except Exception:
            exchange.abort()
            raise
        finally:
            if handler is not None:
                handler.cancelled()

    def restart(self, body: list[bytes] | None = None) -> bool:
        """Handle the request from its beginning with the configuration in force; `body` is the part that was read.

        This is for a request that has no endpoint in its replaced configuration. The new configuration may authorize it
        differently or send it to another cluster. If the request began with the configuration in force, or if a
        response has begun, do nothing and return False.
        """
        exchange = self.exchange
        handle = exchange.connection.factory.handle
        if handle == self.client.handle or exchange.ended or exchange.responded:
            return False
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.cancel()
            if bool(exchange.ended):  # cancelling has ended the exchange; bool() resets mypy's type narrowing
                return True
        exchange.on_done = None
        if self._batch is not None:
            self._batch.flush()
        exchange.handler_state = self.trail, self.span
        exchange.detach(body or [])
        self._release()
        handle(exchange)
        return True

    @property
    def kind(self) -> RequestKind:
        if self.exchange.upgraded:
            return RequestKind.TUNNEL
        return kind_of(self.info)

    def begin_again(self) -> bool:
        if self.upstream is not None:
            return self.upstream.restart()
        return self.waiting is not None and self.restart()

    def end_gracefully(self) -> bool:
        handler = self.exchange.handler
        if handler is None:
            return False
        self.reason = "drained"
        handler.end_gracefully()
        return True

    @property
    def is_session(self) -> bool:
        """Whether the request is long-running (a watch, a followed log, a tunnel, …) and its response has begun."""
        exchange = self.exchange
        return exchange.responded and (exchange.upgraded or (self.info is not None and self.info.long_running))

    def begin_session(self) -> None:
        """Note that the response to a long-running request has begun."""
        if self.auditor is not None:
            if self._batch is not None:
                self._batch.flush()  # so that the audit trail of this request has begun
            self.auditor.started(self, self._wall_offset())
        if self.server is not None and self.server.session_registry is not None:
            self.server.session_registry.begin(self)

    def end_session(self, reason: str, *, now: bool = False) -> None:
        """End a session: end a watch cleanly, between two events; close a tunnel; break off any other response.

        `now`: wait neither for the end of an event nor for a tunnel's queued data.
        """
        exchange, handler = self.exchange, self.exchange.handler
        if exchange.ended or handler is None:
            return
        self.reason = reason
        if not now and (self.kind is RequestKind.WATCH or exchange.upgraded):
            handler.end_gracefully()
        else:
            exchange.abort()
            handler.cancelled()

    def exchange_done(self, exchange: Exchange) -> None:
        """The exchange has ended (`http.exchange.ExchangeObserver`): release its resources, and log it."""
        try:
            self._release()
            if self.sessions is not None:
                self.sessions.end(self)
            waiting, self.waiting = self.waiting, None
            if waiting is not None:
                waiting.cancel()
            self.ended_at = exchange.connection.seconds()
            if self._batch is None:
                return  # requests of this kind are not logged
            if self._correlation is None:
                self.correlation  # noqa: B018 (evaluated while the head has its fields)
            if self.client.trusted and self.auditor is not None and self.addresses is None:
                self.addresses = self.client.addresses(exchange.head)
            self._batch.ended(self)
        except Exception:  # otherwise the engine would not continue with the connection's next request
            log.failure("a bug at the end of a request", event="internal_error")

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

    def _release(self) -> None:
        """Remove the request from all counters."""
        self.upstream = None  # breaks a reference cycle, which would need the garbage collector for every request
        self._in_flight.discard(self)
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.release()


def own_fields(
    identifier: bytes, now: WallSeconds, more: bytes = b"", *, cache_control: bytes = b"no-cache, private"
) -> bytes:
    """Return the fields of a response of our own, as a block; `now` is their Date."""
    return _OWN_FIELDS % (identifier, cache_control, more, formatdate(now, usegmt=True).encode())


def refusal_fields(
    refusal: StatusError, identifier: bytes, now: WallSeconds, content_type: bytes = _JSON_FIELD
) -> bytes:
    """Return the header fields of a response with a Status, as a block."""
    more = b"".join([b"%b: %b\r\n" % field for field in refusal.headers])
    return own_fields(identifier, now, content_type + (_NO_SNIFF_FIELD if refusal.code == 403 else b"") + more)


def with_audit_id(fields: bytes, identifier: bytes) -> bytes:
    """Return a cluster's response fields with the Audit-ID of the request, unless they have one."""
    if fields[:9].lower() == b"audit-id:":  # the usual case: Go sends its fields sorted by name
        return fields
    return fields if fields.lower().find(b"audit-id:") >= 0 else fields + b"Audit-Id: %b\r\n" % identifier
