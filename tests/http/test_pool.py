"""Which connections are kept, who waits for one, and what happens to those who leave."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock

from mcproxy.http.client import ClientConnection
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.pool import Pool
from tests.http.play import Answer, Wire

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Opening:
    """A connection that the pool asked for."""

    def __init__(self, connection: ClientConnection) -> None:
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

    def __init__(self, deferred: Deferred[ClientConnection]) -> None:
        self.deferred = deferred
        self.connection: ClientConnection | None = None
        self.failure: BaseException | None = None
        deferred.addCallbacks(self._got, self._failed)

    def _got(self, connection: ClientConnection) -> None:
        self.connection = connection

    def _failed(self, failure: Any) -> None:
        self.failure = failure.value

    def asks(self) -> Answer:
        assert self.connection is not None
        answer = Answer()
        self.connection.send(b"GET / HTTP/1.1\r\n\r\n", answer, b"GET", 60.0)
        return answer


class Play:
    def __init__(self, *, max_idle: int = 2, max_connections: int = 0, idle_timeout: float = 10.0) -> None:
        self.clock = Clock()
        self.openings: list[Opening] = []
        self.pool = Pool(
            self._connect,
            Deadlines(self.clock),
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=idle_timeout,
        )

    def _connect(self, connection: ClientConnection) -> Deferred[None]:
        self.openings.append(Opening(connection))
        return self.openings[-1].done

    def borrows(self) -> Loan:
        connection = self.pool.take()
        if connection is None:
            return Loan(self.pool.open())
        ready: Deferred[ClientConnection] = Deferred()
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
    play = Play()
    first, second = play.lends(), play.lends()
    returns(*first)
    returns(*second)
    assert play.pool.idle == 2
    assert play.borrows().connection is second[0].connection
    assert play.borrows().connection is first[0].connection
    assert play.pool.take() is None


def test_beyond_max_idle_a_connection_is_closed() -> None:
    play = Play(max_idle=1)
    first, second = play.lends(), play.lends()
    returns(*first)
    returns(*second)
    assert (play.pool.idle, play.pool.connections) == (1, 1)
    assert second[1].closed


def test_an_idle_connection_is_closed_after_its_time_and_one_that_is_used_again_is_not() -> None:
    play = Play(idle_timeout=10)
    loan, wire = play.lends()
    returns(loan, wire)
    play.clock.pump([0.25] * 36)
    again = play.borrows()
    play.clock.pump([0.25] * 80)
    assert wire.open
    returns(again, wire)
    play.clock.pump([0.25] * 38)
    assert wire.open
    play.clock.pump([0.25] * 4)
    assert wire.closed
    assert (play.pool.idle, play.pool.connections) == (0, 0)


def test_an_idle_connection_that_the_upstream_closes_leaves_the_pool() -> None:
    play = Play()
    loan, wire = play.lends()
    returns(loan, wire)
    wire.end()
    assert wire.closed
    assert (play.pool.idle, play.pool.connections) == (0, 0)
    wire.settle()
    assert play.pool.connections == 0


def test_an_idle_connection_that_says_something_leaves_the_pool() -> None:
    play = Play()
    loan, wire = play.lends()
    returns(loan, wire)
    wire.deliver(OK)
    assert wire.aborted
    assert (play.pool.idle, play.pool.connections) == (0, 0)


def test_a_connection_that_cannot_be_opened_does_not_count() -> None:
    play = Play(max_connections=1)
    loan = play.borrows()
    play.openings[0].fails()
    assert isinstance(loan.failure, RuntimeError)
    assert play.pool.connections == 0


class TestLoad:
    """As many stay idle as the last minute needed."""

    def busy(self, play: Play, count: int) -> list[Loan]:
        """Use `count` connections at the same time, once."""
        loans = [play.borrows() for _ in range(count)]
        for opening in play.openings:
            if not opening.done.called:
                opening.succeeds()
        wires = {opening.connection: opening.wire for opening in play.openings}
        answers = [loan.asks() for loan in loans]
        for loan in loans:
            assert loan.connection is not None
            wires[loan.connection].deliver(OK)
        assert all(answer.complete for answer in answers)
        return loans

    def test_hundred_clients_open_hundred_connections_once(self) -> None:
        play = Play(max_idle=1024, idle_timeout=90)
        for _ in range(100):
            self.busy(play, 100)
            play.clock.advance(1)
        assert len(play.openings) == 100
        assert play.pool.idle == 100

    def test_surplus_closes_when_the_mark_falls_and_the_rest_stays(self) -> None:
        play = Play(max_idle=1024, idle_timeout=3600)
        self.busy(play, 100)
        for _ in range(55):
            play.clock.advance(1)
            self.busy(play, 10)
        assert play.pool.idle == 100
        for _ in range(20):
            play.clock.advance(1)
            newest = self.busy(play, 10)
        assert (play.pool.idle, play.pool.connections) == (10, 10)
        assert len(play.openings) == 100
        assert {loan.connection for loan in newest} == {loan.connection for loan in self.busy(play, 10)}

    def test_connections_in_use_for_long_need_no_idle_ones_beside_them(self) -> None:
        play = Play(max_idle=1024, idle_timeout=3600)
        watches = [play.lends() for _ in range(50)]
        for loan, wire in watches:
            loan.asks()
            wire.deliver(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(100):
            play.clock.advance(1)
            self.busy(play, 3)
        assert (play.pool.idle, play.pool.connections) == (3, 53)

    def test_max_idle_caps(self) -> None:
        play = Play(max_idle=20, idle_timeout=3600)
        for _ in range(3):
            self.busy(play, 50)
        assert play.pool.idle == 20


class TestMaxConnections:
    def test_who_comes_first_is_served_first(self) -> None:
        play = Play(max_connections=1)
        loan, wire = play.lends()
        waiting = [play.borrows(), play.borrows()]
        assert len(play.openings) == 1
        returns(loan, wire)
        assert waiting[0].connection is loan.connection
        assert waiting[1].connection is None
        returns(waiting[0], wire)
        assert waiting[1].connection is loan.connection
        returns(waiting[1], wire)
        assert play.pool.idle == 1

    def test_when_a_connection_dies_one_who_waits_gets_a_new_one(self) -> None:
        play = Play(max_connections=1)
        loan, wire = play.lends()
        waiting = play.borrows()
        answer = loan.asks()
        wire.lose()
        assert answer.failure is not None
        assert len(play.openings) == 2
        play.openings[1].succeeds()
        assert waiting.connection is play.openings[1].connection
        assert play.pool.connections == 1

    def test_when_that_one_cannot_be_opened_only_he_fails(self) -> None:
        play = Play(max_connections=1)
        _, wire = play.lends()
        waiting = [play.borrows(), play.borrows()]
        wire.lose()
        play.openings[1].fails()
        assert isinstance(waiting[0].failure, RuntimeError)
        assert len(play.openings) == 3
        play.openings[2].succeeds()
        assert waiting[1].connection is play.openings[2].connection

    def test_who_leaves_the_queue_is_passed_over(self) -> None:
        play = Play(max_connections=1)
        loan, wire = play.lends()
        gone, stays = play.borrows(), play.borrows()
        gone.deferred.cancel()
        assert isinstance(gone.failure, CancelledError)
        returns(loan, wire)
        assert stays.connection is loan.connection

    def test_who_leaves_while_his_connection_is_opened_leaves_it_to_the_pool(self) -> None:
        play = Play(max_connections=1)
        _, wire = play.lends()
        gone = play.borrows()
        wire.lose()
        gone.deferred.cancel()
        assert isinstance(gone.failure, CancelledError)
        play.openings[1].succeeds()
        assert (play.pool.idle, play.pool.connections) == (1, 1)

    def test_who_leaves_while_his_connection_fails_to_open_disturbs_nobody(self) -> None:
        play = Play(max_connections=1)
        _, wire = play.lends()
        gone = play.borrows()
        wire.lose()
        gone.deferred.cancel()
        play.openings[1].fails()
        assert play.pool.connections == 0

    def test_a_tunnel_no_longer_counts(self) -> None:
        play = Play(max_connections=1)
        loan, wire = play.lends()
        waiting = play.borrows()
        assert loan.connection is not None
        loan.connection.send(b"", Answer(), b"GET", 0.0, False, True)
        wire.deliver(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        play.openings[1].succeeds()
        assert waiting.connection is not None

    def test_a_new_connection_that_is_asked_for_takes_the_place_of_a_free_one(self) -> None:
        play = Play(max_connections=1)
        loan, wire = play.lends()
        returns(loan, wire)
        another, _ = play.lends()
        assert wire.closed
        assert another.connection is not loan.connection
        assert (play.pool.idle, play.pool.connections) == (0, 1)


class TestClose:
    def test_idle_connections_close_at_once_and_others_after_their_request(self) -> None:
        play = Play()
        idle, busy = play.lends(), play.lends()
        returns(*idle)
        play.pool.close()
        assert idle[1].closed
        assert busy[1].open
        returns(*busy)
        assert busy[1].closed
        assert (play.pool.idle, play.pool.connections) == (0, 0)

    def test_those_who_wait_are_still_served(self) -> None:
        play = Play(max_connections=1)
        loan, wire = play.lends()
        waiting = play.borrows()
        play.pool.close()
        returns(loan, wire)
        assert waiting.connection is loan.connection


@pytest.mark.parametrize("how", ["cancel", "lose"])
def test_a_connection_that_is_broken_off_is_counted_out_once(how: str) -> None:
    play = Play()
    loan, wire = play.lends()
    loan.asks()
    assert loan.connection is not None
    if how == "cancel":
        loan.connection.cancel()
        wire.settle()
    else:
        wire.lose()
    assert play.pool.connections == 0
