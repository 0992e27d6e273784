"""One endpoint: its name on the wire, its status, and its pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import CancelledError
from twisted.internet.protocol import Protocol

from mcproxy.config import model
from mcproxy.http.connection_pool import ConnectionPool
from mcproxy.http.deadlines import Deadlines
from mcproxy.net.connect_errors import ConnectFailed, ConnectionRefused
from mcproxy.net.http_connect import HTTPProxy
from mcproxy.observe.metrics.families import CONNECT_DURATION, UPSTREAM_CONNECTS
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.endpoint import Endpoint, EndpointGone
from mcproxy.upstream.host_header import host_header
from tests.support.clock import Clock
from tests.support.logged import captured_logs, names
from tests.upstream.fakes import FakeConnector, cluster_config, endpoint_config, make_upstream_context


def made(clock: Clock | None = None, **shared: Any) -> Endpoint:
    return Cluster(cluster_config(endpoint_config(path="/p")), make_upstream_context(clock, **shared)).endpoints[0]


@pytest.mark.parametrize(
    ("scheme", "host", "port", "value"),
    [
        ("https", "10.0.0.1", 6443, b"10.0.0.1:6443"),
        ("https", "api.example", 443, b"api.example"),
        ("http", "api.example", 80, b"api.example"),
        ("http", "api.example", 443, b"api.example:443"),
        ("https", "fd00::1", 443, b"[fd00::1]"),
        ("https", "fd00::1", 6443, b"[fd00::1]:6443"),
        ("https", "bücher.example", 443, b"xn--bcher-kva.example"),
    ],
)
def test_the_host_header_names_the_endpoint(scheme: str, host: str, port: int, value: bytes) -> None:
    assert host_header(model.EndpointConfig(name="x", scheme=scheme, host=host, port=port)) == value


def test_it_begins_unchecked_and_idle() -> None:
    endpoint = made()
    assert (endpoint.ready, endpoint.in_flight, endpoint.path_prefix) == (False, 0, b"/p")
    assert endpoint.state_message == "not checked yet"


def test_status_has_cause_and_duration() -> None:
    clock = Clock()
    endpoint = made(clock)
    endpoint.record_check(None)
    clock.advance(12.7)
    assert endpoint.state_message == "ready for 12 s"
    for _ in range(3):
        endpoint.record_connect_failure(ConnectFailed("10.0.0.1:6443 refused the connection"))
    clock.advance(3)
    assert endpoint.state_message == "10.0.0.1:6443 refused the connection (out for 3 s)"


def test_only_changes_are_logged() -> None:
    endpoint = made()
    with captured_logs() as events:
        for _ in range(3):
            endpoint.record_check(None)
        for _ in range(5):
            endpoint.record_check("bad")
    assert [(event["log_level"].name, event["cluster"], event["endpoint"]) for event in events] == [
        ("info", "east", "a"),
        ("warn", "east", "a"),
    ]


def test_another_cause_that_stays_is_logged_once() -> None:
    endpoint = made()
    endpoint.record_check(None)
    with captured_logs() as events:
        for failure in ("refused",) * 4 + ("late", "refused") * 3 + ("not trusted",) * 5 + ("late", "not trusted"):
            endpoint.record_check(failure)
    assert [event["cause"] for event in events] == ["refused", "not trusted"]


def test_connections_go_to_its_address_with_the_configured_time() -> None:
    clock = Clock()
    net = FakeConnector(clock)
    endpoint = made(clock, connect=net)
    endpoint.connect(Protocol())
    endpoint.connect_control(Protocol())
    assert [(attempt.host, attempt.port, attempt.tls) for attempt in net.attempts] == [("10.0.0.1", 6443, None)] * 2


def test_all_connections_go_through_the_http_proxy_of_the_cluster() -> None:
    clock = Clock()
    net = FakeConnector(clock)
    config = cluster_config(proxy=model.HTTPProxy(url="http://proxy:3128", host="proxy", port=3128))
    endpoint = Cluster(config, make_upstream_context(clock, connect=net)).endpoints[0]
    endpoint.connect(Protocol())
    endpoint.connect_control(Protocol())
    assert [(attempt.host, attempt.proxy) for attempt in net.attempts] == [("10.0.0.1", HTTPProxy("proxy", 3128))] * 2


def test_connections_are_counted_by_whether_they_opened() -> None:
    clock = Clock()
    net = FakeConnector(clock)
    metrics = Metrics()
    endpoint = made(clock, connect=net, metrics=metrics)
    opened, refused, given_up = (endpoint.connect(Protocol()) for _ in range(3))
    clock.advance(0.5)
    net.attempts[0].done.callback(None)
    net.attempts[1].done.errback(ConnectionRefused("it refused the connection"))
    given_up.cancel()
    for each in (opened, refused, given_up):
        each.addErrback(lambda _: None)
    assert metrics.counts.of(UPSTREAM_CONNECTS) == {("east", "a", "ok"): [1], ("east", "a", "failed"): [1]}
    (numbers,) = metrics.counts.of(CONNECT_DURATION).values()
    assert (sum(numbers[:-1]), numbers[-1]) == (1, 0.5)


def test_a_renewed_pool_leaves_the_old_one_to_its_requests() -> None:
    endpoint = made()
    old: Any = endpoint.pool
    endpoint.renew_own_connections()
    new: Any = endpoint.pool
    assert new is not old
    assert (old.closed, new.closed) == (True, False)
    endpoint.close()
    assert new.closed


def test_disabled_and_unhealthy_are_two_things() -> None:
    endpoint = made()
    endpoint.configure(replace(endpoint.config, disabled=True))
    assert not endpoint.unchecked
    endpoint.record_check(None)
    assert (endpoint.ready, endpoint.state_message) == (False, "disabled")
    endpoint.configure(replace(endpoint.config, disabled=False))
    assert endpoint.ready
    endpoint.configure(replace(endpoint.config, disabled=True))
    for _ in range(3):
        endpoint.record_check("down")
    endpoint.configure(replace(endpoint.config, disabled=False))
    assert (endpoint.ready, endpoint.state_message) == (False, "down (out for 0 s)")


def test_what_is_shown_lasts_since_it_is_so() -> None:
    """It showed for how long the endpoint had been healthy, also once it was disabled."""
    clock = Clock()
    endpoint = made(clock)
    endpoint.record_check(None)
    clock.advance(960)
    assert endpoint.shown_seconds == 960
    endpoint.configure(replace(endpoint.config, disabled=True))
    clock.advance(7)
    assert endpoint.shown_seconds == 7
    endpoint.record_check(None)
    endpoint.configure(replace(endpoint.config, weight=2))
    assert endpoint.shown_seconds == 7
    for _ in range(3):
        endpoint.record_connect_failure(ConnectFailed("10.0.0.1:6443 refused the connection"))
    clock.advance(1)
    assert endpoint.shown_seconds == 8  # disabled still
    endpoint.configure(replace(endpoint.config, disabled=False))
    clock.advance(2)
    assert endpoint.shown_seconds == 2


def test_a_disabled_endpoint_that_is_down_causes_no_warning() -> None:
    endpoint = made()
    with captured_logs() as events:
        endpoint.configure(replace(endpoint.config, disabled=True))
        endpoint.record_check("bad")
        endpoint.record_check(None)
    assert names(events) == [
        ("endpoint_disabled", "info", ""),
        ("disabled_endpoint_out", "info", "bad"),
        ("disabled_endpoint_ready", "info", ""),
    ]


def test_a_request_that_waits_for_a_connection_is_part_of_the_load() -> None:
    endpoint = made()
    pool: Any = endpoint.pool
    endpoint.in_flight = 2
    waits = [endpoint.open() for _ in range(3)]
    assert endpoint.load == 5
    got: list[Any] = []
    waits[0].addCallback(got.append)
    pool.asked[0].callback("connection")
    waits[1].addErrback(got.append)
    pool.asked[1].errback(ConnectFailed("no route"))
    waits[2].addErrback(got.append)
    waits[2].cancel()
    assert endpoint.load == 2
    assert got[0] == "connection"
    assert (got[1].type, got[2].type) == (ConnectFailed, CancelledError)


def test_who_waits_for_a_removed_endpoint_is_sent_elsewhere_at_once() -> None:
    endpoint = made()
    pool: Any = endpoint.pool
    endpoint.record_check(None)
    ends: list[str] = []
    wait: Any = endpoint.open()
    wait.addErrback(lambda failure: ends.append(failure.value.cause))
    endpoint.remove()
    assert ends == ["removed from the configuration"]
    assert pool.asked[0].called  # cancelled
    assert (endpoint.ready, endpoint.unchecked, endpoint.load, pool.closed) == (False, False, 0, True)
    too_late: Any = endpoint.open()
    too_late.addErrback(lambda failure: ends.append(failure.value.cause))
    assert ends == ["removed from the configuration"] * 2
    assert len(pool.asked) == 1


def test_a_connection_that_fails_after_the_removal_is_no_news() -> None:
    endpoint = made()
    endpoint.record_check(None)
    endpoint.remove()
    with captured_logs() as events:
        for _ in range(5):
            endpoint.record_connect_failure(ConnectFailed("refused"))
    assert not events


def test_a_connection_that_many_requests_waited_for_fails_once() -> None:
    endpoint = made()
    endpoint.record_check(None)
    refused = ConnectFailed("refused")
    for _ in range(10):
        endpoint.record_connect_failure(refused)
    assert endpoint.ready
    for _ in range(2):
        endpoint.record_connect_failure(ConnectFailed("refused"))
    assert not endpoint.ready


def test_an_endpoint_that_goes_out_loses_its_idle_connections_and_notifies_once() -> None:
    out: list[Endpoint] = []
    endpoint = made(endpoint_out=out.append)
    endpoint.record_check(None)
    pool: Any = endpoint.pool
    for number in range(5):
        endpoint.record_check("no answer")
        assert pool.dropped == (number >= 2)
    assert out == [endpoint]
    assert not pool.closed


def real_pool(connect: Any, settings: model.Connections, protocol: Any, violated: Any) -> ConnectionPool:
    return ConnectionPool(connect, Deadlines(Clock()), max_idle=8, max_connections=1, idle_timeout=90.0)


def test_neither_a_place_in_the_queue_nor_a_connection_on_its_way_outlasts_the_removal() -> None:
    clock = Clock()
    net = FakeConnector(clock)
    endpoint = made(clock, connect=net, pool_factory=real_pool)
    ends: list[type[Exception] | None] = []
    for _ in range(3):  # one connects, two wait for it
        wait: Any = endpoint.open()
        wait.addErrback(lambda failure: ends.append(failure.type))
    endpoint.remove()
    assert ends == [EndpointGone] * 3
    assert [attempt.cancelled for attempt in net.attempts] == [True]
    assert endpoint.pool.connections == 0


def test_a_client_that_goes_away_while_it_waits_leaves_nothing_behind() -> None:
    clock = Clock()
    net = FakeConnector(clock)
    endpoint = made(clock, connect=net, pool_factory=real_pool)
    waits: list[Any] = [endpoint.open() for _ in range(2)]
    for wait in reversed(waits):
        wait.addErrback(lambda failure: failure.trap(CancelledError) and None)
        wait.cancel()
    assert endpoint.load == 0
    assert endpoint.pool.connections == 0


def test_a_violation_of_http2_is_logged_with_the_endpoints_name_and_not_again_at_once() -> None:
    clock = Clock()
    endpoint = made(clock)
    pool: Any = endpoint.pool
    checks: list[None] = []
    endpoint.check_soon = lambda: checks.append(None)
    with captured_logs() as events:
        for _ in range(3):
            pool.violated("PING, too many of them")
        clock.advance(10)
        pool.violated("PUSH_PROMISE")
    assert names(events) == [
        ("upstream_http2_ended", "warn", cause) for cause in ("PING, too many of them", "PUSH_PROMISE")
    ]
    assert [(event["cluster"], event["endpoint"]) for event in events] == [("east", "a")] * 2
    assert len(checks) == 4


@pytest.mark.parametrize("configured", list(model.UpstreamProtocol))
def test_without_tls_http1_is_spoken_whatever_is_configured(configured: model.UpstreamProtocol) -> None:
    connections = model.Connections(protocol=configured)
    config = cluster_config(
        endpoint_config("a"), endpoint_config("b", scheme="https", host="10.0.0.2"), connections=connections
    )
    plain, secure = Cluster(config, make_upstream_context()).endpoints
    pools: list[Any] = [plain.pool, secure.pool]
    assert [pool.protocol for pool in pools] == [model.UpstreamProtocol.HTTP1, configured]
