"""The hub's side of tunnels: who is connected, and new connections through them.

For an endpoint behind a tunnel, `TunnelHub.connect` takes the place of `net.connect.connect`: it asks the edge to dial
(POST /dial with a ticket), and connects the endpoint's protocol to the connection that arrives with the ticket. So
pools, balancing, health checks and retries are those of other endpoints.

One object lives as long as the process, over all reloads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IProtocol, IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h2.h2_client import H2ClientConnection
from mcproxy.log_once import LogOnce
from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.net.causes import Cause, CauseCode
from mcproxy.net.connect_errors import ConnectError, ConnectFailed, ConnectTimeout
from mcproxy.observe.metrics.families import TUNNEL_DIAL_DURATION, TUNNEL_DIALS, TUNNELS_REFUSED
from mcproxy.tunnels import protocol
from mcproxy.tunnels.control_connection import at_limit
from mcproxy.tunnels.tunnel_state import TunnelState

if TYPE_CHECKING:
    from mcproxy.net.socket_stream import SocketStream
    from mcproxy.observe.metrics.metrics import Metrics
    from mcproxy.tunnels.control_connection import ControlConnection
    from mcproxy.tunnels.turned import TurnedConnection

log = Logger(__name__)

_CHECK_INTERVAL: Final = 10.0
"""Seconds between two authentications of an open connection."""
_PROOF_SECONDS: Final = 5.0
"""Seconds in which an earlier edge has to answer, when another one wants the name of its tunnel."""
_PROOF_STEP: Final = 0.1
_DRAIN_WITHIN: Final = 10.0
"""Seconds over which edges replace their control connections."""


class TunnelRefused(Exception):
    """A tunnel is refused: the status of the response, its message, and the reason for metrics."""

    def __init__(self, status: int, message: str, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """Who has opened a connection: for checks as long as it is open."""

    tunnel: str
    user: str
    peer: str
    listener: object
    """The listener's factory, by identity."""
    is_accepted: Callable[[], Awaitable[bool]]
    """Authenticates the credential again, by the configuration in force."""


class Awaited:
    """A dial whose connection has not arrived yet."""

    __slots__ = ("alpn", "arrived", "tunnel")

    def __init__(self, tunnel: str, alpn: bytes) -> None:
        self.tunnel = tunnel
        self.alpn = alpn
        self.arrived: Deferred[tuple[TurnedConnection, Opener]] = Deferred()


