"""A worker and a keeper in the test's process, each a Service, with a real socket pair between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from mcproxy.config import model
from mcproxy.daemon.channel import socket_pair
from mcproxy.daemon.process_parts import AggregatesOwner, ProcessParts
from mcproxy.daemon.processes.keeper_links import WorkerAggregates, connect_link, keeper_config
from mcproxy.daemon.service import SingleProcessService
from mcproxy.proxy.keeper.keeper_server import KeeperServer
from tests.proxy.harness import Harness


class KeeperHarness(Harness):
    """The harness of a worker; its aggregates are answered by a keeper."""

    watch_end = "cancelled"

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        aggregates = WorkerAggregates(reactor)
        self.client_of_keeper = aggregates.client
        super().use_aggregates(aggregates)
        self._owner: AggregatesOwner | None = None
        self._configuration: model.Config | None = None
        self.keeper: SingleProcessService
        self.server: KeeperServer
        self.closing(self._end_keeper)
        self.start_keeper()

    def start_keeper(self) -> None:
        """Start a keeper, which has no configuration until `serve`, and connect the worker with it."""
        self.keeper = SingleProcessService(
            self.reactor, parts=ProcessParts(batch_size=1), request_logs=self.request_logs
        )
        if self._owner is not None:
            self.use_aggregates(self._owner)
        self.server = KeeperServer(self.reactor, cast(Any, self.keeper.requests))
        ours, theirs = socket_pair()
        connect_link(self.reactor, ours, self.client_of_keeper.link())
        connect_link(self.reactor, theirs, self.server.link())

    def kill_keeper(self) -> None:
        """End the keeper as the kernel ends a process that is killed: its end of the connection is closed."""
        for link in list(self.server._links):
            link.transport.abortConnection()
        self.keeper.abort()

    def _end_keeper(self) -> None:
        self.client_of_keeper.close()
        self.server.close()
        self.keeper.abort()

    def use_aggregates(self, owner: AggregatesOwner) -> None:
        self._owner = owner
        keeper = self.keeper
        keeper._resources = replace(keeper._resources, aggregates=owner)

    async def serve(self, configuration: model.Config) -> None:
        self._configuration = configuration
        await self.serve_keeper()
        await super().serve(configuration)

    async def serve_keeper(self) -> None:
        """Give the keeper the configuration of the worker."""
        assert self._configuration is not None
        await self.keeper.apply(keeper_config(self._configuration))
        self.server.serve(lambda: {} if self.keeper.runtime is None else self.keeper.runtime.servers)
