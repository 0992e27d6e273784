"""The running proxy: its listeners and the Runtime in force.

    start -> apply* -> begin_shutdown -> drain -> stop_accepting -> finish        abort: at any time

A listener is kept across a reload if its address is unchanged, whatever else about it changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.config.urls import is_loopback
from mcproxy.daemon import state_directory
from mcproxy.daemon.admin import body_sender
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.figures import Figures
from mcproxy.daemon.figures.clusters import of_clusters
from mcproxy.daemon.figures.limits import of_flow_controls, of_shared_limits
from mcproxy.daemon.figures.listeners import of_listener
from mcproxy.daemon.figures.process import of_process
from mcproxy.daemon.figures.reviews import of_reviews
from mcproxy.daemon.figures.servers import of_servers
from mcproxy.daemon.listener_counts import ListenerCounts
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.readiness import checks_of
from mcproxy.daemon.rights_check import RightsCheck, RightsCheckOfLeader
from mcproxy.daemon.runtime import ProcessResources, RequestLogs, Runtime, build, make_shared
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.server_factory import ServerFactory
from mcproxy.kube.healthz import Check
from mcproxy.net.listen import Listener, ListenerSettings
from mcproxy.net.wall_time import wall_seconds
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.proxy.admin.in_flight import described, merged
from mcproxy.proxy.admin.pipeline import AdminParts
from mcproxy.proxy.in_flight import InFlightRequests
from mcproxy.proxy.pipeline import refusal
from mcproxy.proxy.request import Request, RequestKind
from mcproxy.proxy.request_batch import RequestBatch
from mcproxy.proxy.sessions import Sessions

log = Logger()

#: How long connections may take to send their last answer and close, after the last request (seconds).
_FLUSH = 2.0
#: How long a connection that was accepted last may take to send its first request, once the listeners are closed.
_UNUSED = 0.5
_FLUSH_STEP = 0.02

SAVE_TIMEOUT = 10.0
"""Seconds for saving the state of aggregates at a shutdown."""


class LiveListener:
    """One bound address: its socket, its connections, and the pipeline of new requests."""

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
        self.factory = ServerFactory(deadlines, config.limits, handle, refusal, name=config.name, random=random)
        clients = parts.client_table(str(config.bind))
        self.socket = Listener(reactor, self.factory, _settings(config, runtime), config.bind, parts.sockets, clients)

    def update(self, config: model.Listener, runtime: Runtime) -> None:
        """Apply a new configuration of the same address, from the next request and the next connection on.

        Connections keep their limits; those of a protocol that is no longer spoken end after their current requests.
        """
        self.config = config
        factory = self.factory
        factory.handle = runtime.pipelines[config.name].handle
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


@dataclass(frozen=True, slots=True)
class PreparedConfig:
    """A configuration that can come into force: its Runtime is built, its new addresses are bound."""

    config: model.Config
    runtime: Runtime
    opened: Mapping[str, LiveListener]
    """The new listeners by address; they do not accept yet."""
    unix_before: Sequence[tuple[LiveListener, model.UnixBind]]
    """The unix sockets whose mode or group is changed already, with what they had."""


class Service:
    """The proxy in one process."""

    def __init__(self, reactor: Any, *, parts: ProcessParts, request_logs: RequestLogs) -> None:
        self._reactor = reactor
        self._parts = parts
        self._deadlines = Deadlines(reactor)
        self._in_flight = InFlightRequests(reactor)
        shared = make_shared(reactor, self._deadlines, self._in_flight.endpoint_out, parts.health, parts.metrics)
        self._sessions = Sessions(reactor, self._in_flight.requests, shared.random)
        self._aggregates = parts.make_aggregates(reactor, shared)
        self._batch = RequestBatch(reactor, parts.batch_size)
        parts.metrics.read_at_flush(self._batch.flush)
        self._resources = ProcessResources(
            shared,
            self._in_flight,
            request_logs,
            parts.metrics,
            self._sessions,
            self._aggregates,
            parts.limit_tables,
            None if parts.admin is None else AdminParts(parts.admin, self.checks, body_sender(reactor), reactor),
            self._batch,
        )
        self._runtime: Runtime | None = None
        self._stopping = False
        self._rights_check = (
            RightsCheck(reactor) if parts.health is None else RightsCheckOfLeader(reactor, parts.health)
        )
        self._listeners: dict[str, LiveListener] = {}  # by address
        self._listener_counts = ListenerCounts(parts.metrics.counts)
        parts.metrics.read_at_flush(lambda: self._listener_counts.add(self._all_listeners()))
        self._retired: set[LiveListener] = set()

    @property
    def running(self) -> int:
        """Open requests, watches and tunnels."""
        return len(self._in_flight)

    @property
    def requests(self) -> Collection[Request]:
        """The requests in flight."""
        return self._in_flight.requests

    @property
    def figures(self) -> Figures:
        """What this process has and does now, for JSON (`daemon.figures`)."""
        runtime = self._runtime
        found: Figures = {
            "listeners": [of_listener(live) for live in self._all_listeners()],
            "clusters": [],
            "aggregates": self._aggregates.figures(),
            **of_shared_limits(self._parts.shared_limits),
            "process": {
                **of_process(self._parts.metrics.loop_lag()),
                "auditQueuedBytes": self._parts.metrics.audit_queue(),
            },
        }
        if runtime is not None:
            missing = self._rights_check.missing
            found |= {
                "servers": of_servers(runtime.servers, self._in_flight.requests),
                "clusters": of_clusters(runtime.clusters, missing, wall_seconds(self._reactor)),
                "flowControls": of_flow_controls(runtime.flow_controls),
                **of_reviews(runtime.identity.loads()),
            }
        return found

    def checks(self) -> Sequence[Check]:
        """Return the checks of /readyz that this process knows itself."""
        clusters = {} if self._runtime is None else self._runtime.clusters
        return checks_of(self._stopping, self._listeners.values(), clusters)

    def described_requests(self, process: str) -> dict[str, Any]:
        """Return the requests in flight for JSON: how many, and the oldest of them."""
        shown = described(self._in_flight.requests, self._reactor.seconds(), process)
        return {"total": len(self._in_flight), "requests": shown}

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight (`proxy.admin.in_flight.merged`)."""
        return merged([self.described_requests("mcproxy")])

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks of the caches, as `service_interface.Service` has it."""
        return self._aggregates.checks()

    async def count_running(self) -> int:
        """Return `running`, as `service_interface.Service` has it."""
        return self.running

    async def collect_figures(self) -> Figures:
        """Return `figures`, as `service_interface.Service` has it."""
        return self.figures

    @property
    def metrics(self) -> Metrics:
        """What was counted in this process."""
        return self._parts.metrics

    async def collect_metrics(self) -> Metrics:
        """Return `metrics`, as `service_interface.Service` has it."""
        return self.metrics

    @property
    def runtime(self) -> Runtime | None:
        """The Runtime in force."""
        return self._runtime

    @property
    def listeners(self) -> tuple[LiveListener, ...]:
        """The listeners in force, in the order of the configuration."""
        return tuple(self._listeners.values())

    async def start(self, config: model.Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """Build the Runtime, bind all listeners, await `ready`, then accept; raises with nothing left open."""
        prepared = await self.prepare(config)
        if ready is not None:
            try:
                await ready()
            except BaseException:
                self.discard(prepared)
                raise
        self.commit(prepared)

    async def apply(self, config: model.Config) -> None:
        """Apply `config`. Raises as `prepare`; nothing has changed then."""
        self.commit(await self.prepare(config))

    async def prepare(self, config: model.Config) -> PreparedConfig:
        """Make everything that `config` needs beside what is in force; `commit` or `discard` must follow.

        Raises BindError, DaemonError, CredentialError, PairError or OSError; nothing has changed then.
        """
        before = self._runtime
        if config.daemon.state_dir is not None:
            state_directory.prepare(config.daemon.state_dir)
        runtime = build(config, before, self._resources)
        try:
            return self._open_new(config, runtime)
        except Exception:
            runtime.discard(keep=before)
            raise

    def commit(self, prepared: PreparedConfig) -> None:
        """Put a prepared configuration in force, for new requests and connections."""
        before = self._runtime
        config, runtime = prepared.config, prepared.runtime
        self._runtime = runtime
        listeners: dict[str, LiveListener] = {}
        for listener in config.listeners:
            address = str(listener.bind)
            live = prepared.opened.get(address) or self._listeners[address]
            live.update(listener, runtime)
            listeners[address] = live
        for live in prepared.opened.values():
            live.socket.start_accepting()
        gone = [live for address, live in self._listeners.items() if address not in listeners]
        self._listeners = listeners
        runtime.activate()
        self._sessions.activate(runtime.servers)
        self._rights_check.start(runtime)
        if self._parts.health is not None:
            self._parts.health.configured(config)
        if self._parts.shared_limits is not None:
            self._parts.shared_limits.configured(config)
        if before is not None:
            before.discard(keep=runtime)
            self._retire(runtime, gone)

    def discard(self, prepared: PreparedConfig) -> None:
        """Undo `prepare`: close what it opened."""
        _undo(prepared.opened.values(), prepared.unix_before)
        prepared.runtime.discard(keep=self._runtime)

    def _open_new(self, config: model.Config, runtime: Runtime) -> PreparedConfig:
        """Open the listeners with a new address, and change the mode and group of unix sockets that stay.

        Raises with everything as it was before.
        """
        opened: dict[str, LiveListener] = {}
        changed: list[tuple[LiveListener, model.UnixBind]] = []
        stay = {str(listener.bind) for listener in config.listeners}
        try:
            for listener in config.listeners:
                bind, address = listener.bind, str(listener.bind)
                live = self._listeners.get(address)
                if live is None:
                    live = LiveListener(
                        self._reactor,
                        self._deadlines,
                        listener,
                        runtime,
                        self._parts,
                        self._resources.shared.random,
                    )
                    live.open([old for old in self._listeners.values() if _same_port(old, bind, stay)])
                    opened[address] = live
                elif isinstance(bind, model.UnixBind) and bind != (before := live.socket.bind):
                    assert isinstance(before, model.UnixBind)
                    live.socket.set_permissions(bind)
                    changed.append((live, before))
        except Exception:
            _undo(opened.values(), changed)
            raise
        return PreparedConfig(config, runtime, opened, changed)

    def _retire(self, after: Runtime, gone: list[LiveListener]) -> None:
        """End what the reload removed, within the drain timeout; everything else goes on without a limit."""
        for live in gone:
            live.close()
        self._retired.update(gone)
        removed = _Removed(after.config, {live.factory for live in gone}, self._listeners.values())
        requests = self._in_flight.select(removed)
        if requests or gone:
            ending = Deferred.fromCoroutine(self._end_removed(requests, gone, after.config.daemon.drain_timeout))
            ending.addErrback(
                lambda failure: log.failure(
                    "ending what a reload removed failed", event="internal_error", failure=failure
                )
            )

    async def _end_removed(self, requests: list[Request], gone: list[LiveListener], timeout: float) -> None:
        await self._in_flight.end_removed(requests, timeout)
        await self._flushed(gone)
        self._listener_counts.add(gone)
        for live in gone:
            live.abort()
            self._retired.discard(live)

    async def _flushed(self, listeners: Sequence[LiveListener]) -> None:
        """Wait until the connections have sent their last responses, which may be queued, and are closed."""
        until = self._reactor.seconds() + _FLUSH
        while any(live.socket.connections for live in listeners) and self._reactor.seconds() < until:
            await deferLater(self._reactor, _FLUSH_STEP)

    def begin_shutdown(self) -> None:
        """From now on, /readyz fails and responses ask clients to close kept connections; new ones are accepted."""
        self._stopping = True
        for live in self._all_listeners():
            live.factory.begin_drain()

    async def drain(self, timeout: float) -> None:
        """Wait for tunnels and followed logs to end, at most `timeout` seconds, then cut them; serve all else.

        Then the state of aggregates is saved, while watches still run: a daemon that takes over reads it at its start.
        """
        await self._in_flight.drain(timeout)
        await self.save()

    async def save(self) -> None:
        """Save the state of aggregates, within a fixed time."""
        saving = Deferred.fromCoroutine(self._aggregates.save())
        try:
            await saving.addTimeout(SAVE_TIMEOUT, self._reactor)
        except TimeoutError:
            log.warn(
                "the state of aggregates was not saved in time",
                event="state_not_saved",
                cause=f"it took more than {SAVE_TIMEOUT:g} s",
                todo="see that the disk of daemon.stateDir is fast enough; the last state saved is used",
            )

    def stop_accepting(self) -> None:
        """Close the listening sockets, and each connection after its request."""
        for live in self._all_listeners():
            live.close()

    async def close_listeners(self) -> None:
        """Do the same, as `service_interface.Service` has it."""
        self.stop_accepting()

    async def finish(self) -> None:
        """End watches, wait for short requests within fixed times, and close everything."""
        await self._in_flight.finish()
        await self._flushed(self._all_listeners())
        await self._leave_replicas()
        self.abort()

    async def _leave_replicas(self) -> None:
        if self._parts.shared_limits is not None:
            await self._parts.shared_limits.stop()

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force and their listening descriptors, which stay this process's."""
        return [(address, sock.fileno()) for address, live in self._listeners.items() for sock in live.socket.sockets]

    def restore_sockets(self) -> None:
        """Undo what another daemon that used these sockets too, and is gone, may have changed of them."""
        for live in self._listeners.values():
            live.socket.restore()

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        """End what is open, for another process that serves already; tunnels have `timeout` seconds. Close everything.

        The other process accepts from the listening sockets of the addresses `handed_over` (`str(bind)`): they are left
        to it with what is queued on them.
        """
        for address, live in self._listeners.items():
            live.close(handed_over=address in handed_over)
        await self._in_flight.retire(timeout)
        await self._flushed(self._all_listeners())
        while self._in_flight.requests:  # the connections that were accepted last have brought more
            await self._in_flight.retire(timeout)
            await self._flushed(self._all_listeners())
        await self._leave_replicas()
        self.abort()

    def abort(self) -> None:
        """End everything at once."""
        self._in_flight.cut_all()
        for live in self._all_listeners():
            live.abort()
        self._retired.clear()
        self._listeners = {}
        self._rights_check.stop()
        if self._parts.shared_limits is not None:
            self._parts.shared_limits.abort()
        self._aggregates.stop()
        self._batch.close()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.discard(keep=None)
        self._deadlines.stop()
        self._resources.shared.close()

    async def wait_aborted(self) -> None:
        """Nothing: `abort` has ended everything when it returns."""

    @property
    def cut(self) -> Mapping[str, int]:
        """The number of requests that were cut, by kind: tunnels, logs, watches, requests."""
        return {kind.value: self._in_flight.cut[kind] for kind in RequestKind if self._in_flight.cut[kind]}

    def _all_listeners(self) -> Sequence[LiveListener]:
        return (*self._listeners.values(), *self._retired)


