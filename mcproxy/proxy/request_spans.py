"""Makes the span of a request: a server span by OpenTelemetry's HTTP semantic conventions, child of the client's span.

The cluster gets the span as the parent in `traceparent`, so the cluster's spans are its children. Span names are those
of a kube-apiserver (`pkg/endpoints/filters/traces.go`): few, and independent of objects' names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcproxy.observe.log_values import masked
from mcproxy.observe.spans import header_of, trace_id_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.observe.record import AccessRecord
    from mcproxy.observe.spans import Spans
    from mcproxy.proxy.request import Request

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LONGEST = 1024  # maximum characters of a text from a client
_NOT_FAILED = frozenset(
    {"ok", "client_closed", "client_stalled", "drained", "session_expired", "credential_ended", "upstream_closed_watch"}
)


class RequestSpan:
    """The span of one request."""

    __slots__ = ("fields", "span", "trace_id")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.fields = header_of(span)
        """The trace context for a cluster, as a block of fields."""
        self.trace_id = trace_id_of(span)
        """The trace ID in hexadecimal; "" if the trace is not sampled."""


class RequestTracer:
    """Traces the requests of one process."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, request: Request, info: RequestInfo | None) -> None:
        """Start the span of a request, unless it already has one (`Request.restart`)."""
        if request.span is not None:
            return
        exchange, client, trace = request.exchange, request.client, request.correlation.trace
        head, connection = exchange.head, exchange.connection
        method = head.method.decode("latin-1")
        path, _, query = masked(head.target.decode("latin-1")).partition("?")
        attributes: dict[str, str | int | bool] = {
            "http.request.method": method if method in _METHODS else "_OTHER",
            "url.path": path[:_LONGEST],
            "url.scheme": client.scheme,
            "network.protocol.version": "2" if exchange.protocol == "HTTP/2.0" else exchange.protocol[5:],
            "audit-id": request.audit_id.decode("ascii"),
        }
        if query:
            attributes["url.query"] = query[:_LONGEST]
        if client.address:
            attributes["client.address"] = client.addresses(head)[0]
            attributes["network.peer.address"] = client.address
        if head.host:
            attributes["server.address"] = head.host.decode("latin-1")[:_LONGEST]
        if request.correlation.user_agent:
            attributes["user_agent.original"] = request.correlation.user_agent[:_LONGEST]
        route = _route(info) if info is not None and info.is_resource else ""
        if route:
            attributes["http.route"] = route
        parent = None if trace is None else (trace.trace_id, trace.parent_id, trace.flags, trace.state)
        arrived = connection.wall_seconds() - (connection.seconds() - exchange.started_at)
        name = attributes["http.request.method"] if method in _METHODS else "HTTP"
        request.span = RequestSpan(
            self._spans.start(f"{name} {route}" if route else str(name), arrived, parent, attributes)
        )

    def ended(self, request: Request, record: AccessRecord) -> None:
        """End the span of a request; a request that was refused early gets a span for its whole duration."""
        self.begin(request, request.info)
        span = request.span
        assert span is not None
        attributes: dict[str, str | int | bool] = {"mcproxy.reason": record.reason}
        if record.status:
            attributes["http.response.status_code"] = record.status
        for key, value in (
            ("server", record.server),
            ("cluster", record.cluster),
            ("endpoint", record.endpoint),
            ("policy", record.policy),
            ("api_service", record.api_service),
        ):
            if value:
                attributes[f"mcproxy.{key}"] = value
        if record.attempts > 1:
            attributes["mcproxy.attempts"] = record.attempts
        failed = record.status >= 500 or (record.status < 400 and record.reason not in _NOT_FAILED)
        if failed:
            attributes["error.type"] = str(record.status) if record.status >= 500 else record.reason
        self._spans.end(span.span, record.time + record.total, attributes, failed=failed)


def _route(info: RequestInfo) -> str:
    parts = ["", "apis", info.group, info.version] if info.group else ["", "api", info.version]
    if info.namespace:
        parts += ["namespaces", "{namespace}"]
    parts.append(info.resource)
    if info.name:
        parts.append("{name}")
    if info.subresource:
        parts.append(info.subresource)
    return "/".join(parts)[:_LONGEST]
