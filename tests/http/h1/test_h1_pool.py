"""Which connections are kept, who waits for one, and what happens to those who leave."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h1.h1_client import H1ClientConnection
from mcproxy.http.h1.h1_pool import H1Pool
from tests.http.h1.harness import Answer, Wire, request_to_send
from tests.support.clock import Clock

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Opening:
    """A connection that the pool asked for."""

    def __init__(self, connection: H1ClientConnection) -> None:
        self.connection = connection
        self.wire = Wire(connection)
        self.done: Deferred[None] = Deferred()

    def succeeds(self) -> None:
        self.connection.makeConnection(self.wire)
        self.done.callback(None)

    def fails(self) -> None:
        self.done.errback(RuntimeError("refused"))


class Loan:
    """Somebody who asked the pool for a connection."""

    def __init__(self, deferred: Deferred[H1ClientConnection]) -> None:
        self.deferred = deferred
        self.connection: H1ClientConnection | None = None
        self.failure: BaseException | None = None
        deferred.addCallbacks(self._got, self._failed)

    def _got(self, connection: H1ClientConnection) -> None:
        self.connection = connection

    def _failed(self, failure: Any) -> None:
        self.failure = failure.value

    def asks(self) -> Answer:
        assert self.connection is not None
        answer = Answer()
        self.connection.send_head(request_to_send(), b"/", b"host", (), answer, 60.0)
        return answer


class Play:
    def __init__(self, *, max_idle: int = 2, max_connections: int = 0, idle_timeout: float = 10.0) -> None:
        self.clock = Clock()
        self.openings: list[Opening] = []
        self.pool = H1Pool(
            self._connect,
            Deadlines(self.clock),
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=idle_timeout,
        )

    def _connect(self, connection: H1ClientConnection) -> Deferred[None]:
        self.openings.append(Opening(connection))
        return self.openings[-1].done

    def borrows(self) -> Loan:
        connection = self.pool.take()
        if connection is None:
            return Loan(self.pool.open())
        ready: Deferred[H1ClientConnection] = Deferred()
        ready.callback(connection)
        return Loan(ready)

    def lends(self) -> tuple[Loan, Wire]:
        """A loan on a new connection that opens at once."""
        loan = Loan(self.pool.open())
        self.openings[-1].succeeds()
        return loan, self.openings[-1].wire


def returns(loan: Loan, wire: Wire) -> None:
    """One request is sent and answered."""
    answer = loan.asks()
    wire.deliver(OK)
    assert answer.complete


def test_the_newest_idle_connection_is_lent_first() -> None:
    harness = Play()
    first, second = harness.lends(), harness.lends()
    returns(*first)
    returns(*second)
    assert harness.pool.idle == 2
    assert harness.borrows().connection is second[0].connection
    assert harness.borrows().connection is first[0].connection
    assert harness.pool.take() is None


def test_beyond_max_idle_a_connection_is_closed() -> None:
    harness = Play(max_idle=1)
    first, second = harness.lends(), harness.lends()
    returns(*first)
    returns(*second)
    assert (harness.pool.idle, harness.pool.connections) == (1, 1)
    assert second[1].closed


def test_an_idle_connection_is_closed_after_its_time_and_one_that_is_used_again_is_not() -> None:
    harness = Play(idle_timeout=10)
    loan, wire = harness.lends()
    returns(loan, wire)
    harness.clock.pump([0.25] * 36)
    again = harness.borrows()
    harness.clock.pump([0.25] * 80)
    assert wire.open
    returns(again, wire)
    harness.clock.pump([0.25] * 38)
    assert wire.open
    harness.clock.pump([0.25] * 4)
    assert wire.closed
    assert (harness.pool.idle, harness.pool.connections) == (0, 0)


def test_an_idle_connection_that_the_upstream_closes_leaves_the_pool() -> None:
    harness = Play()
    loan, wire = harness.lends()
    returns(loan, wire)
    wire.end()
    assert wire.closed
    assert (harness.pool.idle, harness.pool.connections) == (0, 0)
    wire.settle()
    assert harness.pool.connections == 0


def test_an_idle_connection_that_sends_data_leaves_the_pool() -> None:
    harness = Play()
    loan, wire = harness.lends()
    returns(loan, wire)
    wire.deliver(OK)
    assert wire.aborted
    assert (harness.pool.idle, harness.pool.connections) == (0, 0)


def test_a_connection_that_cannot_be_opened_does_not_count() -> None:
    harness = Play(max_connections=1)
    loan = harness.borrows()
    harness.openings[0].fails()
    assert isinstance(loan.failure, RuntimeError)
    assert harness.pool.connections == 0


class TestLoad:
    """As many stay idle as the last minute needed."""

    def busy(self, harness: Play, count: int) -> list[Loan]:
        """Use `count` connections at the same time, once."""
        loans = [harness.borrows() for _ in range(count)]
        for opening in harness.openings:
            if not opening.done.called:
                opening.succeeds()
        wires: dict[H1ClientConnection, Wire] = {opening.connection: opening.wire for opening in harness.openings}
        answers = [loan.asks() for loan in loans]
        for loan in loans:
            assert loan.connection is not None
            wires[loan.connection].deliver(OK)
        assert all(answer.complete for answer in answers)
        return loans

    def test_hundred_clients_open_hundred_connections_once(self) -> None:
        harness = Play(max_idle=1024, idle_timeout=90)
        for _ in range(100):
            self.busy(harness, 100)
            harness.clock.advance(1)
        assert len(harness.openings) == 100
        assert harness.pool.idle == 100

    def test_surplus_closes_when_the_mark_falls_and_the_rest_stays(self) -> None:
        harness = Play(max_idle=1024, idle_timeout=3600)
        self.busy(harness, 100)
        for _ in range(55):
            harness.clock.advance(1)
            self.busy(harness, 10)
        assert harness.pool.idle == 100
        for _ in range(20):
            harness.clock.advance(1)
            newest = self.busy(harness, 10)
        assert (harness.pool.idle, harness.pool.connections) == (10, 10)
        assert len(harness.openings) == 100
        assert {loan.connection for loan in newest} == {loan.connection for loan in self.busy(harness, 10)}

    def test_connections_in_use_for_long_need_no_idle_ones_beside_them(self) -> None:
        harness = Play(max_idle=1024, idle_timeout=3600)
        watches = [harness.lends() for _ in range(50)]
        for loan, wire in watches:
            loan.asks()
            wire.deliver(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            harness.clock.advance(1)
            self.busy(harness, 3)
        assert (harness.pool.idle, harness.pool.connections) == (3, 53)

    def test_max_idle_caps(self) -> None:
        harness = Play(max_idle=20, idle_timeout=3600)
        for _ in range(3):
            self.busy(harness, 50)
        assert harness.pool.idle == 20


class TestMaxConnections:
    def test_who_comes_first_is_served_first(self) -> None:
        harness = Play(max_connections=1)
        loan, wire = harness.lends()
        waiting = [harness.borrows(), harness.borrows()]
        assert len(harness.openings) == 1
        returns(loan, wire)
        assert waiting[0].connection is loan.connection
        assert waiting[1].connection is None
        returns(waiting[0], wire)
        assert waiting[1].connection is loan.connection
        returns(waiting[1], wire)
        assert harness.pool.idle == 1

    def test_when_a_connection_dies_one_who_waits_gets_a_new_one(self) -> None:
        harness = Play(max_connections=1)
        loan, wire = harness.lends()
        waiting = harness.borrows()
        answer = loan.asks()
        wire.lose()
        assert answer.failure is not None
        assert len(harness.openings) == 2
        harness.openings[1].succeeds()
        assert waiting.connection is harness.openings[1].connection
        assert harness.pool.connections == 1

    def test_when_that_one_cannot_be_opened_only_he_fails(self) -> None:
        harness = Play(max_connections=1)
        _, wire = harness.lends()
        waiting = [harness.borrows(), harness.borrows()]
        wire.lose()
        harness.openings[1].fails()
        assert isinstance(waiting[0].failure, RuntimeError)
        assert len(harness.openings) == 3
        harness.openings[2].succeeds()
        assert waiting[1].connection is harness.openings[2].connection

    def test_who_leaves_the_queue_is_passed_over(self) -> None:
        harness = Play(max_connections=1)
        loan, wire = harness.lends()
        gone, stays = harness.borrows(), harness.borrows()
        gone.deferred.cancel()
        assert isinstance(gone.failure, CancelledError)
        returns(loan, wire)
        assert stays.connection is loan.connection

    def test_who_leaves_while_his_connection_is_opened_leaves_it_to_the_pool(self) -> None:
        harness = Play(max_connections=1)
        _, wire = harness.lends()
        gone = harness.borrows()
        wire.lose()
        gone.deferred.cancel()
        assert isinstance(gone.failure, CancelledError)
        harness.openings[1].succeeds()
        assert (harness.pool.idle, harness.pool.connections) == (1, 1)

    def test_cancelling_while_the_connection_fails_to_open_disturbs_no_other(self) -> None:
        harness = Play(max_connections=1)
        _, wire = harness.lends()
        gone = harness.borrows()
        wire.lose()
        gone.deferred.cancel()
        harness.openings[1].fails()
        assert harness.pool.connections == 0

    def test_a_tunnel_no_longer_counts(self) -> None:
        harness = Play(max_connections=1)
        loan, wire = harness.lends()
        waiting = harness.borrows()
        assert loan.connection is not None
        loan.connection.send_head(request_to_send(upgrade=b"websocket"), b"/", b"host", (), Answer(), 0.0)
        wire.deliver(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        harness.openings[1].succeeds()
        assert waiting.connection is not None

    def test_a_new_connection_that_is_asked_for_takes_the_place_of_a_free_one(self) -> None:
        harness = Play(max_connections=1)
        loan, wire = harness.lends()
        returns(loan, wire)
        another, _ = harness.lends()
        assert wire.closed
        assert another.connection is not loan.connection
        assert (harness.pool.idle, harness.pool.connections) == (0, 1)


class TestClose:
    def test_idle_connections_close_at_once_and_others_after_their_request(self) -> None:
        harness = Play()
        idle, busy = harness.lends(), harness.lends()
        returns(*idle)
        harness.pool.close()
        assert idle[1].closed
        assert busy[1].open
        returns(*busy)
        assert busy[1].closed
        assert (harness.pool.idle, harness.pool.connections) == (0, 0)

    def test_those_who_wait_are_still_served(self) -> None:
        harness = Play(max_connections=1)
        loan, wire = harness.lends()
        waiting = harness.borrows()
        harness.pool.close()
        returns(loan, wire)
        assert waiting.connection is loan.connection


@pytest.mark.parametrize("how", ["cancel", "lose"])
def test_a_connection_that_is_broken_off_is_counted_out_once(how: str) -> None:
    harness = Play()
    loan, wire = harness.lends()
    loan.asks()
    assert loan.connection is not None
    if how == "cancel":
        loan.connection.cancel()
        wire.settle()
    else:
        wire.lose()
    assert harness.pool.connections == 0


def test_a_connection_is_kept_for_less_time_than_the_upstream_announces() -> None:
    harness = Play(idle_timeout=90.0)
    loan, wire = harness.lends()
    answer = loan.asks()
    wire.deliver(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\n\r\n")
    assert answer.complete
    harness.clock.advance(3.9)
    assert harness.borrows().connection is loan.connection
    returns(loan, wire)
    harness.clock.advance(4.0)
    assert harness.pool.take() is None
    assert harness.pool.connections == 0


def test_after_an_idle_one_was_closed_others_are_kept_for_less_time_for_a_while() -> None:
    harness = Play(idle_timeout=90.0)
    first = harness.lends()
    returns(*first)
    harness.clock.advance(1.0)
    second = harness.lends()
    returns(*second)
    harness.clock.advance(4.0)
    first[1].lose()
    assert harness.pool.idle == 1  # 4 s old
    harness.clock.advance(0.1)
    assert harness.pool.take() is None
    harness.clock.advance(700.0)
    third = harness.lends()
    returns(*third)
    connection = third[0].connection
    assert connection is not None
    assert connection.deadline == harness.clock.seconds() + 90.0


def test_one_that_is_closed_at_once_says_nothing_of_idleness() -> None:
    harness = Play(idle_timeout=90.0)
    first, second = harness.lends(), harness.lends()
    returns(*first)
    returns(*second)
    first[1].lose()
    harness.clock.advance(60.0)
    assert harness.borrows().connection is second[0].connection


def test_a_request_on_one_that_the_upstream_closes_meanwhile_says_so() -> None:
    harness = Play(idle_timeout=90.0)
    loan, wire = harness.lends()
    returns(loan, wire)
    harness.clock.advance(30.0)
    answer = harness.borrows().asks()
    wire.lose()
    assert str(answer.failure).startswith("the connection had been idle for 30.0 s and was closed")
    again = harness.lends()
    returns(*again)
    harness.clock.advance(27.0)
    assert harness.pool.take() is None  # it was sent too late once, and not again
