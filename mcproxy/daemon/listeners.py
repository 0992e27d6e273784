"""The listeners of a process: those in force, those that a reload adds, and removed ones with unfinished requests.

A reload keeps a listener if its address is unchanged, even if other settings of it change. `RemovedByReload` decides
which requests a reload ends because it has removed an object that they use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.config.urls import is_loopback
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.runtime import Runtime
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Refusal, ServerConnection, ServerContext
from mcproxy.http.messages import ProtocolError
from mcproxy.http.server_factory import ServerFactory
from mcproxy.net.listen import Listener
from mcproxy.net.pending_connection import ListenerSettings
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.families import CONNECTIONS, CONNECTIONS_REFUSED, FLOODS, HANDSHAKES, Family
from mcproxy.proxy.pipeline import refusal
from mcproxy.proxy.request import Request
from mcproxy.tunnels.dialer import Dialer
from mcproxy.upstream.upstream_context import UpstreamContext

if TYPE_CHECKING:
    from mcproxy.services.ingress.ingress_request import IngressRequest


_UNUSED = 0.5
"""Seconds within which the newest connections must send their first request after the listeners are closed."""
_FLUSH = 2.0
"""Seconds within which connections must send their last response and close, after the last request."""
_FLUSH_STEP = 0.02
_LABELS: dict[str, tuple[Family, tuple[str, ...]]] = {
    "accepted": (CONNECTIONS, ()),
    **{reason: (CONNECTIONS_REFUSED, (reason,)) for reason in ("connections", "connectionsPerClient", "proxy")},
    **{result: (HANDSHAKES, (result,)) for result in ("ok", "failed", "abandoned")},
}
"""Metric family and labels by the names of `net.listen.Listener.counts`."""


class LiveListener:
    """A listener with a bound address, or one that dials. A reload that keeps the address keeps the LiveListener."""

    def __init__(
        self,
        reactor: Any,
        deadlines: Deadlines,
        config: model.ListenerConfig,
        runtime: Runtime,
        parts: ProcessParts,
        context: UpstreamContext,
    ) -> None:
        self.config = config
        self._reactor = reactor
        self._unused: IDelayedCall | None = None
        handle = runtime.pipelines[config.name].handle
        self.factory = ServerFactory(
            deadlines, config.limits, handle, _refusal(config), name=config.name, random=context.random
        )
        self.socket: Listener | Dialer
        if config.dial is not None:
            self.factory.dials = True
            self.socket = Dialer(
                config.dial, instance=parts.instance, context=context, deadlines=deadlines, factory=self.factory
            )
        else:
            assert config.bind is not None
            clients = parts.client_table(config.address)
            settings = _settings(config, runtime)
            self.socket = Listener(reactor, self.factory, settings, config.bind, parts.sockets, clients)
            self.factory.exempt = self.socket.exempt

    @property
    def bound(self) -> model.TCPBind | model.UnixBind | None:
        """The address of the socket, with the port that the system chose for 0; None if it has none."""
        return self.socket.address if isinstance(self.socket, Listener) and self.socket.sockets else None

    def update(self, config: model.ListenerConfig, runtime: Runtime) -> None:
        """Apply a new configuration of the same address to new requests and new connections.

        Open connections keep their limits. Connections of a disabled protocol end after their current requests.
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
        if config.dial is not None and isinstance(self.socket, Dialer):
            self.socket.configure(config.dial)

    def open(self, replacing: Sequence[LiveListener] = ()) -> None:
        """Bind the address. Raises BindError.

        Raises DaemonError for a plain-text socket of systemd that other hosts or users can reach.
        `replacing` are the removed listeners on the same port, whose addresses can overlap with this one.
        """
        if isinstance(self.socket, Dialer):
            return
        self.socket.open(replacing=[live.socket for live in replacing if isinstance(live.socket, Listener)])
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
        """Stop accepting, and close each connection after its request, or if idle after 0.5 s.

        Connections in the kernel's queue are accepted first, unless another process accepts from these sockets.
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


def _refusal(config: model.ListenerConfig) -> Callable[[ServerConnection, ProtocolError], Refusal]:
    """Return the function that makes the response to a request which violates the protocol."""
    if config.serves is not model.Serves.INGRESS:
        return refusal
    from mcproxy.services.ingress.ingress_handler import refusal as plain_refusal

    return plain_refusal


def _is_harmless(listener: model.ListenerConfig) -> bool:
    """Whether a listener can serve plain text, since its responses are public.

    An ingress serves plain text if so configured, for public pages and redirects to TLS.
    """
    if listener.serves is model.Serves.INGRESS:
        return True
    is_admin = listener.serves is model.Serves.ADMIN
    return is_admin and listener.authentication is None and model.HARMLESS_PATHS.issuperset(listener.paths)


def _settings(config: model.ListenerConfig, runtime: Runtime) -> ListenerSettings:
    return ListenerSettings(
        name=config.name,
        certificates=runtime.certificates[config.name],
        limits=config.limits,
        proxy_protocol_from=config.proxy_protocol_from,
    )


@dataclass(frozen=True, slots=True)
class PreparedListeners:
    """The changes to listeners by a reload that is not in force yet."""

    opened: Mapping[str, LiveListener]
    """The new listeners by address, which do not accept connections yet."""
    unix_before: Sequence[tuple[LiveListener, model.UnixBind]]
    """The unix sockets whose mode or group was changed, with the former values."""

    def undo(self) -> None:
        """Close the new listeners, and restore the mode and group of unix sockets."""
        for live in self.opened.values():
            live.abort()
        for live, before in self.unix_before:
            live.socket.set_permissions(before)


class Listeners:
    """All listeners of one process."""

    def __init__(self, reactor: Any, deadlines: Deadlines, parts: ProcessParts, context: UpstreamContext) -> None:
        self._reactor = reactor
        self._deadlines = deadlines
        self._parts = parts
        self._context = context
        self._in_force: dict[str, LiveListener] = {}  # by address
        self._removed: set[LiveListener] = set()
        self._counts = ListenerCounts(parts.metrics.counts)
        parts.metrics.read_at_flush(lambda: self._counts.add(self.all))

    @property
    def in_force(self) -> Mapping[str, LiveListener]:
        """The listeners of the configuration in force by address (`str(bind)`), in its order."""
        return self._in_force

    @property
    def all(self) -> Sequence[LiveListener]:
        """The listeners in force, and removed ones whose requests have not ended."""
        return (*self._in_force.values(), *self._removed)

    def prepare(self, config: model.Config, runtime: Runtime) -> PreparedListeners:
        """Open the listeners with a new address, and change the mode and group of unix sockets that stay.

        If it raises BindError, DaemonError or OSError, nothing has changed.
        """
        opened: dict[str, LiveListener] = {}
        changed: list[tuple[LiveListener, model.UnixBind]] = []
        prepared = PreparedListeners(opened, changed)
        stay = {listener.address for listener in config.listeners}
        try:
            for listener in config.listeners:
                bind, address = listener.bind, listener.address
                live = self._in_force.get(address)
                if live is None:
                    live = LiveListener(self._reactor, self._deadlines, listener, runtime, self._parts, self._context)
                    live.open([old for old in self._in_force.values() if _same_port(old, bind, stay)])
                    opened[address] = live
                elif (
                    isinstance(bind, model.UnixBind)
                    and isinstance(live.socket, Listener)
                    and bind != (before := live.socket.bind)
                ):
                    assert isinstance(before, model.UnixBind)
                    live.socket.set_permissions(bind)
                    changed.append((live, before))
        except Exception:
            prepared.undo()
            raise
        return prepared

    def commit(self, prepared: PreparedListeners, config: model.Config, runtime: Runtime) -> list[LiveListener]:
        """Serve new requests and connections with `runtime`; return the listeners that `config` has removed.

        Removed listeners accept connections until `remove` closes them.
        """
        listeners: dict[str, LiveListener] = {}
        for listener in config.listeners:
            address = listener.address
            live = prepared.opened.get(address) or self._in_force[address]
            live.update(listener, runtime)
            listeners[address] = live
        for live in prepared.opened.values():
            live.socket.start_accepting()
        removed = [live for address, live in self._in_force.items() if address not in listeners]
        self._in_force = listeners
        return removed

    def remove(self, listeners: Collection[LiveListener]) -> None:
        """Close listeners that `commit` returned. Their connections are counted until `forget`."""
        for live in listeners:
            live.close()
        self._removed.update(listeners)

    def forget(self, listeners: Collection[LiveListener]) -> None:
        """End removed listeners, after their requests have ended."""
        self._counts.add(listeners)
        for live in listeners:
            live.abort()
            self._removed.discard(live)

    async def flushed(self, listeners: Sequence[LiveListener] | None = None) -> None:
        """Wait at most 2 s until connections have sent their last responses and closed; None: of all listeners."""
        chosen = self.all if listeners is None else listeners
        until = self._reactor.seconds() + _FLUSH
        while any(live.socket.connections for live in chosen) and self._reactor.seconds() < until:
            await deferLater(self._reactor, _FLUSH_STEP)

    def begin_drain(self) -> None:
        """Close keep-alive connections with their next response. New connections are still accepted."""
        for live in self.all:
            live.factory.begin_drain()

    def close(self) -> None:
        """Close the listening sockets, and each connection after its request."""
        for live in self.all:
            live.close()

    def hand_over(self, addresses: Collection[str]) -> None:
        """Close the listeners as `close` does, but leave the sockets of `addresses` to another process.

        The other process also gets the connections that the kernel has queued on these sockets."""
        for address, live in self._in_force.items():
            live.close(handed_over=address in addresses)

    def abort(self) -> None:
        """End all listeners and connections at once."""
        for live in self.all:
            live.abort()
        self._removed.clear()
        self._in_force = {}

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force and their listening descriptors, which this process keeps."""
        return [(address, sock.fileno()) for address, live in self._in_force.items() for sock in live.socket.sockets]

    def restore_sockets(self) -> None:
        """Undo changes of the listening sockets by another daemon that shared them and has ended."""
        for live in self._in_force.values():
            live.socket.restore()


