"""The tunnels of a hub with workers: a request of one process reaches the control connection of another.

    holder       tunnel_state   -> supervisor -> tunnel_remote   all others: whether others have a control connection
    any          tunnel_dial    -> supervisor -> tunnel_dial     a holder, which asks the edge
    any          tunnel_prove   -> supervisor -> tunnel_prove    all other holders
    acceptor     tunnel_data    -> supervisor -> tunnel_data     the process of the ticket, with an end of a socket pair

The supervisor logs when a tunnel goes up or down, because it alone knows the control connections of all processes.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.daemon.channel import Channel, ChannelMessage, Fields
from mcproxy.daemon.errors import ProcessError, ProcessLost, ProcessTimeoutError
from mcproxy.daemon.processes.children import Child, Children
from mcproxy.net.causes import CauseCode, code_of, read_cause
from mcproxy.net.connect_errors import ConnectError, ConnectFailed
from mcproxy.net.wall_time import wall_seconds
from mcproxy.tunnels import protocol

if TYPE_CHECKING:
    from mcproxy.tunnels.hub import TunnelHub

log = Logger(__name__)

_ANSWER_SECONDS = protocol.TICKET_SECONDS + 1.0
"""Time for the answer of another process (seconds): that of a ticket, and some more."""
_SETTLED_WITHIN = 2.0
"""Seconds after which two edges that two processes have accepted at the same time are a conflict."""


class _Tunnel:
    """A tunnel as the supervisor knows it."""

    def __init__(self, now: float) -> None:
        self.holders: dict[Child, list[str]] = {}  # processes with control connections, with the edges' instances
        self.cause = ""
        self.since = now  # time of day of the last change between up and down
        self.next = 0


class TunnelRelay:
    """The supervisor's part."""

    def __init__(self, children: Children, clock: IReactorTime) -> None:
        self._children = children
        self._clock = clock
        self._tunnels: dict[str, _Tunnel] = {}
        children.on("tunnel_state", self._state)
        children.on("tunnel_dial", self._dial)
        children.on("tunnel_prove", self._prove)
        children.on("tunnel_data", self._data)
        children.on_started(self._started)
        children.on_lost(self._lost)

    def _tunnel(self, name: str) -> _Tunnel:
        return self._tunnels.setdefault(name, _Tunnel(wall_seconds(self._clock)))

    def _state(self, child: Child, message: ChannelMessage) -> None:
        self._set(child, message["tunnel"], message["instances"], message["cause"])

    def _lost(self, child: Child) -> None:
        for name, tunnel in self._tunnels.items():
            if child in tunnel.holders:
                self._set(child, name, [], f"the process {child.name} has ended")

    def _set(self, child: Child, name: str, instances: list[str], cause: str) -> None:
        tunnel = self._tunnel(name)
        was_up = bool(tunnel.holders)
        if instances:
            tunnel.holders[child] = instances
        else:
            tunnel.holders.pop(child, None)
        if bool(tunnel.holders) is not was_up:
            tunnel.since, tunnel.cause = wall_seconds(self._clock), cause
            if was_up:
                log.warn(
                    "a tunnel is not connected any more",
                    event="tunnel_down",
                    tunnel=name,
                    cause=cause,
                    todo="see the log of the edge, and the network between; it dials again by itself",
                )
            else:
                log.info("a tunnel is connected", event="tunnel_up", tunnel=name)
        for other in self._children:
            if other.answered:
                self._tell(other, name, tunnel)

    def _tell(self, child: Child, name: str, tunnel: _Tunnel) -> None:
        """Tell a process of the control connections of the others."""
        instances = sorted({each for holder, found in tunnel.holders.items() if holder is not child for each in found})
        child.channel.tell("tunnel_remote", tunnel=name, instances=instances, cause=tunnel.cause, since=tunnel.since)

    def _started(self, child: Child) -> None:
        for name, tunnel in self._tunnels.items():
            self._tell(child, name, tunnel)

    async def _dial(self, child: Child, message: ChannelMessage) -> Fields:
        tunnel = self._tunnel(message["tunnel"])
        holders = [each for each in tunnel.holders if each is not child]
        if not holders:
            return {"cause": f"no tunnel {message['tunnel']} is connected", "code": CauseCode.NO_TUNNEL.value}
        tunnel.next += 1
        return await _asked(holders[tunnel.next % len(holders)], "tunnel_dial", message.fields)

    async def _prove(self, child: Child, message: ChannelMessage) -> Fields:
        tunnel = self._tunnel(message["tunnel"])
        for holder in list(tunnel.holders):
            if holder is not child:
                answer = await _asked(holder, "tunnel_prove", message.fields)
                if answer.get("answers") or ("cause" in answer and holder in tunnel.holders):
                    return answer
        return {"answers": False}

    async def _data(self, child: Child, message: ChannelMessage) -> Fields:
        try:
            for other in self._children:
                if process_name(other.name, other.pid) == message["process"]:
                    return await _asked(other, "tunnel_data", message.fields, message.fds)
            return {"accepted": False}
        finally:
            message.close()


