"""The hub's side of tunnels: who is connected, and new connections through them.

For an endpoint behind a tunnel, `TunnelHub.connect` takes the place of `net.connect.connect`: it asks the edge to dial
(POST /dial with a ticket), and connects the endpoint's protocol to the connection that arrives with the ticket. So
pools, balancing, health checks and retries are those of other endpoints.

One object lives as long as the process, over all reloads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IProtocol, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h1.h1_client import H1ClientConnection
from mcproxy.http.h2.h2_client import H2ClientConnection
from mcproxy.log_once import LogOnce
from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.net.causes import Cause, CauseCode
from mcproxy.net.connect_errors import ConnectError, ConnectFailed, ConnectTimeout
from mcproxy.observe.metrics.families import TUNNEL_DIAL_DURATION, TUNNEL_DIALS, TUNNELS_REFUSED
from mcproxy.tunnels import protocol
from mcproxy.tunnels.byte_relay import RelayEnd, passed_on, relay
from mcproxy.tunnels.control_connection import at_limit
from mcproxy.tunnels.open_connections import OpenConnections, Opener
from mcproxy.tunnels.tunnel_state import TunnelState

if TYPE_CHECKING:
    from mcproxy.observe.metrics.metrics import Metrics
    from mcproxy.tunnels.control_connection import ControlConnection
    from mcproxy.tunnels.other_processes import OtherProcesses
    from mcproxy.tunnels.turned import TurnedConnection

log = Logger(__name__)

_PROOF_SECONDS: Final = 5.0
"""Seconds in which an earlier edge has to answer, when another one wants the name of its tunnel."""
_PROOF_STEP: Final = 0.1
_DRAIN_WITHIN: Final = 10.0
"""Greatest time over which edges replace their control connections (seconds)."""
_DRAINS_PER_SECOND: Final = 50.0


class TunnelRefused(Exception):
    """A tunnel is refused: the status of the response, its message, and the reason for metrics."""

    def __init__(self, status: int, message: str, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason


class Awaited:
    """A dial whose connection has not arrived yet."""

    __slots__ = ("alpn", "arrived", "tunnel")

    def __init__(self, tunnel: str, alpn: bytes) -> None:
        self.tunnel = tunnel
        self.alpn = alpn
        self.arrived: Deferred[TurnedConnection] = Deferred()


class PassedOn:
    """A dial of another process, which has accepted the ticket; `end`: this process's end of a socket pair."""

    __slots__ = ("end",)

    def __init__(self, end: socket.socket) -> None:
        self.end = end


Redeemed = Awaited | PassedOn