def _same_port(old: LiveListener, bind: model.Bind | None, stay: Collection[str]) -> bool:
    """Whether `old` can make binding `bind` fail: a removed TCP listener on the same port."""
    before = old.config.bind
    return (
        isinstance(before, model.TCPBind)
        and isinstance(bind, model.TCPBind)
        and before.port == bind.port != 0
        and str(before) not in stay
    )


class ListenerCounts:
    """Adds the counts of listeners to the metrics, which `net` and `http` do not import."""

    def __init__(self, counts: MetricCounts) -> None:
        self._counts = counts
        self._before: WeakKeyDictionary[LiveListener, tuple[Counter[str], Counter[str]]] = WeakKeyDictionary()

    def add(self, listeners: Iterable[LiveListener]) -> None:
        """Add the counts of these listeners. A closed listener's counts must be added before `Listeners.forget`."""
        for live in listeners:
            connections, floods = self._before.get(live, (Counter(), Counter()))
            now: tuple[Counter[str], Counter[str]] = Counter(live.socket.counts), Counter(live.factory.protection)
            self._before[live] = now
            name = live.config.name
            for key, number in (now[0] - connections).items():
                family, labels = _LABELS[key]
                self._counts.increase(family, (name, *labels), number)
            for kind, number in (now[1] - floods).items():
                self._counts.increase(FLOODS, (name, kind), number)


