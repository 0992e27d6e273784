"""Limits on connections hold for all workers together, and a killed one's places are free again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from pathlib import Path

import pytest

from tests.e2e.processes import TIMEOUT, wait_until
from tests.e2e.workers.site import Site, WorkersDaemon

ALL, PER_CLIENT = 12, 8
WATCH = b"GET /api/v1/namespaces/demo/configmaps?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"


class LimitedDaemon(WorkersDaemon):
    """Its listener has limits."""

    def config(self) -> str:
        limits = f"limits: {{connections: {ALL}, connectionsPerClient: {PER_CLIENT}}}"
        return super().config().replace("tls: {certificates: [proxy]}}", f"tls: {{certificates: [proxy]}}, {limits}}}")

    def watch(self, source: str, stack: contextlib.ExitStack) -> ssl.SSLSocket | None:
        """Open a connection with a watch, which is never idle; None if it was closed at once."""
        try:
            connection = socket.create_connection(("127.0.0.1", self.port), TIMEOUT, (source, 0))
            stream = self.site.context.wrap_socket(stack.enter_context(connection), server_hostname="localhost")
            stack.enter_context(stream).sendall(WATCH)
            assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")
        except (ssl.SSLError, ConnectionError):
            return None
        return stream

    def open_all(self, source: str, stack: contextlib.ExitStack) -> list[ssl.SSLSocket]:
        """Open watches until one is refused."""
        opened: list[ssl.SSLSocket] = []
        while (stream := self.watch(source, stack)) is not None:
            opened.append(stream)
            assert len(opened) <= ALL
        return opened


@pytest.mark.slow
def test_limits_of_a_listener_count_the_connections_of_all_workers(site: Site, tmp_path: Path) -> None:
    daemon = LimitedDaemon(site, tmp_path / "daemon", workers=3)
    with daemon, contextlib.ExitStack() as stack:
        daemon.wait_until_all_serve()
        opened = daemon.open_all("127.0.0.1", stack)
        assert len(opened) == PER_CLIENT
        opened += daemon.open_all("127.0.0.2", stack)
        assert len(opened) == ALL
        assert daemon.watch("127.0.0.3", stack) is None

        opened.pop().close()
        again: list[ssl.SSLSocket] = []

        def one_more() -> bool:
            stream = daemon.watch("127.0.0.3", stack)
            again.extend([] if stream is None else [stream])
            return bool(again)

        wait_until("the place of the closed one is free", one_more)
        opened += again
        owners = daemon.family.connections(daemon.port)
        dead = max(set(owners.values()), key=list(owners.values()).count)
        lost = [stream for stream in opened if owners[stream.getsockname()] == dead]
        assert len(lost) >= ALL // 3
        os.kill(dead, signal.SIGKILL)
        daemon.wait_until_all_serve(but=frozenset({dead}))
        assert len(daemon.open_all("127.0.0.4", stack)) == min(len(lost), PER_CLIENT)
