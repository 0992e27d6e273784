"""The load generator counts whole good answers and stops at anything else."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from bench import load, pki
from bench.processes import Failed

SUCCESS = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

Answers = Callable[[int], list[bytes]]
"""The pieces of the answer to the request of this number, each a TLS record; none: the connection ends."""


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> pki.Identity:
    return pki.make_identity(tmp_path_factory.mktemp("tls"), "localhost", "localhost")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> pki.Identity:
    return pki.make_client(tmp_path_factory.mktemp("tls"), "client", "alice", ["dev", "ops"])


@contextmanager
def serving(identity: pki.Identity, client: pki.Identity, answers: Answers) -> Iterator[tuple[int, list[str]]]:
    """Serve connections that show the certificate of `client`; yield the port and the heads that came."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    context.load_verify_locations(client.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    heads: list[str] = []

    def serve(plain: socket.socket) -> None:
        # A client may end whenever it likes, a forgotten one with the garbage of another test: what its thread raised
        # would fail that one.
        with suppress(OSError), plain, context.wrap_socket(plain, server_side=True) as connection:
            number = 0
            while head := connection.recv(65536):
                heads.append(head.decode())
                for piece in (pieces := answers(number)):
                    connection.sendall(piece)
                if not pieces:
                    return
                number += 1

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(plain,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1], heads
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def context_of(identity: pki.Identity, client: pki.Identity) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(identity.authority))
    context.load_cert_chain(client.certificate, client.key)
    return context


def test_answers_in_pieces_are_counted_once_and_each_request_has_the_added_fields(
    identity: pki.Identity, client: pki.Identity
) -> None:
    with (
        serving(identity, client, lambda number: [SUCCESS[:20], SUCCESS[20:42], SUCCESS[42:]]) as (port, heads),
        load.opened(port, context_of(identity, client), "/x", connections=3, fields="X-One: 1\r\n") as three,
    ):
        assert len(heads) == 3  # each connection was used once
        report = three.run(0.05)
    assert report.errors == ""
    assert report.requests == len(heads) - 3 >= 3
    assert report.rate > 0
    assert 0 < report.p99 < 5
    assert set(heads) == {f"GET /x HTTP/1.1\r\nHost: localhost:{port}\r\nX-One: 1\r\n\r\n"}


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        ([], "a connection ended"),
        ([b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"], "401 Unauthorized"),
    ],
)
def test_a_bad_answer_or_an_end_is_told(
    identity: pki.Identity, client: pki.Identity, second: list[bytes], problem: str
) -> None:
    with (
        serving(identity, client, lambda number: second if number else [SUCCESS]) as (port, _),
        load.opened(port, context_of(identity, client), "/x", connections=1) as one,
    ):
        assert problem in one.run(1.0).errors


def test_a_first_answer_that_is_bad_fails_the_measurement(identity: pki.Identity, client: pki.Identity) -> None:
    with (
        serving(identity, client, lambda number: [SUCCESS.replace(b"200 OK", b"503 No")]) as (port, _),
        pytest.raises(Failed, match="503 No"),
        load.opened(port, context_of(identity, client), "/x", connections=1),
    ):
        pass
