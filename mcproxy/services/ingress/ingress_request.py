"""One request to an ingress: it chooses targets, makes the proxy's own responses, and reports to metrics and logs.

The proxy's own responses are short plain text, never a Kubernetes Status.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from email.utils import formatdate
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import quote

from twisted.logger import Logger

from mcproxy.http.exchange import Exchange
from mcproxy.http.messages import REASON_PHRASES, RequestHead, ResponseHead
from mcproxy.net.wall_time import WallSeconds
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.recorders import Recorder
from mcproxy.requests.in_flight import RequestInFlight, RequestKind
from mcproxy.services.ingress.forward_target import AttemptOutcome, Failure
from mcproxy.services.ingress.ingress_forward import IngressForward

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from mcproxy.observe.metrics.ingress_counts import IngressCounts
    from mcproxy.requests.batch import RequestBatch
    from mcproxy.services.ingress.backend import Backend
    from mcproxy.services.ingress.client_connection import Client, ConnectionFields
    from mcproxy.services.ingress.endpoint_health import BackendEndpoint
    from mcproxy.services.ingress.forward_target import Target
    from mcproxy.services.ingress.live_route import LiveRoute

log = Logger(__name__)

_NO_ROUTE = ("", "", "")
LASTING = 5.0
"""Seconds after which a request counts as long-running: a shutdown waits only for shorter requests."""

_MESSAGES = {
    Failure.NO_ENDPOINT: "the service has no endpoint that takes requests",
    Failure.MISSING: "no cluster has the service",
    Failure.UNREACHABLE: "no endpoint of the service could be reached",
    Failure.CONNECT_TIMEOUT: "no endpoint of the service could be reached in time",
    Failure.REFUSED: "the service did not take the request",
    Failure.UNANSWERED: "the service closed the connection without an answer",
    Failure.INVALID: "the service did not answer in valid HTTP",
    Failure.TIMED_OUT: "the service did not answer in time",
}
_FAILED = {
    AttemptOutcome.CONNECT_FAILED: "it could not be connected to",
    AttemptOutcome.UNANSWERED: "it closed the connection without an answer",
    AttemptOutcome.TIMED_OUT: "it did not answer in time",
    AttemptOutcome.INVALID: "it did not answer in valid HTTP",
    AttemptOutcome.REJECTED: "it answered with a status of retryOn",
}
"""Outcomes that count as failures of an endpoint (`endpoint_health`)."""
RETRY_AFTER = 5
"""Retry-After of a 503, in seconds: mcproxy learns of new endpoints within a second."""

_PLAIN = b"Content-Type: text/plain; charset=utf-8\r\n"


class IngressSpan(NamedTuple):
    """The span of one request (`request_spans`)."""

    span: Span
    fields: bytes
    """The block of fields for the pod: the client's, with the trace context of this span."""
    trace_id: str
    """The trace id in hexadecimal; "" if the trace is not sampled."""


class IngressTracer(Protocol):
    """Traces requests (`request_spans.IngressRequestTracer`)."""

    def begin(self, request: IngressRequest) -> IngressSpan:
        """Begin the span of a request; its attribute `noted` is set."""

    def ended(self, span: IngressSpan, record: AccessRecord) -> None:
        """End the span; called however the request ended."""


