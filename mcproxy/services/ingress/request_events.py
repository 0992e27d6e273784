"""Logs failed, refused and slow requests to ingresses for operators.

A line is written after the request has ended, at most once a minute for each kind of problem of each endpoint.
"""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger

from mcproxy.log_once import LogOnce
from mcproxy.observe.log_values import LONGEST_IN_EVENTS, masked
from mcproxy.services.ingress.ingress_request import IngressRequest

log = Logger(__name__)

SLOW = 5.0
"""A request is slow if the first byte of the response arrives these seconds or more after the choice of an endpoint
and the end of the request's body."""
_NO_ANSWER = frozenset(
    {"upstream_unreachable", "upstream_refused", "upstream_closed", "upstream_malformed", "upstream_timeout"}
)


class IngressReporter:
    """Reports requests to ingresses to metrics and logs, for one process (`requests.batch.Reporter`)."""

    def __init__(self) -> None:
        self._events = IngressEvents()

    def begun(self, request: IngressRequest, offset: float) -> None:
        """Do nothing: ingresses have no audit log."""

    def ended(self, request: IngressRequest, offset: float) -> None:
        request.report(offset)
        self._events.ended(request)


class IngressEvents:
    """Writes the log lines of one process."""

    def __init__(self) -> None:
        self._once = LogOnce()

    def ended(self, request: IngressRequest) -> None:
        """Log the end of a request, if operators have to know it; its `ended_at` is set."""
        reason = request.reason
        if not reason:
            self._slow(request)
        elif reason == "no_endpoint":
            if (fields := self._fields("no endpoint", request)) is not None:
                log.warn(
                    "a service has no endpoint for a request; more of them in this minute are not logged",
                    event="ingress_no_endpoint",
                    **fields,
                    todo="see `mcproxy status`: whether the service has ready pods, and its cluster can be reached",
                )
        elif reason in _NO_ANSWER:
            if (fields := self._fields("no answer", request)) is not None:
                log.warn(
                    "a service did not answer a request; more of them in this minute are not logged",
                    event="ingress_no_answer",
                    **fields,
                    status=request.exchange.status,
                    attempts=request.attempts,
                    cause=request.message,
                    todo="see the log of that pod, and whether pod addresses can be reached from here",
                )
        elif reason == "upstream_broken":
            if (fields := self._fields("broken", request)) is not None:
                log.warn(
                    "a pod broke off a response; the client's connection was closed",
                    event="response_broken",
                    **fields,
                    status=request.exchange.status,
                    bytesOut=request.exchange.bytes_out,
                    cause=request.message,
                    todo="see that pod's log, and the network to it",
                )
        elif reason == "bad_request":
            log.info(
                "a request is refused: its path is ambiguous (400)",
                event="request_malformed",
                **about(request),
                cause=request.message,
                todo="see what that client sends; only plain paths are accepted",
            )

    def _slow(self, request: IngressRequest) -> None:
        first, sent = request.exchange.first_byte_at, request.sent_at
        if not sent or not first or first - sent < SLOW or request.exchange.upgraded:
            return
        waited = first - max(sent, request.exchange.body_ended_at)  # excludes the time of a slow or large request body
        if waited < SLOW:
            return
        if (fields := self._fields("slow", request)) is not None:
            log.warn(
                "a pod was slow to answer; more of its slow answers in this minute are not logged",
                event="upstream_slow",
                **fields,
                seconds=round(waited, 3),
                todo="see whether that pod is overloaded",
            )

    def _fields(self, what: str, request: IngressRequest) -> dict[str, Any] | None:
        """Return the fields of a log line about a request; None if its endpoint had such a line within the period."""
        known = about(request)
        subject = (what, known["service"], known["cluster"], known["endpoint"])
        return {**known, "log_subject": subject} if self._once.allows(subject, request.ended_at) else None


def about(request: IngressRequest) -> dict[str, Any]:
    """Return the known fields of a log line about a request."""
    route, endpoint, head = request.route, request.endpoint, request.exchange.head
    return {
        "ingress": route.ingress if route is not None else "",
        "rule": route.label if route is not None else "",
        "service": request.service,
        "cluster": endpoint.cluster if endpoint is not None else "",
        "endpoint": endpoint.name if endpoint is not None else "",
        "client": (request.noted.address if request.noted is not None else "") or request.client.log_address,
        "method": head.method.decode("latin-1"),
        "uri": masked(head.target.decode("latin-1"), LONGEST_IN_EVENTS),
    }
