"""Over which connection a health check goes, and which answer counts: on a clock, frame by frame."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.config.model import UpstreamProtocol
from mcproxy.http.h2.frames import DATA, END_STREAM, HEADERS, PING, PREFACE, RST_STREAM, frame
from mcproxy.net.connect_errors import ConnectionRefused
from mcproxy.upstream.health_check import CheckError, get_health
from tests.http.h2.client_harness import OK, response
from tests.http.h2.harness import frames
from tests.http.h2.raw import goaway, literal, rst_stream, settings
from tests.http.test_connection_pool import Play
from tests.http.test_own_requests import send
from tests.upstream.fakes import some_endpoints

PATIENCE = 1.5


class Stage:
    """An endpoint with one HTTP/2 connection, over which a client's watch runs."""

    def __init__(self) -> None:
        self.play = Play(UpstreamProtocol.AUTO)
        self.endpoint = some_endpoints(1)[0]
        self.endpoint.control_pool = self.play.pool
        self.watch = send(self.opened(self.play.asks())[0])
        self.sent()

    def opened(self, got: list[Any]) -> list[Any]:
        """The handshake that is under way ends, and the upstream begins."""
        self.play.agrees(b"h2")
        self.play.wires[-1].deliver(settings())
        return got

    def check(self, *, apart: bool = False) -> list[Any]:
        """Begin a check; its answer, or why there is none, is added."""
        got: list[Any] = []
        get = partial(get_health, self.endpoint, "/readyz", b"Bearer x", self.play.clock)
        work = get(timeout=2 * PATIENCE, new_connection=apart)
        self.checking = Deferred.fromCoroutine(work)
        self.checking.addCallbacks(got.append, lambda why: got.append(why.value))
        return got

    def sent(self, wire: int = -1) -> list[Any]:
        """The frames that a connection got since the last look."""
        self.play.wires[wire].turn()
        return [each for each in frames(self.play.wires[wire].taken().removeprefix(PREFACE)) if each.kind in KINDS]

    def number(self, wire: int = -1) -> int:
        """The stream of the check on a connection."""
        [head] = [each for each in self.sent(wire) if each.kind == HEADERS]
        return int(head.stream_id)

    def answers(self, data: bytes, wire: int = -1) -> None:
        self.play.wires[wire].deliver(data)


KINDS = (HEADERS, RST_STREAM, PING)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_it_shares_a_connection_and_reads_no_body_of_a_success(stage: Stage) -> None:
    got = stage.check()
    number = stage.number()
    stage.answers(response(number) + frame(DATA, END_STREAM, number, b"ok"))
    assert got == [(200, b"")]
    assert stage.play.dials == []
    assert len(stage.play.clock.getDelayedCalls()) == 1  # the sweep of deadlines


def test_a_failure_comes_with_its_body(stage: Stage) -> None:
    got = stage.check()
    number = stage.number()
    stage.answers(response(number, literal(b":status", b"500")))
    stage.answers(frame(DATA, END_STREAM, number, b"[-]etcd failed"))
    assert got == [(500, b"[-]etcd failed")]


def test_a_late_answer_is_asked_for_over_a_new_connection_and_a_silent_one_is_doubted(stage: Stage) -> None:
    got = stage.check()
    number = stage.number()
    stage.play.clock.advance(PATIENCE - 0.1)
    assert stage.play.dials == []
    stage.play.clock.advance(0.2)
    assert len(stage.play.dials) == 1
    stage.opened([])
    stage.answers(response(1, end=True))
    assert got == [(200, b"")]
    kinds = [(each.kind, each.stream_id) for each in stage.sent(0)]
    assert (RST_STREAM, number) in kinds
    assert (PING, 0) in kinds
    assert stage.watch.failure is None
    [kept] = stage.play.pool._h2.connections
    wire: Any = kept.transport
    assert wire is stage.play.wires[1], "the connection in doubt gets requests, or the new one does not"