class IngressRequest(RequestInFlight):
    """One request to an ingress; it observes the end of its exchange."""

    __slots__ = (
        "_batch",
        "_counts",
        "_in_flight",
        "_log",
        "_tracer",
        "answered_at",
        "attempts",
        "backend",
        "chosen",
        "client",
        "cookie_endpoint",
        "endpoint",
        "message",
        "noted",
        "request_id",
        "route",
        "sent_at",
        "span",
        "upstream",
        "upstream_status",
    )

    def __init__(
        self,
        exchange: Exchange,
        client: Client,
        in_flight: set[IngressRequest],
        counts: IngressCounts | None,
        log: Recorder | None,
        batch: RequestBatch[IngressRequest] | None,
        tracer: IngressTracer | None = None,
    ) -> None:
        """`in_flight`: the requests of the process, including this one until its end. `log`: the access log."""
        self.exchange = exchange
        self.client = client
        self.noted: ConnectionFields | None = None
        self.route: LiveRoute | None = None
        self.backend: Backend | None = None  # the chosen backend of the route
        self.cookie_endpoint: BackendEndpoint | None = None  # the endpoint in the affinity cookie
        self.endpoint: BackendEndpoint | None = None  # the endpoint of the last attempt
        self.chosen: list[BackendEndpoint] = []  # endpoints of earlier attempts, which failed
        self.upstream: IngressForward | None = None
        self.reason = ""  # one of `requests.reasons.REASONS`; "" until it is known
        self.message = ""  # the message to the client, if the proxy refused the request
        self.request_id = b""
        self.was_cut = False
        self.sent_at = 0.0  # time of the first choice of an endpoint
        self.answered_at = 0.0  # time at which the response was complete
        self.upstream_status = 0
        self.attempts = 0
        self.ended_at = 0.0
        self._in_flight = in_flight
        self._counts = counts
        self._log = log
        self._batch = batch
        self._tracer = tracer
        self.span: IngressSpan | None = None
        exchange.on_done = self
        in_flight.add(self)

    # -- the proxy's own responses ------------------------------------------------------------------------------

    def deny(self, status: int, message: str, reason: str, more: bytes = b"") -> None:
        """Answer with a status code and a sentence; `reason` is one of `requests.reasons.REASONS`.

        A gRPC client gets a gRPC status.
        """
        self.reason, self.message = reason, message
        exchange = self.exchange
        now = exchange.connection.wall_seconds()
        if status != 421 and is_grpc(exchange.head):  # 421 concerns the connection, not the call
            exchange.answer(200, grpc_answer(status, message, now), b"")
            return
        fields, body = answer(status, message, now, more)
        exchange.answer(status, fields, body)

    def redirect(self, code: int, location: bytes) -> None:
        """Answer with a redirect."""
        self.reason = "redirected"
        fields, body = redirect(code, location, self.exchange.connection.wall_seconds())
        self.exchange.answer(code, fields, body)

    def fail(self) -> None:
        """Answer with 500 after a bug; called in an except clause."""
        log.failure("handling a request failed unexpectedly", event="internal_error")
        if self.exchange.responded:
            self.exchange.abort()
        else:
            self.deny(500, "internal error", "internal_error")

    # -- forwarding (`ingress_forward.ForwardedRequest`) -----------------------------------------------------------

    def send(self, route: LiveRoute, target: bytes) -> None:
        """Send the request by its route; `target`: path and query. Raises BadPath if the rewritten path is invalid."""
        head, noted, changes = self.exchange.head, self.noted, route.changes
        assert noted is not None
        backend = self.backend = route.only
        if backend is None:
            chosen = None if route.shares is None else route.shares.choose(head.fields)
            if chosen is None:
                self.deny(500, "no backend of the rule takes requests", "no_endpoint")
                return
            backend, self.cookie_endpoint = chosen
            self.backend = backend
        elif backend.affinity is not None:
            self.cookie_endpoint = backend.affinity.endpoint_of(head.fields)
        block = noted.fields
        if self._tracer is not None:
            self.span = self._tracer.begin(self)
            block = self.span.fields
        fields: tuple[bytes, ...] = (block,)
        if not noted.request_id:
            fields = (block, b"X-Request-ID: %b\r\n" % self.request_id)
        authority, timeout = head.host or backend.authority, 0.0
        if changes is not None:
            target, timeout = changes.target(target), changes.timeout
            if changes.host is not None:
                authority = changes.host
            if changes.request_fields is not None:
                fields = (changes.request_fields.apply(b"".join(fields)),)
        config = backend.config
        self.upstream = IngressForward(
            self,
            (target, authority, fields),
            response_timeout=config.response_timeout,
            retries=config.retries,
            retry_on=config.retry_on,
            timeout=timeout,
            read_timeout=config.read_timeout,
        )
        self.upstream.start()

    def choose(self, tried: Sequence[Target]) -> Target | None:
        """Return the target for the request; attempts at `tried` have failed."""
        backend = self.backend
        assert backend is not None
        key = b""
        if backend.client_key is not None:
            noted = self.noted
            address = (noted.address if noted is not None else "") or self.client.log_address
            key = backend.client_key(self.exchange.head.fields, address)
        if not tried:
            self.sent_at = self.exchange.connection.seconds()
            endpoint = backend.first(self.cookie_endpoint, key)
        else:
            if self.endpoint is not None:
                self.chosen.append(self.endpoint)
            endpoint = backend.another([each for each in self.chosen if each.target in tried], key)
        if endpoint is None:
            return None
        self.endpoint = endpoint
        self.attempts += 1
        return endpoint.target

    def attempt_ended(self, target: Target, outcome: AttemptOutcome) -> None:
        """Count a failed attempt as a failure of its endpoint; note the time of a complete response."""
        if outcome is AttemptOutcome.ANSWERED:
            self.answered_at = self.exchange.connection.seconds()
            return
        problem = _FAILED.get(outcome)
        if problem is None:
            return
        endpoint = self.endpoint
        if endpoint is None or endpoint.target is not target:
            endpoint = next((each for each in self.chosen if each.target is target), None)
        if endpoint is not None:
            endpoint.failed(problem)

    def response_fields(self, head: ResponseHead, target: Target) -> bytes:
        """Return the fields of a response for the client."""
        endpoint, route, backend = self.endpoint, self.route, self.backend
        assert endpoint is not None
        assert route is not None
        assert backend is not None
        self.upstream_status = head.status
        if head.status in backend.config.retry_on:
            endpoint.failed(_FAILED[AttemptOutcome.REJECTED])
        else:
            endpoint.succeeded()
        fields = head.fields
        changes = route.changes
        if changes is not None and changes.response_fields is not None:
            fields = changes.response_fields.apply(fields)
        affinity = backend.affinity
        if affinity is not None and self.cookie_endpoint is not endpoint:
            noted = self.noted
            secure = noted is not None and noted.https
            fields += affinity.field(endpoint, route.cookie_path, secure=secure)
        return fields

    def broken(self, problem: Exception) -> None:
        """Note for metrics and logs that the response broke off."""
        self.reason, self.message = "upstream_broken", str(problem)

    def refuse(self, failure: Failure, problem: Exception | None) -> None:
        """Answer the request in place of an endpoint."""
        if failure is Failure.NO_ENDPOINT and self.backend is not None and self.backend.missing:
            failure = Failure.MISSING
        self.deny(failure.status, _MESSAGES[failure], failure.reason)
        self.message = str(problem or "")

    @property
    def service(self) -> str:
        """NAMESPACE/NAME of the backend; "" until it is known."""
        if self.backend is not None:
            return self.backend.service
        return self.route.service if self.route is not None else ""

    # -- shutdown and reload ------------------------------------------------------------------------------------

    @property
    def kind(self) -> RequestKind:
        """The kind of the request, by which a shutdown ends it."""
        exchange = self.exchange
        if exchange.upgraded:
            return RequestKind.TUNNEL
        lasts = exchange.connection.seconds() - exchange.started_at > LASTING
        return RequestKind.STREAM if lasts else RequestKind.SHORT

    def end_gracefully(self) -> bool:
        """Do nothing: only a tunnel has a clean early end, by `cut`."""
        return False

    def begin_again(self) -> bool:
        """Return False: a request keeps its configuration until it ends."""
        return False

    # -- the end ------------------------------------------------------------------------------------------------

    def exchange_done(self, exchange: Exchange) -> None:
        """Release the request, because its exchange has ended (`http.exchange.ExchangeObserver`)."""
        upstream, self.upstream = self.upstream, None  # breaks the reference cycle
        self._in_flight.discard(self)
        if upstream is not None:
            upstream.exchange_done()
        self.ended_at = exchange.connection.seconds()
        if self._batch is not None:
            self._batch.ended(self)

    def report(self, offset: float) -> None:
        """Report the ended request to metrics and logs; `offset` is the wall clock minus the reactor's clock."""
        exchange, now, route, endpoint = self.exchange, self.ended_at, self.route, self.endpoint
        outcome = self.outcome
        upstream = (self.answered_at or now) - self.sent_at if self.sent_at else None
        total = now - exchange.started_at
        if self._counts is not None:
            self._counts.count(
                route.labels_of(self.backend) if route is not None else _NO_ROUTE,
                endpoint.cluster if endpoint is not None else "",
                exchange.status,
                outcome,
                exchange.bytes_in,
                exchange.bytes_out,
                self.attempts,
                None if exchange.upgraded else total,
                upstream,
            )
        if self._log is None and self._tracer is None:
            return
        if self._tracer is not None and self.span is None and self.noted is not None:  # refused before its span began
            self.span = self._tracer.begin(self)
        record = self._record(offset, outcome, upstream, total)
        if self._log is not None:
            self._log.finished(record)
        if self._tracer is not None and self.span is not None:
            self._tracer.ended(self.span, record)

    def _record(self, offset: float, outcome: str, upstream: float | None, total: float) -> AccessRecord:
        exchange, route, endpoint, noted = self.exchange, self.route, self.endpoint, self.noted
        head, started_at = exchange.head, exchange.started_at
        return AccessRecord(
            time=started_at + offset,
            client=(noted.address if noted is not None else "") or self.client.log_address,
            method=head.method.decode("latin-1"),
            uri=head.target.decode("latin-1"),
            status=exchange.status,
            reason=outcome,
            cluster=endpoint.cluster if endpoint is not None else "",
            endpoint=endpoint.name if endpoint is not None else "",
            long_running=exchange.upgraded,
            request_id=self.request_id.decode("latin-1"),
            user_agent=noted.user_agent if noted is not None else "",
            bytes_in=exchange.bytes_in,
            bytes_out=exchange.bytes_out,
            first_byte=exchange.first_byte_at - started_at if exchange.first_byte_at else None,
            upstream=upstream,
            upstream_status=self.upstream_status,
            attempts=self.attempts,
            total=total,
            upgraded=exchange.upgraded,
            protocol=exchange.protocol if head.http11 else "HTTP/1.0",
            ingress=route.ingress if route is not None else "",
            rule=route.label if route is not None else "",
            service=self.service,
            host=head.host.decode("latin-1"),
            trace_id=self.span.trace_id if self.span is not None else "",
        )


