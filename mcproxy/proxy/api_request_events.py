"""Log lines about how requests have ended, where an operator wants to know: refused, broken off, slow, over a limit.

They are written after the request (`requests.batch`), so they cost the others nothing; most requests have none.
Those that a crowd causes are written once a minute for each subject, the others by client (`daemon.log.rate_limit`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.logger import Logger

from mcproxy.config.model import UpstreamIdentity
from mcproxy.log_once import LogOnce
from mcproxy.net.causes import CauseCode
from mcproxy.upstream.remedies import keys_of, remedy

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request

log = Logger(__name__)

SLOW = 5.0
"""Seconds from the choice of an endpoint to the first byte of its response, from which on a request is slow."""

_FORBIDDEN = {
    "forbidden": "allow it in the authorization of the server, if the user is to have it",
    "no_policy": "add a dispatch policy that matches, if the request is to be served",
    "cross_site": "add the page's origin to cors.allowedOrigins, if it is to use this server",
}
_FOREIGN_HOST = "let the client use a name that serverNames has, or localhost; a web page may have sent it here"


class RequestEvents:
    """Writes them, for one process."""

    def __init__(self) -> None:
        self._throttle = LogOnce()

    def ended(self, request: Request) -> None:
        """A request is over; its `ended_at` is set."""
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
            waited = first - max(sent, request.exchange.body_ended_at)  # not for a client that sends slowly
            if waited >= SLOW:
                self._slow(request, waited)

    def _over_limit(self, request: Request) -> None:
        refusal, fields = request.refusal, request.log_fields()
        policy = request.plan.policy if request.plan is not None else ""
        subject = ("flow_control", fields["server"], fields["cluster"], policy)
        if self._throttle.allows(subject, request.ended_at):
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
        """A cluster that gets the proxy's own identity alone answered 401, which the client got too."""
        cluster, info = request.cluster, request.info
        if cluster is None or cluster.config.identity is not UpstreamIdentity.PROXY:
            return
        if info is None or "proxy" in (info.verb, info.subresource):
            return  # it is the answer of another server, perhaps a tenant's
        subject = ("credential refused", cluster.name)
        if self._throttle.allows(subject, request.ended_at):
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
        if self._throttle.allows(subject, request.ended_at):
            log.warn(
                "an endpoint was slow to answer; more of its slow answers in this minute are not logged",
                event="upstream_slow",
                **fields,
                seconds=round(seconds, 3),
                todo="see whether that API server, or its etcd, is overloaded; lists of everything take long",
                log_subject=subject,
            )

    def _connections_fail(self, request: Request) -> None:
        """Every endpoint that was tried has closed its connection without a response, though its checks may succeed."""
        fields, refusal = request.log_fields(), request.refusal
        subject = ("unreachable", fields["cluster"], fields["endpoint"])
        if self._throttle.allows(subject, request.ended_at):
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
    """Not one that leaves a watch, a followed log or a tunnel, as it should, or that waits no longer for a response.

    What the engine has refused in the middle of a body was logged by it.
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
