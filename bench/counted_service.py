"""The program whose instructions `bench instructions` counts: a service with its peers on socket pairs.

usage: python -P -m bench.counted_service SETTINGS (a file of JSON, see `Settings`)

It has the daemon's own service, reactor and connections, without TLS and without a network. Only turns of the reactor
are counted: not the peers, which run between them (`socket_peers`). So that counts repeat, time passes by the number of
requests, not by a clock: a timer of 50 ms is called in every run after the same request.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol

import mcproxy.net.reactor
from bench.socket_peers import (
    APIServer,
    Client,
    HTTP1APIServer,
    HTTP1Client,
    HTTP2APIServer,
    HTTP2Client,
    PeerError,
    Traffic,
    make_pair,
)
from mcproxy.config.load import load
from mcproxy.net.alpn import H2
from mcproxy.net.plain_stream import PlainStream

_REQUEST_SECONDS = 40e-6
"""What passes of the service's time with each request."""
_MOST_TURNS = 50
"""Turns of the reactor until a round of requests must be answered."""
_START_SECONDS = 20.0
_SETTLING = 0.5
"""Seconds for what a service does after its start: health checks, first connections."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to count."""

    config: str  # the file of the daemon
    traffic: str  # a pickled Traffic
    http2: bool  # of the clients
    http2_upstream: bool
    connections: int
    streams: int
    warm: int  # requests before counting
    requests: int  # the least number that is counted
    library: str  # of client requests to callgrind, "" to count nothing


def _stream(reactor: Any, sock: socket.socket, port: int, *, http2: bool) -> PlainStream:
    stream = PlainStream(reactor, sock, ("127.0.0.1", port), peer=IPv4Address("TCP", "127.0.0.1", port))
    if http2:
        stream.alpn = H2
    return stream


def _is_compiled() -> bool:
    """Whether the modules of the data plane are the compiled ones."""
    return not str(sys.modules[PlainStream.__module__].__file__).endswith(".py")


class _Clock:
    """CLOCK_MONOTONIC and the time of day until `stop`; from then on what passes with requests."""

    def __init__(self, reactor: Any) -> None:
        self._now: float | None = None
        self._ahead = time.time() - time.monotonic()
        reactor.seconds = self.seconds
        reactor.wall_seconds = lambda: self.seconds() + self._ahead
        mcproxy.net.reactor._monotonic = self.seconds  # else each turn under valgrind is a long one

    def stop(self) -> None:
        self._now = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() if self._now is None else self._now

    def pass_by(self, requests: int) -> None:
        assert self._now is not None
        self._now += requests * _REQUEST_SECONDS


