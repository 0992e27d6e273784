"""The lean dispatch does what Twisted's does, errors included."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure

from mcproxy.net.reactor import LeanEpollReactor


class Selectable:
    """Does what the test says; remembers its end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.calls: list[str] = []
        self.reason: BaseException | None = None
        self.on_read: Any = lambda: None
        self.on_write: Any = lambda: None

    def fileno(self) -> int:
        return self.sock.fileno()

    def logPrefix(self) -> str:
        return "test"

    def doRead(self) -> Any:
        self.calls.append("read")
        return self.on_read()

    def doWrite(self) -> Any:
        self.calls.append("write")
        return self.on_write()

    def connectionLost(self, reason: Failure) -> None:
        self.calls.append("lost")
        self.reason = reason.value


@pytest.fixture
def reactor() -> Iterator[LeanEpollReactor]:
    made = LeanEpollReactor()
    yield made
    made._poller.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def add(reactor: LeanEpollReactor, selectable: Selectable, *, write: bool = False) -> None:
    reactor.addReader(selectable)  # type: ignore[no-untyped-call]
    if write:
        reactor.addWriter(selectable)  # type: ignore[no-untyped-call]


def test_only_what_is_ready_is_called(reactor: LeanEpollReactor, ends: tuple[socket.socket, socket.socket]) -> None:
    selectable = Selectable(ends[0])
    add(reactor, selectable)
    reactor.doPoll(0)
    assert selectable.calls == []
    ends[1].send(b"x")
    reactor.doPoll(None)
    assert selectable.calls == ["read"]


def test_reading_comes_before_writing(reactor: LeanEpollReactor, ends: tuple[socket.socket, socket.socket]) -> None:
    selectable = Selectable(ends[0])
    add(reactor, selectable, write=True)
    ends[1].send(b"x")
    reactor.doPoll(0)
    assert selectable.calls == ["read", "write"]


def test_writing_is_not_called_once_reading_gave_it_up(
    reactor: LeanEpollReactor, ends: tuple[socket.socket, socket.socket]
) -> None:
    selectable = Selectable(ends[0])
    add(reactor, selectable, write=True)
    selectable.on_read = lambda: reactor.removeWriter(selectable)  # type: ignore[no-untyped-call]
    ends[1].send(b"x")
    reactor.doPoll(0)
    assert selectable.calls == ["read"]


@pytest.mark.parametrize("way", ["on_read", "on_write"])
def test_an_exception_is_logged_and_ends_the_connection(
    reactor: LeanEpollReactor, ends: tuple[socket.socket, socket.socket], way: str
) -> None:
    selectable = Selectable(ends[0])
    add(reactor, selectable, write=way == "on_write")
    ends[1].send(b"x")

    def fail() -> None:
        raise ZeroDivisionError

    setattr(selectable, way, fail)
    observer = EventLoggingObserver()
    globalLogPublisher.addObserver(observer)
    try:
        reactor.doPoll(0)
    finally:
        globalLogPublisher.removeObserver(observer)
    assert isinstance(selectable.reason, ZeroDivisionError)
    assert [event["log_failure"].type for event in observer if "log_failure" in event] == [ZeroDivisionError]
    watched = (*reactor.getReaders(), *reactor.getWriters())  # type: ignore[no-untyped-call]
    assert selectable not in watched


@pytest.mark.parametrize("way", ["on_read", "on_write"])
def test_a_returned_reason_ends_the_connection(
    reactor: LeanEpollReactor, ends: tuple[socket.socket, socket.socket], way: str
) -> None:
    selectable = Selectable(ends[0])
    add(reactor, selectable, write=True)
    ends[1].send(b"x")
    setattr(selectable, way, ConnectionLost)
    reactor.doPoll(0)
    assert isinstance(selectable.reason, ConnectionLost)
    assert selectable.calls == (["read", "lost"] if way == "on_read" else ["read", "write", "lost"])


@pytest.mark.parametrize(("reads", "end"), [(True, ConnectionDone), (False, ConnectionLost)])
def test_a_dead_descriptor_without_anything_to_read(
    reactor: LeanEpollReactor, ends: tuple[socket.socket, socket.socket], reads: bool, end: type[Exception]
) -> None:
    selectable = Selectable(ends[0])
    if reads:
        reactor.addReader(selectable)  # type: ignore[no-untyped-call]
    else:
        reactor.addWriter(selectable)  # type: ignore[no-untyped-call]
    reactor._dispatch(selectable, ends[0].fileno(), select.EPOLLHUP)
    assert selectable.calls == ["lost"]
    assert isinstance(selectable.reason, end)


def test_one_that_was_removed_in_the_same_turn_is_not_called(reactor: LeanEpollReactor) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    selectables = [Selectable(ours) for ours, _ in pairs]
    for selectable, other in zip(selectables, reversed(selectables), strict=True):
        selectable.on_read = lambda other=other: reactor.removeReader(other)  # type: ignore[no-untyped-call]
        add(reactor, selectable)
    for _, theirs in pairs:
        theirs.send(b"x")
    reactor.doPoll(0)
    assert sum(len(selectable.calls) for selectable in selectables) == 1
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


def test_timers_and_the_run_loop_work(reactor: LeanEpollReactor, ends: tuple[socket.socket, socket.socket]) -> None:
    selectable = Selectable(ends[0])

    def take() -> None:
        ends[0].recv(10)
        reactor.stop()

    selectable.on_read = take
    add(reactor, selectable)
    reactor.callLater(0, ends[1].send, b"x")
    reactor.run(installSignalHandlers=False)
    assert selectable.calls[:1] == ["read"]


def test_a_shared_listening_socket_wakes_one_of_those_that_wait(reactor: LeanEpollReactor) -> None:
    other = LeanEpollReactor()
    with socket.create_server(("127.0.0.1", 0)) as listening, listening.dup() as duplicate:
        mine, theirs = Selectable(listening), Selectable(duplicate)
        reactor.addExclusiveReader(mine)
        other.addExclusiveReader(theirs)
        with socket.create_connection(listening.getsockname()):
            reactor.doPoll(5)
            assert mine.calls == ["read"]
        reactor.addExclusiveReader(mine)  # again: nothing
        for made, selectable in ((reactor, mine), (other, theirs)):
            made.removeReader(selectable)  # type: ignore[no-untyped-call]
        with socket.create_connection(listening.getsockname()):
            reactor.doPoll(0)
            other.doPoll(0)
        assert mine.calls == ["read"]
        assert theirs.calls == []
    other._poller.close()