class RemovedByReload:
    """Decides whether a reload has removed the listener, server, cluster or endpoint that a request uses.

    A cluster counts as removed if its server no longer serves it, and a server if its listener no longer has it.
    """

    def __init__(
        self, config: model.Config, gone: Collection[ServerFactory], listeners: Iterable[LiveListener]
    ) -> None:
        self._gone = gone
        self._listeners: dict[ServerContext, str] = {live.factory: live.config.name for live in listeners}
        self._servers = {server.name: server for server in config.servers}
        self._clusters = {server.name: frozenset(server.reached_clusters) for server in config.servers}
        self._owners = {
            server.name: {(each.group, each.version): each.cluster for each in server.api_services}
            for server in config.servers
        }
        self._addresses = {
            (cluster.name, endpoint.url) for cluster in config.clusters for endpoint in cluster.endpoints
        }

    def changed_owner(self, request: Request) -> bool:
        """Whether the owner of a request's group-version was changed, added or removed."""
        server, info, service = request.server, request.info, request.api_service
        if server is None or info is None:
            return False
        owners = self._owners.get(server.name, {})
        if service is not None:
            return owners.get((service.group, service.version)) != service.cluster
        # A path with the name of one of several clusters leads to that cluster's own API.
        of_root = server.only_cluster is not None or request.served is not None
        return of_root and info.is_resource and (info.group, info.version) in owners

    def __call__(self, request: Request) -> bool:
        factory, server = request.exchange.connection.factory, request.server
        if factory in self._gone:
            return True
        if server is not None:
            now = self._servers.get(server.name)
            if now is None or self._listeners.get(factory, "") not in (*now.listeners, ""):
                return True
            if request.cluster is not None and request.cluster.name not in self._clusters[server.name]:
                return True
            if request.served is not None and request.served.aggregate != _aggregate(now):
                return True
        endpoint = request.endpoint
        return endpoint is not None and (endpoint.cluster_name, endpoint.config.url) not in self._addresses


def _aggregate(server: model.Server) -> str:
    return server.backend.aggregate if isinstance(server.backend, model.AggregateBackendConfig) else ""


def removed_ingress_requests(
    requests: Collection[IngressRequest], config: model.Config, gone: Collection[Any]
) -> list[IngressRequest]:
    """Return the requests whose listener (by its factory: `gone`) or route a reload has removed."""
    backends = {each for ingress in config.ingresses for each in ingress.backends}
    services = {(each.namespace, each.service, each.port, cluster) for each in backends for cluster in each.clusters}
    return [each for each in requests if each.exchange.connection.factory in gone or _is_removed(each, services)]


def _is_removed(request: IngressRequest, services: Collection[tuple[str, str, int | str, str]]) -> bool:
    live, endpoint = request.backend, request.endpoint
    if live is None or endpoint is None:
        return False
    backend = live.config
    return (backend.namespace, backend.service, backend.port, endpoint.cluster) not in services