class CountedService:
    """A service with its peers."""

    def __init__(self, reactor: Any, settings: Settings) -> None:
        # Here, not above: they import a reactor.
        from mcproxy.daemon.process_parts import ProcessParts
        from mcproxy.daemon.service import SingleProcessService
        from mcproxy.observe.request_logs import RequestLogs

        self._reactor = reactor
        self._settings = settings
        with open(settings.traffic, "rb") as file:
            self._traffic: Traffic = pickle.load(file)
        self._clock = _Clock(reactor)
        self._api_servers: list[APIServer] = []
        self._clients: list[Client] = []
        self._turn: Callable[[], None] = lambda: reactor.iterate(0)
        parts = ProcessParts()
        parts.metrics.measure_loop("mcproxy", reactor)
        logs = RequestLogs(reactor)
        logs.count_into(parts.metrics)
        self._service = SingleProcessService(reactor, parts=parts, request_logs=logs)
        object.__setattr__(self._service._resources.shared, "connect", self._connect)

    @property
    def connections(self) -> int:
        """How many connections to API servers were opened."""
        return len(self._api_servers)

    def _connect(
        self,
        host: str,
        port: int,
        protocol: IProtocol,
        *,
        tls: Any,
        timeout: float,
        alpn: tuple[bytes, ...] = (),
        proxy: Any = None,
    ) -> Deferred[None]:
        """In place of `mcproxy.net.connect.connect`."""
        near, far = make_pair()
        http2 = self._settings.http2_upstream and H2 in alpn
        self._api_servers.append((HTTP2APIServer if http2 else HTTP1APIServer)(far, self._traffic))
        _stream(self._reactor, near, port, http2=http2).attach(protocol)
        return succeed(None)

    def start(self) -> None:
        """Apply the configuration, and wait until the service is at rest."""
        failures: list[Any] = []
        loaded = load(self._settings.config)
        started = Deferred.fromCoroutine(self._service.start(loaded.config))
        started.addErrback(failures.append)
        self._reactor.startRunning(installSignalHandlers=False)
        began = time.monotonic()
        while time.monotonic() < began + _SETTLING or not started.called:
            self._one_turn()
            if failures or time.monotonic() > began + _START_SECONDS:
                raise SystemExit(f"the service does not start: {failures}")
        self._clock.stop()
        for number in range(self._settings.connections):
            self._open_client(number)
        self._one_turn()

    def _open_client(self, number: int) -> None:
        settings, traffic = self._settings, self._traffic
        near, far = make_pair()
        stream = _stream(self._reactor, near, 40000 + number, http2=settings.http2)
        protocol = self._service.listeners[0].factory.build(stream)
        stream.attach(protocol)
        start = number * len(traffic.requests) // settings.connections
        if settings.http2:
            self._clients.append(HTTP2Client(far, traffic, start, settings.streams))
        else:
            self._clients.append(HTTP1Client(far, traffic, start))

    def run(self, least: int) -> int:
        """Send at least so many requests, in rounds of one of each client's streams; return how many."""
        done = 0
        while done < least:
            done += self._round()
        return done

    def _round(self) -> int:
        asked = sum(client.ask() for client in self._clients)
        self._clock.pass_by(asked)
        answered = 0
        for _ in range(_MOST_TURNS):
            answered += self._one_turn()
            if answered >= asked:
                break
        else:
            got = [client.received() for client in self._clients[:1]]
            raise SystemExit(f"{answered} of {asked} requests came to an API server; a client got {got[0][:300]!r}")
        self._turn()
        for client in self._clients:
            client.check()
        return asked

    def _one_turn(self) -> int:
        self._turn()
        return sum(server.serve() for server in self._api_servers)

    def count(self, library: ctypes.CDLL, least: int) -> int:
        """Do as `run`, and count the turns of the reactor meanwhile."""
        toggle, iterate = library.toggle_collect, self._reactor.iterate

        def turn() -> None:
            toggle()
            iterate(0)
            toggle()

        library.start_instrumentation()
        before, self._turn = self._turn, turn
        try:
            return self.run(least)
        finally:
            self._turn = before
            library.stop_instrumentation()


def main(settings: Settings) -> None:
    """Count, and print what was counted as JSON."""
    from mcproxy.daemon.process_setup import set_collector_thresholds

    reactor = mcproxy.net.reactor.install()
    set_collector_thresholds()
    counted = CountedService(reactor, settings)
    counted.start()
    try:
        counted.run(1)
        counted.run(settings.warm)
        gc.collect()
        gc.freeze()
        opened = counted.connections
        if settings.library:
            requests = counted.count(ctypes.CDLL(settings.library), settings.requests)
        else:
            requests = counted.run(settings.requests)
    except PeerError as error:
        raise SystemExit(str(error)) from None
    found = {
        "requests": requests,
        "opened": counted.connections - opened,
        "compiled": _is_compiled(),
    }
    print(json.dumps(found), flush=True)
    os._exit(0)  # neither the reactor nor the threads of the logs are ended: there is nothing to save


if __name__ == "__main__":
    main(Settings(**json.loads(Path(sys.argv[1]).read_text())))
