"""One health check over HTTP/1.1, on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost

from mcproxy import __version__
from mcproxy.config.model import UpstreamProtocol
from mcproxy.upstream.health_check import CheckError, failure_message, get_health, is_refused
from tests.http.h2.harness import H2Wire
from tests.http.test_connection_pool import Play
from tests.upstream.fakes import some_endpoints

READYZ = b"[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/x failed: reason withheld\n"


class Stage:
    """An endpoint that is checked over HTTP/1.1."""

    def __init__(self) -> None:
        self.play = Play(UpstreamProtocol.HTTP1)
        self.endpoint = some_endpoints(1)[0]
        self.endpoint.control_pool = self.play.pool

    def check(self, authorization: bytes | None = b"Bearer t") -> list[Any]:
        """Begin a check and let its connection be made; its answer, or why there is none, is added."""
        got: list[Any] = []
        work = get_health(self.endpoint, "/readyz", authorization, self.play.clock, timeout=3.0, new_connection=False)
        self.checking = Deferred.fromCoroutine(work)
        self.checking.addCallbacks(got.append, lambda why: got.append(why.value))
        self.play.agrees(None)
        return got

    @property
    def wire(self) -> H2Wire:
        return self.play.wires[-1]

    def is_closed(self) -> bool:
        self.wire.turn()
        return self.wire.closed or self.wire.aborted


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_request_asks_for_one_answer_only(stage: Stage) -> None:
    stage.check()
    assert stage.wire.taken().split(b"\r\n") == [
        b"GET /readyz HTTP/1.1",
        b"Host: " + stage.endpoint.host_header,
        b"User-Agent: mcproxy-health/" + __version__.encode(),
        b"Accept: */*",
        b"Connection: close",
        b"Authorization: Bearer t",
        b"",
        b"",
    ]


def test_without_a_credential_nothing_is_said_of_one(stage: Stage) -> None:
    stage.check(None)
    assert b"Authorization" not in stage.wire.taken()


def test_each_check_proves_a_new_connection(stage: Stage) -> None:
    for number in (1, 2):
        got = stage.check()
        assert len(stage.play.wires) == number
        stage.wire.deliver(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        assert got == [(200, b"")]
        assert stage.is_closed()
        assert stage.play.pool.connections == 0


@pytest.mark.parametrize("cut", range(1, 60))
def test_an_answer_is_read_however_it_is_cut(stage: Stage, cut: int) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 500 X\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbad"
    got = stage.check()
    stage.wire.deliver(data[:cut])
    stage.wire.deliver(data[cut:])
    assert got == [(500, b"bad")]
    assert stage.is_closed()


def test_a_good_answer_does_not_wait_for_its_body(stage: Stage) -> None:
    got = stage.check()
    stage.wire.deliver(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    assert got == [(200, b"")]
    assert stage.is_closed()


def test_a_body_without_length_ends_with_the_connection(stage: Stage) -> None:
    got = stage.check()
    stage.wire.deliver(b"HTTP/1.1 500 X\r\n\r\nbad")
    stage.wire.lose(ConnectionDone)
    assert got == [(500, b"bad")]


def test_an_endless_body_is_cut(stage: Stage) -> None:
    got = stage.check()
    stage.wire.deliver(b"HTTP/1.1 500 X\r\n\r\n" + b"x" * 70_000)
    assert [status for status, _ in got] == [500]
    assert stage.is_closed()


@pytest.mark.parametrize(
    ("data", "reason", "complaint"),
    [
        (b"", ConnectionDone, "closed the connection without an answer"),
        (b"HTTP/1.1 20", ConnectionLost, "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", None, "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, None, "not HTTP"),
    ],
)
def test_what_is_no_answer_is_an_error(
    stage: Stage, data: bytes, reason: type[Exception] | None, complaint: str
) -> None:
    got = stage.check()
    if data:
        stage.wire.deliver(data)
    if reason is not None:
        stage.wire.lose(reason)
    assert [type(error) for error in got] == [CheckError]
    assert complaint in str(got[0])
    assert stage.play.pool.connections == 0


def test_giving_up_closes_and_ignores_the_rest(stage: Stage) -> None:
    got = stage.check()
    stage.checking.cancel()
    assert stage.is_closed()
    assert [type(error) for error in got] == [CancelledError]
    assert stage.play.pool.connections == 0


def test_silence_ends_with_the_time_for_an_answer(stage: Stage) -> None:
    got = stage.check()
    stage.play.clock.advance(3.1)
    assert [str(error) for error in got] == ["no answer on /readyz within 3 s"]
    assert stage.is_closed()


@pytest.mark.parametrize("status", [200, 204])
def test_alive(status: int) -> None:
    assert failure_message(status, b"", "/readyz") is None
    assert not is_refused(status)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_credential_is_neither(status: int) -> None:
    assert failure_message(status, b"", "/readyz") == f"answered {status} on /readyz"
    assert is_refused(status)


@pytest.mark.parametrize("status", [301, 400, 404, 429, 500, 503])
def test_not_ready(status: int) -> None:
    assert failure_message(status, b"", "/readyz") == f"answered {status} on /readyz"


def test_the_failed_checks_of_an_api_server_are_named() -> None:
    assert failure_message(500, READYZ, "/readyz") == "answered 500 on /readyz: etcd, poststarthook/x failed"


def test_what_a_server_says_cannot_forge_log_lines() -> None:
    sentence = failure_message(500, b"[-]a\x1b[31m\r\xff" + b"x" * 1000, "/readyz")
    assert sentence is not None
    assert sentence.isprintable()
    assert len(sentence) < 300
