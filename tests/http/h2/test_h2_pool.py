"""Which HTTP/2 connection a request gets, when another is opened, and which are closed."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.http.deadlines import NEVER, Deadlines
from mcproxy.http.h2.h2_client import H2ClientConnection, H2ClientResources
from mcproxy.http.h2.h2_client_stream import H2ClientStream
from mcproxy.http.h2.h2_pool import FIRST_LIMIT, LASTING, SPREAD, H2Pool
from mcproxy.net.connect_errors import ConnectError, ConnectionRefused
from tests.support.clock import Clock


class Connection(H2ClientConnection):
    """One without a transport, whose streams are opened and ended by the test."""

    def __init__(self, pool: H2Pool, clock: Clock) -> None:
        super().__init__(pool, Deadlines(clock), H2ClientResources(), lambda cause: None)
        self.pool = pool
        self.done = False

    def new_request(self, lasting: bool) -> Stream:
        return Stream(self, lasting)

    def announces(self, limit: int) -> None:
        self.limit = limit
        self.pool.limit_announced(self)

    def retire(self) -> None:
        if self.usable:
            self.usable = False
            self.pool.connection_unusable(self)
        self.done = not self.streams

    def idle_since(self, until: float) -> None:
        self.idle_until = until


class Stream(H2ClientStream):
    def __init__(self, connection: Connection, lasting: bool) -> None:
        super().__init__(connection, lasting)
        self.connection = connection

    def send(self) -> Stream:
        connection = self.connection
        assert len(connection.streams) < connection.limit
        connection.streams[id(self)] = self
        connection.lasting += self.lasting
        return self

    def ends(self) -> None:
        connection = self.connection
        del connection.streams[id(self)]
        connection.lasting -= self.lasting
        if connection.usable and (not connection.streams or connection.pool.waits):
            connection.pool.room(connection)
        connection.done = not connection.usable and not connection.streams


class Play:
    def __init__(self, *, max_idle: int = 100, max_connections: int = 0, idle_timeout: float = 90.0) -> None:
        self.clock = Clock()
        self.dials: list[Deferred[Any]] = []
        self.opened: list[Connection] = []
        self.limit = FIRST_LIMIT
        self.pool = H2Pool(
            self._dial,
            self.clock.seconds,
            max_idle=max_idle,
            max_connections=max_connections,
            idle_timeout=idle_timeout,
        )

    def _dial(self) -> Deferred[Any]:
        self.dials.append(Deferred())
        return self.dials[-1]

    def connects(self) -> Connection:
        """The oldest dial that is under way succeeds."""
        connection = Connection(self.pool, self.clock)
        self.opened.append(connection)
        next(dial for dial in self.dials if not dial.called).callback(connection)
        if self.limit != connection.limit:
            connection.announces(self.limit)
        return connection

    def asks(self, *, lasting: bool = False, count: int = 1) -> list[Stream | Exception]:
        """Requests that are sent when they have a stream; the list grows as they get one or fail."""
        got: list[Stream | Exception] = []
        for _ in range(count):
            stream: Any = self.pool.take(lasting)
            if stream is not None:
                got.append(stream.send())
            else:
                waiting: Deferred[Any] = self.pool.open(lasting)
                waiting.addCallbacks(lambda stream: got.append(stream.send()), lambda why: got.append(why.value))
        return got

    def serves(self, count: int, *, lasting: bool = False, limit: int = FIRST_LIMIT) -> list[Stream]:
        """Streams on as many connections as the pool opens; each permits `limit`."""
        if not self.opened:
            self.limit = limit
            self.pool.presumed_limit = self.pool._announced_limit = min(limit, FIRST_LIMIT)
        got = self.asks(lasting=lasting, count=count)
        while any(not dial.called for dial in self.dials):
            self.connects()
        streams = [stream for stream in got if isinstance(stream, Stream)]
        assert len(streams) == count
        return streams

    @property
    def sizes(self) -> list[int]:
        return [len(connection.streams) for connection in self.opened]


class TestOpening:
    def test_those_who_come_while_it_is_opened_share_it(self) -> None:
        play = Play()
        got = play.asks(count=60)
        assert (len(play.dials), got) == (1, [])
        play.connects()
        assert len(got) == 60
        assert play.sizes == [60]

    def test_as_many_as_the_limit_makes_necessary(self) -> None:
        play = Play()
        got = play.asks(count=FIRST_LIMIT + 1)
        assert len(play.dials) == 2
        play.connects()
        play.connects()
        assert len(got) == FIRST_LIMIT + 1

    def test_the_limit_that_was_announced_last_is_presumed_of_the_next(self) -> None:
        play = Play()
        play.asks()
        play.limit = 3
        play.connects()
        got = play.asks(count=9)
        assert len(play.dials) == 4
        for _ in range(3):
            play.connects()
        assert len(got) == 9
        assert play.sizes == [3, 3, 3, 1]

    def test_all_hear_that_it_could_not_be_opened(self) -> None:
        play = Play()
        got = play.asks(count=50)
        play.dials[0].errback(ConnectionRefused("refused"))
        assert len(got) == 50
        assert all(isinstance(each, ConnectError) for each in got)

    def test_unless_there_is_room_meanwhile(self) -> None:
        play = Play()
        (first,) = play.serves(1, limit=1)
        got = play.asks()
        first.ends()
        assert len(got) == 1
        assert play.sizes == [1]
        play.dials[1].errback(ConnectionRefused("refused"))
        assert isinstance(got[0], Stream)

    def test_spreading_is_no_reason_to_fail(self) -> None:
        play = Play()
        play.serves(LASTING, lasting=True, limit=250)
        got = play.asks(lasting=True)
        assert got == []
        play.dials[-1].errback(ConnectionRefused("refused"))
        assert [type(each) for each in got] == [Stream]

    def test_a_dial_ends_with_the_last_who_waits_for_it(self) -> None:
        play = Play()
        cancelled: list[type[BaseException] | None] = []
        waits: list[Any] = [play.pool.open(False) for _ in range(2)]
        for wait in waits:
            wait.addErrback(lambda why: cancelled.append(why.type))
        waits[0].cancel()
        assert not play.dials[0].called
        waits[1].cancel()
        assert bool(play.dials[0].called)
        assert cancelled == [CancelledError] * 2

    def test_a_second_attempt_gets_a_connection_that_is_opened_now(self) -> None:
        play = Play()
        play.serves(1)
        got: list[Any] = []
        for _ in range(5):
            waiting: Deferred[Any] = play.pool.open(False)
            waiting.addCallback(lambda stream: got.append(stream.send()))
        assert (len(play.dials), got) == (2, [])
        play.connects()
        assert len(got) == 5


class TestMaxConnections:
    def test_who_comes_first_is_served_first(self) -> None:
        play = Play(max_connections=1)
        streams = play.serves(2, limit=2)
        first, second = play.asks(), play.asks()
        assert len(play.dials) == 1
        streams[0].ends()
        assert (len(first), len(second)) == (1, 0)
        streams[1].ends()
        assert len(second) == 1

    def test_long_running_streams_fill_what_there_may_be(self) -> None:
        play = Play(max_connections=2)
        play.serves(400, lasting=True, limit=250)
        assert sorted(play.sizes) == [150, 250]  # the second took 100 before its SETTINGS

    def test_one_that_is_out_of_service_no_longer_counts(self) -> None:
        play = Play(max_connections=1)
        play.serves(1)
        play.opened[0].retire()
        got = play.asks()
        play.connects()
        assert len(got) == 1
        assert play.sizes == [1, 1]

    def test_an_idle_one_makes_place_for_a_new_one(self) -> None:
        play = Play(max_connections=1)
        (stream,) = play.serves(1)
        stream.ends()
        play.pool.open(False)
        assert play.opened[0].done
        assert len(play.dials) == 2

    def test_who_wants_a_new_one_shares_one_with_room_if_there_may_be_no_more(self) -> None:
        """A watch may last for an hour: a request that is sent again must not wait for its end."""
        play = Play(max_connections=1)
        play.serves(1, lasting=True)
        got: list[Any] = []
        play.pool.open(False).addCallback(got.append)
        assert [stream.connection for stream in got] == play.opened


class TestChoice:
    def test_long_running_streams_are_spread(self) -> None:
        play = Play()
        play.serves(3 * LASTING, lasting=True, limit=250)
        assert play.sizes == [LASTING] * 3

    def test_ten_thousand_watches_have_forty_connections(self) -> None:
        play = Play()
        for _ in range(10_000):
            play.serves(1, lasting=True, limit=250)
        assert len(play.opened) == 40
        assert play.sizes == [250] * 40

    def test_at_once_too(self) -> None:
        play = Play()
        play.serves(1, limit=250)
        play.serves(9_990, lasting=True, limit=250)
        assert len(play.opened) == 40
        assert min(play.sizes) > 200

    def test_below_the_spread_none_has_more_than_its_share(self) -> None:
        play = Play()
        for _ in range(SPREAD * LASTING):
            play.serves(1, lasting=True, limit=250)
        assert play.sizes == [LASTING] * SPREAD

    def test_short_ones_go_where_none_is_stalled(self) -> None:
        play = Play()
        play.serves(2 * LASTING, lasting=True, limit=250)
        play.opened[0].stalled = 1
        assert {stream.connection for stream in play.serves(20)} == {play.opened[1]}
        play.opened[1].stalled = 1
        play.opened[0].stalled = 0
        assert {stream.connection for stream in play.serves(20)} == {play.opened[0]}

    def test_an_idle_connection_is_left_to_close_while_one_in_use_has_few(self) -> None:
        play = Play()
        streams = play.serves(4, limit=2)
        for stream in streams[1:]:
            stream.ends()
        assert play.sizes == [1, 0]
        for _ in range(100):
            play.serves(1)[0].ends()
            assert play.sizes == [1, 0]


class TestIdle:
    def test_it_closes_after_its_time_which_begins_with_its_last_stream(self) -> None:
        play = Play(idle_timeout=90)
        (stream,) = play.serves(1)
        connection = play.opened[0]
        assert connection.idle_until == NEVER
        play.clock.advance(10)
        stream.ends()
        assert connection.idle_until == play.clock.seconds() + 90
        (stream,) = play.serves(1)
        assert connection.idle_until == NEVER

    def test_not_more_than_max_idle(self) -> None:
        play = Play(max_idle=1)
        for stream in play.serves(3, limit=1):
            stream.ends()
        assert [connection.done for connection in play.opened].count(False) == 1
        assert play.pool.idle == 1

    def test_what_the_last_minute_did_not_need_closes(self) -> None:
        play = Play(idle_timeout=0)
        for stream in play.serves(8, limit=2):
            stream.ends()
        assert play.pool.idle == 4
        for _ in range(80):
            play.clock.advance(1)
            play.serves(1)[0].ends()
        assert len(play.pool.connections) == 1

    def test_a_limit_of_no_streams_is_of_no_use(self) -> None:
        play = Play()
        (stream,) = play.serves(1)
        stream.ends()
        play.opened[0].announces(0)
        assert play.opened[0].done
        assert play.pool.take(False) is None


@pytest.mark.parametrize("how", ["renew", "close"])
def test_connections_of_before_get_no_further_request(how: str) -> None:
    play = Play()
    streams = play.serves(2, limit=1)
    streams[0].ends()
    getattr(play.pool, how)()
    assert [connection.done for connection in play.opened] == [True, False]
    assert play.pool.take(False) is None
    streams[1].ends()
    assert play.opened[1].done
    (later,) = play.serves(1)
    later.ends()
    assert play.opened[2].done == (how == "close")