def answer(status: int, message: str, now: WallSeconds, more: bytes = b"") -> tuple[bytes, bytes]:
    """Return the fields and the body of a response; `more` contains complete field lines."""
    phrase = REASON_PHRASES.get(status, b"Unknown").decode()
    body = f"{status} {phrase}: {message}\n" if message else f"{status} {phrase}\n"
    fields = _PLAIN + b"Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
    if status == 503:
        more += b"Retry-After: %d\r\n" % RETRY_AFTER
    return fields + more + b"Date: %b\r\n" % formatdate(now, usegmt=True).encode(), body.encode("utf-8", "replace")


def redirect(code: int, location: bytes, now: WallSeconds) -> tuple[bytes, bytes]:
    """Return the fields and the body of a redirect."""
    date = formatdate(now, usegmt=True).encode()
    return b"Location: %b\r\n%bDate: %b\r\n" % (location, _PLAIN, date), b"%d %b\n" % (code, REASON_PHRASES[code])


class RequestIDs:
    """Makes identifiers for requests without one: 32 hexadecimal digits, half of them random per process.

    The other half is a counter. The identifiers are not secret; random ones would cost as much CPU time as routing.
    """

    __slots__ = ("_numbers", "_prefix")

    def __init__(self, prefix: bytes | None = None) -> None:
        """`prefix`: 8 bytes; None means random bytes."""
        self._prefix = (os.urandom(8) if prefix is None else prefix).hex().encode()
        self._numbers = count(1)

    def __call__(self) -> bytes:
        return b"%b%016x" % (self._prefix, next(self._numbers))