def test_the_answer_over_the_old_connection_counts_if_it_comes_first(stage: Stage) -> None:
    got = stage.check()
    number = stage.number()
    stage.play.clock.advance(PATIENCE)
    stage.answers(response(number, end=True), 0)
    assert got == [(200, b"")]
    [(_, dialled)] = stage.play.dials
    assert dialled.called, "a connection that nobody wants is still being opened"


@pytest.mark.parametrize(
    "end",
    [goaway(1, 0), rst_stream(3, 2), rst_stream(3, 7), response(3, OK + OK)],
    ids=["goaway", "internal error", "refused", "malformed"],
)
def test_one_that_fails_over_the_old_connection_is_made_at_once_over_a_new_one(stage: Stage, end: bytes) -> None:
    got = stage.check()
    assert stage.number() == 3
    stage.answers(end)
    assert got == []
    stage.opened([])
    stage.answers(response(1, end=True))
    assert got == [(200, b"")]


@pytest.mark.parametrize("end", [rst_stream(1, 7), goaway(0, 0), goaway(0, 11)], ids=["refused", "goaway", "calm"])
def test_clients_that_fill_the_connection_that_it_opened_take_no_endpoint_out(end: bytes) -> None:
    """They share the handshake, and the upstream's limit is not known before its SETTINGS."""
    stage = Stage()
    stage.play.pool.renew()
    got = stage.check()
    clients = stage.play.asks(3)
    assert len(stage.play.dials) == 1
    stage.opened([])
    assert stage.number() == 1
    for client in clients:
        send(client)
    stage.answers(end)
    assert got == []
    stage.opened([])
    assert stage.number() == 1, "another request went first"
    stage.answers(response(1, end=True))
    assert got == [(200, b"")]


def test_one_that_ends_both_connections_is_no_more_than_a_failure() -> None:
    stage = Stage()
    stage.play.pool.renew()
    got = stage.check()
    for _ in range(2):
        assert got == []
        stage.opened([])
        stage.answers(rst_stream(1, 7))
    assert [type(error) for error in got] == [CheckError]
    assert stage.play.dials == []


def test_if_both_fail_the_cause_is_that_of_the_new_connection(stage: Stage) -> None:
    got = stage.check()
    stage.answers(rst_stream(3, 2))
    stage.play.fails(ConnectionRefused("it refused the connection"))
    assert [str(error) for error in got] == ["it refused the connection"]


def test_it_opens_a_connection_if_it_must(stage: Stage) -> None:
    got = stage.check(apart=True)
    stage.opened([])
    stage.answers(response(1, literal(b":status", b"401"), end=True))
    assert got == [(401, b"")]


def test_what_answers_over_http1_alone_is_checked_so(stage: Stage) -> None:
    got = stage.check(apart=True)
    stage.opened([])
    stage.answers(rst_stream(1, 13))
    assert stage.play.offered[-1] == (b"http/1.1",)
    stage.play.agrees(b"http/1.1")
    stage.answers(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert got == [(200, b"")]


@pytest.mark.parametrize("seconds", [0.1, 2.0])
def test_a_check_that_is_stopped_leaves_nothing_behind(stage: Stage, seconds: float) -> None:
    got = stage.check()
    number = stage.number()
    stage.play.clock.advance(seconds)
    stage.checking.cancel()
    assert [type(error) for error in got] == [CancelledError]
    assert (RST_STREAM, number) in [(each.kind, each.stream_id) for each in stage.sent(0)]
    assert all(done.called for _, done in stage.play.dials)
    assert stage.watch.failure is None


def test_an_endless_body_is_read_up_to_a_bound(stage: Stage) -> None:
    got = stage.check()
    number = stage.number()
    stage.answers(response(number, literal(b":status", b"500")))
    for _ in range(10):
        stage.answers(frame(DATA, 0, number, bytes(16384)))
    [(status, body)] = got
    assert status == 500
    assert 64 * 1024 <= len(body) < 100 * 1024
    assert not isinstance(got[0], CheckError)
