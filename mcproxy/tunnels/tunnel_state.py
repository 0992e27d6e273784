"""The state of one tunnel at the hub: control connections, data connections, and since when it is up or down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.http.deadlines import Deadlines
from mcproxy.net.causes import Cause, CauseCode
from mcproxy.net.connect_errors import ConnectFailed
from mcproxy.net.wall_time import WallSeconds, wall_seconds
from mcproxy.tunnels.control_connection import ControlConnection

if TYPE_CHECKING:
    from mcproxy.net.socket_stream import SocketStream
    from mcproxy.tunnels.turned import TurnedConnection

log = Logger(__name__)

EXPECTED: Final = 10.0
"""Seconds after the start of the process in which a request waits for the first control connection of a tunnel: after
an upgrade the edges need a moment to dial the new daemon."""


class TunnelState:
    """One tunnel. `controls`: its control connections, the oldest first."""

    __slots__ = (
        "_cause",
        "_clock",
        "_closed",
        "_connections",
        "_deadlines",
        "_expected_until",
        "_listeners",
        "_next",
        "_noted",
        "_publish",
        "_remote",
        "_since",
        "_waiting",
        "controls",
        "dialling",
        "name",
    )

    def __init__(
        self,
        name: str,
        clock: IReactorTime,
        deadlines: Deadlines,
        begun_at: float,
        publish: Callable[[str, list[str], str], None] | None,
    ) -> None:
        """`begun_at`: the time of the process's start. `publish` tells other processes (`OtherProcesses.publish`);
        None: there are none.
        """
        self.name = name
        self._clock = clock
        self._deadlines = deadlines
        self._expected_until = begun_at + EXPECTED
        self._since = wall_seconds(clock)  # time of day of the last change between up and down
        self._cause = ""  # why it is down; "": it was never up
        self._noted = ""  # the cause for the next loss
        self._closed = False  # the process ends, or the tunnel was removed: losses are no news
        self._next = 0
        self._publish = publish
        self._remote = False  # whether another process has a control connection
        self._connections: dict[SocketStream, bytes] = {}  # data connections with their ALPN names
        self._listeners: list[Callable[[bool, str], None]] = []
        self._waiting: list[Deferred[None]] = []
        self.controls: list[ControlConnection] = []
        self.dialling = 0  # dials in progress

    @property
    def is_up(self) -> bool:
        """Whether the tunnel has a control connection, in this process or another one."""
        return bool(self.controls) or self._remote

    @property
    def since(self) -> datetime:
        """When the tunnel went up or down."""
        return datetime.fromtimestamp(self._since, UTC)

    @property
    def cause(self) -> str:
        """Why there is no connection; the same text as long as the tunnel is down."""
        since = self.since.strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"no tunnel {self.name} is connected since {since}" + (f": {self._cause}" if self._cause else "")

    @property
    def loss(self) -> str:
        """Why the last control connection ended; "" if there was none yet."""
        return self._cause

    @property
    def connections(self) -> int:
        """The number of data connections, open or being dialled."""
        return len(self._connections) + self.dialling

    def counts(self) -> Counter[bytes]:
        """Return the number of open data connections by ALPN name."""
        return Counter(self._connections.values())

    def subscribe(self, notify: Callable[[bool, str], None]) -> Callable[[], None]:
        """Call `notify(is_up, cause)` at each change; the result unsubscribes."""
        self._listeners.append(notify)

        def unsubscribe() -> None:
            if notify in self._listeners:
                self._listeners.remove(notify)

        return unsubscribe

    def of_other_instances(self, instance: bytes) -> list[ControlConnection]:
        """Return the control connections of other edge daemons."""
        return [each for each in self.controls if each.instance != instance]

    def pick(self) -> ControlConnection | None:
        """Return the control connection for the next dial: all in turn."""
        if not self.controls:
            return None
        self._next = (self._next + 1) % len(self.controls)
        return self.controls[self._next]

    async def expected(self) -> None:
        """Wait until the tunnel is up, if that is expected soon. Raises ConnectFailed. Cancel it in time."""
        if self._cause or self._clock.seconds() >= self._expected_until:
            raise ConnectFailed(Cause(self.cause, CauseCode.NO_TUNNEL))
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        await waiting

    def add(self, connection: TurnedConnection, instance: bytes, peer: str) -> None:
        """Use a connection as a control connection."""
        control = ControlConnection(connection, self._deadlines, instance=instance, peer=peer, lost=self._lost)
        if not control.usable:
            return
        was_up = self.is_up
        self._noted = ""
        self.controls.append(control)
        self._tell("")
        if not was_up:
            if self._publish is None:
                log.info("a tunnel is connected", event="tunnel_up", tunnel=self.name, peer=peer)
            self._changed(wall_seconds(self._clock))

    def set_remote(self, up: bool, cause: str, since: float) -> None:
        """Note whether other processes have a control connection; `since`: time of day of the change."""
        was_up, self._remote = self.is_up, up
        if not up and not self.controls:
            self._cause = cause
        if self.is_up is not was_up:
            self._changed(since)

    def _tell(self, cause: str) -> None:
        if self._publish is not None:
            self._publish(self.name, sorted({each.instance.decode() for each in self.controls}), cause)

    def note_cause(self, cause: str) -> None:
        """Note why the next lost connection ends."""
        self._noted = cause

    def _lost(self, control: ControlConnection, cause: str) -> None:
        if control not in self.controls:
            return
        self.controls.remove(control)
        if self._closed:
            self._tell(cause)
            return
        if self.controls:
            self._tell("")
            return
        self._cause, self._noted = self._noted or cause, ""
        self._tell(self._cause)
        if self._remote:
            return
        if self._publish is None:
            log.warn(
                "a tunnel is not connected any more",
                event="tunnel_down",
                tunnel=self.name,
                peer=control.peer,
                cause=self._cause,
                age=round(self._clock.seconds() - control.opened_at, 1),
                todo="see the log of the edge, and the network between; it dials again by itself",
            )
        self._changed(wall_seconds(self._clock))

    def opened(self, stream: SocketStream, alpn: bytes) -> None:
        """Count a data connection."""
        self._connections[stream] = alpn

    def connection_closed(self, stream: SocketStream) -> None:
        """Stop counting a connection."""
        self._connections.pop(stream, None)

    def close(self, cause: str) -> None:
        """End all control connections, and dial no more."""
        self._closed = True
        self._cause = cause
        for control in list(self.controls):
            control.close()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.errback(ConnectFailed(cause))

    def _changed(self, since: float) -> None:
        self._since = WallSeconds(since)
        for notify in tuple(self._listeners):
            notify(self.is_up, self.cause)
        if self.is_up:
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                each.callback(None)
