"""The records of requests that have ended: for metrics and the access log, the audit log, and the exporter of spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcproxy.identity.authentication.authenticator import presented_credential
from mcproxy.observe.record import AccessRecord
from mcproxy.proxy.api_request_events import RequestEvents

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request


class RequestReporter:
    """Makes the records of the requests to servers of one process (`requests.batch.Reporter`)."""

    def __init__(self) -> None:
        self._events = RequestEvents()

    def begun(self, request: Request, offset: float) -> None:
        """The user is known, and nothing is decided yet: for the audit log."""
        if request.auditor is not None:
            request.auditor.begun(request, offset)

    def ended(self, request: Request, offset: float) -> None:
        """The request is over; its `ended_at` is set."""
        # A policy can switch logging off; a request that reached none is logged by its server's setting.
        shown = request.plan or request.served or request.server
        recorders, tracer = request.recorders, request.tracer
        recorder = recorders.logged if shown is None or shown.access_log else recorders.unlogged
        if recorder is not None or tracer is not None:
            # Metrics alone want less, and get it in less time.
            of_metrics = recorder is recorders.unlogged and tracer is None
            record = _record_of_metrics(request) if of_metrics else _record(request, offset)
            if tracer is not None:
                tracer.ended(request, record)
            if recorder is not None:
                recorder.finished(record)
        if request.auditor is not None:
            request.auditor.ended(request, offset)
        self._events.ended(request)


def _record(request: Request, offset: float) -> AccessRecord:
    exchange, now = request.exchange, request.ended_at
    head, started_at = exchange.head, exchange.started_at
    info, caller, user = request.info, request.caller, request.user
    real = caller.user.name if request.server is not None and request.server.authenticates else ""
    record = AccessRecord(  # by position: keywords would cost as much again
        started_at + offset,
        request.client.log_address,
        head.method.decode("latin-1"),
        head.target.decode("latin-1"),
        exchange.status,
        request.outcome,
        request.server.name if request.server else "",
        request.cluster.name if request.cluster else "",
        request.endpoint.name if request.endpoint else "",
        real,
        len(user.groups),
        user.name if request.impersonates else "",
        request.plan.policy if request.plan else "",
        info.request_verb if info and info.is_resource else "",
        info.label if info else "",
        exchange.upgraded or (info is not None and info.long_running),
        request.audit_id.decode("ascii"),
        request.span.trace_id if request.span is not None else "",
        request.correlation.user_agent,
        exchange.bytes_in,
        exchange.bytes_out,
        exchange.first_byte_at - started_at if exchange.first_byte_at else None,
        (request.answered_at or now) - request.sent_at if request.sent_at else None,
        request.upstream_status,
        request.attempts,
        now - started_at,
        exchange.upgraded,
        None,
        exchange.protocol if head.http11 else "HTTP/1.0",
        caller.authenticator or _refused_credential(request),
        "" if request.api_service is None else request.api_service.group_version,
    )
    return record if request.served is None else request.served.added_to(record)


def _record_of_metrics(request: Request) -> AccessRecord:
    """Return a record that has no more than metrics read of it (`observe.metrics.request_counts`)."""
    exchange, now, info = request.exchange, request.ended_at, request.info
    of_resource = info if info is not None and info.is_resource else None
    verb = of_resource.request_verb if of_resource is not None else ""
    record = AccessRecord(
        time=0.0,
        client=request.client.log_address,
        method="" if verb else exchange.head.method.decode("latin-1"),
        uri="",
        status=exchange.status,
        reason=request.outcome,
        server=request.server.name if request.server else "",
        cluster=request.cluster.name if request.cluster else "",
        endpoint=request.endpoint.name if request.endpoint else "",
        user=request.caller.user.name if request.server is not None and request.server.authenticates else "",
        impersonated=request.user.name if request.impersonates else "",
        policy=request.plan.policy if request.plan else "",
        verb=verb,
        resource=of_resource.label if of_resource is not None else "",
        user_agent=request.correlation.user_agent,
        bytes_in=exchange.bytes_in,
        bytes_out=exchange.bytes_out,
        total=now - exchange.started_at,
        upstream=(request.answered_at or now) - request.sent_at if request.sent_at else None,
        attempts=request.attempts,
        long_running=exchange.upgraded or (info is not None and info.long_running),
        authenticator=request.caller.authenticator or _refused_credential(request),
    )
    return record if request.served is None else request.served.added_to(record)


def _refused_credential(request: Request) -> str:
    """Return the kind of the credential that no authenticator has accepted; "" if none was asked."""
    if request.reason not in ("unauthenticated", "authenticator_unavailable"):
        return ""
    return presented_credential(request.identity_headers, request.client.peer)
