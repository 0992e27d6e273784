"""The rates of the last minute, and who was refused."""

from __future__ import annotations

from mcproxy.daemon.status.rates import RecentSamples
from mcproxy.observe.metrics.metrics import Metrics
from tests.observe.metrics.records import record
from tests.support.clock import Clock


def made() -> tuple[Clock, Metrics, RecentSamples]:
    clock, metrics = Clock(), Metrics()
    recent = RecentSamples(clock, metrics.totals, metrics.breakdown)
    return clock, metrics, recent


def test_rates_are_those_of_the_last_minute() -> None:
    clock, metrics, recent = made()
    for _ in range(1000):
        metrics.finished(record(total=5.0))  # long ago
    recent.start()
    for _ in range(10):
        clock.advance(15)
    assert recent.now().of_server("east")["requestsPerSecond"] == 0.0
    assert recent.now().of_server("east")["p99Seconds"] is None
    for _ in range(60):
        metrics.finished(record(total=0.04, upstream=0.03))
    metrics.finished(record(status=503))
    metrics.finished(record(status=403))
    change = recent.now()
    assert change.seconds == 60
    server, cluster, endpoint = change.of_server("east"), change.of_cluster("c1"), change.of_endpoint("c1", "a")
    assert server == cluster
    assert (server["requestsPerSecond"], server["errorsPerSecond"], server["refusedPerSecond"]) == (
        round(62 / 60, 4),
        round(1 / 60, 4),
        round(1 / 60, 4),
    )
    assert server["p99Seconds"] is not None
    assert 0.035 <= server["p99Seconds"] <= 0.042
    assert endpoint["requestsPerSecond"] == round(62 / 60, 4)
    assert change.of_server("unknown")["requestsPerSecond"] == 0.0
    recent.stop()
    assert not clock.getDelayedCalls()


def test_before_there_is_anything_to_compare_with_nothing_is_claimed() -> None:
    _, metrics, recent = made()
    metrics.finished(record())
    assert recent.now().of_server("east")["requestsPerSecond"] is None
    assert recent.now().refusals()["requests"] == 0


def test_who_was_refused_and_by_whom() -> None:
    clock, metrics, recent = made()
    metrics.finished(record(status=401, reason="unauthenticated"))
    recent.start()
    for status, reason in ((403, "forbidden"), (403, "forbidden"), (403, "ok"), (409, "ok"), (200, "ok")):
        metrics.finished(record(status=status, reason=reason))
    clock.advance(10)
    found = recent.now().refusals()
    assert (found["seconds"], found["requests"], found["refused"]) == (10.0, 5, 3)
    assert [(each["code"], each["by"], each["requests"], each["requestsTotal"]) for each in found["kinds"]] == [
        ("403", "authorizer", 2, 2),
        ("403", "cluster", 1, 1),
        ("409", "cluster", 1, 1),
        ("401", "authentication", 0, 1),
    ]
    recent.stop()