def _is_harmless(listener: model.Listener) -> bool:
    """Whether everybody may see what a listener shows, in plain text."""
    is_admin = listener.serves is model.Serves.ADMIN
    return is_admin and listener.authentication is None and model.HARMLESS_PATHS.issuperset(listener.paths)


def _undo(opened: Iterable[LiveListener], changed: Iterable[tuple[LiveListener, model.UnixBind]]) -> None:
    """Close listeners, and give unix sockets the mode and group that they had."""
    for live in opened:
        live.abort()
    for live, before in changed:
        live.socket.set_permissions(before)


def _same_port(old: LiveListener, bind: model.Bind, stay: Collection[str]) -> bool:
    """Whether `old` is removed, and may block a listener on `bind`."""
    before = old.config.bind
    return (
        isinstance(before, model.TCPBind)
        and isinstance(bind, model.TCPBind)
        and before.port == bind.port != 0
        and str(before) not in stay
    )


class _Removed:
    """Whether a reload has removed what a request uses: its listener, server, cluster or endpoint.

    A cluster that its server no longer serves, and a server that its listener no longer has, count as removed.
    """

    def __init__(
        self, config: model.Config, gone: Collection[ServerFactory], listeners: Iterable[LiveListener]
    ) -> None:
        self._gone = gone
        self._listeners = {live.factory: live.config.name for live in listeners}
        self._servers = {server.name: server for server in config.servers}
        self._clusters = {server.name: {*server.clusters, *_diversions(server)} for server in config.servers}
        self._addresses = {
            (cluster.name, endpoint.url) for cluster in config.clusters for endpoint in cluster.endpoints
        }

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
    return server.backend.aggregate if isinstance(server.backend, model.AggregateBackend) else ""


def _diversions(server: model.Server) -> Iterator[str]:
    """Yield the clusters to which policies of `server` send requests."""
    for policy in server.dispatch or ():
        if policy.backend is not None:
            yield policy.backend.cluster


def _settings(config: model.Listener, runtime: Runtime) -> ListenerSettings:
    return ListenerSettings(
        name=config.name,
        certificates=runtime.certificates[config.name],
        limits=config.limits,
        proxy_protocol_from=config.proxy_protocol_from,
    )