class TunnelHub:
    """All tunnels of a process."""

    def __init__(self, clock: IReactorTime, deadlines: Deadlines, metrics: Metrics, process: str = "hub") -> None:
        """`process`: the name of this process in tickets."""
        self._clock = clock
        self.deadlines = deadlines
        self._counts = metrics.counts
        self._process = process
        self._states: dict[str, TunnelState] = {}
        self._config: dict[str, model.Tunnel] = {}
        self._awaited: dict[str, Awaited] = {}
        self._open: dict[SocketStream, Opener] = {}
        self._once = LogOnce()
        self._draining = False
        self._checks: LoopingCall | None = None
        self._begun_at = clock.seconds()

    # -- the configuration --------------------------------------------------------------------------------------

    def configure(self, tunnels: Iterable[model.Tunnel]) -> None:
        """Follow a configuration that has come into force: end the connections of removed tunnels and users."""
        self._config = {tunnel.name: tunnel for tunnel in tunnels}
        for name in [name for name in self._states if name not in self._config]:
            self._states.pop(name).close("the tunnel was removed from the configuration")
        for name in self._config:
            self.state(name)
        self._check_open()

    def state(self, name: str) -> TunnelState:
        """Return the state of a tunnel."""
        found = self._states.get(name)
        if found is None:
            found = self._states[name] = TunnelState(name, self._clock, self.deadlines, self._begun_at)
        return found

    @property
    def states(self) -> Collection[TunnelState]:
        """The tunnels of the configuration in force, in its order."""
        return [self._states[name] for name in self._config]

    def follow(self, name: str, notify: Callable[[bool, str], None]) -> Callable[[], None]:
        """Call `notify(is_up, cause)` when a tunnel goes up or down; the result ends that (`upstream_context`)."""
        return self.state(name).subscribe(notify)

    def may_open(self, name: str, user: str) -> bool:
        """Whether a user may open a tunnel."""
        tunnel = self._config.get(name)
        return tunnel is not None and user in tunnel.users

    # -- connections that edges open ----------------------------------------------------------------------------

    async def claim(self, name: str, instance: bytes, peer: str) -> None:
        """Check that an edge may have a control connection. Raises TunnelRefused.

        If another edge has the name, that one must answer a PING within a few seconds, else it is replaced.
        """
        if self._draining:
            raise TunnelRefused(503, "the hub is stopping", "stopping")
        state = self.state(name)
        others = state.other_instances(instance)
        for control in others:
            if await self._answers(control):
                if self._once.allows(("taken", name), self._clock.seconds()):
                    log.warn(
                        "two edges want the same tunnel; the first one keeps it",
                        event="tunnel_name_taken",
                        tunnel=name,
                        peer=control.peer,
                        client=peer,
                        todo="give each edge daemon a tunnel of its own (listeners[].dial.tunnel)",
                    )
                raise TunnelRefused(409, f'another edge has the tunnel "{name}", and it answers', "name_taken")
            control.abort("it does not answer, and another edge replaces it")
        if len(state.controls) >= protocol.MAX_CONTROLS:
            raise TunnelRefused(429, f"the tunnel has {protocol.MAX_CONTROLS} control connections", "controls")

    async def _answers(self, control: ControlConnection) -> bool:
        """Whether the peer of a control connection sends a byte within some seconds."""
        engine, clock = control.engine, self._clock
        asked_at = clock.seconds()
        engine.ask_peer()
        while control.usable and clock.seconds() < asked_at + _PROOF_SECONDS:
            waiting: Deferred[None] = Deferred()
            clock.callLater(_PROOF_STEP, waiting.callback, None)
            await waiting
            if engine.last_received > asked_at:
                return control.usable
        return False

    def open_control(self, connection: TurnedConnection, opener: Opener, instance: bytes) -> None:
        """Use a connection, after its 101, as a control connection."""
        self._keep(connection, opener)
        self.state(opener.tunnel).add(connection, instance, opener.peer)

    def redeem(self, name: str, ticket: bytes) -> Awaited:
        """Return the dial that a ticket belongs to; each ticket is valid once. Raises TunnelRefused."""
        awaited = self._awaited.get(ticket.decode("latin-1"))
        if awaited is None or awaited.tunnel != name or awaited.arrived.called:
            raise TunnelRefused(403, "the ticket is not valid: it is late, used, or of another tunnel", "ticket")
        del self._awaited[ticket.decode("latin-1")]
        return awaited

    def open_data(self, awaited: Awaited, connection: TurnedConnection, opener: Opener) -> None:
        """Use a connection, after its 101, for the dial that has waited for it."""
        if awaited.arrived.called:
            connection.abort()
        else:
            awaited.arrived.callback((connection, opener))

    def refused(self, name: str, refusal: TunnelRefused, user: str, peer: str) -> None:
        """Count and log a refused connection."""
        self._counts.increase(TUNNELS_REFUSED, (refusal.reason,))
        if self._once.allows(("refused", name, user, refusal.reason), self._clock.seconds()):
            log.warn(
                "a tunnel is refused",
                event="tunnel_refused",
                tunnel=name,
                user=user,
                client=peer,
                status=refusal.status,
                cause=refusal.message,
            )

    def _keep(self, connection: TurnedConnection, opener: Opener) -> None:
        stream = connection.stream
        self._open[stream] = opener
        stream.call_when_closed(lambda: self._closed(stream))
        if self._checks is None:
            self._checks = LoopingCall(self._check_open)
            self._checks.clock = self._clock
            self._checks.start(_CHECK_INTERVAL, now=False)

    def _closed(self, stream: SocketStream) -> None:
        opener = self._open.pop(stream, None)
        if opener is not None and opener.tunnel in self._states:
            self._states[opener.tunnel].connection_closed(stream)

    # -- authentication of open connections ---------------------------------------------------------------------

    def _check_open(self) -> None:
        for stream, opener in list(self._open.items()):
            if not self.may_open(opener.tunnel, opener.user):
                self._end(stream, opener, "its user may not open the tunnel any more")
            else:
                checking = Deferred.fromCoroutine(self._check(stream, opener))
                checking.addErrback(self._check_failed, stream, opener)

    async def _check(self, stream: SocketStream, opener: Opener) -> None:
        if not await opener.is_accepted():
            self._end(stream, opener, "its credential is not accepted any more")

    def _check_failed(self, failure: Failure, stream: SocketStream, opener: Opener) -> None:
        log.failure("a bug in the authentication of a tunnel", event="internal_error", failure=failure)
        self._end(stream, opener, "its credential cannot be checked")

    def _end(self, stream: SocketStream, opener: Opener, cause: str) -> None:
        if stream in self._open:
            self.state(opener.tunnel).note_cause(cause)
            stream.abortConnection()

    # -- connections for endpoints --------------------------------------------------------------------------------

    def connect(self, name: str, engine: IProtocol, alpn: tuple[bytes, ...], timeout: float) -> Deferred[None]:
        """Connect `engine` to the edge of a tunnel, within `timeout` seconds (0: the time of a ticket).

        `alpn`: as of `net.connect.connect`; HTTP/2 is chosen if it is offered. Fails with ConnectError.
        """
        seconds = min(timeout or protocol.TICKET_SECONDS, protocol.TICKET_SECONDS)
        chosen = H2 if H2 in alpn else HTTP1_1
        begun = self._clock.seconds()
        opening = Deferred.fromCoroutine(self._connect(name, engine, chosen))
        opening.addTimeout(seconds, self._clock, self._too_late(name))
        return opening.addCallbacks(self._dialled, self._not_dialled, (name, begun), {}, (name,), {})

    def _too_late(self, name: str) -> Callable[[Any, float], Any]:
        def too_late(result: Any, seconds: float) -> Any:
            if isinstance(result, Failure) and not isinstance(result.value, CancelledError):
                return result
            state: TunnelState = self.state(name)
            if not state.is_up:
                raise ConnectFailed(Cause(state.cause, CauseCode.NO_TUNNEL))
            cause = f"the edge of tunnel {name} has not dialled within {seconds:g} s"
            raise ConnectTimeout(Cause(cause, CauseCode.NO_CONNECTION_IN_TIME))

        return too_late

    def _dialled(self, _: None, name: str, begun: float) -> None:
        self._counts.increase(TUNNEL_DIALS, (name, "ok"))
        self._counts.observe(TUNNEL_DIAL_DURATION, (name,), self._clock.seconds() - begun)

    def _not_dialled(self, failure: Failure, name: str) -> Failure:
        if isinstance(failure.value, ConnectError):
            self._counts.increase(TUNNEL_DIALS, (name, "failed"))
            if self.state(name).is_up and self._once.allows(("dial", name), self._clock.seconds()):
                log.warn(
                    "an edge could not open a connection of its tunnel",
                    event="tunnel_dial_failed",
                    tunnel=name,
                    cause=failure.value.cause,
                    todo="see the log of the edge; a firewall or proxy may limit its connections",
                )
        return failure

    async def _connect(self, name: str, engine: IProtocol, alpn: bytes) -> None:
        state = self.state(name)
        control = state.pick()
        if control is None:
            control = await state.expected()
        limit = self._config[name].max_connections if name in self._config else 0
        if state.connections >= limit:
            raise at_limit(f"tunnel {name} has {limit} connections (maxConnections)")
        awaited = Awaited(name, alpn)
        ticket = protocol.new_ticket(self._process)
        self._awaited[ticket] = awaited
        asking = Deferred.fromCoroutine(control.post(protocol.DIAL, protocol.DialRequest(ticket, alpn).encode()))
        asking.addErrback(_unless_arrived, awaited)
        state.dialling += 1
        try:
            connection, opener = await awaited.arrived
        except BaseException:
            asking.cancel()
            raise
        finally:
            state.dialling -= 1
            self._awaited.pop(ticket, None)
        self._keep(connection, opener)
        state.opened(connection.stream, alpn)
        connection.attach(engine, alpn)
        http2: Any = connection.stream.protocol
        if isinstance(http2, H2ClientConnection):
            http2.keep_alive(protocol.HUB_KEEP_ALIVE, protocol.ANSWER_SECONDS)

    # -- the end ------------------------------------------------------------------------------------------------

    def drain(self, listeners: Collection[object] | None = None) -> None:
        """Ask the edges to replace the control connections from these listeners (factories; None: all).

        The replacements reach another process or listener. Connections of requests are not affected.
        """
        if listeners is None:
            self._draining = True
        streams = {stream for stream, opener in self._open.items() if listeners is None or opener.listener in listeners}
        body = protocol.DrainRequest(_DRAIN_WITHIN).encode()
        for state in self._states.values():
            for control in state.controls:
                if control.engine.transport in streams:
                    asking = Deferred.fromCoroutine(control.post(protocol.DRAIN, body))
                    asking.addErrback(_drain_failed)

    def close(self) -> None:
        """End all connections: those of requests, too."""
        self._draining = True
        if self._checks is not None:
            self._checks.stop()
            self._checks = None
        for state in self._states.values():
            state.close("the hub has stopped")
        for stream in list(self._open):
            stream.loseConnection()
            stream.abortConnection()


def _drain_failed(failure: Failure) -> None:
    """Ignore that an edge does not answer: it dials again when its connection ends."""
    failure.trap(ConnectError, CancelledError)  # type: ignore[no-untyped-call]


def _unless_arrived(failure: Failure, awaited: Awaited) -> None:
    """Fail a dial because the edge has refused it, unless its connection has arrived."""
    if not awaited.arrived.called and not isinstance(failure.value, CancelledError):
        awaited.arrived.errback(failure)
