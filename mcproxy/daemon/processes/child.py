"""A child of the supervisor, a worker or the keeper: `python -m mcproxy.daemon.processes NAME DESCRIPTOR`.

It runs a `SingleProcessService`, as a daemon of one process does. The supervisor drives it over the channel:

    start -> prepare -> commit -> (prepare -> commit | discard)* -> begin_shutdown -> drain -> stop_accepting -> finish
                                                                    retire: another process now serves its sockets

It ignores signals to the whole process group; at SIGTERM it requests a successor from the supervisor. When the
supervisor dies, the child closes its listening sockets, cuts tunnels, answers short requests, and ends within a few
seconds.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy import __version__
from mcproxy.config import model
from mcproxy.config.model import Logging
from mcproxy.daemon import process_setup
from mcproxy.daemon.channel import Channel, ChannelMessage, Fields
from mcproxy.daemon.daemon_log import SUMMARY_INTERVAL, LineObserver, start_logging
from mcproxy.daemon.interpreter import GROUP_SIGNALS
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.processes.admin_relay import ChannelAdmin
from mcproxy.daemon.processes.children import Role, config_from_memory
from mcproxy.daemon.processes.common_log import CommonLog
from mcproxy.daemon.processes.health import ChannelHealth
from mcproxy.daemon.processes.keeper_links import Keeper, WorkerAggregates, keeper_config
from mcproxy.daemon.processes.keeper_reports import (
    KeeperAvailability,
    KeeperServices,
    WorkerAvailability,
    WorkerServices,
)
from mcproxy.daemon.processes.socket_table import InheritedSockets
from mcproxy.daemon.processes.tunnels import ChannelTunnels, process_name
from mcproxy.daemon.service import PreparedConfig, SingleProcessService
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.net.client_table import ClientTableOfProcess
from mcproxy.net.listen import Listener
from mcproxy.net.reactor import install
from mcproxy.observe.request_logs import RequestLogs

log = Logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The properties of a child, from the message `start`."""

    reactor: Any
    channel: Channel
    observer: LineObserver
    sockets: InheritedSockets
    descriptors: Mapping[str, int]
    """The descriptors by name, as the supervisor passes them. The child owns each of them."""
    role: str
    name: str
    index: int
    column: int
    """The child's column of shared memory."""
    secret: bytes
    """A random key, the same in all children of a supervisor."""
    tunnels: ChannelTunnels


def make_parts(start: Start) -> ProcessParts:
    """Return the parts of the process, and register the handlers of their messages with the channel."""
    start.observer.divert = CommonLog(start.channel).divert
    health = ChannelHealth(start.channel, start.reactor)
    start.channel.on("lead", lambda message: health.lead(message["leads"]))
    tables = LimitTables.of_process(start.descriptors, start.column, start.reactor)
    if start.role == Role.KEEPER:
        return ProcessParts(
            sockets=start.sockets,
            make_services=lambda shared, caches: KeeperServices(shared, caches, start.channel),
            make_availability=lambda shared: KeeperAvailability(shared, start.channel),
            health=health,
            limit_tables=tables,
            process=process_name(start.name, os.getpid()),
            other_tunnels=start.tunnels,
        )
    return ProcessParts(
        sockets=start.sockets,
        make_aggregates=WorkerAggregates.maker(start.channel),
        make_services=lambda shared, caches: WorkerServices(start.channel),
        make_availability=lambda shared: WorkerAvailability(shared, start.channel),
        health=health,
        limit_tables=tables,
        admin=ChannelAdmin(start.channel),
        client_table=lambda address: ClientTableOfProcess(tables.connections(address)),
        secret=start.secret,
        process=process_name(start.name, os.getpid()),
        other_tunnels=start.tunnels,
    )


def config_of_process(config: model.Config, index: int | None, workers: int) -> model.Config:
    """Return `config` with one process's share of each cluster's `connections.maxConnections`.

    `index` is the index of a worker, from 0. None means the keeper, which has a share if there are aggregates. The
    shares add up to the limit, except that each process can have at least one connection.
    """
    aggregates = any(server.merges_documents for server in config.servers)
    processes = workers + aggregates
    position = workers if index is None else index
    clusters = tuple(
        replace(
            cluster,
            connections=replace(
                cluster.connections, max_connections=share(cluster.connections.max_connections, position, processes)
            ),
        )
        if cluster.connections.max_connections
        else cluster
        for cluster in config.clusters
    )
    return replace(config, clusters=clusters)


