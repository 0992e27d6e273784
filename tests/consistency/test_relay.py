"""The relay delays, freezes, resets and half-closes one connection or one direction, and no other."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.consistency.relay import FOREVER, UNASKED, Connection, Relay, Relays


class _Echo(socketserver.BaseRequestHandler):
    """Answers each piece with itself; `stream` with more a while later; its client's end with `end`."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.request.recv(65536):
                self.request.sendall(data)
                if data == b"stream":
                    time.sleep(1.5 * UNASKED)
                    self.request.sendall(b".")
            self.request.sendall(b"end")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    with _Server(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        with Relays() as relays:
            yield relays.relay(server.server_address[1])
        server.shutdown()
        thread.join(5)


def _connect(relay: Relay) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", relay.port), 60)
    found.sendall(b"hello")
    assert found.recv(100) == b"hello"
    return found


def _newest(relay: Relay) -> int:
    return relay.act(lambda found: found[-1].number)


def _do(relay: Relay, number: int, what: str, *arguments: object) -> None:
    def act(found: list[Connection]) -> None:
        (connection,) = (one for one in found if one.number == number)
        getattr(connection, what)(*arguments)

    relay.act(act)


def _whole(client: socket.socket, wanted: bytes) -> None:
    data = b""
    while len(data) < len(wanted):
        got = client.recv(100)
        assert got, f"it ended after {data!r}"
        data += got
    assert data == wanted


def _refused(relay: Relay) -> bool:
    """Whether a new connection is reset, at once or after it was accepted."""
    try:
        with socket.create_connection(("127.0.0.1", relay.port), 60) as one:
            return _is_reset(one)
    except ConnectionResetError:
        return True


def _is_reset(client: socket.socket) -> bool:
    try:
        for _ in range(500):
            client.sendall(b"no more")
            time.sleep(0.01)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


def test_bytes_are_held_for_some_time_and_then_come_whole_while_another_connection_goes_on(relay: Relay) -> None:
    with _connect(relay) as one:
        number = _newest(relay)
        with _connect(relay) as two:
            _do(relay, number, "hold", 0.4, ("down",))
            begun = time.monotonic()
            one.sendall(b"held")
            two.sendall(b"free")
            _whole(two, b"free")
            _whole(one, b"held")
            assert time.monotonic() - begun >= 0.35


def test_a_frozen_connection_stays_so_until_it_is_healed(relay: Relay) -> None:
    with _connect(relay) as one:
        _do(relay, _newest(relay), "hold", FOREVER)
        one.sendall(b"frozen")
        one.settimeout(0.3)
        with pytest.raises(TimeoutError):
            one.recv(10)
        one.settimeout(60)
        relay.heal()
        _whole(one, b"frozen")


def test_a_reset_is_a_reset_to_the_client(relay: Relay) -> None:
    with _connect(relay) as one:
        _do(relay, _newest(relay), "reset")
        with pytest.raises(ConnectionResetError):
            one.recv(10)


def test_one_direction_is_closed_and_the_other_goes_on(relay: Relay) -> None:
    with _connect(relay) as one:
        _do(relay, _newest(relay), "half_close", "down")
        assert one.recv(10) == b""
        one.sendall(b"it still takes this")
        relay.heal()
        assert _is_reset(one)
    with _connect(relay) as two:
        _do(relay, _newest(relay), "half_close", "up")
        _whole(two, b"end")


def test_the_clients_end_is_passed_on_and_the_answer_to_it(relay: Relay) -> None:
    with _connect(relay) as one:
        one.shutdown(socket.SHUT_WR)
        _whole(one, b"end")
        assert one.recv(10) == b""


def test_bytes_drip_and_are_late(relay: Relay) -> None:
    with _connect(relay) as one:
        _do(relay, _newest(relay), "drip", 2, 0.05, ("down",))
        begun = time.monotonic()
        one.sendall(b"12345678")
        _whole(one, b"12345678")
        assert time.monotonic() - begun >= 0.14
        relay.heal()
        _do(relay, _newest(relay), "delay", 0.3, ("up",))
        begun = time.monotonic()
        one.sendall(b"late")
        _whole(one, b"late")
        assert time.monotonic() - begun >= 0.25


def test_a_connection_that_streams_is_told_from_one_that_is_asked(relay: Relay) -> None:
    with contextlib.ExitStack() as opened:
        two = opened.enter_context(_connect(relay))
        stream = _newest(relay)
        two.sendall(b"stream")
        _whole(two, b"stream" + b".")
        assert relay.act(lambda found: {each.number: each.streams for each in found})[stream]
        for _ in range(20):  # of a busy machine an answer may be so late that it seems unasked
            one = opened.enter_context(_connect(relay))
            asked = _newest(relay)
            for _ in range(10):
                one.sendall(b"asked")
                _whole(one, b"asked")
            if not relay.act(lambda found: found[-1].streams):
                break
        assert not relay.act(lambda found: {each.number: each.streams for each in found})[asked]


def test_new_connections_are_refused_or_done_something_to(relay: Relay) -> None:
    relay.refusing = True
    assert _refused(relay)
    relay.heal()
    relay.opening = lambda connection: connection.delay(0.3)
    begun = time.monotonic()
    with _connect(relay):
        assert time.monotonic() - begun >= 0.5
    relay.heal()
    with _connect(relay):
        pass


def test_a_port_where_nobody_listens_resets(relay: Relay) -> None:
    target, relay.target = relay.target, 1
    try:
        assert _refused(relay)
    finally:
        relay.target = target
