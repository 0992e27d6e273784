"""The load of `bench identity`: keep-alive GETs over TLS with a client certificate, which wrk cannot show.

A closed loop like wrk's: each connection has one request under way. It runs in the harness itself, on the core of the
load. It takes more processor time than wrk but less than mcproxy, so that the proxy stays the limit on a quiet machine.
Connections are opened and used once before the clock starts: neither handshakes nor first answers are in the figures.
"""

from __future__ import annotations

import select
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.client import connect
from bench.processes import Failed
from bench.wrk import Report

_LONGEST_WAIT = 5.0  # seconds without any answer before a run is given up
_READ = 65536
_OK = b"HTTP/1.1 200 "


class Load:
    """Connections that are open and have been used; `opened` makes one."""

    def __init__(self, connections: list[ssl.SSLSocket], request: bytes) -> None:
        self._request = request
        self._connections = {connection.fileno(): connection for connection in connections}
        self._epoll = select.epoll()
        for number, connection in self._connections.items():
            connection.setblocking(False)
            self._epoll.register(number, select.EPOLLIN)
        self._received = dict.fromkeys(self._connections, b"")

    def close(self) -> None:
        self._epoll.close()

    def run(self, seconds: float) -> Report:
        """Ask on all connections for so long. An answer that is not 200, or the end of a connection, ends it at once.

        What is under way when the time is up is waited for, and counts.
        """
        latencies: list[float] = []
        asked: dict[int, float] = {}
        began = now = time.perf_counter()
        until = began + seconds
        for number in self._connections:
            self._ask(number, asked)
        while asked:
            ready = self._epoll.poll(_LONGEST_WAIT)
            if not ready:
                return _report(latencies, now - began, f"no answer within {_LONGEST_WAIT:.0f} s")
            for number, _ in ready:
                problem = self._read(number)
                if problem is None:
                    continue  # a part is missing
                now = time.perf_counter()
                if problem:
                    return _report(latencies, now - began, problem)
                latencies.append(now - asked.pop(number))
                if now < until:
                    self._ask(number, asked)
        return _report(latencies, now - began, "")

    def _ask(self, number: int, asked: dict[int, float]) -> None:
        asked[number] = time.perf_counter()
        self._connections[number].send(self._request)

    def _read(self, number: int) -> str | None:
        """Return "" when a good answer is whole, None while a part is missing, else what is wrong."""
        try:
            data = self._connections[number].recv(_READ)
        except ssl.SSLWantReadError:
            return None
        except OSError as error:
            return f"a connection broke: {error}"
        if not data:
            return "a connection ended"
        received = self._received[number] + data
        whole = _is_whole(received)
        self._received[number] = b"" if whole else received
        if not whole:
            return None
        return "" if received.startswith(_OK) else f"an answer was {received[:60]!r}"


@contextmanager
def opened(port: int, context: ssl.SSLContext, path: str, *, connections: int, fields: str = "") -> Iterator[Load]:
    """Connect so many times to localhost:`port` and ask once on each. `fields` are lines to add to each request."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n{fields}\r\n".encode()
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(port, context)) for _ in range(connections)]
        load = Load(sockets, request)
        stack.callback(load.close)
        first = load.run(0.0)
        if first.errors:
            raise Failed(f"port {port}: {first.errors}")
        yield load


def _is_whole(received: bytes) -> bool:
    """Return whether an answer with a Content-Length is complete."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    place = received.lower().find(b"\r\ncontent-length:", 0, end)
    if place < 0:
        raise Failed(f"an answer without Content-Length: {received[:200]!r}")
    length = int(received[place + 17 : received.index(b"\r", place + 17)])
    return len(received) >= end + 4 + length


def _report(latencies: list[float], seconds: float, errors: str) -> Report:
    latencies.sort()
    p99 = latencies[int(len(latencies) * 0.99)] if latencies else 0.0
    return Report(len(latencies), len(latencies) / seconds if seconds else 0.0, p99, errors)
