"""An upstream that dies while many wait for it."""

from __future__ import annotations

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h1.h1_client import H1ClientConnection
from mcproxy.http.h1.h1_pool import H1Pool
from mcproxy.net.connect_errors import ConnectionRefused
from tests.support.clock import Clock


def test_all_who_wait_hear_of_an_upstream_that_refuses_at_once() -> None:
    opened: list[Deferred[None]] = []

    def connect(_: H1ClientConnection) -> Deferred[None]:
        opened.append(Deferred() if not opened else fail(ConnectionRefused("refused")))
        return opened[-1]

    pool = H1Pool(connect, Deadlines(Clock()), max_idle=1, max_connections=1, idle_timeout=1)
    failures: list[type[BaseException] | None] = []

    def failed(reason: Failure) -> None:
        failures.append(reason.type)

    for _ in range(3000):
        pool.open().addErrback(failed)
    opened[0].errback(ConnectionRefused("refused"))
    assert failures == [ConnectionRefused] * 3000
    assert pool.connections == 0
