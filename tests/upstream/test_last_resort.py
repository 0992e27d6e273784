"""Which endpoints that are out requests try, how many at a time, and what the log says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcproxy.net.connect_errors import ConnectFailed, ConnectTimeout
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.trials import AT_A_TIME
from tests.support.clock import Clock
from tests.support.logged import captured_logs, names
from tests.upstream.fakes import cluster_config, endpoint_config, make_upstream_context

A, B = endpoint_config("a"), replace(endpoint_config("b"), host="10.0.0.2")


class Request:
    """What a trial shows."""

    def __init__(self) -> None:
        self.upstream_status = 0
        self.ended_at = 0.0


class Bench:
    """A cluster of two whose endpoints have all gone out by late checks."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cluster = Cluster(cluster_config(A, B), make_upstream_context(self.clock))
        self.a, self.b = self.cluster.endpoints
        for endpoint in self.cluster.endpoints:
            self.ready(endpoint)
            self.out(endpoint)

    def ready(self, endpoint: Endpoint) -> None:
        endpoint.record_check(None)

    def out(self, endpoint: Endpoint, *, unconnected: bool = False) -> None:
        for _ in range(3):
            endpoint.record_check("no answer on /readyz within 3 s", silent=True, unconnected=unconnected)

    def tries(self) -> tuple[Endpoint | None, Request]:
        request = Request()
        return self.cluster.last_resort((), None, request), request


def test_the_one_with_the_least_load_is_tried() -> None:
    bench = Bench()
    bench.a.in_flight = 1
    assert bench.tries()[0] is bench.b
    assert bench.cluster.last_resort([bench.b]) is bench.a
    assert bench.cluster.last_resort([], [bench.a]) is bench.a
    assert bench.cluster.pick() is bench.b  # the proxy's own requests as well


def test_one_that_refuses_connections_was_never_ready_is_disabled_or_removed_is_not() -> None:
    bench = Bench()
    bench.a.record_connect_failure(ConnectFailed("it refused the connection"))
    assert bench.cluster.last_resort([bench.b]) is None
    bench.out(bench.b, unconnected=True)
    assert bench.cluster.last_resort([]) is None
    bench.ready(bench.b)
    bench.out(bench.b)
    assert bench.cluster.last_resort([]) is bench.b
    bench.b.configure(replace(B, disabled=True))
    assert bench.cluster.last_resort([]) is None
    bench.b.configure(B)
    bench.b.remove()
    assert bench.cluster.last_resort([]) is None
    starting = Cluster(cluster_config(A), make_upstream_context())
    starting.endpoints[0].record_check("answered 500 on /readyz")
    starting.endpoints[0].record_check("answered 403 on /readyz", refused=True)
    assert starting.pick() is None


def test_only_a_few_at_a_time_until_one_is_answered() -> None:
    bench = Bench()
    bench.b.remove()
    tried = [bench.tries() for _ in range(AT_A_TIME + 1)]
    assert [endpoint for endpoint, _ in tried] == [bench.a] * AT_A_TIME + [None]
    tried[0][1].ended_at = 1.0  # without an answer: room for one
    assert bench.tries()[0] is bench.a
    assert bench.tries()[0] is None
    tried[1][1].upstream_status = 200
    assert [bench.tries()[0] for _ in range(9)] == [bench.a] * 9
    bench.clock.advance(6.0)  # none of those was answered
    assert bench.tries()[0] is None


def test_one_line_for_each_outage() -> None:
    bench = Bench()
    with captured_logs() as events:
        for _ in range(3):
            bench.tries()
        bench.clock.advance(1.0)
        bench.ready(bench.a)
        bench.clock.advance(1.0)
        bench.out(bench.a)
        for _ in range(3):
            bench.tries()
    assert [name for name, *_ in names(events)].count("cluster_last_resort") == 2
    assert events[0]["cause"] == "no answer on /readyz within 3 s"


def test_a_connection_to_one_that_is_out_is_waited_for_for_a_second() -> None:
    bench = Bench()
    failed: list[Any] = []
    bench.a.open().addErrback(lambda failure: failed.append(failure.value))
    bench.clock.advance(0.9)
    assert not failed
    bench.clock.advance(0.2)
    assert isinstance(failed[0], ConnectTimeout)
    assert failed[0].cause == "no connection to a within 1 s"
    assert bench.a.load == 0
