"""One listening port of a simulated cluster; tests can close, reopen or hang it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kubesim.cluster import SimulatedCluster
from kubesim.request.fault_injection import reset_transport

if TYPE_CHECKING:
    from kubesim.server.http2_connections import HTTP2Connections

BACKLOG = 1024


def _hold(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Return a socket that is bound and does not listen, so that the port stays the endpoint's own while it is stopped.

    The kernel does not choose the port for a bind to port 0, and refuses connections to it. Servers set SO_REUSEADDR,
    and so may listen there. Raises OSError if another process listens on the port.
    """
    holder = socket.socket(family)
    try:
        if port:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as create_server does
        holder.bind((host, port))
        # After bind where the kernel chooses: before it, it might choose a port that another holder has.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except BaseException:
        holder.close()
        raise
    return holder


class Endpoint:
    """A port and the aiohttp application behind it.

    The listening socket is kept in addition to aiohttp's copy, so that the kernel still completes TCP handshakes of a
    hanging endpoint while no TLS handshake is answered, as with a stopped process.
    """

    def __init__(
        self,
        index: int,
        cluster: SimulatedCluster,
        runner: web.AppRunner,
        context: ssl.SSLContext | None,
        http2: HTTP2Connections | None = None,
    ) -> None:
        self.index = index
        self.http2 = http2
        """The HTTP/2 connections; None if only HTTP/1.1 is served."""
        self.state = "closed"
        self.port = 0
        self._cluster = cluster
        self._runner = runner
        self._context = context
        self._host = ""
        self._socket: socket.socket | None = None
        self._holder: socket.socket | None = None
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int, *, starting: float = 0.0) -> int:
        """Listen and return the port; 0 chooses a free one. The runner must be set up.

        For `starting` seconds the endpoint has not read the roles (`cluster.StartingEndpoints`).
        """
        if starting > 0:
            self._cluster.starting.begin(self.index, self._cluster.now().timestamp() + starting)
        self._host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        if self._holder is None:
            self._holder = _hold(family, host, port)
        self.port = int(self._holder.getsockname()[1])
        self._socket = socket.create_server((host, self.port), family=family, backlog=BACKLOG)
        await self._accept()
        return self.port

    async def _accept(self) -> None:
        assert self._socket is not None
        self.state = "serving"
        server = self._runner.server
        assert server is not None
        self._server = await asyncio.get_running_loop().create_server(
            server if self.http2 is None else self.http2.accept(server),
            sock=self._socket.dup(),
            ssl=self._context,
            backlog=BACKLOG,
        )

    async def _stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def connections(self) -> int:
        """The number of open connections, including upgraded ones."""
        return len(self._http1_transports()) + (0 if self.http2 is None else len(self.http2.connections))

    def _http1_transports(self) -> list[Any]:
        """Return the transports of HTTP/1.1 connections; each stream of HTTP/2 has a handler, too."""
        server = self._runner.server
        transports: list[Any] = [each.transport for each in server.connections] if server is not None else []
        return [each for each in transports if not getattr(each, "of_http2", False)]

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
        if self.http2 is not None:
            self.http2.reset()
        for transport in self._http1_transports():
            if transport is not None:
                reset_transport(transport)

    async def start(self, *, starting: float = 0.0) -> None:
        """Listen again on the same port after `stop`, as `open` does."""
        if self._socket is None:
            await self.open(self._host, self.port, starting=starting)
        elif self.state == "hanging":
            await self.resume()

    async def hang(self) -> None:
        """Leave new connections without TLS handshake, and requests on open ones without answer, until `resume`.

        Open HTTP/2 connections are silent altogether.
        """
        if self.state != "serving":
            return
        self._cluster.faults.hang(self.index)
        await self._stop_accepting()
        if self.http2 is not None:
            self.http2.silence()
        self.state = "hanging"

    async def resume(self) -> None:
        """Continue all connections and requests that wait because of `hang`."""
        self._cluster.faults.resume(self.index)
        if self.http2 is not None:
            self.http2.resume()
        if self.state == "hanging":
            await self._accept()

    async def close(self) -> None:
        """Close the listening socket for good; open connections continue (HTTP/2: with a GOAWAY)."""
        await self._stop_accepting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._holder is not None:
            self._holder.close()
            self._holder = None
        if self.http2 is not None:
            self.http2.goaway(0)
        self.state = "closed"

    def as_dict(self) -> dict[str, Any]:
        found = {"index": self.index, "port": self.port, "state": self.state, "connections": self.connections}
        if self.http2 is not None:
            found["http2"] = self.http2.as_dict()
        return found
