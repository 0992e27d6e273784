"""Makes the audit events of a request: its stages, and their content.

As in a kube-apiserver: RequestReceived when the user is known but nothing is decided yet; ResponseStarted only for
long-running requests; ResponseComplete at the end, or Panic if a bug ended the request. A request that no authenticator
accepts has a single event, ResponseStarted with 401. A CORS preflight that the proxy answers has no event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcproxy.kube import requestinfo
from mcproxy.kube.status import StatusError
from mcproxy.observe.audit import values
from mcproxy.observe.audit.event import COMPLETE, PANIC, STARTED, AuditTrail, annotations_of
from mcproxy.observe.log_values import json_string

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.observe.audit.log import AuditLog
    from mcproxy.proxy.request import Request

_QUESTION_MARK: Final = 0x3F
_LONGEST_KEPT: Final = 512  # maximum bytes of a target whose text is cached
_USERS: Final = 512  # maximum number of cached users
_ANNOTATIONS: Final = 512  # maximum number of cached annotations


class RequestAuditor:
    """Audits the requests of one Runtime. `offset` is the wall clock's time minus the reactor's time."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._users: dict[int, tuple[UserInfo, str]] = {}  # by identity of the user: most requests have a known user
        self._known_annotations: dict[tuple[object, ...], str] = {}  # by their inputs, which many requests share

    def begun(self, request: Request, offset: float) -> None:
        """Write RequestReceived, except for a restarted request (`Request.restart`)."""
        if request.trail is None:
            request.trail = trail = self._trail(request, request.info, offset)
            self._log.add(trail.received())

    def started(self, request: Request, offset: float) -> None:
        """The response has begun: write ResponseStarted if the request is long-running."""
        trail = request.trail
        if isinstance(trail, AuditTrail):
            self._started(request, trail, request.exchange.connection.seconds() + offset)

    def ended(self, request: Request, offset: float) -> None:
        """Write the last events of a request, however it ended."""
        trail, when = request.trail, request.ended_at + offset
        refusal, info = request.refusal, request.info
        if trail is None:
            if not request.audited:  # refused before its user or request info was known
                if refusal is None and request.exchange.status == 204:
                    return  # a preflight
                info = info or _info(request)
            trail = self._trail(request, info, offset)
            if refusal is not None and refusal.code == 401 and not request.audited:
                self._add(STARTED, request, trail, self._status(request), when)
                return
            self._log.add(trail.received())
        assert isinstance(trail, AuditTrail)
        if request.reason == "internal_error":
            self._add(PANIC, request, trail, values.PANICKED, when)
            return
        info = trail.info
        if info is not None and info.long_running:
            self._started(request, trail, when)
        code = request.exchange.status
        status = self._log.status(code) if refusal is None and code else self._status(request)
        self._add(COMPLETE, request, trail, status, when)

    def _trail(self, request: Request, info: RequestInfo | None, offset: float) -> AuditTrail:
        log, exchange, server = self._log, request.exchange, request.server
        head, target = exchange.head, exchange.head.target
        caller = request.caller.user if server is not None and server.authenticates else None
        if info is None:
            verb = head.method.decode("latin-1").lower()
        else:
            verb = info.request_verb
        addresses, client, noted = request.addresses, request.client, request.correlation
        if client.audited is None or client.audited[0] is not noted:
            user_agent = values.user_agent_of(noted.user_agent)
            client.audited = noted, log.source_ips(client.own_address) + user_agent, user_agent
        audited = client.audited
        return AuditTrail(
            info,
            request.audit_id.decode("ascii"),
            log.uri(target) if _QUESTION_MARK in target and len(target) <= _LONGEST_KEPT else values.uri_of(target),
            json_string(verb),
            log.nobody if caller is None or not caller.name else self._user(caller),
            audited[1] if addresses is None else log.source_ips(addresses) + audited[2],
            "" if info is None else log.object_refs.member(info),
            log.micro_time.text(exchange.started_at + offset),
        )

    def _user(self, user: UserInfo) -> str:
        found = self._users.get(id(user))
        if found is None or found[0] is not user:
            if len(self._users) >= _USERS:
                self._users.clear()
            found = self._users[id(user)] = user, values.user_of(user)
        return found[1]

    def _started(self, request: Request, trail: AuditTrail, when: float) -> None:
        info = trail.info
        if not trail.started and info is not None and info.long_running:
            trail.started = True
            self._add(STARTED, request, trail, self._status(request), when)

    def _status(self, request: Request) -> str:
        code, refusal = request.exchange.status, request.refusal
        if refusal is not None and code:
            return values.status_of(code, refusal)
        return self._log.status(code) if code else values.CLOSED_EARLY

    def _add(self, stage: str, request: Request, trail: AuditTrail, status: str, when: float) -> None:
        log = self._log
        impersonated = self._user(request.user) if request.impersonates else ""
        annotations = self._annotations(request, "" if stage == STARTED and not request.reason else request.outcome)
        log.add(trail.later(stage, impersonated, status, log.micro_time.text(when), annotations))

    def _annotations(self, request: Request, outcome: str) -> str:
        """Return the annotations of an event; `outcome` is "" before the end."""
        served = request.served
        key = (
            request.decision,
            request.cluster,
            request.endpoint,
            request.plan,
            request.server,
            request.api_service,
            outcome,
        )
        known = self._known_annotations
        found = known.get(key) if served is None else None  # requests to aggregates have their own annotations
        if found is None:
            found = self._annotations_of(request, outcome)
            if served is None:
                if len(known) >= _ANNOTATIONS:
                    known.clear()
                known[key] = found
        return found

    def _annotations_of(self, request: Request, outcome: str) -> str:
        decision, cluster, endpoint = request.decision, request.cluster, request.endpoint
        plan, served, server = request.plan, request.served, request.server
        policy = plan.policy if plan is not None else served.policy if served is not None else ""
        members = ",".join(served.clusters) if served is not None else ""
        return annotations_of(
            None if decision is None else "allow" if decision.allowed else "forbid",
            None if decision is None else decision.reason,
            cluster.name if cluster is not None else members or None,
            None if endpoint is None else endpoint.name,
            policy or None,
            self._log.process,
            outcome or None,
            None if server is None else server.name,
            None if request.api_service is None else request.api_service.group_version,
        )


def _info(request: Request) -> RequestInfo | None:
    """Return the info of a request that was refused before its info was computed; None if its path is ambiguous."""
    head = request.exchange.head
    try:
        return requestinfo.parse(head.method, head.target.removeprefix(request.location_prefix))
    except StatusError:
        return None