async def _asked(child: Child, kind: str, fields: Fields, fds: list[int] | tuple[int, ...] = ()) -> Fields:
    """Ask a process; an answer that does not come is one with a cause alone."""
    try:
        return await child.channel.ask(kind, fds, timeout=_ANSWER_SECONDS, **fields)
    except (ProcessLost, ProcessTimeoutError, ProcessError) as error:
        return {"cause": f"the process {child.name} does not answer: {error}"}


def process_name(name: str, pid: int) -> str:
    """Return the name of a process in tickets; a successor has another one."""
    return f"{name}-{pid}"


class ChannelTunnels:
    """A process's part (`tunnels.other_processes.OtherProcesses`)."""

    def __init__(self, channel: Channel, clock: IReactorTime) -> None:
        self._channel = channel
        self._clock = clock
        self._instances: dict[str, list[str]] = {}
        self._hub: TunnelHub | None = None
        self._early: list[ChannelMessage] = []  # states that came before the hub was there
        channel.on("tunnel_remote", self._remote)
        channel.on("tunnel_dial", self._dial_here)
        channel.on("tunnel_prove", self._prove_here)
        channel.on("tunnel_data", self._data_here)

    def attach(self, hub: TunnelHub) -> None:
        """Serve the other processes from `hub`."""
        self._hub = hub
        early, self._early = self._early, []
        for message in early:
            self._remote(message)

    # -- OtherProcesses -------------------------------------------------------------------------------------------

    def publish(self, tunnel: str, instances: list[str], cause: str) -> None:
        self._channel.tell("tunnel_state", tunnel=tunnel, instances=instances, cause=cause)

    def instances(self, tunnel: str) -> list[str]:
        return self._instances.get(tunnel, [])

    async def dial(self, tunnel: str, ticket: str, alpn: bytes) -> None:
        answer = await self._ask("tunnel_dial", tunnel=tunnel, ticket=ticket, alpn=alpn.decode())
        if cause := answer.get("cause"):
            raise ConnectFailed(read_cause(cause, answer.get("code", "")))

    async def prove(self, tunnel: str, instance: str) -> bool:
        answer = await self._ask("tunnel_prove", tunnel=tunnel, instance=instance)
        if cause := answer.get("cause"):
            raise ConnectFailed(cause)
        return bool(answer["answers"])

    async def pass_on(self, process: str, tunnel: str, ticket: str, end: socket.socket) -> bool:
        fields = {"process": process, "tunnel": tunnel, "ticket": ticket}
        return bool((await self._ask("tunnel_data", [end.fileno()], **fields)).get("accepted"))

    async def _ask(self, kind: str, fds: list[int] | tuple[int, ...] = (), **fields: Any) -> Fields:
        try:
            return await self._channel.ask(kind, fds, timeout=2 * _ANSWER_SECONDS, **fields)
        except (ProcessLost, ProcessTimeoutError, ProcessError) as error:
            return {"cause": f"the supervisor does not answer: {error}"}

    # -- messages of the supervisor -------------------------------------------------------------------------------

    def _remote(self, message: ChannelMessage) -> None:
        if self._hub is None:
            self._early.append(message)
            return
        name, instances = message["tunnel"], message["instances"]
        self._instances[name] = instances
        self._hub.state(name).set_remote(bool(instances), message["cause"], message["since"])
        if instances:  # later, because a process can still report an edge that has just been replaced
            self._clock.callLater(_SETTLED_WITHIN, self._hub.settle, name)

    async def _dial_here(self, message: ChannelMessage) -> Fields:
        assert self._hub is not None
        try:
            await self._hub.dial_for_other(message["tunnel"], message["ticket"], message["alpn"].encode())
        except ConnectError as problem:
            return {"cause": str(problem.cause), "code": code_of(problem.cause).value}
        return {}

    async def _prove_here(self, message: ChannelMessage) -> Fields:
        assert self._hub is not None
        return {"answers": await self._hub.prove(message["tunnel"], message["instance"])}

    def _data_here(self, message: ChannelMessage) -> Fields:
        assert self._hub is not None
        return {
            "accepted": self._hub.arrive(message["tunnel"], message["ticket"], socket.socket(fileno=message.fds[0]))
        }
