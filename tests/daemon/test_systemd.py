"""Sockets from systemd, and notifications to it."""

import os
import socket
from pathlib import Path

import pytest

from mcproxy.daemon.systemd import Notifier, adopt_sockets

PID = 4711


def test_sockets_are_taken_once(tmp_path: Path) -> None:
    environ = {"LISTEN_PID": "1", "LISTEN_FDS": "2", "LISTEN_FDNAMES": "api:admin", "HOME": "/root"}
    assert adopt_sockets(environ, pid=PID).names == []
    assert environ == {"HOME": "/root"}


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
        notifier.stopping("bye", 45.5)
        assert systemd.recv(4096) == b"STOPPING=1\nSTATUS=bye\nEXTEND_TIMEOUT_USEC=45500000"
        notifier.watchdog()
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
