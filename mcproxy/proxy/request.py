"""One request on its way through the pipeline: the exchange and all that has been found out about it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mcproxy.http.exchange import Exchange
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.record import AccessRecord, Recorder

if TYPE_CHECKING:
    from mcproxy.dispatch.permit import Permit
    from mcproxy.dispatch.plan import Plan
    from mcproxy.identity.identity_headers import IdentityHeaders
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.proxy.client_facts import ClientFacts
    from mcproxy.proxy.routes import VirtualServer
    from mcproxy.proxy.running import Running
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint


log = Logger()

_UNKNOWN = AuthenticatedUser(UserInfo(""))  # until that is found out
_STATUS_FIELDS = (
    b"Cache-Control: no-cache, private\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n"
)


class Request:
    """An exchange and what the pipeline knows of it. It sees the exchange's end, whatever that is."""

    __slots__ = (
        "_recorder",
        "_running",
        "caller",
        "client",
        "cluster",
        "endpoint",
        "exchange",
        "identity_headers",
        "info",
        "permit",
        "plan",
        "reason",
        "server",
        "user",
        "waiting",
    )

    def __init__(self, exchange: Exchange, client: ClientFacts, running: Running, recorder: Recorder | None) -> None:
        self.exchange = exchange
        self.client = client
        self.server: VirtualServer | None = None
        self.cluster: Cluster | None = None
        self.endpoint: Endpoint | None = None  # where it was sent, counted in its in_flight
        self.identity_headers: IdentityHeaders
        self.caller = _UNKNOWN  # who sent it
        self.user = _UNKNOWN.user  # who it runs as: the caller's, or another if that was asked for and allowed
        self.info: RequestInfo | None = None
        self.plan: Plan | None = None
        self.permit: Permit | None = None
        self.reason = ""  # why it ended otherwise than well; one word, for the access log
        self.waiting: Deferred[Any] | None = None  # cancelled when the client goes away
        self._recorder = recorder
        self._running = running
        exchange.on_done = self
        running.requests.add(self)

    def send_to(self, endpoint: Endpoint) -> None:
        """Count the request with the endpoint that it goes to, and no longer with one that it was tried on before."""
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        self.endpoint = endpoint
        endpoint.in_flight += 1

    def refuse(self, refusal: StatusError, reason: str = "refused") -> None:
        """Answer with a Status object."""
        self.reason = reason
        self.exchange.answer(refusal.code, refusal_fields(refusal), refusal.body())

    def fail(self, error: Exception) -> None:
        """Answer with what was raised on the way: a refusal, or a bug, which only the log tells. For except clauses."""
        if isinstance(error, StatusError):
            self.refuse(error, self.reason or "refused")
        else:
            log.failure("a bug on the way of a request; please report it")
            self.refuse(StatusError(500, "internal error"), "internal_error")

    def begin_anew(self) -> bool:
        """Let the configuration that is in force now serve the request from its beginning.

        For one whose own configuration was replaced and has no endpoint left to ask: it may be judged in another way
        now, or go elsewhere. False if that is the one it began with, or it is too late: nothing was done then.
        """
        exchange = self.exchange
        handle = exchange.connection.factory.handle
        if handle == self.client.pipeline.handle or exchange.ended or exchange.responded:
            return False
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.cancel()
            if exchange.ended:  # whoever waited has made an answer of that
                return True
        exchange.on_done = exchange.handler = None
        self._let_go()
        handle(exchange)
        return True

    @property
    def lasting(self) -> bool:
        """Whether it is under way and may go on for ever: a watch, a followed log, a tunnel."""
        exchange = self.exchange
        if exchange.handler is None:  # it waits for something, or is over
            return False
        return exchange.upgraded or (self.info is not None and self.info.long_running)

    def finish_up(self) -> None:
        """Bring a lasting request to an orderly end, now or at the next chance that it has for one."""
        handler = self.exchange.handler
        if handler is not None:
            self.reason = "drained"
            handler.finish_up()

    def break_off(self) -> None:
        """End the request at once; the client sees its connection break."""
        exchange = self.exchange
        if not exchange.ended:
            self.reason = "drained"
            handler = exchange.handler
            exchange.abort()
            if handler is not None:
                handler.cancelled()

    def exchange_done(self, exchange: Exchange) -> None:
        """The exchange is over (`http.exchange.ExchangeObserver`): give back and write down."""
        self._let_go()
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.cancel()
        # A policy can silence its requests; one that reached none is logged as its server says.
        shown = self.plan or self.server
        if self._recorder is not None and (shown is None or shown.access_log):
            self._recorder.finished(self._record(exchange))

    def _let_go(self) -> None:
        """Be counted nowhere any more."""
        self._running.requests.discard(self)
        if self.endpoint is not None:
            self.endpoint.in_flight -= 1
        permit, self.permit = self.permit, None
        if permit is not None:
            permit.release()

    def _record(self, exchange: Exchange) -> AccessRecord:
        now = exchange.connection.seconds()
        head = exchange.head
        total = now - exchange.started_at
        info, caller, user = self.info, self.caller, self.user
        real = caller.user.name if self.server is not None and self.server.authenticates else ""
        request_id, user_agent = self.client.noted(head)
        return AccessRecord(
            time=time.time() - total,
            client=self.client.address,
            method=head.method.decode("latin-1"),
            uri=head.target.decode("latin-1"),
            status=exchange.status,
            reason=self.reason or ("ok" if exchange.status and exchange.completed else "client_closed"),
            server=self.server.name if self.server else "",
            cluster=self.cluster.name if self.cluster else "",
            endpoint=self.endpoint.name if self.endpoint else "",
            user=real,
            impersonated=user.name if user is not caller.user else "",
            policy=self.plan.policy if self.plan else "",
            verb=info.verb if info and info.is_resource else "",
            resource=_resource(info) if info and info.is_resource else "",
            request_id=request_id,
            user_agent=user_agent,
            bytes_in=exchange.bytes_in,
            bytes_out=exchange.bytes_out,
            first_byte=exchange.first_byte_at - exchange.started_at if exchange.first_byte_at else None,
            total=total,
            upgraded=exchange.upgraded,
        )


def _resource(info: RequestInfo) -> str:
    name = f"{info.resource}.{info.group}" if info.group else info.resource
    return f"{name}/{info.subresource}" if info.subresource else name


def refusal_fields(refusal: StatusError) -> bytes:
    """Return the fields of a Status answer, as a kube-apiserver sends them."""
    return _STATUS_FIELDS + b"".join([b"%b: %b\r\n" % field for field in refusal.headers])
