"""The interface to the tunnels of the other processes of a hub with workers.

Any worker accepts a connection of an edge. So the process that wants a connection, the one with a control connection,
and the one that accepts the data connection can be three. `daemon.processes.tunnels` connects them.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

RemoteState = Callable[[str, bool, str, float], None]
"""Called with a tunnel, whether other processes have a control connection of it, why not, and since when (time of day).
"""


class OtherProcesses(Protocol):
    """The other processes of the daemon."""

    def publish(self, tunnel: str, instances: list[str], cause: str) -> None:
        """Tell the others which edges have control connections of a tunnel here; `cause`: why there is none."""

    def instances(self, tunnel: str) -> list[str]:
        """Return the edges that have control connections of a tunnel in other processes."""
        ...

    def dial(self, tunnel: str, ticket: str, alpn: bytes) -> Awaitable[None]:
        """Let another process ask the edge to dial. Raises ConnectFailed with the cause."""
        ...

    def prove(self, tunnel: str, instance: str) -> Awaitable[bool]:
        """Whether an edge of another instance answers a process that has its control connection.

        Raises ConnectFailed if a process does not say so.
        """
        ...

    def pass_on(self, process: str, tunnel: str, ticket: str, end: socket.socket) -> Awaitable[bool]:
        """Give the process of a ticket its end of a socket pair; return whether that process accepts the ticket."""
        ...
