"""Fixtures of the socket tests: every test here must leave the reactor as it found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.task import deferLater

from mcproxy.config.model import Bind, TCPBind
from mcproxy.net.listen import Listener
from mcproxy.net.listening_sockets import ListeningSockets
from mcproxy.net.pending_connection import ListenerSettings
from tests.net.peers import Recorders, reactor

Serve = Callable[..., Listener]


@pytest.fixture
def _running() -> None:
    """Let the reactor begin, which adds its own reader for SIGCHLD, before a test is watched for leftovers."""
    pytest_twisted.blockon(deferLater(reactor(), 0))


@pytest.fixture(autouse=True)
def _clean(_running: None, nothing_left_open: None) -> None:
    pass


@pytest.fixture
def recorders() -> Recorders:
    return Recorders()


@pytest.fixture
def serve(recorders: Recorders) -> Iterator[Serve]:
    """Start a listener; whatever is still open at the end of the test is closed."""
    started: list[Listener] = []

    def start(
        settings: ListenerSettings,
        bind: Bind | None = None,
        factory: Recorders | None = None,
        sockets: ListeningSockets | None = None,
    ) -> Listener:
        listener = Listener(reactor(), factory or recorders, settings, bind or TCPBind("127.0.0.1", 0), sockets)
        listener.start()
        started.append(listener)
        return listener

    yield start
    for listener in started:
        listener.stop_accepting()
        listener.drop_pending()
        for stream in listener:
            stream.abortConnection()
