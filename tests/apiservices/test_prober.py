"""When registrations are probed, by a clock that the tests move; and what one probe tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.apiservices.availability import Availability, Registration, Verdict, failure, of_status
from mcproxy.apiservices.prober import ATTEMPTS, PROBE_TIMEOUT, Probe, Prober
from mcproxy.config import model
from mcproxy.net.connect_errors import ConnectionRefused, untrusted
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.endpoint import Endpoint
from tests.support.clock import Clock
from tests.support.logged import captured_logs
from tests.upstream.fakes import cluster_config, endpoint_config, make_upstream_context

A = Registration("a.io", "v1", "east")
PASSED = Verdict("True", "Passed", "all checks passed")
DOWN = failure("east/a", "refused")


def cluster_of(number: int = 1, clock: Clock | None = None) -> Cluster:
    endpoints = [endpoint_config(f"e{n}", f"10.0.0.{n + 1}") for n in range(number)]
    made = Cluster(cluster_config(*endpoints), make_upstream_context(clock))
    for endpoint in made.endpoints:
        endpoint.record_check(None)
    return made


def service(registration: Registration) -> model.APIService:
    return model.APIService(group=registration.group, version=registration.version, cluster=registration.cluster)


class Begun:
    def __init__(self, registration: Registration, cluster: Cluster, at: float) -> None:
        self.registration, self.cluster, self.at = registration, cluster, at
        self.cancelled = False
        self.result: Deferred[Verdict | None] = Deferred(lambda _: self._cancel())

    def _cancel(self) -> None:
        self.cancelled = True


class Bench:
    """A prober whose probes the test answers; `verdict`, if set, answers each at once."""

    def __init__(self, random: float = 0.5) -> None:
        self.clock = Clock()
        self.availability = Availability(self.clock.wall_seconds)
        self.probes: list[Begun] = []
        self.verdict: Verdict | None = None
        self.cluster = cluster_of(clock=self.clock)
        self.prober = Prober(self.availability, self.clock, lambda: random, self._begin)

    def _begin(self, registration: Registration, cluster: Cluster) -> Any:
        begun = Begun(registration, cluster, self.clock.elapsed)
        self.probes.append(begun)
        if self.verdict is not None:
            begun.result.callback(self.verdict)
        return begun

    def update(self, *registrations: Registration, cluster: Cluster | None = None) -> None:
        wanted = registrations or (A,)
        self.availability.use({"web": [service(each) for each in wanted]})
        self.prober.update(dict.fromkeys(wanted, cluster or self.cluster))

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 10)):
            self.clock.advance(0.1)

    @property
    def times(self) -> list[float]:
        return [round(each.at, 1) for each in self.probes]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.prober.stop()
    assert not made.clock.getDelayedCalls()


def test_clients_that_are_refused_or_meet_a_failure_have_it_probed_soon(bench: Bench) -> None:
    bench.availability.on_suspicion(bench.prober.suspected)
    bench.verdict = PASSED
    bench.update()
    bench.run(10)
    bench.verdict = DOWN
    bench.availability.suspect(A)
    bench.run(0.2)
    assert bench.availability.refuses(A) is not None
    bench.run(60)  # nobody asks: the back-off is at its longest
    before = len(bench.probes)
    for _ in range(50):  # in five seconds
        bench.availability.suspect(A)
        bench.run(0.1)
    assert 5 <= len(bench.probes) - before <= 6
    bench.verdict = PASSED
    bench.availability.suspect(A)
    bench.run(1.1)
    assert bench.availability.refuses(A) is None


def test_a_registration_is_probed_at_once_and_every_thirty_seconds(bench: Bench) -> None:
    bench.verdict = PASSED
    bench.update()
    bench.run(65)
    assert bench.times == [pytest.approx(0, abs=0.2), pytest.approx(30, abs=0.5), pytest.approx(60, abs=0.9)]
    assert bench.availability.get(A).reason == "Passed"


def test_after_a_failure_it_is_probed_with_back_off_up_to_the_interval(bench: Bench) -> None:
    bench.verdict = DOWN
    bench.update()
    with captured_logs() as lines:
        bench.run(100)
    gaps = [round(later - before) for before, later in zip(bench.times, bench.times[1:], strict=False)]
    assert gaps == [1, 2, 4, 8, 16, 30, 30]
    assert events(lines) == ["api_service_unavailable"]
    bench.verdict = PASSED
    with captured_logs() as lines:
        bench.run(61)
    assert events(lines) == ["api_service_available"]
    bench.verdict = DOWN
    before = len(bench.probes)
    bench.run(33)
    times = bench.times[before:]
    assert times[1] - times[0] == pytest.approx(1, abs=0.3)  # the back-off begins again


def events(lines: Any) -> list[str]:
    return [event["event"] for event in lines if "api_service" in event or event["event"] == "internal_error"]


def test_the_probes_of_many_are_spread_and_bounded() -> None:
    bench = Bench()
    many = [Registration(f"g{n}.io", "v1", "east") for n in range(200)]
    bench.update(*many)
    bench.clock.advance(0.01)
    assert len(bench.probes) <= 2
    bench.run(6)
    assert len(bench.probes) == 64  # of API servers that hang
    for begun in list(bench.probes):
        begun.result.callback(PASSED)
    bench.run(1)
    assert len(bench.probes) == 128
    bench.prober.stop()
    assert sum(begun.cancelled for begun in bench.probes) == 64


def test_an_owner_without_a_ready_endpoint_is_unavailable_unasked_and_asked_when_it_is_back(bench: Bench) -> None:
    bench.verdict = PASSED
    bench.update()
    bench.run(5)
    endpoint = bench.cluster.endpoints[0]
    endpoint.record_connect_failure(ConnectionRefused("10.0.0.1:6443 refused the connection"))
    for _ in range(3):
        endpoint.record_check("no answer", silent=True)
    condition = bench.availability.refuses(A)
    assert condition is not None
    assert condition.reason == "MissingEndpoints"
    assert condition.message == 'no endpoint of cluster "east" is ready: e0: no answer'
    assert len(bench.probes) == 1
    endpoint.record_check(None)
    bench.run(0.3)
    assert len(bench.probes) == 2
    assert bench.availability.refuses(A) is None


def test_the_log_says_what_to_do_about_the_endpoint_of_an_owner(bench: Bench) -> None:
    bench.verdict = PASSED
    bench.update()
    bench.run(5)
    with captured_logs() as lines:
        for _ in range(3):
            bench.cluster.endpoints[0].record_check(untrusted("10.0.0.1:6443", "unable to get it").cause)
    (line,) = [line for line in lines if line.get("event") == "api_service_unavailable"]
    assert line["todo"].startswith("put the CA that signed the API server's certificate into `tls.caFile`; requests")


@pytest.mark.parametrize("identity", [model.UpstreamIdentity.REQUEST_HEADER, model.UpstreamIdentity.IMPERSONATE])
def test_who_shows_the_front_proxys_certificate_alone_is_told_that_it_must_be_trusted(
    identity: model.UpstreamIdentity,
) -> None:
    bench = Bench()
    config = replace(cluster_config(endpoint_config("a", "10.0.0.1")), identity=identity)
    bench.cluster = Cluster(config, make_upstream_context(bench.clock))
    bench.cluster.endpoints[0].record_check(None)
    bench.verdict = of_status(401, "east/a on /apis/a.io/v1")
    with captured_logs() as lines:
        bench.update()
        bench.run(1)
    (line,) = [line for line in lines if line.get("event") == "api_service_unavailable"]
    assert ("--requestheader-client-ca-file" in line["todo"]) is (identity is model.UpstreamIdentity.REQUEST_HEADER)
    assert ("credentials" in line["todo"]) is (identity is model.UpstreamIdentity.IMPERSONATE)


def test_a_check_that_succeeds_while_all_is_well_asks_for_nothing(bench: Bench) -> None:
    bench.verdict = PASSED
    bench.update()
    for _ in range(5):
        bench.run(4)
        bench.cluster.endpoints[0].record_check(None)
    assert len(bench.probes) == 1


def test_a_reload_keeps_what_is_known_and_asks_another_cluster_soon(bench: Bench) -> None:
    bench.verdict = DOWN
    bench.update()
    bench.run(0.5)
    other = Registration("b.io", "v1", "east")
    bench.update(A, other)
    assert bench.availability.refuses(A) is not None
    bench.verdict = PASSED
    bench.run(0.3)
    assert [begun.registration for begun in bench.probes] == [A, other]
    moved = cluster_of(clock=bench.clock)
    bench.update(A, other, cluster=moved)
    bench.run(1.1)
    assert {begun.registration for begun in bench.probes[2:]} == {A, other}
    assert all(begun.cluster is moved for begun in bench.probes[2:])
    bench.update(other, cluster=moved)
    assert bench.availability.refuses(A) is None
    assert [each for each, _ in bench.availability.all()] == [other]


def test_an_answer_about_the_configuration_before_says_nothing(bench: Bench) -> None:
    bench.update()
    bench.run(0.2)
    bench.update(cluster=cluster_of(clock=bench.clock))
    bench.probes[0].result.callback(DOWN)
    assert bench.availability.refuses(A) is None
    bench.run(1.1)
    assert len(bench.probes) == 2


def test_a_probe_that_ended_while_the_process_stood_still_says_nothing(bench: Bench) -> None:
    bench.update()
    bench.clock.advance(0)
    bench.clock.advance(60)
    bench.probes[0].result.callback(DOWN)
    assert bench.availability.refuses(A) is None
    bench.run(0.2)
    assert len(bench.probes) == 2


def test_a_probe_that_breaks_does_not_end_the_probes(bench: Bench) -> None:
    bench.update()
    bench.run(0.2)
    with captured_logs() as lines:
        bench.probes[0].result.errback(ZeroDivisionError())
    assert events(lines) == ["internal_error"]
    bench.run(31)
    assert len(bench.probes) == 2


# -- one probe ---


class Stream:
    def __init__(self, status: int) -> None:
        self.status = status
        self.body: Deferred[bytes] = Deferred()
        self.closed = False

    async def read_all(self, limit: int) -> bytes:
        return await self.body

    def close(self) -> None:
        self.closed = True


class Sent:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Deferred[Any]]] = []

    async def __call__(self, cluster: Cluster, endpoint: Endpoint, path: str) -> Any:
        assert path == "/apis/a.io/v1"
        answer: Deferred[Any] = Deferred()
        self.asked.append((endpoint.name, answer))
        return await answer

    @property
    def endpoints(self) -> list[str]:
        return [name for name, _ in self.asked]


def probe_of(cluster: Cluster) -> tuple[Clock, Sent, Probe, list[Any]]:
    clock, sent = Clock(), Sent()
    probe = Probe(A, cluster, clock, sent)
    results: list[Any] = []
    probe.result.addBoth(results.append)
    clock.advance(0)
    return clock, sent, probe, results


def run(clock: Clock, seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        clock.advance(0.1)


def test_one_answer_is_enough_and_its_body_is_read_afterwards() -> None:
    clock, sent, _, results = probe_of(cluster_of())
    stream = Stream(200)
    sent.asked[0][1].callback(stream)
    assert results == [PASSED]
    assert not stream.closed
    stream.body.callback(b"{}")
    assert bool(stream.closed)
    assert not clock.getDelayedCalls()


def test_a_body_without_end_is_closed_when_the_time_of_the_probe_is_over() -> None:
    clock, sent, _, results = probe_of(cluster_of())
    stream = Stream(200)
    sent.asked[0][1].callback(stream)
    run(clock, PROBE_TIMEOUT + 0.1)
    assert stream.closed
    assert results == [PASSED]
    assert not clock.getDelayedCalls()


def test_another_endpoint_is_asked_when_one_fails_or_hangs() -> None:
    clock, sent, _, results = probe_of(cluster_of(3))
    sent.asked[0][1].errback(ConnectionRefused("10.0.0.1:6443 refused the connection"))
    clock.advance(0)
    assert len(set(sent.endpoints)) == 2
    run(clock, 1.1)  # the second one hangs
    assert len(set(sent.endpoints)) == 3
    stream = Stream(200)
    sent.asked[2][1].callback(stream)
    stream.body.callback(b"{}")
    assert results == [PASSED]
    run(clock, PROBE_TIMEOUT + 0.1)
    assert not clock.getDelayedCalls()


def test_five_failures_are_one() -> None:
    clock, sent, _, results = probe_of(cluster_of())
    for number in range(ATTEMPTS):
        assert not results
        stream = Stream(503)
        stream.body.callback(b"no")
        sent.asked[number][1].callback(stream)
        run(clock, 0.3)
    assert results == [
        failure("east/e0 on /apis/a.io/v1", "bad status from east/e0 on /apis/a.io/v1: 503", 503),
    ]
    assert len(sent.asked) == ATTEMPTS
    assert not clock.getDelayedCalls()


def test_one_that_hangs_has_failed_after_five_seconds() -> None:
    clock, sent, _, results = probe_of(cluster_of())
    run(clock, 4.8)
    assert not results
    run(clock, 0.3)
    assert results == [failure("east/e0 on /apis/a.io/v1", "no answer within 5 s")]
    assert len(sent.asked) == ATTEMPTS
    assert not clock.getDelayedCalls()


def test_one_that_hangs_while_its_endpoint_goes_out_has_failed_too() -> None:
    cluster = cluster_of()
    clock, sent, _, results = probe_of(cluster)
    for _ in range(3):
        cluster.endpoints[0].record_check("no answer on /readyz within 3 s")
    run(clock, PROBE_TIMEOUT + 0.1)
    assert results == [failure("east/e0 on /apis/a.io/v1", "no answer within 5 s")]
    assert len(sent.asked) == 1
    assert not clock.getDelayedCalls()


def test_one_that_is_busy_or_refuses_is_asked_once_more_before_it_counts_as_down() -> None:
    clock, sent, _, results = probe_of(cluster_of())
    for number, status in enumerate((429, 403, 200)):
        assert not results
        stream = Stream(status)
        stream.body.callback(b"")
        sent.asked[number][1].callback(stream)
        run(clock, 0.3)
    assert results == [PASSED]
    assert not clock.getDelayedCalls()


def test_without_a_usable_endpoint_nothing_is_asked() -> None:
    cluster = cluster_of(2)
    for endpoint in cluster.endpoints:
        for _ in range(3):
            endpoint.record_check("down")
    clock, sent, _, results = probe_of(cluster)
    assert [verdict.reason for verdict in results] == ["MissingEndpoints"]
    assert not sent.asked
    assert not clock.getDelayedCalls()


def test_a_probe_can_be_cancelled() -> None:
    clock, _, probe, results = probe_of(cluster_of())
    probe.result.cancel()
    assert results[0].check(CancelledError)
    assert not clock.getDelayedCalls()


def test_a_broken_answer_is_a_failure() -> None:
    clock, sent, _, results = probe_of(cluster_of())
    for number in range(ATTEMPTS):
        sent.asked[number][1].errback(ControlError("e0 broke off the connection"))
        run(clock, 0.3)
    assert results == [failure("east/e0 on /apis/a.io/v1", "e0 broke off the connection")]
