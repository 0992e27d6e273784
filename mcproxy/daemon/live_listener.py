"""One bound address of the daemon: its socket, its connections, and the pipeline of new requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.interfaces import IDelayedCall

from mcproxy.config import model
from mcproxy.config.urls import is_loopback
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.runtime import Runtime
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Refusal, ServerConnection
from mcproxy.http.messages import ProtocolError
from mcproxy.http.server_factory import ServerFactory
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.proxy.pipeline import refusal

_UNUSED = 0.5
"""Seconds that the newest connections may take to send their first request, once the listeners are closed."""


class LiveListener:
    """One bound address. A reload that keeps the address keeps the LiveListener, whatever else it changes."""

    def __init__(
        self,
        reactor: Any,
        deadlines: Deadlines,
        config: model.Listener,
        runtime: Runtime,
        parts: ProcessParts,
        random: Callable[[], float],
    ) -> None:
        """`random` returns a float in [0, 1), for `goawayChance`."""
        self.config = config
        self._reactor = reactor
        self._unused: IDelayedCall | None = None
        handle = runtime.pipelines[config.name].handle
        self.factory = ServerFactory(
            deadlines, config.limits, handle, _refusal(config), name=config.name, random=random
        )
        clients = parts.client_table(str(config.bind))
        self.socket = Listener(reactor, self.factory, _settings(config, runtime), config.bind, parts.sockets, clients)

    def update(self, config: model.Listener, runtime: Runtime) -> None:
        """Apply a new configuration of the same address, from the next request and the next connection on.

        Connections keep their limits; those of a protocol that is no longer spoken end after their current requests.
        """
        self.config = config
        factory = self.factory
        factory.handle = runtime.pipelines[config.name].handle
        factory.refusal = _refusal(config)
        factory.prior_knowledge = (
            config.serves is model.Serves.INGRESS
            and config.tls is None
            and model.HTTPProtocol.HTTP2 in config.protocols
        )
        factory.name = config.name
        factory.limits = config.limits
        factory.goaway_chance = config.goaway_chance
        factory.speak(config.protocols)
        self.socket.update(_settings(config, runtime))

    def open(self, replacing: Sequence[LiveListener] = ()) -> None:
        """Bind. Raises BindError, and DaemonError for a plain socket of systemd's that others can reach.

        `replacing` are the listeners on the same port that the reload removes; the address may overlap with theirs.
        """
        self.socket.open(replacing=[live.socket for live in replacing])
        if self.config.tls is None and isinstance(self.config.bind, model.SystemdBind):
            address = self.socket.address
            is_open = isinstance(address, model.TCPBind) and not is_loopback(address.host)
            if is_open and not _is_harmless(self.config):
                self.socket.stop_accepting()
                raise DaemonError(
                    f"listener {self.config.name} has no tls, but systemd's socket {self.config.bind.name} "
                    f"listens on {address}, beyond loopback",
                    todo="give the listener tls, or let the socket listen on a loopback or unix address",
                )

    def close(self, *, handed_over: bool = False) -> None:
        """Stop accepting, and close each connection after its request; an unused one if it stays unused for 0.5 s.

        Connections that the kernel has queued are accepted before, unless another process accepts from these sockets.
        """
        if handed_over:
            self.socket.release()
        else:
            self.socket.accept_queued()
            self.socket.stop_accepting()
        self.factory.drain()
        self._unused = self._reactor.callLater(_UNUSED, self._close_unused)

    def _close_unused(self) -> None:
        self._unused = None
        self.factory.drain(unused=True)

    def abort(self) -> None:
        if self._unused is not None:
            self._unused.cancel()
            self._unused = None
        self.socket.stop_accepting()
        self.socket.drop_pending()
        for stream in self.socket:
            stream.abortConnection()


def _refusal(config: model.Listener) -> Callable[[ServerConnection, ProtocolError], Refusal]:
    """Return what answers a request to a listener that violates the protocol."""
    if config.serves is not model.Serves.INGRESS:
        return refusal
    from mcproxy.services.ingress.ingress_handler import refusal as plain_refusal

    return plain_refusal


def _is_harmless(listener: model.Listener) -> bool:
    """Whether everybody may see what a listener shows, in plain text.

    An ingress is plain where the file says so: pages for everybody, redirects to TLS.
    """
    if listener.serves is model.Serves.INGRESS:
        return True
    is_admin = listener.serves is model.Serves.ADMIN
    return is_admin and listener.authentication is None and model.HARMLESS_PATHS.issuperset(listener.paths)


def _settings(config: model.Listener, runtime: Runtime) -> ListenerSettings:
    return ListenerSettings(
        name=config.name,
        certificates=runtime.certificates[config.name],
        limits=config.limits,
        proxy_protocol_from=config.proxy_protocol_from,
    )