def share(limit: int, position: int, processes: int) -> int:
    """Return one process's share of `limit`, at least 1; the first processes get the remainder."""
    return max(1, limit // processes + (position < limit % processes))


class ChildProcess:
    """One process, from its start to its end."""

    def __init__(self, reactor: Any, channel: Channel, observer: LineObserver, name: str) -> None:
        self._reactor = reactor
        self._channel = channel
        self._observer = observer
        self._request_logs = RequestLogs(reactor, name, os.environ)
        self._sockets = InheritedSockets()
        self._service: SingleProcessService | None = None
        self._prepared: PreparedConfig | None = None
        self._keeper: Keeper | None = None
        self._index: int | None = None  # index of a worker; None in the keeper
        self._name = name
        self._accepting = True
        self._finishing = False  # the process finishes its requests and then ends
        self._ending = False
        handlers = {
            "start": self._start,
            "ping": self._ping,
            "count": lambda message: self._send_counts(),
            "prepare": self._prepare,
            "commit": self._commit,
            "discard": self._discard,
            "use_sockets": self._use_sockets,
            "figures": self._figures,
            "requests": self._requests,
            "checks": self._checks,
            "reopen_logs": self._reopen_logs,
            "save": lambda message: self.service.save(),
            "begin_shutdown": lambda message: self.service.begin_shutdown(),
            "drain": lambda message: self.service.drain(message["seconds"]),
            "stop_accepting": lambda message: self._stop_accepting(),
            "finish": self._finish,
            "retire": self._retire,
            "abort": self._abort,
        }
        for kind, handler in handlers.items():
            channel.on(kind, handler)
        self._tunnels = ChannelTunnels(channel, reactor)
        channel.when_lost().addCallback(lambda _: self._supervisor_lost())

    @property
    def _cut(self) -> dict[str, int]:
        """The number of cut requests by kind. Workers also count requests that they relay to the keeper."""
        return {} if self._service is None or self._keeper is not None else dict(self._service.cut)

    @property
    def service(self) -> SingleProcessService:
        """The proxy. Raises AssertionError before `start`."""
        assert self._service is not None, "not started"
        return self._service

    # -- messages of the supervisor ---------------------------------------------------------------------------------

    def _start(self, message: ChannelMessage) -> Fields:
        start = Start(
            reactor=self._reactor,
            channel=self._channel,
            observer=self._observer,
            sockets=self._sockets,
            descriptors=dict(zip(message["descriptors"], message.fds, strict=True)),
            role=message["role"],
            name=message["name"],
            index=message["index"],
            column=message["column"],
            secret=bytes.fromhex(message["secret"]),
            tunnels=self._tunnels,
        )
        self._observer.configure(Logging(level=message["level"], format=message["format"]))
        self._index = start.index if start.role == Role.WORKER else None
        parts = make_parts(start)
        parts.metrics.measure_loop(start.name, self._reactor)
        self._request_logs.count_into(parts.metrics)
        self._service = SingleProcessService(self._reactor, parts=parts, request_logs=self._request_logs)
        self._tunnels.attach(self._service.tunnels)
        if start.role == Role.KEEPER:
            self._keeper = Keeper(self._reactor, self._channel, self._service)
        return {"version": __version__}

    def _ping(self, message: ChannelMessage) -> Fields:
        self._send_counts()
        return {"open": 0 if self._service is None else self._service.running}

    def _send_counts(self) -> None:
        """Send the supervisor the counts since the previous report."""
        if self._service is not None:
            while counted := self._service.metrics.take():
                self._channel.tell("counted", changes=counted)

    async def _prepare(self, message: ChannelMessage) -> None:
        config_file, *sockets = message.fds
        self._sockets.prepare(zip(message["addresses"], sockets, strict=True))
        try:
            config = config_of_process(config_from_memory(config_file), self._index, message["workers"])
            if self._keeper is not None:
                config = keeper_config(config)
            elif message["retiring"]:  # a retiring process keeps its addresses
                here = {live.config.address for live in self.service.listeners}
                config = replace(config, listeners=tuple(each for each in config.listeners if each.address in here))
            self._prepared = await self.service.prepare(config)
        except BaseException:  # the supervisor sends no `discard` to a child that failed to prepare
            self._sockets.discard()
            raise

    def _commit(self, message: ChannelMessage) -> None:
        prepared, self._prepared = self._prepared, None
        assert prepared is not None, "nothing is prepared"
        self.service.commit(prepared)
        if self._keeper is not None:
            self._keeper.serve()
        self._sockets.commit(live.socket for live in self.service.listeners if isinstance(live.socket, Listener))
        self._observer.configure(prepared.config.logging)

    def _use_sockets(self, message: ChannelMessage) -> None:
        """Replace the sockets of the addresses in force. They can include those of a worker that is not running."""
        self._sockets.prepare(zip(message["addresses"], message.fds, strict=True))
        self._sockets.commit(live.socket for live in self.service.listeners if isinstance(live.socket, Listener))

    def _discard(self, message: ChannelMessage) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self.service.discard(prepared)
        self._sockets.discard()

    def _figures(self, message: ChannelMessage) -> Fields:
        return {"open": self.service.running, **self.service.figures}

    async def _checks(self, message: ChannelMessage) -> Fields:
        return {"checks": [list(check) for check in await self.service.collect_checks()]}

    def _requests(self, message: ChannelMessage) -> Fields:
        return self.service.described_requests(self._name)

    async def _reopen_logs(self, message: ChannelMessage) -> None:
        await self._request_logs.reopen()

    async def _finish(self, message: ChannelMessage) -> Fields:
        self._finishing = True
        await self.service.finish()
        await self._close_keeper()
        self._send_counts()
        self.end()
        return {"cut": self._cut}

    async def _retire(self, message: ChannelMessage) -> Fields:
        self._finishing = True
        runtime = self.service.runtime
        if runtime is None:
            self.end(at_once=True)
            return {"cut": {}}
        addresses = message["addresses"]
        if addresses is None:
            addresses = [address for address, _ in self.service.listening]
        await self.service.retire(runtime.config.daemon.drain_timeout, handed_over=addresses)
        await self._close_keeper()
        self._send_counts()
        self.end()
        return {"cut": self._cut}

    def _abort(self, message: ChannelMessage) -> Fields:
        self.end(at_once=True)
        return {"cut": self._cut}

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            self.service.stop_accepting()

    async def _close_keeper(self) -> None:
        if self._keeper is not None:
            await self._keeper.close()

    # -- the end of the process -------------------------------------------------------------------------------------

    def terminate(self) -> None:
        """SIGTERM: request a successor, and end when it takes over. Without a supervisor, end at once."""
        if self._channel.lost or self._service is None or self._service.runtime is None:
            self.end(at_once=True)
        else:
            self._channel.tell("leaving")

    def _supervisor_lost(self) -> None:
        if self._ending or self._finishing:
            return
        if self._service is None or self._service.runtime is None:
            self.end(at_once=True)
            return
        self._discard(ChannelMessage("discard", {}))
        log.error(
            "the supervisor died; this process ends",
            event="supervisor_died",
            open=self._service.running,
            todo="start mcproxy again",
        )
        Deferred.fromCoroutine(self._end_alone(self._service)).addErrback(self._end_failed)

    async def _end_alone(self, service: SingleProcessService) -> None:
        """Shut down without the supervisor, within a few seconds. The keeper waits until no worker needs it."""
        service.begin_shutdown()
        self._stop_accepting()
        if self._keeper is not None:
            await self._keeper.unlinked()
        await service.drain(0.0)
        await service.finish()
        log.info(
            "process has stopped",
            event="process_stopped",
            cut=sum(self._cut.values()),
            **{f"cut{kind.title()}": number for kind, number in self._cut.items()},
        )
        self.end()

    def _end_failed(self, failure: Failure) -> None:
        log.failure("ending without a supervisor failed", event="internal_error", failure=failure)
        self.end(at_once=True)

    def end(self, *, at_once: bool = False) -> None:
        """End the process; with `at_once`, cut its requests."""
        if self._ending:
            return
        self._ending = True
        if at_once and self._service is not None:
            self._service.abort()
        self._request_logs.close()
        self._observer.write_summaries(now=True)
        self._reactor.callLater(0, self._reactor.stop)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing. Exec plugins would inherit SIG_IGN and ignore the signal, too; they do not inherit this handler."""


def main(arguments: Sequence[str]) -> int:
    """Run a child until it ends, and return its exit status. The garbage collector is off until it is started."""
    name, descriptor = arguments[0], int(arguments[1])
    for number in GROUP_SIGNALS:
        signal.signal(number, _ignore)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    process_setup.set_collector_thresholds()
    observer = start_logging(Logging(), name)
    reactor = install()
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    process = ChildProcess(reactor, Channel(reactor, end), observer, name)

    def started() -> None:
        # Signal handlers are set only here, because the reactor installs its own handlers at its start.
        def handler(number: int, frame: FrameType | None) -> None:
            reactor.callFromThread(process.terminate)

        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGINT, _ignore)

    reactor.callWhenRunning(started)
    summaries = LoopingCall(observer.write_summaries)
    summaries.clock = reactor
    summaries.start(SUMMARY_INTERVAL, now=False)
    gc.freeze()  # imported objects live as long as the process
    gc.enable()
    reactor.run()
    return 0
