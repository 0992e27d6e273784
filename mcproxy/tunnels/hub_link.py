"""The edge's link to one hub: a control connection, opened again whenever it ends, and the connections that it dials.

    dial -> 101 -> control connection ... lost -> back-off -> dial ...
                        '-- POST /dial: a data connection, served as any connection of the listener
                        '-- POST /drain: a new control connection first, then the old one ends

There is one attempt at a time, and it is never given up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.certificate_blocks import load_certificates
from mcproxy.config import model
from mcproxy.config.urls import parse_endpoint
from mcproxy.http.h2.h2_server import H2ServerConnection
from mcproxy.http.server_factory import ServerFactory
from mcproxy.kube.status import read_status
from mcproxy.log_once import LogOnce
from mcproxy.net.alpn import H2
from mcproxy.net.causes import Cause, CauseCode, code_of
from mcproxy.net.connect_errors import ConnectError
from mcproxy.tunnels import protocol
from mcproxy.tunnels.backoff import Backoff
from mcproxy.tunnels.control_server import DialFailed, DialRate, handler_for
from mcproxy.tunnels.turned import TurnedConnection
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.external_server import ExternalServer
from mcproxy.upstream.remedies import keys_of_hub, remedy

if TYPE_CHECKING:
    from mcproxy.http.deadlines import Deadlines
    from mcproxy.net.socket_stream import SocketStream
    from mcproxy.upstream.control_stream import ControlStream
    from mcproxy.upstream.upstream_context import UpstreamContext

log = Logger(__name__)

_ANSWER_SECONDS: Final = 15.0
"""Time for the hub's answer to a request to open a tunnel: it may have to ask another edge, or an authenticator."""
_MOST_BODY: Final = 64 * 1024
_REPLACED_AFTER: Final = 0.5
"""Least age of a control connection that is replaced (seconds): a hub cannot make the edge dial without a pause."""
_STREAMS: Final = 64
"""Dials of a hub at the same time."""
_STEADY = frozenset({CauseCode.EXPIRED, CauseCode.NOT_YET_VALID})


class _Refused(Exception):
    """The hub has answered with another status than 101."""

    def __init__(self, status: int, cause: str, retry_after: float) -> None:
        super().__init__(cause)
        self.status = status
        self.cause = cause
        self.retry_after = retry_after


