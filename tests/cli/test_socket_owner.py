"""The process that listens on an address, by /proc."""

import ipaddress
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mcproxy.cli import socket_owner
from mcproxy.config.model import SystemdBind, TCPBind, UnixBind


@pytest.mark.parametrize(
    ("listening", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "::1"),
        ("::1", "::"),
        ("127.0.0.1", "localhost"),
    ],
)
def test_the_owner_of_an_address_is_found(listening: str, asked: str) -> None:
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    with socket.create_server((listening, 0), family=family) as server:
        port = server.getsockname()[1]
        # Other processes of this machine may listen on the same port of another address.
        assert os.getpid() in socket_owner.owners(TCPBind(asked, port))
        other = "127.0.0.2" if family == socket.AF_INET else "::2"
        assert (os.getpid() in socket_owner.owners(TCPBind(other, port))) == (listening == "0.0.0.0")


def test_a_connection_is_no_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        port = client.getsockname()[1]
        assert socket_owner.owners(TCPBind("127.0.0.1", port)) == set()
        client.close()


def test_the_owner_of_a_unix_socket_is_found(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    assert socket_owner.owners(UnixBind(path)) == set()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert socket_owner.owners(UnixBind(path)) == set()
        server.listen()
        assert socket_owner.owners(UnixBind(path)) == {os.getpid()}


def test_the_owner_is_who_has_the_socket_and_not_who_made_it(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        heir = subprocess.Popen(["sleep", "1000"], pass_fds=[server.fileno()])
    try:
        assert socket_owner.owners(UnixBind(path)) == {heir.pid}
    finally:
        heir.kill()
        heir.wait()


def test_sockets_of_systemd_have_no_owner() -> None:
    assert socket_owner.owners(SystemdBind("a")) == set()


def test_processes_have_a_name_and_show_their_sockets() -> None:
    assert socket_owner.name_of(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert socket_owner.name_of(2**30) == "?"
    assert not socket_owner.is_mcproxy(2**30)
    assert socket_owner.shows_its_sockets(os.getpid())
    assert not socket_owner.shows_its_sockets(2**30)


def test_addresses_of_proc_are_in_the_byte_order_of_the_machine() -> None:
    little = sys.byteorder == "little"
    assert socket_owner._decoded("0100007F" if little else "7F000001") == ipaddress.ip_address("127.0.0.1")
    text = "B80D0120000000000000000001000000" if little else "20010DB8000000000000000000000001"
    assert socket_owner._decoded(text) == ipaddress.ip_address("2001:db8::1")


def test_a_socket_that_the_kernel_s_table_left_out_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, True, False])
    inodes = socket_owner._inodes
    monkeypatch.setattr(socket_owner, "_inodes", lambda bind: iter(()) if next(looks, False) else inodes(bind))
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert os.getpid() in socket_owner.owners(TCPBind("127.0.0.1", server.getsockname()[1]))
