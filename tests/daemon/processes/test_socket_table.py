"""The sockets of several workers: who has which, and that nothing that is queued on one is lost."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor
from twisted.internet.task import deferLater

from mcproxy.config.model import Bind, SystemdBind, TCPBind, UnixBind
from mcproxy.daemon.processes.socket_table import InheritedSockets, SocketTable
from mcproxy.net.bind import BindError, SystemdSockets, open_socket
from mcproxy.net.listen import Listener
from mcproxy.net.listening_sockets import HandedOver
from mcproxy.net.pending_connection import ListenerSettings

ANY_PORT = TCPBind("127.0.0.1", 0)


class Table:
    """A table and the workers' duplicates of its sockets."""

    def __init__(self, table: SocketTable) -> None:
        self.table = table

    def use(self, binds: Sequence[Bind], workers: int) -> None:
        self.table.prepare(binds, workers).commit()

    def port(self, bind: Bind = ANY_PORT) -> int:
        descriptor = dict(self.table.all)[str(bind)]
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            return int(sock.getsockname()[1])

    def workers(self, number: int) -> list[list[socket.socket]]:
        return [
            [socket.socket(fileno=os.dup(descriptor)) for _, descriptor in self.table.of_worker(index)]
            for index in range(number)
        ]


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table(SocketTable())
    yield made
    made.table.close()


def queued_on(sockets: Sequence[socket.socket]) -> int:
    """Accept what waits on these, close them, and return how many it was."""
    count = 0
    for sock in sockets:
        sock.setblocking(False)
        while True:
            try:
                sock.accept()[0].close()
            except BlockingIOError:
                break
            count += 1
        sock.close()
    return count


def connected(port: int, number: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(number)]


