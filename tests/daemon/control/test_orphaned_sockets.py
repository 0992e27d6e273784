"""Sockets of processes whose supervisor has died come over the control socket to the daemon that needs them."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater

from mcproxy.config.model import Bind, TCPBind, UnixBind
from mcproxy.daemon.control import orphaned_sockets
from mcproxy.daemon.control.commands import commands_of
from mcproxy.daemon.control.control_socket import ControlSocket
from mcproxy.daemon.control.orphaned_sockets import OrphanedSockets, offer
from mcproxy.daemon.processes.socket_table import SocketTable
from mcproxy.net.bind import BindError, open_socket, open_spread
from mcproxy.net.listening_sockets import HandedOver


class NextDaemon:
    """What the control socket needs of it."""

    def __init__(self, path: str) -> None:
        self.handed_over = HandedOver()
        self.orphaned = OrphanedSockets(reactor, self.handed_over)
        self.take_orphaned_sockets = self.orphaned.offered
        target: Any = self
        self.control = ControlSocket(reactor, path, commands_of(target))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "control.sock")


@pytest.fixture
def daemon(path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[NextDaemon]:
    monkeypatch.setattr(orphaned_sockets, "_FIRST_WITHIN", 0.3)
    monkeypatch.setattr(orphaned_sockets, "_NEXT_WITHIN", 0.2)
    made = NextDaemon(path)
    yield made
    pytest_twisted.blockon(made.control.close())
    made.handed_over.close_rest()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_all_that_orphans_have_is_listened_on_by_the_next_daemon(
    daemon: NextDaemon, path: str, tmp_path: Path
) -> None:
    orphans = open_spread(TCPBind("127.0.0.1", 0), 2)
    shared = open_socket(UnixBind(str(tmp_path / "x.sock")))
    port = orphans[0].getsockname()[1]
    address, unix = f"127.0.0.1:{port}", f"unix:{tmp_path}/x.sock"
    table = SocketTable(handed_over=daemon.handed_over)
    binds: list[Bind] = [TCPBind("127.0.0.1", port), UnixBind(str(tmp_path / "x.sock"), mode=0o660)]
    with pytest.raises(BindError) as in_use:
        table.prepare(binds, 3)
    collecting = ensureDeferred(daemon.orphaned.collect(in_use.value))
    await deferLater(reactor, 0)
    assert daemon.orphaned.wanted
    queued = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
    for sock in orphans:
        assert await offer(reactor, path, [(address, sock.fileno()), (unix, shared.fileno())])
    assert await collecting
    assert not bool(daemon.orphaned.wanted)
    table.prepare(binds, 3).commit()
    for sock in (*orphans, shared):
        sock.close()
    found = [socket.socket(fileno=os.dup(fd)) for index in range(3) for _, fd in table.of_worker(index)]
    accepted = 0
    for sock in found:
        with sock:
            while sock.family == socket.AF_INET:
                try:
                    sock.accept()[0].close()
                except BlockingIOError:
                    break
                accepted += 1
    assert accepted == 20
    assert sorted(name for name, _ in table.all) == [address] * 3 + [unix]
    for client in queued:
        client.close()
    table.close()
    assert not (tmp_path / "x.sock").exists()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_who_needs_none_or_gets_another_socket_closes_it(daemon: NextDaemon, path: str) -> None:
    with open_socket(TCPBind("127.0.0.1", 0)) as listening, socket.socket() as idle:
        port = listening.getsockname()[1]
        await offer(reactor, path, [])  # the threads of the reactor have started
        await deferLater(reactor, 0.05)
        before = descriptors()
        assert not await offer(reactor, path, [(f"127.0.0.1:{port}", listening.fileno())])
        daemon.orphaned.wanted = True
        others = [(f"127.0.0.1:{port + 1}", listening), (f"127.0.0.2:{port}", listening), ("127.0.0.1:0", idle)]
        assert await offer(reactor, path, [(address, sock.fileno()) for address, sock in others])
        assert daemon.handed_over.take_all() == {}
        end = time.monotonic() + 60
        while descriptors() > before:  # the other end of the connections closes a moment later
            assert time.monotonic() < end
            await deferLater(reactor, 0.01)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_an_address_that_others_share_with_nobody_is_not_waited_for(daemon: NextDaemon) -> None:
    with open_socket(TCPBind("127.0.0.1", 0)) as other:
        bind = TCPBind("127.0.0.1", other.getsockname()[1])
        with pytest.raises(BindError) as in_use:
            open_socket(bind)
        collected = ensureDeferred(daemon.orphaned.collect(in_use.value))
        assert collected.called  # in the same turn
        assert not await collected


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_without_orphans_the_wait_ends(daemon: NextDaemon) -> None:
    sharing = open_spread(TCPBind("127.0.0.1", 0), 2)
    with pytest.raises(BindError) as in_use:
        open_socket(TCPBind("127.0.0.1", sharing[0].getsockname()[1]))
    assert not await daemon.orphaned.collect(in_use.value)
    for sock in sharing:
        sock.close()


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_process_of_another_user_at_the_path_gets_no_socket(daemon: NextDaemon, path: str) -> None:
    daemon.orphaned.wanted = True
    with open_socket(TCPBind("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(PermissionError, match="user 4711"):
            await offer(reactor, path, [(address, listening.fileno())], lambda _: 4711)
        assert daemon.handed_over.take_all() == {}
        assert await offer(reactor, path, [(address, listening.fileno())])


def test_an_offer_without_descriptors_for_it_leaves_none_open(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again and again while the other daemon starts; what it left open was missing for connections."""
    dup, left = os.dup, [2]

    def scarce(descriptor: int) -> int:
        if not left[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        left[0] -= 1
        return dup(descriptor)

    monkeypatch.setattr(os, "dup", scarce)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        before = descriptors()
        with pytest.raises(OSError, match="Too many open files"):
            offer(reactor, path, [("127.0.0.1:1", sock.fileno())] * 3)
        assert descriptors() == before
