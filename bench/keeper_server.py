"""Serves an aggregate over TLS for `bench keeper`: in one process, or with its caches in a keeper and TLS in a worker.

The HTTP engine, the pipeline, the relay and the answering parts are those of the daemon; the stores are fed directly.

usage: python -P keeper_server.py one|keeper watches|lists PORT CERTIFICATE KEY COUNT RATE SECONDS

`keeper`: this process is the keeper, and starts the worker. COUNT is the number of watchers, or of pods in the list;
RATE and SECONDS are those of the changes. With `watches` it prints one line of JSON when these have been made.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from mcproxy.net import reactor as lean_reactor

_WORKER = "worker"
NAMES = ("east", "west")


class Fleet:
    """The owner of aggregates of the process that has them (`daemon.process_parts.AggregatesOfProcess`)."""

    def __init__(self, answer: Callable[[Any], Awaitable[None]]) -> None:
        self.handle = answer

    @property
    def handlers(self) -> Mapping[str, Any]:
        return {"fleet": self}

    def prepare(self, *_: Any) -> Fleet:
        return self

    def stale_reviewers(self, server: str, aggregate: str, reviewers: Any) -> Any:
        return reviewers

    def follow_availability(self, known: Any) -> None:
        """No server has API services."""

    def activate(self) -> None:
        """The stores are fed elsewhere."""

    async def save(self) -> None:
        """Nothing is saved."""

    def stop(self) -> None:
        """Nothing is to be ended."""


def configuration(port: int, certificate: str, key: str) -> Any:
    """Return the configuration of the server: TLS, and an aggregate that everybody may read."""
    from mcproxy.config import model

    def member(name: str) -> model.ClusterConfig:
        endpoint = model.EndpointConfig(name="a", scheme="http", host="127.0.0.1", port=9)
        return model.ClusterConfig(name=name, endpoints=(endpoint,), identity=model.UpstreamIdentity.PROXY)

    return model.Config(
        listeners=(
            model.ListenerConfig(
                name="public",
                bind=model.TCPBind("127.0.0.1", port),
                tls=model.ListenerTLS(certificates=("bench",)),
                limits=model.Limits(connections_per_client=0),
            ),
        ),
        certificates=(
            model.Certificate(
                name="bench",
                chain=model.PEMFile(certificate, Path(certificate).read_bytes()),
                key=model.PEMFile(key, Path(key).read_bytes()),
                server_names=("localhost",),
            ),
        ),
        clusters=tuple(member(name) for name in NAMES),
        servers=(
            model.Server(
                name="fleet", listeners=("public",), default=True, backend=model.AggregateBackendConfig("fleet", NAMES)
            ),
        ),
    )


def service(reactor: Any, make_aggregates: Callable[..., Any]) -> Any:
    """Return the Service of a process, without an access log."""
    from mcproxy.daemon.process_parts import ProcessParts
    from mcproxy.daemon.service import SingleProcessService
    from mcproxy.observe.request_logs import RequestLogs

    return SingleProcessService(
        reactor, parts=ProcessParts(make_aggregates=make_aggregates), request_logs=RequestLogs(reactor)
    )


def watches(reactor: Any, watchers: int, rate: int, seconds: float) -> Callable[[Any], Awaitable[None]]:
    """Return what answers watches, and begins to make changes when all are there."""
    from bench.watch_server import Run

    run = Run(reactor, watchers, rate, seconds)

    class Reads:
        recheck_after = 30.0

        async def allowed(self, request: object, members: Sequence[str], verb: str, info: object) -> Any:
            return tuple(members), ()

        async def again(self, request: object, members: Sequence[str], info: object) -> Any:
            return tuple(members), ()

    async def answer(request: Any) -> None:
        await run.watches.serve(request, run.view, cast(Any, Reads()))
        run.watch_begun()

    return answer


def lists(reactor: Any, count: int) -> Callable[[Any], Awaitable[None]]:
    """Return what answers lists of `count` pods."""
    from twisted.internet.threads import deferToThreadPool

    from bench.list_server import filled, view
    from mcproxy.aggregate.freshness import Freshness, FreshnessWaiter
    from mcproxy.aggregate.reads.reads import Reads

    half = count // 2
    of = view([filled(reactor, "east", 0, half), filled(reactor, "west", half, count - half)])

    async def probe(store: Any, timeout: float) -> int:
        version: int = store.version
        return version

    def in_thread(function: Callable[[bytes], bytes], data: bytes) -> Any:
        return deferToThreadPool(reactor, reactor.getThreadPool(), function, data)

    reads = Reads(reactor, FreshnessWaiter(reactor, cast(Any, probe), Freshness()), in_thread)

    async def answer(request: Any) -> None:
        await reads.list(request, of, NAMES)

    return answer


def start_keeper(reactor: Any, config: Any, fleet: Fleet, arguments: Sequence[str]) -> Any:
    """Be the keeper, and start the worker. Returns what must be kept."""
    from mcproxy.daemon.processes.keeper_links import connect_link, keeper_config
    from mcproxy.proxy.keeper.keeper_server import KeeperServer

    keeper = service(reactor, lambda *_: fleet)
    server = KeeperServer(reactor, keeper.requests)
    ours, theirs = socket.socketpair()
    connect_link(reactor, ours, server.link())
    argv = [sys.executable, "-P", __file__, _WORKER, str(theirs.fileno()), *arguments]
    process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
    theirs.close()
    applied = keeper.apply(keeper_config(config))
    server.serve(lambda: keeper.runtime.servers)
    return applied, process


def worker(descriptor: str, port: str, certificate: str, key: str) -> None:
    """Be the worker: the other end of its connection to the keeper is an open descriptor."""
    reactor: Any = lean_reactor.install()
    from mcproxy.daemon.processes.keeper_links import WorkerAggregates, connect_link

    aggregates = WorkerAggregates(reactor)
    connect_link(reactor, socket.socket(fileno=int(descriptor)), aggregates.client.link())
    _run(reactor, service(reactor, lambda *_: aggregates).apply(configuration(int(port), certificate, key)))


def _run(reactor: Any, applied: Any) -> None:
    from twisted.internet.defer import Deferred

    def failed(failure: Any) -> None:
        print(failure.getTraceback(), file=sys.stderr, flush=True)
        reactor.stop()

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(applied).addErrback(failed))
    reactor.run()


def main(arguments: Sequence[str]) -> None:
    if arguments[0] == _WORKER:
        worker(*arguments[1:])
        return
    how, what, port, certificate, key, count, rate, seconds = arguments
    reactor: Any = lean_reactor.install()
    if what == "watches":
        fleet = Fleet(watches(reactor, int(count), int(rate), float(seconds)))
    else:
        fleet = Fleet(lists(reactor, int(count)))
    config = configuration(int(port), certificate, key)
    if how == "keeper":
        applied, _ = start_keeper(reactor, config, fleet, (port, certificate, key))
    else:
        applied = service(reactor, lambda *_: fleet).apply(config)
    _run(reactor, applied)


if __name__ == "__main__":
    main(sys.argv[1:])
