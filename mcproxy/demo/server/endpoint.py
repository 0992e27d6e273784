"""One listening port of a simulated cluster, which tests can close, reopen or make hang."""

from __future__ import annotations

import socket
import ssl
from typing import Any

from aiohttp import web

from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.request.fault_injection import reset_transport

__all__ = ["Endpoint"]

BACKLOG = 1024
STOP_SECONDS = 0.2


class Endpoint:
    """A port and the aiohttp application behind it.

    The listening socket is kept beside aiohttp's copy, so that the kernel still completes TCP handshakes of a hanging
    endpoint while no TLS handshake is answered, as with a stopped process.
    """

    def __init__(
        self, index: int, cluster: SimulatedCluster, runner: web.AppRunner, context: ssl.SSLContext | None
    ) -> None:
        self.index = index
        self.state = "closed"
        self.port = 0
        self._cluster = cluster
        self._runner = runner
        self._context = context
        self._host = ""
        self._socket: socket.socket | None = None

    async def open(self, host: str, port: int, *, starting: float = 0.0) -> int:
        """Listen and return the port; 0 chooses a free one. The runner must be set up.

        For `starting` seconds the endpoint is one that has not read the roles (`diagnostics.starting`).
        """
        if starting > 0:
            self._cluster.starting.begin(self.index, self._cluster.now().timestamp() + starting)
        self._host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self.port = int(self._socket.getsockname()[1])
        await self._accept()
        return self.port

    async def _accept(self) -> None:
        assert self._socket is not None
        self.state = "serving"
        await web.SockSite(
            self._runner, self._socket.dup(), ssl_context=self._context, shutdown_timeout=STOP_SECONDS, backlog=BACKLOG
        ).start()

    async def _stop_accepting(self) -> None:
        for site in list(self._runner.sites):
            await site.stop()

    @property
    def connections(self) -> int:
        """The number of open connections, including upgraded ones."""
        server = self._runner.server
        return len(server.connections) if server is not None else 0

    async def stop(self, *, reset: bool = True) -> None:
        """Refuse new connections; `reset` also ends the open ones with a TCP RST."""
        await self._stop_accepting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.state = "stopped"
        if reset:
            self.reset_connections()

    def reset_connections(self) -> None:
        """End all open connections with a TCP RST."""
        server = self._runner.server
        for handler in list(server.connections) if server is not None else ():
            transport: Any = handler.transport
            if transport is not None:
                reset_transport(transport)

    async def start(self, *, starting: float = 0.0) -> None:
        """Listen again on the same port after `stop`, as `open` does."""
        if self._socket is None:
            await self.open(self._host, self.port, starting=starting)
        elif self.state == "hanging":
            await self.resume()

    async def hang(self) -> None:
        """New connections get no TLS handshake, requests on open ones no answer, until `resume`."""
        if self.state != "serving":
            return
        self._cluster.faults.hang(self.index)
        await self._stop_accepting()
        self.state = "hanging"

    async def resume(self) -> None:
        """Continue everything that waits because of `hang`."""
        self._cluster.faults.resume(self.index)
        if self.state == "hanging":
            await self._accept()

    async def close(self) -> None:
        """Close the listening socket for good; open connections continue."""
        await self._stop_accepting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.state = "closed"

    def as_dict(self) -> dict[str, Any]:
        return {"index": self.index, "port": self.port, "state": self.state, "connections": self.connections}
