"""Reserved ports stay free for the server that they are meant for."""

from __future__ import annotations

import errno
import socket

import pytest

from tests.support.ports import reserved_port


def test_a_reserved_port_refuses_until_a_server_listens_and_again_after_it() -> None:
    port = reserved_port()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)):  # sets SO_REUSEADDR
            socket.create_connection(("127.0.0.1", port)).close()


def test_a_reserved_port_is_not_assigned_by_chance() -> None:
    port = reserved_port()
    with socket.socket() as other, pytest.raises(OSError) as caught:
        other.bind(("127.0.0.1", port))
    assert caught.value.errno == errno.EADDRINUSE


def test_no_two_reserved_ports_are_the_same() -> None:
    ports = [reserved_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)
