"""An upstream that dies while many wait for it."""

from __future__ import annotations

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from mcproxy.http.deadlines import Deadlines
from mcproxy.http.h1.client import ClientConnection
from mcproxy.http.h1.pool import H1Pool
from mcproxy.net.errors import ConnectionRefused


def test_all_who_wait_hear_of_an_upstream_that_refuses_at_once() -> None:
    opened: list[Deferred[None]] = []

    def connect(_: ClientConnection) -> Deferred[None]:
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