class HubLink:
    """The link to the hub at one URL."""

    def __init__(
        self,
        url: str,
        dial: model.Dial,
        *,
        instance: str,
        context: UpstreamContext,
        deadlines: Deadlines,
        factory: ServerFactory,
        opened: Callable[[SocketStream], None],
        changed: Callable[[HubLink], None],
    ) -> None:
        """`factory` serves data connections; `opened(stream)` is called for every connection, `changed(self)` when the
        link goes up or down. Raises CredentialError for a credential that can never be sent.
        """
        self.url = url
        self.dial_config = dial
        self.tried = False  # whether the first attempt has ended
        self.cause = "it has not answered yet"  # why there is no control connection
        self.replaced: HubLink | None = None  # the link with former settings, which ends when this one is up
        self.changed_at = context.reactor.seconds()
        self._instance = instance
        self._context = context
        self._deadlines = deadlines
        self._factory = factory
        self._opened = opened
        self._changed = changed
        self._backoff = Backoff(context.random)
        self._rate = DialRate(context.reactor.seconds())
        self._once = LogOnce(float("inf"))
        self._data: set[SocketStream] = set()
        self._dialling = 0
        self._controls: list[H2ServerConnection] = []  # the last one is in use; others end after their requests
        self._current: H2ServerConnection | None = None
        self._replacing = False  # a new control connection is wanted although there is one
        self._stopped = False
        self._running: Deferred[None] | None = None
        self._wake: Deferred[None] | None = None
        self._drain: IDelayedCall | None = None  # begins the replacement of the control connection
        self._hub = hub_server(url, dial, context)
        limits = replace(model.Limits(), streams=_STREAMS, idle_timeout=0.0, body_bytes=protocol.MAX_BODY)
        self._control_factory = ServerFactory(
            deadlines, limits, handler_for(self), lambda connection, problem: (b"", b""), name=factory.name
        )

    @property
    def is_up(self) -> bool:
        """Whether there is a control connection."""
        return self._current is not None

    @property
    def connections(self) -> int:
        """The number of data connections."""
        return len(self._data)

    @property
    def rtt(self) -> float:
        """The round trip of a PING on the control connection (seconds); 0: unknown."""
        return 0.0 if self._current is None else self._current.rtt

    def start(self) -> None:
        """Begin to dial."""
        self._running = Deferred.fromCoroutine(self._run())
        self._running.addErrback(self._crashed)

    def stop(self) -> None:
        """End the control connections after their requests; data connections stay."""
        self._stopped = True
        if self._running is not None:
            self._running.cancel()
        if self._drain is not None and self._drain.active():
            self._drain.cancel()
        self._current = None
        for control in list(self._controls):
            control.drain(unused=True)
        self._hub.close()

    def replace(self, within: float) -> None:
        """Replace the control connection, at a random time within so many seconds; a new one somewhat later."""
        if self._replacing or self._stopped:
            return
        self._replacing = True
        reactor = self._context.reactor
        least = self.changed_at + _REPLACED_AFTER - reactor.seconds()
        self._drain = reactor.callLater(max(within * self._context.random(), least, 0.0), self._wake_up)

    # -- the control connection -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._stopped:
            if self._current is not None and not self._replacing:
                self._wake = Deferred()
                await self._wake
                continue
            try:
                connection = await self._open(None)
            except (_Refused, ConnectError, ControlError, CredentialError) as problem:
                delay = self._failed(problem)
            else:
                delay = await self._until_lost(connection)
            if not self._stopped and delay:
                await deferLater(self._context.reactor, delay)

    async def _until_lost(self, connection: TurnedConnection) -> float:
        """Serve a new control connection; return the seconds until another one is needed, after the end of this one."""
        begun = self._context.reactor.seconds()
        control = self._serve_control(connection)
        former, self._current, self._replacing = self._current, control, False
        if former is not None:
            former.drain(unused=True)
        self._up()
        while self._current is control and not self._replacing and not self._stopped:
            self._wake = Deferred()
            await self._wake
        if self._current is control:
            return 0.0
        return self._backoff.after_loss(self._context.reactor.seconds() - begun)

    def _serve_control(self, connection: TurnedConnection) -> H2ServerConnection:
        factory, stream = self._control_factory, connection.stream
        control = H2ServerConnection(factory, factory.limits, factory.http2)
        self._opened(stream)
        self._controls.append(control)
        stream.call_when_closed(lambda: self._control_closed(control))
        connection.attach(control, H2)
        control.keep_alive(self.dial_config.keep_alive, protocol.ANSWER_SECONDS)
        control.ask_peer()  # so that the round trip is known soon
        return control

    def _control_closed(self, control: H2ServerConnection) -> None:
        if control in self._controls:
            self._controls.remove(control)
        if control is self._current:
            self._current = None
            self._down("the hub has closed the connection, or does not answer")
            self._wake_up()

    def _wake_up(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None and not wake.called:
            wake.callback(None)

    def _crashed(self, failure: Failure) -> None:
        if not isinstance(failure.value, CancelledError):
            log.failure("a bug in the link to a hub", event="internal_error", failure=failure)
            self._context.reactor.callLater(self._backoff.after_failure(), self._restart)

    def _restart(self) -> None:
        if not self._stopped:
            self.start()

    # -- its state ------------------------------------------------------------------------------------------------

    def _up(self) -> None:
        self.tried = True
        self.cause = ""
        self.changed_at = self._context.reactor.seconds()
        if self._once.allows("link", state="up"):
            log.info(
                "a tunnel is connected",
                event="tunnel_up",
                listener=self._factory.name,
                tunnel=self.dial_config.tunnel,
                peer=self.url,
            )
        self._changed(self)

    def _down(self, cause: str) -> None:
        now = self._context.reactor.seconds()
        if self._stopped:
            return
        self._once.allows("link", state="down")
        log.warn(
            "a tunnel is not connected any more",
            event="tunnel_down",
            listener=self._factory.name,
            tunnel=self.dial_config.tunnel,
            peer=self.url,
            cause=cause,
            age=round(now - self.changed_at, 1),
            todo="nothing, if it comes back: it is dialled again. Else see the hub, and the network between",
        )
        self.cause, self.changed_at = cause, now
        self._changed(self)

    def _failed(self, problem: Exception) -> float:
        """Note a failed attempt; return the seconds until the next one."""
        cause = getattr(problem, "cause", str(problem))
        self.tried = True
        if self._current is None:
            self.cause = cause
            self._changed(self)
        if self._once.allows("failure", state=cause):
            self._log_failure(problem, cause)
        if code_of(cause) in _STEADY:
            return self._backoff.steady()
        return self._backoff.after_failure(problem.retry_after if isinstance(problem, _Refused) else 0.0)

    def _log_failure(self, problem: Exception, cause: str) -> None:
        fields = {"listener": self._factory.name, "tunnel": self.dial_config.tunnel, "peer": self.url, "cause": cause}
        if not isinstance(problem, _Refused):
            todo = remedy(cause, keys_of_hub(self.dial_config))
            log.warn("the hub cannot be dialled", event="tunnel_dial_failed", **fields, todo=todo)
        elif problem.status == 409:
            log.warn(
                "two edges want the same tunnel; the other one keeps it",
                event="tunnel_name_taken",
                **fields,
                todo="give each edge daemon a tunnel of its own (listeners[].dial.tunnel)",
            )
        else:
            log.warn(
                "the hub refuses the tunnel",
                event="tunnel_refused",
                **fields,
                todo="see the users of the tunnel at the hub, and the credential in dial",
            )

    # -- data connections -----------------------------------------------------------------------------------------

    async def dial(self, request: protocol.DialRequest) -> None:
        """Open a connection with the hub's ticket, and serve it. Raises DialFailed."""
        limit = self.dial_config.max_connections
        if len(self._data) + self._dialling >= limit:
            raise DialFailed(503, f"the edge has {limit} connections to this hub (dial.maxConnections)")
        if not self._rate.allows(self._context.reactor.seconds()):
            raise DialFailed(429, "the edge dials at most 20 times in a second")
        self._dialling += 1
        try:
            connection = await self._open(request.ticket)
        except (_Refused, ConnectError, ControlError, CredentialError) as problem:
            raise DialFailed(502, f"the edge cannot dial the hub: {getattr(problem, 'cause', problem)}") from None
        finally:
            self._dialling -= 1
        stream = connection.stream
        self._opened(stream)
        self._data.add(stream)
        stream.call_when_closed(lambda: self._data.discard(stream))
        stream.turn_roles(request.protocol)
        engine = self._factory.build(stream)
        connection.attach(engine, request.protocol)
        if isinstance(engine, H2ServerConnection):
            engine.keep_alive(self.dial_config.keep_alive, protocol.ANSWER_SECONDS)

    async def _open(self, ticket: str | None) -> TurnedConnection:
        """Open a connection to the hub and have its roles turned. Raises _Refused, ConnectError, ControlError."""
        headers = [(protocol.INSTANCE, self._instance)]
        if ticket is not None:
            headers.append((protocol.TICKET, ticket))
        path = protocol.PATH + self.dial_config.tunnel
        response = await self._hub.upgrade(path, protocol.UPGRADE, headers=tuple(headers), timeout=_ANSWER_SECONDS)
        if response.side is None:
            refusal = await _refusal(response)
            if refusal.status == 401 and (dates := validity(self.dial_config, self._deadlines.wall_seconds())):
                raise _Refused(401, Cause(f"{refusal.cause}; {dates}", CauseCode.EXPIRED), 0.0)
            raise refusal
        connection = TurnedConnection.of(response.side)
        if connection is None:
            raise ControlError("the hub has closed the connection at once")
        return connection


def validity(dial: model.Dial, now: float) -> str:
    """Say when the client certificate is valid, if it is not now; `now`: seconds since 1970. Else return ""."""
    if dial.tls.certificate is None:
        return ""
    leaf = load_certificates(dial.tls.certificate.data)[0]
    begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if begin.timestamp() <= now <= end.timestamp():
        return ""
    return f"the certificate of dial.tls.certFile is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


async def _refusal(response: ControlStream) -> _Refused:
    """Return the hub's refusal, with the message of its Status."""
    status = response.status
    retry_after = (response.header(b"retry-after") or b"").decode("latin-1")
    body = await response.read_all(_MOST_BODY)
    found = read_status(body)
    message = protocol.printable(found.message) if found is not None else ""
    cause = f"the hub answers {status}" + (f": {message}" if message else "")
    return _Refused(status, cause, float(retry_after) if retry_after.isdigit() and len(retry_after) < 6 else 0.0)


def hub_server(url: str, dial: model.Dial, context: UpstreamContext) -> ExternalServer:
    """Return the hub at a URL, with the TLS, credential and proxy of `dial`. Raises CredentialError.

    The Host header is that of `serverName`: with another one the hub could not tell which server is asked.
    """
    return ExternalServer(
        f"hub of tunnel {dial.tunnel}",
        parse_endpoint(url, url),
        tls=model.ClusterTLS(ca=dial.tls.ca, server_name=dial.server_name),
        credentials=model.Credentials(
            certificate=dial.tls.certificate,
            key=dial.tls.key,
            token_file=None if dial.credentials is None else dial.credentials.token_file,
        ),
        proxy=dial.proxy,
        host=dial.server_name or "",
        context=context,
    )
