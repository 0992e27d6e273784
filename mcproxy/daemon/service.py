"""The proxy in one process: puts configurations in force, and ends requests at reloads and shutdowns.

start -> apply* -> begin_shutdown -> drain -> stop_accepting -> finish        abort: at any time
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger

from mcproxy.aggregate.writes.held_bodies import BodyBuffers
from mcproxy.config import model
from mcproxy.daemon import process_setup
from mcproxy.daemon.lazy_parts import LazyIngresses, LazyMemberCaches
from mcproxy.daemon.listeners import (
    Listeners,
    LiveListener,
    PreparedListeners,
    RemovedByReload,
    removed_ingress_requests,
)
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.rights_check import RightsCheck, RightsCheckOfLeader
from mcproxy.daemon.role_templates import RoleTemplates
from mcproxy.daemon.runtime import ProcessResources, RequestLogOpener, Runtime, build, make_upstream_context
from mcproxy.daemon.service_report import ServiceReport
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.admin_source import body_sender
from mcproxy.http.deadlines import Deadlines
from mcproxy.kube.healthz import Check
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.proxy import review_api
from mcproxy.proxy.admin.admin_interface import AdminSource
from mcproxy.proxy.admin.admin_pipeline import AdminParts
from mcproxy.proxy.admin.request_list import merged
from mcproxy.proxy.api_requests import APIRequestsInFlight
from mcproxy.proxy.request import Request
from mcproxy.proxy.request_records import RequestReporter
from mcproxy.proxy.sessions import Sessions
from mcproxy.requests.batch import RequestBatch
from mcproxy.requests.coroutines import gather
from mcproxy.requests.in_flight import RequestKind
from mcproxy.tunnels.hub import TunnelHub

if TYPE_CHECKING:
    from mcproxy.services.ingress.ingress_request import IngressRequest
    from mcproxy.upstream.cluster import Cluster

log = Logger(__name__)

_OWNER_SPREAD = 1.5
"""Seconds over which a reload spreads the ends of watches on a group-version whose owner it changes."""
_LEAVE = 3.0
"""Limit of the time to free the Leases of clusters (seconds)."""
SAVE_TIMEOUT = 10.0
"""Limit of the time to save the state of aggregates at a shutdown (seconds)."""


@dataclass(frozen=True, slots=True)
class PreparedConfig:
    """A configuration that can come into force, with a complete Runtime and its new addresses bound."""

    config: model.Config
    runtime: Runtime
    listeners: PreparedListeners


class SingleProcessService:
    """The proxy in one process."""

    def __init__(self, reactor: Any, *, parts: ProcessParts, request_logs: RequestLogOpener) -> None:
        self._reactor = reactor
        self._parts = parts
        self._deadlines = Deadlines(reactor)
        self._in_flight = APIRequestsInFlight(reactor)
        self._tunnels = TunnelHub(reactor, self._deadlines, parts.metrics, parts.process, parts.other_tunnels)
        shared = make_upstream_context(
            reactor, self._deadlines, self._in_flight.endpoint_out, parts.health, parts.metrics, self._tunnels
        )
        self._sessions = Sessions(reactor, self._in_flight.requests, shared.random)
        self._caches = LazyMemberCaches(reactor, shared)
        self._aggregates = parts.make_aggregates(reactor, shared, self._caches)
        self._services = parts.make_services(shared, self._caches)
        self._availability = parts.make_availability(shared)
        self._aggregates.follow_availability(self._availability.known)
        self._batch = RequestBatch(reactor, RequestReporter(), parts.batch_size)
        parts.metrics.read_at_flush(self._batch.flush)
        self._ingresses = LazyIngresses(
            shared,
            self._deadlines,
            parts.metrics,
            self._services.endpoints,
            cluster=self._cluster,
            batch_size=parts.batch_size,
            secret=parts.secret,
        )
        self._resources = ProcessResources(
            shared,
            self._in_flight,
            request_logs,
            parts.metrics,
            self._sessions,
            self._aggregates,
            self._availability,
            parts.limit_tables,
            None if parts.admin is None else self._admin_parts(parts.admin),
            self._batch,
            BodyBuffers(reactor, review_api.TOTAL, review_api.SHARE),
            self._ingresses,
            self._services,
            self._tunnels,
        )
        self._runtime: Runtime | None = None
        self._stopping = False
        self._rights_check = (
            RightsCheck(reactor) if parts.health is None else RightsCheckOfLeader(reactor, parts.health)
        )
        self._listeners = Listeners(reactor, self._deadlines, parts, shared)
        self._report = ServiceReport(
            reactor,
            parts,
            runtime=lambda: self._runtime,
            listeners=self._listeners,
            in_flight=self._in_flight,
            ingresses=self._ingresses,
            aggregates=self._aggregates,
            services=self._services,
            availability=self._availability,
            rights_check=self._rights_check,
            tunnels=self._tunnels,
        )

    def _admin_parts(self, source: AdminSource) -> AdminParts:
        templates = RoleTemplates(lambda: self._runtime, self._reactor)
        return AdminParts(source, self.checks, body_sender(self._reactor), self._reactor, templates.text)

    @property
    def running(self) -> int:
        """Open requests, watches and tunnels."""
        return len(self._in_flight) + len(self._ingresses.in_flight)

    @property
    def requests(self) -> Collection[Request]:
        """The requests in flight."""
        return self._in_flight.requests

    @property
    def figures(self) -> Figures:
        """The figures of this process, for JSON (`daemon.status`)."""
        return self._report.figures()

    def checks(self) -> Sequence[Check]:
        """Return the checks of /readyz that this process makes itself."""
        return self._report.checks(stopping=self._stopping)

    def described_requests(self, process: str) -> dict[str, Any]:
        """Return the number of requests in flight, and the oldest of them, for JSON."""
        return self._report.requests(process)

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight (`proxy.admin.request_list.merged`)."""
        return merged([self.described_requests("mcproxy")])

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks of the caches, for the interface `dependencies.DaemonService`."""
        return self._report.cache_checks()

    async def count_running(self) -> int:
        """Return `running`, for the interface `dependencies.DaemonService`."""
        return self.running

    async def collect_figures(self) -> Figures:
        """Return `figures`, for the interface `dependencies.DaemonService`."""
        return self.figures

    @property
    def tunnels(self) -> TunnelHub:
        """The tunnels that edges have opened, and their use by this process."""
        return self._tunnels

    @property
    def metrics(self) -> Metrics:
        """The metrics of this process."""
        return self._parts.metrics

    async def collect_metrics(self) -> Metrics:
        """Return `metrics`, for the interface `dependencies.DaemonService`."""
        return self.metrics

    @property
    def runtime(self) -> Runtime | None:
        """The Runtime in force."""
        return self._runtime

    @property
    def listeners(self) -> tuple[LiveListener, ...]:
        """The listeners in force, in the order of the configuration."""
        return tuple(self._listeners.in_force.values())

    async def start(self, config: model.Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """Build the Runtime, bind all listeners, await `ready`, then accept. If it raises, nothing remains open."""
        prepared = await self.prepare(config)
        if ready is not None:
            try:
                await ready()
            except BaseException:
                self.discard(prepared)
                raise
        self.commit(prepared)

    async def apply(self, config: model.Config) -> None:
        """Apply `config`. If it raises, as `prepare` does, nothing has changed."""
        self.commit(await self.prepare(config))

    async def prepare(self, config: model.Config) -> PreparedConfig:
        """Create all objects of `config` while the old ones stay in force; `commit` or `discard` must follow.

        If it raises BindError, DaemonError, CredentialError, PairError or OSError, nothing has changed.
        """
        before = self._runtime
        if config.daemon.state_dir is not None:
            process_setup.prepare_state_directory(config.daemon.state_dir)
        runtime = build(config, before, self._resources)
        try:
            return PreparedConfig(config, runtime, self._listeners.prepare(config, runtime))
        except Exception:
            runtime.discard(keep=before)
            raise

    def commit(self, prepared: PreparedConfig) -> None:
        """Put a prepared configuration in force, for new requests and connections."""
        before = self._runtime
        config, runtime = prepared.config, prepared.runtime
        self._runtime = runtime
        removed = self._listeners.commit(prepared.listeners, config, runtime)
        runtime.activate()
        self._sessions.activate(runtime.servers)
        self._tunnels.configure(config.tunnels)  # must follow the sessions, by whose servers it authenticates edges
        self._rights_check.start(runtime)
        if self._parts.health is not None:
            self._parts.health.configured(config)
        if self._parts.shared_limits is not None:
            self._parts.shared_limits.configured(config)
        if before is not None:
            before.discard(keep=runtime)
            self._end_removed(runtime, removed)

    def discard(self, prepared: PreparedConfig) -> None:
        """Undo `prepare`: close the objects that it opened."""
        prepared.listeners.undo()
        prepared.runtime.discard(keep=self._runtime)

    def _end_removed(self, after: Runtime, removed: list[LiveListener]) -> None:
        """End requests that use removed objects, within the drain timeout. Other requests continue without a limit."""
        self._listeners.remove(removed)
        factories = {live.factory for live in removed}
        if factories:
            self._tunnels.drain(factories)
        uses_removed = RemovedByReload(after.config, factories, self._listeners.in_force.values())
        requests = self._in_flight.select(uses_removed)
        timeout = after.config.daemon.drain_timeout
        of_ingresses = removed_ingress_requests(self._ingresses.in_flight.requests, after.config, factories)
        if requests or of_ingresses or removed:
            _in_background(self._end_requests(requests, of_ingresses, removed, timeout))
        moved = [each for each in self._in_flight.select(uses_removed.changed_owner) if each not in requests]
        if moved:
            _in_background(self._in_flight.end_removed(moved, timeout, spread=_OWNER_SPREAD))

    async def _end_requests(
        self,
        requests: list[Request],
        of_ingresses: list[IngressRequest],
        removed: list[LiveListener],
        timeout: float,
    ) -> None:
        await gather(
            [
                self._in_flight.end_removed(requests, timeout),
                self._ingresses.in_flight.end_removed(of_ingresses, timeout),
            ]
        )
        await self._listeners.flushed(removed)
        self._listeners.forget(removed)

    def begin_shutdown(self) -> None:
        """Fail /readyz, and close keep-alive connections after their next response. Still accept new connections."""
        self._stopping = True
        self._tunnels.drain()
        self._listeners.begin_drain()

    async def drain(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for tunnels and followed logs to end, then cut them. Serve all other requests.

        Then save the state of aggregates for a daemon that takes over, while watches still run.
        """
        await gather([self._in_flight.drain(timeout), self._ingresses.in_flight.drain(timeout)])
        await self.save()

    async def save(self) -> None:
        """Save the state of aggregates and caches, within a fixed time."""
        saving = Deferred.fromCoroutine(self._caches.save())
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
        self._listeners.close()

    async def close_listeners(self) -> None:
        """Do the same as `stop_accepting`, for the interface `dependencies.DaemonService`."""
        self.stop_accepting()

    async def finish(self) -> None:
        """End watches and wait for short requests, each step for a fixed time. Then close everything."""
        await self._leave_clusters()
        await gather([self._in_flight.finish(), self._ingresses.in_flight.finish()])
        self._tunnels.close()
        await self._listeners.flushed()
        await self._leave_replicas()
        self.abort()

    async def _leave_clusters(self) -> None:
        """Free the Leases, so that other replicas write exported services. Takes at most a few seconds."""
        leaving = Deferred.fromCoroutine(self._services.leave())
        try:
            await leaving.addTimeout(_LEAVE, self._reactor)
        except TimeoutError:
            pass  # nothing is lost: a Lease that is not freed expires

    async def _leave_replicas(self) -> None:
        if self._parts.shared_limits is not None:
            await self._parts.shared_limits.stop()

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force and their listening descriptors, which this process keeps."""
        return self._listeners.listening

    def restore_sockets(self) -> None:
        """Undo changes of the sockets by another daemon that shared them and has ended."""
        self._listeners.restore_sockets()

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        """End open requests and close everything after another process has taken over; tunnels have `timeout` seconds.

        The other process accepts from the listening sockets of the addresses `handed_over` (`str(bind)`), including
        their queued connections.
        """
        self._listeners.hand_over(handed_over)
        self._tunnels.drain()
        await self._leave_clusters()
        await self._retire_requests(timeout)
        while self.running:  # the newest connections can have sent further requests meanwhile
            await self._retire_requests(timeout)
        self._tunnels.close()
        await self._leave_replicas()
        self.abort()

    async def _retire_requests(self, timeout: float) -> None:
        await gather([self._in_flight.retire(timeout), self._ingresses.in_flight.retire(timeout)])
        await self._listeners.flushed()

    def abort(self) -> None:
        """End everything at once."""
        self._in_flight.cut_all()
        self._ingresses.in_flight.cut_all()
        self._tunnels.close()
        self._listeners.abort()
        self._rights_check.stop()
        if self._parts.shared_limits is not None:
            self._parts.shared_limits.abort()
        self._services.stop()
        self._aggregates.stop()
        self._caches.stop()
        self._availability.stop()
        self._batch.close()
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            runtime.discard(keep=None)
        self._ingresses.stop()
        self._deadlines.stop()
        self._resources.shared.close()

    async def wait_aborted(self) -> None:
        """Do nothing: `abort` has ended everything when it returns."""

    @property
    def cut(self) -> Mapping[str, int]:
        """The number of cut requests by kind: tunnels, logs, watches, requests."""
        cut = self._in_flight.cut + self._ingresses.in_flight.cut
        return {kind.value: cut[kind] for kind in RequestKind if cut[kind]}

    def _cluster(self, name: str) -> Cluster | None:
        """Return a cluster of the configuration in force."""
        return None if self._runtime is None else self._runtime.clusters.get(name)


def _in_background(work: Coroutine[Deferred[Any], Any, None]) -> None:
    Deferred.fromCoroutine(work).addErrback(
        lambda failure: log.failure("ending what a reload removed failed", event="internal_error", failure=failure)
    )