def closed(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_each_worker_gets_its_share_at_a_socket_of_its_own(table: Table) -> None:
    table.use([ANY_PORT], 3)
    workers = table.workers(3)
    assert [len(sockets) for sockets in workers] == [1, 1, 1]
    assert len({sockets[0].getsockname() for sockets in workers}) == 1
    clients = connected(table.port(), 120)
    assert sorted(queued_on(sockets) > 10 for sockets in workers) == [True] * 3
    closed(clients)
    assert table.table.of_worker(3) == []


def test_what_is_queued_waits_for_the_successor_of_a_worker(table: Table) -> None:
    table.use([ANY_PORT], 2)
    died = table.workers(2)
    clients = connected(table.port(), 40)
    for sockets in died:
        closed(sockets)
    assert sum(queued_on(sockets) for sockets in table.workers(2)) == 40
    closed(clients)


@pytest.mark.parametrize(("before", "after"), [(4, 3), (4, 1), (1, 4), (2, 3)])
def test_what_is_queued_is_kept_when_the_number_of_workers_changes(table: Table, before: int, after: int) -> None:
    table.use([ANY_PORT], before)
    port = table.port()
    clients = connected(port, 60)
    table.use([ANY_PORT], after)
    assert table.port() == port
    assert sum(queued_on(sockets) for sockets in table.workers(after)) == 60
    clients += connected(port, 60 * after)
    shares = [queued_on(sockets) for sockets in table.workers(after)]
    assert sum(shares) == 60 * after
    assert min(shares) > 20  # at random: fewer would be 5 standard deviations below 60
    closed(clients)


def test_a_socket_that_was_added_gets_nothing_before_the_commit(table: Table) -> None:
    table.use([ANY_PORT], 1)
    prepared = table.table.prepare([ANY_PORT], 4)
    assert [len(table.table.of_worker(index, prepared)) for index in range(5)] == [1, 1, 1, 1, 0]
    clients = connected(table.port(), 40)
    prepared.discard()
    assert [queued_on(sockets) for sockets in table.workers(1)] == [40]
    closed(clients)


def test_what_is_queued_on_a_removed_address_is_for_the_worker_that_closes_last(table: Table) -> None:
    table.use([ANY_PORT], 2)
    workers = table.workers(2)
    port = table.port()
    clients = connected(port, 20)
    table.use([], 2)
    assert sum(queued_on(sockets) for sockets in workers) == 20
    with pytest.raises(ConnectionRefusedError):
        connected(port, 1)
    closed(clients)


def test_another_daemon_on_the_port_is_noticed(table: Table) -> None:
    table.use([ANY_PORT], 2)
    taken = TCPBind("127.0.0.1", table.port())
    with pytest.raises(BindError) as caught:
        SocketTable().prepare([taken], 2)
    assert caught.value.in_use
    prepared = table.table.prepare([ANY_PORT], 2)  # it is as it was
    prepared.discard()
    assert len(table.table.all) == 2


@pytest.mark.parametrize(("before", "after"), [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1")])
def test_an_address_may_overlap_with_one_that_goes(table: Table, before: str, after: str) -> None:
    with open_socket(TCPBind(before, 0)) as free:
        port = free.getsockname()[1]
    table.use([TCPBind(before, port)], 2)
    table.use([TCPBind(after, port)], 2)
    clients = connected(port, 20)
    assert sum(queued_on(sockets) for sockets in table.workers(2)) == 20
    closed(clients)


def test_nothing_is_left_of_addresses_that_cannot_all_be_had(table: Table, tmp_path: Path) -> None:
    mine = UnixBind(str(tmp_path / "a.sock"))
    table.use([mine], 2)
    other = UnixBind(str(tmp_path / "b.sock"))
    with pytest.raises(BindError):
        table.table.prepare([UnixBind(mine.path, mode=0o666), other, TCPBind("192.0.2.1", 0)], 2)
    assert os.listdir(tmp_path) == ["a.sock"]
    assert stat.S_IMODE(os.stat(mine.path).st_mode) == 0o600


def test_a_unix_socket_is_shared_and_its_file_is_the_supervisors(table: Table, tmp_path: Path) -> None:
    bind = UnixBind(str(tmp_path / "x.sock"))
    table.use([bind], 2)
    first, second = table.workers(2)
    assert os.fstat(first[0].fileno()).st_ino == os.fstat(second[0].fileno()).st_ino
    inherited = InheritedSockets()
    inherited.prepare([(str(bind), os.dup(first[0].fileno()))])
    assert inherited.is_shared(bind)
    inherited.close(bind, inherited.open(bind))
    assert os.path.exists(bind.path)
    table.use([UnixBind(bind.path, mode=0o660)], 2)
    assert stat.S_IMODE(os.stat(bind.path).st_mode) == 0o660
    table.use([], 2)
    assert not os.path.exists(bind.path)
    closed([*first, *second])


def test_a_socket_of_systemds_is_shared() -> None:
    with socket.create_server(("127.0.0.1", 0)) as given:
        made = Table(SocketTable(SystemdSockets({"api": given.fileno()})))
        made.use([SystemdBind("api")], 2)
        with socket.create_connection(given.getsockname()):
            first, second = made.workers(2)
            assert queued_on(first) + queued_on(second) == 1
        made.table.close()


def test_sockets_that_were_handed_over_are_used_and_the_others_closed(tmp_path: Path) -> None:
    stays, goes = open_socket(ANY_PORT), open_socket(UnixBind(str(tmp_path / "x.sock")))
    port = stays.getsockname()[1]
    clients = connected(port, 10)
    made = Table(SocketTable(handed_over=HandedOver({str(ANY_PORT): [stays], f"unix:{tmp_path}/x.sock": [goes]})))
    made.use([ANY_PORT], 3)
    assert made.port() == port
    assert goes.fileno() == -1
    assert os.listdir(tmp_path) == ["x.sock"]  # the daemon that had it removes the file
    clients += connected(port, 50)
    assert sum(queued_on(sockets) for sockets in made.workers(3)) == 60
    made.table.close()
    closed(clients)


def test_descriptors_that_are_not_used_are_closed() -> None:
    inherited = InheritedSockets()
    with open_socket(ANY_PORT) as listening:
        descriptors = [os.dup(listening.fileno()) for _ in range(3)]
        inherited.prepare([("a:1", descriptors[0])])
        inherited.prepare([("b:1", descriptors[1]), ("c:1", descriptors[2])])
        with pytest.raises(BindError):
            inherited.open(TCPBind("a", 1))
        [opened] = inherited.open(TCPBind("b", 1))
        inherited.commit([])
        for descriptor in (descriptors[0], descriptors[2]):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        inherited.close(TCPBind("b", 1), [opened])


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_a_listener_goes_on_with_the_sockets_that_it_is_given(tmp_path: Path, kind: str) -> None:
    bind: Bind = ANY_PORT if kind == "tcp" else UnixBind(str(tmp_path / "x.sock"))
    before, after = open_socket(bind), open_socket(ANY_PORT)
    inherited = InheritedSockets()
    inherited.prepare([(str(bind), os.dup(before.fileno()))])
    factory = Accepted()
    listener = Listener(reactor, factory, ListenerSettings(), bind, inherited)  # type: ignore[arg-type]
    listener.start()
    inherited.prepare([(str(bind), os.dup(before.fileno()))])
    inherited.commit([listener])
    [kept] = listener.sockets
    clients = [socket.socket(before.family) for _ in range(3)]
    for client in clients:
        client.connect(before.getsockname())
    await factory.until(3)
    inherited.prepare([(str(bind), os.dup(before.fileno())), (str(bind), os.dup(after.fileno()))])
    inherited.commit([listener])
    assert kept.fileno() == -1
    assert len(listener.sockets) == 2
    clients += connected(after.getsockname()[1], 2)
    await factory.until(5)
    listener.release()
    clients.append(socket.socket(before.family))
    clients[-1].connect(before.getsockname())
    before.accept()[0].close()
    for each in (before, after, *clients):
        each.close()
    assert kind == "tcp" or (tmp_path / "x.sock").exists()


class Accepted:
    """Counts connections, and closes them."""

    def __init__(self) -> None:
        self.count = 0

    def build(self, transport: Any) -> None:
        self.count += 1

    async def until(self, count: int) -> None:
        end = time.monotonic() + 60
        while self.count < count:
            assert time.monotonic() < end, f"{self.count} of {count} connections"
            await deferLater(reactor, 0.002)
