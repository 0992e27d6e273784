"""The events of a request for the audit log: which stages it has, and what is known at each.

As in a kube-apiserver: RequestReceived when the user is known and nothing is decided yet; ResponseStarted only for
long-running requests; ResponseComplete at the end, or Panic where a bug ended it. A request that no authenticator
accepts has one event alone, ResponseStarted with 401. A CORS preflight that the proxy answers has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, UnsetType

from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from mcproxy.observe.audit import values
from mcproxy.observe.audit.event import COMPLETE, PANIC, STARTED, Annotations, later, received

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.observe.audit.log import AuditLog
    from mcproxy.proxy.request import Request

_LONGEST_KEPT = 512  # bytes of a target whose text is remembered


class Auditor:
    """Audits the requests of one Runtime."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def begin(self, request: Request, info: RequestInfo) -> None:
        """The user is known: write RequestReceived. A request that begins again (`Request.restart`) has done so."""
        if request.trail is None:
            request.trail = trail = AuditTrail(self._log, request, info)
            self._log.add(trail.first)

    def ended(self, request: Request) -> None:
        """Write the last events of a request, however it ended."""
        trail = request.trail
        if trail is None:
            trail = self._refused_early(request)
        if trail is not None:
            trail.end(request)

    def _refused_early(self, request: Request) -> AuditTrail | None:
        """Return the trail of a request that ended before its user, or what it is about, was known."""
        refusal = request.refusal
        if refusal is None and request.exchange.status == 204:
            return None  # a preflight
        trail = AuditTrail(self._log, request, request.info or _info(request))
        if refusal is not None and refusal.code == 401:
            trail.unauthenticated(request)
            return None
        self._log.add(trail.first)
        return trail


class AuditTrail:
    """What the events of one request have in common, and how far it has got."""

    __slots__ = ("_first_byte", "_info", "_log", "_received_at", "first")

    def __init__(self, log: AuditLog, request: Request, info: RequestInfo | None) -> None:
        exchange, client = request.exchange, request.client
        self._log = log
        self._info = info
        self._first_byte = False  # ResponseStarted was written
        self._received_at = exchange.connection.wall_seconds() - (exchange.connection.seconds() - exchange.started_at)
        head, server, target = exchange.head, request.server, exchange.head.target
        caller = request.caller.user if server is not None and server.authenticates else None
        self.first = received(
            request.audit_id.decode("ascii"),
            log.uri(target) if len(target) <= _LONGEST_KEPT else values.uri_of(target),
            head.method.decode("latin-1").lower() if info is None else _verb(info),
            log.user(caller if caller is not None and caller.name else None),
            log.source_ips(client.addresses(head)),
            log.user_agent(request.correlation.user_agent),
            UNSET if info is None else log.object_ref(info),
            log.micro_time(self._received_at),
        )

    def started(self, request: Request) -> None:
        """The response to a request has begun."""
        info = self._info
        if self._first_byte or info is None or not info.long_running:
            return
        self._first_byte = True
        self._add(STARTED, request, self._status(request))

    def end(self, request: Request) -> None:
        """The request is over."""
        if request.reason == "internal_error":
            self._add(PANIC, request, values.PANICKED)
            return
        self.started(request)
        self._add(COMPLETE, request, self._status(request))

    def unauthenticated(self, request: Request) -> None:
        """No authenticator accepts the request."""
        self._add(STARTED, request, self._status(request))

    def _status(self, request: Request) -> Raw:
        code = request.exchange.status
        if not code:
            return values.CLOSED_EARLY
        refusal = request.refusal
        return self._log.status(code) if refusal is None else values.status_of(code, refusal)

    def _add(self, stage: str, request: Request, status: Raw) -> None:
        log, exchange = self._log, request.exchange
        now = self._received_at + exchange.connection.seconds() - exchange.started_at
        impersonated: Raw | UnsetType = log.user(request.user) if request.impersonates else UNSET
        log.add(later(self.first, stage, impersonated, status, log.micro_time(now), self._annotations(request, stage)))

    def _annotations(self, request: Request, stage: str) -> Annotations:
        decision, cluster, endpoint = request.decision, request.cluster, request.endpoint
        log, plan, served, server = self._log, request.plan, request.served, request.server
        clusters = cluster.name if cluster is not None else ",".join(served.clusters) if served is not None else ""
        policy = plan.policy if plan is not None else served.policy if served is not None else ""
        return Annotations(
            None if decision is None else "allow" if decision.allowed else "forbid",
            None if decision is None else values.text(decision.reason),
            clusters or None,
            None if endpoint is None else endpoint.name,
            values.text(policy) if policy else None,
            log.process,
            None if stage == STARTED else request.outcome,
            None if server is None else server.name,
        )


def _verb(info: RequestInfo) -> str | Raw:
    verb = info.request_verb
    return verb if verb.isascii() else values.text(verb)


def _info(request: Request) -> RequestInfo | None:
    """Return what a request is about that was refused before that was found out; None if its path is ambiguous."""
    head = request.exchange.head
    try:
        return requestinfo.parse(head.method, head.target.removeprefix(request.location_prefix))
    except StatusError:
        return None
