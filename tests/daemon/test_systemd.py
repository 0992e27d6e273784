"""Sockets from systemd, and what it is told."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.systemd import Notifier, take_sockets

PID = 4711


@pytest.fixture
def first() -> Iterator[int]:
    """The first of two neighbouring descriptors of listening sockets, as systemd would pass them."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
            each.listen()
        first = 200
        os.dup2(one.fileno(), first)
        os.dup2(other.fileno(), first + 1)
        yield first
        for descriptor in (first, first + 1):
            try:
                os.close(descriptor)
            except OSError:
                pass  # the sockets made of them have closed them


def environment(names: str, count: int = 2, pid: int = PID) -> dict[str, str]:
    return {"LISTEN_PID": str(pid), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names, "HOME": "/root"}


def test_sockets_are_found_by_name_and_not_inherited(first: int) -> None:
    environ = environment("api:admin")
    sockets = take_sockets(environ, pid=PID, first=first)
    assert sorted(sockets) == ["admin", "api"]
    assert sockets["api"].fileno() == first
    assert not os.get_inheritable(first)
    assert not sockets["api"].getblocking()
    assert environ == {"HOME": "/root"}
    for each in sockets.values():
        each.close()


def test_sockets_of_another_process_are_not_ours(first: int) -> None:
    assert take_sockets(environment("api:admin", pid=1), pid=PID, first=first) == {}


def test_no_sockets_without_the_variables() -> None:
    assert take_sockets({}, pid=PID) == {}


def test_two_sockets_of_one_name_are_refused(first: int) -> None:
    with pytest.raises(DaemonError, match="two sockets named 'api'"):
        take_sockets(environment("api:api"), pid=PID, first=first)


def test_what_does_not_listen_is_refused() -> None:
    with socket.socket() as idle, pytest.raises(DaemonError, match="no listening stream socket"):
        take_sockets(environment("api", 1), pid=PID, first=os.dup(idle.fileno()))


def test_what_is_no_socket_is_refused(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    try:
        with pytest.raises(DaemonError, match="is no socket"):
            take_sockets(environment("api", 1), pid=PID, first=descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("name", ["{path}/notify", "@mcproxy-test-{pid}"])
def test_notifications_arrive_each_in_one_datagram(tmp_path: Path, name: str) -> None:
    address = name.format(path=tmp_path, pid=os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address.replace("@", "\0", 1))
        systemd.settimeout(5)
        environ = {"NOTIFY_SOCKET": address}
        notifier = Notifier.from_environment(environ, pid=PID)
        assert environ == {}
        notifier.reloading()
        assert systemd.recv(4096).decode().startswith("RELOADING=1\nMONOTONIC_USEC=")
        notifier.ready("two\nlines WATCHDOG=1")
        assert systemd.recv(4096) == b"READY=1\nSTATUS=two lines WATCHDOG=1"
        notifier.stopping("bye")
        assert systemd.recv(4096) == b"STOPPING=1\nSTATUS=bye"
        notifier.alive()
        assert systemd.recv(4096) == b"WATCHDOG=1"


def test_reload_carries_the_monotonic_time_in_microseconds(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "n"))
        Notifier(str(tmp_path / "n"), clock=lambda: 1_234_567_899).reloading()
        assert b"\nMONOTONIC_USEC=1234567\n" in systemd.recv(4096)


def test_nothing_is_sent_and_nothing_fails_without_systemd(tmp_path: Path) -> None:
    Notifier("").ready("x")
    Notifier(str(tmp_path / "gone")).ready("x")


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(PID)}, 15.0),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_is_fed_at_half_its_time(environ: dict[str, str], interval: float | None) -> None:
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": "/run/n", **environ}, pid=PID)
    assert notifier.watchdog_interval == interval
