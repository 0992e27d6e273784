"""The control socket checks the peer's user and bounds requests. Whole conversations are in test_main."""

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.daemon.control.control_socket import (
    MAX_CONNECTIONS,
    MAX_REQUEST,
    REQUEST_TIMEOUT,
    Answer,
    ControlFactory,
    ControlProtocol,
    is_permitted,
    peer_uid,
    remove_stale_socket,
)
from mcproxy.daemon.errors import DaemonError
from tests.support.clock import Clock


class Transport:
    """What a protocol may do with its connection, and what came of it."""

    socket = object()

    def __init__(self) -> None:
        self.written = b""
        self.disconnecting = False

    def write(self, data: bytes) -> None:
        self.written += data

    def loseConnection(self) -> None:
        self.disconnecting = True


class Commands:
    """Two commands: one answers at once, one when the test says so, and one that has a bug."""

    def __init__(self) -> None:
        self.waiting: Deferred[Answer] = Deferred()
        self.asked: list[Mapping[str, Any]] = []

    async def now(self, request: Mapping[str, Any]) -> Answer:
        self.asked.append(request)
        return {"ok": True, "n": request.get("n")}

    async def later(self, request: Mapping[str, Any]) -> Answer:
        return await self.waiting

    async def broken(self, request: Mapping[str, Any]) -> Answer:
        raise ZeroDivisionError

    def table(self) -> dict[str, Any]:
        return {"now": self.now, "later": self.later, "broken": self.broken}


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.commands = Commands()
        self.uid = 1000
        self.factory = ControlFactory(self.clock, self.commands.table(), 1000, lambda _: self.uid)

    def connect(self) -> tuple[ControlProtocol, Transport]:
        protocol, transport = self.factory.buildProtocol(None), Transport()
        protocol.transport = transport  # type: ignore[assignment]
        protocol.connectionMade()
        return protocol, transport

    def answers(self, transport: Transport) -> list[dict[str, Any]]:
        return [json.loads(line) for line in transport.written.splitlines()]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("uid", "owner", "may"), [(0, 1000, True), (1000, 1000, True), (1001, 1000, False), (1, 0, False)]
)
def test_owner_and_root_may_ask(uid: int, owner: int, may: bool) -> None:
    assert is_permitted(uid, owner) is may


def test_peer_credentials_come_from_the_kernel() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peer_uid(ours) == os.geteuid()


def test_stranger_is_turned_away_before_anything_is_read(world: World) -> None:
    world.uid = 1001
    protocol, transport = world.connect()
    assert transport.disconnecting
    protocol.dataReceived(b'{"command": "now"}\n')
    assert world.commands.asked == []
    assert transport.written == b""


def test_requests_are_answered_in_order_one_at_a_time(world: World) -> None:
    protocol, transport = world.connect()
    protocol.dataReceived(b'{"command": "later"}\n{"command": "now", "n": 2}\n')
    assert transport.written == b""
    world.commands.waiting.callback({"ok": True, "n": 1})
    world.clock.advance(0)
    assert [answer["n"] for answer in world.answers(transport)] == [1, 2]


def test_request_may_come_in_pieces(world: World) -> None:
    protocol, transport = world.connect()
    for byte in b'{"command": "now", "n": 7}\n':
        protocol.dataReceived(bytes([byte]))
    assert world.answers(transport) == [{"ok": True, "n": 7}]


def test_too_long_a_request_ends_the_connection(world: World) -> None:
    protocol, transport = world.connect()
    protocol.dataReceived(b" " * (MAX_REQUEST + 1))
    assert "at most" in world.answers(transport)[0]["errors"][0]
    assert transport.disconnecting


def test_silent_peer_is_hung_up_on(world: World) -> None:
    protocol, transport = world.connect()
    world.clock.advance(REQUEST_TIMEOUT)
    assert transport.disconnecting
    assert world.clock.getDelayedCalls() == []
    protocol.dataReceived(b'{"command": "now"}\n')
    assert world.commands.asked == []


def test_answer_may_take_longer_than_a_request(world: World) -> None:
    protocol, transport = world.connect()
    protocol.dataReceived(b'{"command": "later"}\n')
    world.clock.advance(10 * REQUEST_TIMEOUT)
    assert not transport.disconnecting
    world.commands.waiting.callback({"ok": True})
    assert world.answers(transport) == [{"ok": True}]


def test_peer_that_leaves_before_the_answer_harms_no_other(world: World) -> None:
    protocol, transport = world.connect()
    protocol.dataReceived(b'{"command": "later"}\n')
    protocol.connectionLost()
    world.commands.waiting.callback({"ok": True})
    assert transport.written == b""
    assert world.clock.getDelayedCalls() == []


def test_connections_are_bounded(world: World) -> None:
    connected = [world.connect() for _ in range(MAX_CONNECTIONS)]
    assert not any(transport.disconnecting for _, transport in connected)
    assert world.connect()[1].disconnecting
    connected[0][0].connectionLost()
    assert not world.connect()[1].disconnecting


@pytest.mark.parametrize("line", [b"[]", b"null", b"{", b"\xff", b'{"command": ["now"]}', b"[" * 5000])
def test_nonsense_is_answered_with_an_error(world: World, line: bytes) -> None:
    protocol, transport = world.connect()
    protocol.dataReceived(line + b"\n")
    assert world.answers(transport)[0]["ok"] is False


def test_bug_in_a_command_is_answered_and_the_connection_lives_on(world: World) -> None:
    protocol, transport = world.connect()
    protocol.dataReceived(b'{"command": "broken"}\n{"command": "now"}\n')
    world.clock.advance(0)
    assert [answer["ok"] for answer in world.answers(transport)] == [False, True]


def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("precious")
    with pytest.raises(DaemonError, match="not a socket"):
        remove_stale_socket(str(path))
    assert path.read_text() == "precious"


def test_one_missing_directory_is_made_but_not_two(tmp_path: Path) -> None:
    remove_stale_socket(str(tmp_path / "run" / "control.sock"))
    assert (tmp_path / "run").is_dir()
    with pytest.raises(DaemonError, match="No such file"):
        remove_stale_socket(str(tmp_path / "a" / "b" / "control.sock"))


def test_socket_with_a_listener_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "control.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        with pytest.raises(DaemonError, match="another process listens"):
            remove_stale_socket(path)
    remove_stale_socket(path)
    assert not os.path.exists(path)


def test_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match="longer than 107 bytes"):
        remove_stale_socket(str(tmp_path / ("x" * 120)))