# -- the proxy's own responses to gRPC calls ------------------------------------------------------------------
#
# These responses have a gRPC status instead of an HTTP status. Pure.
#
# A gRPC client would have to guess a gRPC status from an HTTP status. The response is Trailers-Only (gRPC over HTTP/2,
# PROTOCOL-HTTP2.md): one head with status 200, from which the client reads `grpc-status` and `grpc-message`.


_GRPC_CODES = {400: 13, 401: 16, 403: 7, 404: 12, 413: 8, 429: 14, 500: 14, 502: 14, 503: 14, 504: 4}
"""From grpc/doc/http-grpc-status-mapping.md, except 413 (RESOURCE_EXHAUSTED), 500 (no cluster has the service) and 504
(DEADLINE_EXCEEDED, which the document does not use)."""
_GRPC_UNKNOWN = 2
_GRPC_TYPE = b"application/grpc"


def is_grpc(head: RequestHead) -> bool:
    """Whether a request is a gRPC call. gRPC-Web (of browsers) and Connect (with HTTP errors) are none."""
    kind = head.header(b"content-type")
    if kind is None:
        return False
    kind = kind.lower()
    return kind.startswith(_GRPC_TYPE) and kind[len(_GRPC_TYPE) :][:1] in (b"", b"+", b";")


def grpc_answer(status: int, message: str, now: WallSeconds) -> bytes:
    """Return the fields of the gRPC response that corresponds to the HTTP status `status`."""
    return b"Content-Type: application/grpc\r\ngrpc-status: %d\r\ngrpc-message: %b\r\nDate: %b\r\n" % (
        _GRPC_CODES.get(status, _GRPC_UNKNOWN),
        quote(message, safe=" !#$&'()*+,/:;=?@[]").encode(),
        formatdate(now, usegmt=True).encode(),
    )
