"""Makes the records of ended requests for metrics, logs and spans, and writes log lines about abnormal ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from mcproxy.config.model import UpstreamIdentity
from mcproxy.identity.authentication.authenticator import presented_credential
from mcproxy.log_once import LogOnce
from mcproxy.net.causes import CauseCode
from mcproxy.observe.record import AccessRecord
from mcproxy.upstream.remedies import keys_of, remedy

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request

log = Logger(__name__)

# Log lines for operators about abnormal ends of requests: refused, broken off, slow, over a limit.
#
# They are written after the request (`requests.batch`), so they delay no other request; most requests cause no line.
# Lines that many clients can cause are limited to one a minute per subject, others per client (`daemon.daemon_log`).

SLOW = 5.0
"""Seconds from the choice of the endpoint to the begin of its response, above which a request counts as slow."""

_FORBIDDEN = {
    "forbidden": "allow it in the authorization of the server, if the user is to have it",
    "no_policy": "add a dispatch policy that matches, if the request is to be served",
    "cross_site": "add the page's origin to cors.allowedOrigins, if it is to use this server",
}
_FOREIGN_HOST = "let the client use a name that serverNames has, or localhost; a web page may have sent it here"


class RequestEvents:
    """Writes the log lines about abnormal ends of requests, for one process."""

    def __init__(self) -> None:
        self._once = LogOnce()

    def ended(self, request: Request) -> None:
        """A request has ended; its `ended_at` is set."""
        reason = request.reason
        if reason:
            if reason == "flow_control":
                self._over_limit(request)
            elif reason in _FORBIDDEN:
                foreign = reason == "cross_site" and request.client.foreign_host
                _forbidden(request, _FOREIGN_HOST if foreign else _FORBIDDEN[reason])
            elif reason == "bad_request":
                _malformed(request)
            elif reason == "upstream_unreachable" and request.attempts:
                self._connections_fail(request)
            elif reason == "upstream_broken":
                _broken_by_endpoint(request)
        elif not request.exchange.completed:
            _broken_by_client(request)
        if request.upstream_status == 401 and not reason:
            self._credential_refused(request)
        first, sent = request.exchange.first_byte_at, request.sent_at
        if sent and first and first - sent >= SLOW and not request.is_session:
            waited = first - max(sent, request.exchange.body_ended_at)  # without the time of a client that sends slowly
            if waited >= SLOW:
                self._slow(request, waited)

    def _over_limit(self, request: Request) -> None:
        refusal, fields = request.refusal, request.log_fields()
        policy = request.plan.policy if request.plan is not None else ""
        subject = ("flow_control", fields["server"], fields["cluster"], policy)
        if self._once.allows(subject, request.ended_at):
            log.warn(
                "a flow control refuses requests (429); more of them in this minute are not logged",
                event="flow_control_limit_reached",
                **fields,
                policy=policy,
                cause=refusal.message if refusal is not None else "",
                todo="see who sends so many (the access log), or raise the flow control's limit",
                log_subject=subject,
            )

    def _credential_refused(self, request: Request) -> None:
        """Log that a cluster that gets only the proxy's own identity answered 401, which was passed to the client."""
        cluster, info = request.cluster, request.info
        if cluster is None or cluster.config.identity is not UpstreamIdentity.PROXY:
            return
        if info is None or "proxy" in (info.verb, info.subresource):
            return  # a server below `proxy` answered, perhaps a tenant's server
        subject = ("credential refused", cluster.name)
        if self._once.allows(subject, request.ended_at):
            log.warn(
                "a cluster does not accept the proxy's own credential",
                event="upstream_credential_refused",
                **request.log_fields(),
                cause="it answered 401",
                todo=remedy(CauseCode.UNAUTHORIZED, keys_of(cluster.config)),
                log_subject=subject,
            )

    def _slow(self, request: Request, seconds: float) -> None:
        fields = request.log_fields()
        subject = ("slow", fields["cluster"], fields["endpoint"])
        if self._once.allows(subject, request.ended_at):
            log.warn(
                "an endpoint was slow to answer; more of its slow answers in this minute are not logged",
                event="upstream_slow",
                **fields,
                seconds=round(seconds, 3),
                todo="see whether that API server, or its etcd, is overloaded; lists of everything take long",
                log_subject=subject,
            )

    def _connections_fail(self, request: Request) -> None:
        """Log that every tried endpoint closed its connection without a response, even if its checks succeed."""
        fields, refusal = request.log_fields(), request.refusal
        subject = ("unreachable", fields["cluster"], fields["endpoint"])
        if self._once.allows(subject, request.ended_at):
            log.warn(
                "no endpoint answered a request; more of them in this minute are not logged",
                event="upstream_no_answer",
                **fields,
                attempts=request.attempts,
                cause=refusal.message if refusal is not None else "",
                todo="see that API server's log, and what is between it and here",
                log_subject=subject,
            )