class TunnelHub:
    """All tunnels of a process."""

    def __init__(
        self,
        clock: IReactorTime,
        deadlines: Deadlines,
        metrics: Metrics,
        process: str = "hub",
        others: OtherProcesses | None = None,
    ) -> None:
        """`process`: the name of this process in tickets. `others`: None if there are no other processes."""
        self._clock = clock
        self._others = others
        self.deadlines = deadlines
        self._counts = metrics.counts
        self._process = process
        self._states: dict[str, TunnelState] = {}
        self._config: dict[str, model.Tunnel] = {}
        self._awaited: dict[str, Awaited] = {}
        self._open = OpenConnections(clock, self.may_open, lambda name, cause: self.state(name).note_cause(cause))
        self._once = LogOnce()
        self._draining = False
        self._begun_at = clock.seconds()

    # -- the configuration --------------------------------------------------------------------------------------

    def configure(self, tunnels: Iterable[model.Tunnel]) -> None:
        """Follow a configuration that has come into force: end the connections of removed tunnels and users."""
        self._config = {tunnel.name: tunnel for tunnel in tunnels}
        for name in [name for name in self._states if name not in self._config]:
            self._states.pop(name).close("the tunnel was removed from the configuration")
        for name in self._config:
            self.state(name)
        self._open.check()

    def state(self, name: str) -> TunnelState:
        """Return the state of a tunnel."""
        found = self._states.get(name)
        if found is None:
            publish = None if self._others is None else self._others.publish
            found = self._states[name] = TunnelState(name, self._clock, self.deadlines, self._begun_at, publish)
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

        If another edge has the name, that one must answer a PING within a few seconds, else it is replaced. The caller
        opens the connection at once.
        """
        if self._draining:
            raise TunnelRefused(503, "the hub is stopping", "stopping")
        here, others = instance.decode(), self._others
        taken = False
        if others is not None and any(each != here for each in others.instances(name)):
            try:
                taken = await others.prove(name, here)
            except ConnectFailed as problem:
                message = f'it is not known whether another edge has the tunnel "{name}": {problem.cause}'
                raise TunnelRefused(503, message, "undecided") from None
        if taken or await self.prove(name, here):  # here last: a third edge can have come while others were asked
            if self._once.allows(("taken", name), self._clock.seconds()):
                log.warn(
                    "two edges want the same tunnel; the first one keeps it",
                    event="tunnel_name_taken",
                    tunnel=name,
                    client=peer,
                    todo="give each edge daemon a tunnel of its own (listeners[].dial.tunnel)",
                )
            raise TunnelRefused(409, f'another edge has the tunnel "{name}", and it answers', "name_taken")
        if len(self.state(name).controls) >= protocol.MAX_CONTROLS:
            raise TunnelRefused(429, f"the tunnel has {protocol.MAX_CONTROLS} control connections", "controls")

    async def prove(self, name: str, instance: str) -> bool:
        """Whether an edge of another instance answers here on a control connection; ends those that do not.

        An answer is any byte within `_PROOF_SECONDS` of the PING; all connections are asked at the same time.
        """
        state, clock = self.state(name), self._clock
        asked: dict[ControlConnection, float] = {}
        while others := state.of_other_instances(instance.encode()):
            for control in others:
                if control not in asked:
                    asked[control] = clock.seconds()
                    control.engine.ask_peer()
                elif control.engine.last_received > asked[control]:
                    return True
                elif clock.seconds() >= asked[control] + _PROOF_SECONDS:
                    control.abort("it does not answer, and another edge replaces it")
            await deferLater(clock, _PROOF_STEP)
        return False

    def settle(self, name: str) -> None:
        """End the control connections here if another process has accepted another edge at the same time.

        Of two edges the one with the lesser instance stays, so exactly one of the processes gives way.
        """
        elsewhere = () if self._others is None else self._others.instances(name)
        for control in list(self.state(name).controls):
            if any(each.encode() < control.instance for each in elsewhere):
                control.abort("another edge has the tunnel")

    def open_control(self, connection: TurnedConnection, opener: Opener, instance: bytes) -> None:
        """Use a connection, after its 101, as a control connection."""
        self._open.add(connection.stream, opener)
        self.state(opener.tunnel).add(connection, instance, opener.peer)

    async def redeem(self, name: str, ticket: bytes) -> Redeemed:
        """Return the dial that a ticket belongs to, in this process or another; each ticket is valid once.

        Raises TunnelRefused.
        """
        try:
            process = protocol.process_of(ticket)
        except ValueError as error:
            raise TunnelRefused(403, str(error), "ticket") from None
        text = ticket.decode("ascii")
        if process != self._process and self._others is not None:
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    if await self._others.pass_on(process, name, text, theirs):
                        ours.setblocking(False)
                        return PassedOn(ours)
            except BaseException:
                ours.close()
                raise
            ours.close()
        elif (awaited := self._take(name, text)) is not None:
            return awaited
        raise TunnelRefused(403, "the ticket is not valid: it is late, used, or of another tunnel", "ticket")

    def _take(self, name: str, ticket: str) -> Awaited | None:
        awaited = self._awaited.get(ticket)
        if awaited is None or awaited.tunnel != name or awaited.arrived.called:
            return None
        del self._awaited[ticket]
        return awaited

    def open_data(self, redeemed: Redeemed, connection: TurnedConnection, opener: Opener) -> None:
        """Use a connection, after its 101, for the dial that has waited for it."""
        self._open.add(connection.stream, opener)
        if isinstance(redeemed, PassedOn):
            relay(connection, redeemed.end, H2)
        elif redeemed.arrived.called:
            connection.abort()
        else:
            redeemed.arrived.callback(connection)

    def abandon(self, redeemed: Redeemed) -> None:
        """Give up a dial, because its edge has disconnected before the 101."""
        if isinstance(redeemed, PassedOn):
            redeemed.end.close()
        elif not redeemed.arrived.called:
            redeemed.arrived.errback(ConnectFailed("the edge has closed the connection at once"))

    def arrive(self, name: str, ticket: str, end: socket.socket) -> bool:
        """Take a connection that another process has accepted; return whether its ticket is valid here."""
        awaited = self._take(name, ticket)
        if awaited is None:
            end.close()
            return False
        end.setblocking(False)
        awaited.arrived.callback(passed_on(self._clock, end))
        return True

    async def dial_for_other(self, name: str, ticket: str, alpn: bytes) -> None:
        """Ask the edge to dial, for another process. Raises ConnectFailed."""
        state = self.state(name)
        body = protocol.DialRequest(ticket, alpn).encode()
        problem = ConnectFailed(Cause(state.cause, CauseCode.NO_TUNNEL))
        for _ in range(len(state.controls)):
            control = state.pick()
            if control is None:
                break
            try:
                await control.post(protocol.DIAL, body)
            except ConnectFailed as failed:  # another process of the edge may dial
                problem = failed
            else:
                return
        raise problem

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
        if not state.is_up:
            await state.expected()
        limit = self._config[name].max_connections if name in self._config else 0
        if state.connections >= limit:
            raise at_limit(f"tunnel {name} has {limit} connections (maxConnections)")
        awaited = Awaited(name, alpn)
        ticket = protocol.new_ticket(self._process)
        self._awaited[ticket] = awaited
        asking = Deferred.fromCoroutine(self._ask(state, ticket, alpn))
        asking.addErrback(_unless_arrived, awaited)
        state.dialling += 1
        try:
            connection = await awaited.arrived
        except BaseException:
            asking.cancel()
            raise
        finally:
            state.dialling -= 1
            self._awaited.pop(ticket, None)
        stream = connection.stream
        state.opened(stream, alpn)
        stream.call_when_closed(lambda: state.connection_closed(stream))
        connection.attach(engine, alpn)
        http2: Any = stream.protocol
        if isinstance(http2, H2ClientConnection):
            http2.keep_alive(protocol.HUB_KEEP_ALIVE, protocol.ANSWER_SECONDS)

    async def _ask(self, state: TunnelState, ticket: str, alpn: bytes) -> None:
        if state.controls or self._others is None:
            await self.dial_for_other(state.name, ticket, alpn)
        else:
            await self._others.dial(state.name, ticket, alpn)

    # -- the end ------------------------------------------------------------------------------------------------

    def drain(self, listeners: Collection[object] | None = None) -> None:
        """Ask the edges to replace the control connections from these listeners (factories; None: all).

        The replacements reach another process or listener. Connections of requests are not affected.
        """
        if listeners is None:
            self._draining = True
        streams = set(self._open.of_listeners(listeners))
        every = [control for state in self._states.values() for control in state.controls]
        controls = [control for control in every if control.engine.transport in streams]
        body = protocol.DrainRequest(min(_DRAIN_WITHIN, len(controls) / _DRAINS_PER_SECOND)).encode()
        for control in controls:
            asking = Deferred.fromCoroutine(control.post(protocol.DRAIN, body))
            asking.addErrback(_drain_failed)

    def close(self) -> None:
        """End all connections: those of requests, too."""
        self._draining = True
        self._open.stop()
        for state in self._states.values():
            state.close("the hub has stopped")
        for stream in self._open.of_listeners(None):
            engine: Any = stream.protocol
            if isinstance(engine, H1ClientConnection | H2ClientConnection | RelayEnd):
                engine.retire()


def _drain_failed(failure: Failure) -> None:
    """Ignore that an edge does not answer: it dials again when its connection ends."""
    failure.trap(ConnectError, CancelledError)  # type: ignore[no-untyped-call]


def _unless_arrived(failure: Failure, awaited: Awaited) -> None:
    """Fail a dial because the edge has refused it, unless its connection has arrived."""
    if not awaited.arrived.called and not isinstance(failure.value, CancelledError):
        awaited.arrived.errback(failure)
