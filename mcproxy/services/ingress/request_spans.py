"""Traces requests to ingresses: makes a server span by OpenTelemetry's HTTP conventions, as a child of the client's.

The pod gets this span as the parent in `traceparent`. Its name and `http.route` are the configured host and path of
the rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcproxy.observe.log_values import masked
from mcproxy.observe.spans import header_of, trace_id_of
from mcproxy.requests.correlation import correlate
from mcproxy.services.ingress.ingress_request import IngressSpan

if TYPE_CHECKING:
    from mcproxy.observe.record import AccessRecord
    from mcproxy.observe.spans import Spans
    from mcproxy.services.ingress.ingress_request import IngressRequest

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LONGEST = 1024  # maximum of characters of a text from the client
_NOT_FAILED = frozenset({"ok", "client_closed", "client_stalled", "drained", "redirected"})


class IngressRequestTracer:
    """Traces the requests of one process."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, request: IngressRequest) -> IngressSpan:
        """Start the span of a request; its attribute `noted` is set."""
        exchange, noted, route = request.exchange, request.noted, request.route
        assert noted is not None
        head, connection = exchange.head, exchange.connection
        method = head.method.decode("latin-1")
        path, _, query = masked(head.target.decode("latin-1")).partition("?")
        known = method if method in _METHODS else "_OTHER"
        attributes: dict[str, str | int | bool] = {
            "http.request.method": known,
            "url.path": path[:_LONGEST],
            "url.scheme": "https" if noted.https else "http",
            "network.protocol.version": "2" if exchange.protocol == "HTTP/2.0" else exchange.protocol[5:],
            "mcproxy.request_id": request.request_id.decode("latin-1"),
        }
        name = known if known in _METHODS else "HTTP"
        if route is not None:
            attributes["http.route"] = route.label
            attributes["mcproxy.ingress"] = route.ingress
            attributes["mcproxy.rule"] = route.label
            name = f"{name} {route.label}"
        texts = (
            ("url.query", query[:_LONGEST]),
            ("client.address", noted.address),
            ("network.peer.address", request.client.address),
            ("server.address", head.host.decode("latin-1")[:_LONGEST]),
            ("user_agent.original", noted.user_agent[:_LONGEST]),
        )
        attributes.update((key, value) for key, value in texts if value)
        found = correlate(noted.fields)
        trace = found.trace
        parent = None if trace is None else (trace.trace_id, trace.parent_id, trace.flags, trace.state)
        arrived = connection.wall_seconds() - (connection.seconds() - exchange.started_at)
        span = self._spans.start(name, arrived, parent, attributes)
        return IngressSpan(span, found.untraced + header_of(span), trace_id_of(span))

    def ended(self, span: IngressSpan, record: AccessRecord) -> None:
        """End the span of a request."""
        attributes: dict[str, str | int | bool] = {"mcproxy.reason": record.reason}
        if record.status:
            attributes["http.response.status_code"] = record.status
        for key, value in (
            ("service", record.service),
            ("cluster", record.cluster),
            ("endpoint", record.endpoint),
        ):
            if value:
                attributes[f"mcproxy.{key}"] = value
        if record.attempts > 1:
            attributes["mcproxy.attempts"] = record.attempts
        failed = record.status >= 500 or (record.status < 400 and record.reason not in _NOT_FAILED)
        if failed:
            attributes["error.type"] = str(record.status) if record.status >= 500 else record.reason
        self._spans.end(span.span, record.time + record.total, attributes, failed=failed)