def _malformed(request: Request) -> None:
    refusal = request.refusal
    log.info(
        "a request is refused: its path or its headers are ambiguous (400)",
        event="request_malformed",
        **request.log_fields(),
        cause=refusal.message if refusal is not None else "",
        todo="see what that client sends; a plain path and valid headers are taken",
    )


def _forbidden(request: Request, todo: str) -> None:
    refusal, info = request.refusal, request.info
    log.info(
        "a request is refused: it is not allowed (403)",
        event="request_forbidden",
        **request.log_fields(),
        verb=info.verb if info is not None else "",
        cause=refusal.message if refusal is not None else "",
        todo=todo,
    )


def _broken_by_endpoint(request: Request) -> None:
    log.warn(
        "an endpoint broke off a response; the client's connection was closed",
        event="response_broken",
        **request.log_fields(),
        status=request.exchange.status,
        bytesOut=request.exchange.bytes_out,
        todo="see that API server's log, and what is between it and here",
    )


def _broken_by_client(request: Request) -> None:
    """Log a client that broke off, except if it leaves a watch, a followed log or a tunnel, or stops waiting for a
    response: this is normal.

    The engine itself logs a refusal in the middle of a body.
    """
    exchange = request.exchange
    if exchange.status and not exchange.responded and not exchange.stalled:
        return
    if request.is_session or not (exchange.responded or (exchange.bytes_in and not exchange.body_complete)):
        return
    fields = {
        **request.log_fields(),
        "status": exchange.status,
        "bytesIn": exchange.bytes_in,
        "bytesOut": exchange.bytes_out,
    }
    if exchange.stalled:
        log.info(
            "a client stalled in the middle of a response or body; its connection was closed",
            event="client_stalled",
            **fields,
            todo="see the client and its network; limits.stallTimeout is how long it has",
        )
    else:
        log.info(
            "a client closed its connection in the middle of a response or body", event="client_broke_off", **fields
        )


class RequestReporter:
    """Makes the records of requests to `servers` (a `requests.batch.Reporter`); ingresses have another reporter."""

    def __init__(self) -> None:
        self._events = RequestEvents()

    def begun(self, request: Request, offset: float) -> None:
        """The user is known, and nothing is decided yet: begin the audit trail."""
        if request.auditor is not None:
            request.auditor.begun(request, offset)

    def ended(self, request: Request, offset: float) -> None:
        """The request has ended; its `ended_at` is set."""
        # A policy can switch logging off; the server's setting applies to a request that reached no policy.
        shown = request.plan or request.served or request.server
        recorders, tracer = request.recorders, request.tracer
        recorder = recorders.logged if shown is None or shown.access_log else recorders.unlogged
        if recorder is not None or tracer is not None:
            # Without logs, a record with only the fields for metrics is cheaper.
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
    record = AccessRecord(
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
    """Return a record with only the fields that metrics read (`observe.metrics.request_counts`)."""
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
    """Return the kind of the credential that no authenticator has accepted; "" if authentication has not failed."""
    if request.reason not in ("unauthenticated", "authenticator_unavailable"):
        return ""
    return presented_credential(request.identity_headers, request.client.peer)
