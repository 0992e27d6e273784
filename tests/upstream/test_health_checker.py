"""When endpoints are checked, and what becomes of the results: with a clock, and connections that the test holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import eventAsJSON, eventAsText, formatEvent

from mcproxy.config import model
from mcproxy.net.connect_errors import ConnectFailed, ConnectionRefused, TLSError
from mcproxy.observe.metrics.families import HEALTH_CHECKS
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.health_state import Health
from tests.support.clock import Clock
from tests.support.logged import captured_logs, names
from tests.upstream.fakes import Attempt, FakeConnector, cluster_config, endpoint_config, make_upstream_context

CHECK = model.HealthCheck(interval=5.0, timeout=3.0, unhealthy_after=3, healthy_after=2)


class Bench:
    """A started cluster on a clock."""

    def __init__(self, *endpoints: model.EndpointConfig, chance: float = 0.5, **fields: Any) -> None:
        self.clock = Clock()
        self.net = FakeConnector(self.clock)
        self.shared = make_upstream_context(self.clock, connect=self.net, random=lambda: chance)
        self.cluster = Cluster(cluster_config(*endpoints, **{"health_check": CHECK, **fields}), self.shared)
        self.endpoint = self.cluster.endpoints[0]
        self.cluster.start()
        self.clock.advance(0)

    @property
    def last(self) -> Attempt:
        return self.net.attempts[-1]

    def answers(self, status: int, body: bytes = b"ok") -> None:
        self.net.behaviour = lambda attempt: attempt.answer(status, body)

    def refuses(self) -> None:
        self.net.behaviour = lambda attempt: attempt.done.errback(ConnectionRefused("it refused the connection"))

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.clock.advance(5.0)


def test_an_endpoint_is_checked_at_once_and_ready_after_its_first_success() -> None:
    bench = Bench()
    assert len(bench.net.attempts) == 1
    assert not bench.endpoint.ready
    bench.last.answer(200)
    assert bool(bench.endpoint.ready)
    assert bench.last.sent.startswith(b"GET /readyz HTTP/1.1\r\nHost: 10.0.0.1:6443\r\n")


def test_a_path_in_the_url_is_put_before_the_check() -> None:
    bench = Bench(endpoint_config(path="/prefix"))
    bench.last.open()
    assert bench.last.sent.startswith(b"GET /prefix/readyz ")


def test_the_credential_goes_with_the_check() -> None:
    bench = Bench(credentials=model.Credentials(token=model.Secret("abc")))
    bench.last.open()
    assert b"\r\nAuthorization: Bearer abc\r\n" in bench.last.sent


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 4.5), (0.5, 5.0), (0.999999, 5.5)])
def test_checks_are_an_interval_apart_give_or_take_a_tenth(chance: float, seconds: float) -> None:
    bench = Bench(chance=chance)
    bench.last.answer(200)
    bench.clock.advance(seconds - 0.01)
    assert len(bench.net.attempts) == 1
    bench.clock.advance(0.02)
    assert len(bench.net.attempts) == 2


def test_it_goes_out_after_the_threshold_and_comes_back_after_the_other() -> None:
    bench = Bench()
    bench.last.answer(200)
    bench.answers(500, b"[-]etcd failed: reason withheld\n")
    with captured_logs() as events:
        bench.rounds(2)
        assert bench.endpoint.ready
        bench.rounds(1)
        assert not bool(bench.endpoint.ready)
        bench.rounds(5)
        bench.answers(200)
        bench.rounds(1)
        assert not bool(bench.endpoint.ready)
        bench.rounds(1)
        assert bench.endpoint.ready
    checks = bench.shared.metrics.counts.of(HEALTH_CHECKS)
    assert checks == {("east", "a", "ok"): [3], ("east", "a", "failed"): [8]}
    assert names(events) == [
        ("endpoint_out", "warn", "answered 500 on /readyz: etcd failed"),
        ("endpoint_ready", "info", ""),
    ]
    assert [(event["cluster"], event["endpoint"]) for event in events] == [("east", "a")] * 2
    assert events[0]["todo"] == "it runs, but is not ready: see the API server's log"


def test_no_answer_in_time_is_a_failure_and_the_connection_is_closed() -> None:
    bench = Bench()
    bench.last.open()
    bench.clock.advance(3.0)
    assert bench.endpoint.state_message == "no answer on /readyz within 3 s"
    assert bench.endpoint.unchecked  # one failure is not yet out
    assert bench.net.attempts[0].transport.disconnecting
    for _ in range(2):
        bench.clock.advance(2.0)
        bench.last.open()
        bench.clock.advance(3.0)
    assert bench.endpoint.state_message == "no answer on /readyz within 3 s (out for 0 s)"


class TestALateAnswerOfOneThatWasNeverReady:
    """Folder 04 of the cases in the wild: /readyz takes longer than a check has, all else is answered at once."""

    def out(self, bench: Bench, late: Callable[[Attempt], object]) -> None:
        """Let three checks time out; `late` is called with the connection that waits longer, 5 s after its request."""
        bench.last.open()
        bench.clock.advance(3.0)
        patient = bench.last
        patient.open()
        bench.clock.advance(2.0)
        bench.last.open()
        bench.clock.advance(3.0)
        late(patient)
        for _ in range(2):
            bench.clock.advance(2.0)
            bench.last.open()
            bench.clock.advance(3.0)
        assert not bench.endpoint.unchecked
        assert bench.cluster.balancer.pick(()) is None

    def test_shows_that_it_may_serve(self) -> None:
        bench = Bench()
        self.out(
            bench, lambda patient: patient.protocol.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        )
        assert bench.cluster.last_resort(()) is bench.endpoint
        count = len(bench.net.attempts)
        bench.clock.advance(2.0)
        bench.last.open()
        bench.clock.advance(3.0)
        assert len(bench.net.attempts) == count + 1  # one check, and nobody waits longer

    @pytest.mark.parametrize("answer", [b"HTTP/1.1 500 E\r\n", b"HTTP/1.1 403 F\r\n", b"HTTP/1.1 404 N\r\n"])
    def test_is_none_unless_it_is_a_success(self, answer: bytes) -> None:
        bench = Bench()
        self.out(bench, lambda patient: patient.protocol.dataReceived(answer + b"Content-Length: 0\r\n\r\n"))
        assert bench.cluster.last_resort(()) is None

    def test_does_not_count_once_a_connection_has_failed(self) -> None:
        bench = Bench()
        self.out(bench, lambda patient: bench.endpoint.record_connect_failure(ConnectFailed("it refused")))
        bench.endpoint.health.answered_late()
        assert bench.cluster.last_resort(()) is None

    def test_is_waited_for_once_at_a_time_and_not_for_ever(self) -> None:
        bench = Bench()
        bench.last.open()
        bench.clock.advance(3.0)
        patient = bench.last
        patient.open()
        count = len(bench.net.attempts)
        bench.clock.advance(2.0)
        bench.last.open()
        bench.clock.advance(3.0)
        assert len(bench.net.attempts) == count + 1
        assert not patient.transport.disconnecting
        bench.clock.advance(25.0)
        assert patient.transport.disconnecting

    def test_is_not_waited_for_once_the_checks_have_ended(self) -> None:
        bench = Bench()
        bench.last.open()
        bench.clock.advance(3.0)
        bench.last.open()
        bench.cluster.stop()
        assert bench.last.transport.disconnecting


def test_a_connection_that_does_not_open_in_time_is_given_up() -> None:
    bench = Bench()
    bench.clock.advance(3.0)
    assert bench.last.cancelled
    assert not bench.endpoint.ready


@pytest.mark.parametrize("error", [ConnectionRefused("it refused"), TLSError("the certificate is for another name")])
def test_the_cause_of_a_failed_connection_is_logged(error: Exception) -> None:
    bench = Bench()
    bench.last.done.errback(error)
    assert str(error) in bench.endpoint.state_message


def test_readyz_that_does_not_exist_becomes_healthz_for_good() -> None:
    bench = Bench()
    bench.last.answer(404)
    assert len(bench.net.attempts) == 2
    bench.last.answer(200)
    assert b"GET /healthz " in bench.last.sent
    assert bench.endpoint.ready
    bench.rounds(1)
    bench.last.open()
    assert b"GET /healthz " in bench.last.sent


def test_neither_path_is_a_failure_and_the_configured_one_stays() -> None:
    bench = Bench()
    bench.answers(404)
    bench.last.answer(404)
    assert "answered 404 on /readyz" in bench.endpoint.state_message
    bench.rounds(1)
    assert [b"/readyz" in attempt.sent for attempt in bench.net.attempts] == [True, False, True, False]


def test_another_path_has_no_second_chance() -> None:
    bench = Bench(health_check=model.HealthCheck(path="/livez"))
    bench.last.answer(404)
    assert len(bench.net.attempts) == 1
    assert not bench.endpoint.ready


def warnings_in(events: Sequence[dict[str, Any]]) -> list[str]:
    return [formatEvent(event) for event in events if event["log_level"].name == "warn"]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_credential_means_alive_after_30_seconds_and_is_warned_of_once(status: int) -> None:
    with captured_logs() as events:
        bench = Bench(endpoint_config("a"), endpoint_config("b", "10.0.0.2"))
        bench.answers(status)
        bench.last.answer(status)
        bench.clock.advance(0.1)
        for _ in range(29):
            bench.clock.advance(1.0)
        assert not any(endpoint.ready for endpoint in bench.cluster.endpoints)
        assert warnings_in(events) == []
        # unchecked: used as long as none is ready, as any new endpoint
        assert all(endpoint.unchecked for endpoint in bench.cluster.endpoints)
        assert f"answered {status} on /readyz" in bench.endpoint.state_message
        bench.rounds(3)
    assert all(endpoint.ready for endpoint in bench.cluster.endpoints)
    assert warnings_in(events) == ["endpoints count as alive although their health check refuses the credential"]


def test_an_api_server_that_starts_again_is_out_until_it_answers_200() -> None:
    bench = Bench()
    bench.last.answer(200)
    bench.refuses()
    bench.rounds(3)
    assert not bench.endpoint.ready
    bench.answers(403)  # the port is open, the roles are not read yet
    bench.rounds(20)
    assert not bench.endpoint.ready
    assert not bench.endpoint.unchecked
    bench.answers(200)
    bench.rounds(2)
    assert bench.endpoint.ready


def test_an_undecided_check_is_followed_by_another_after_a_second() -> None:
    bench = Bench()
    bench.answers(200)
    bench.last.answer(403)
    assert not bench.endpoint.ready
    bench.clock.advance(1.0)
    assert bool(bench.endpoint.ready)
    assert len(bench.net.attempts) == 2
    bench.clock.advance(4.0)
    assert len(bench.net.attempts) == 2


@pytest.mark.parametrize("before", [200, 403])
def test_a_credential_that_stays_refused_is_not_checked_every_second_for_ever(before: int) -> None:
    bench = Bench()
    bench.last.answer(before)
    bench.answers(403)
    for _ in range(45):
        bench.clock.advance(1.0)
    checks = len(bench.net.attempts)
    for _ in range(50):
        bench.clock.advance(1.0)
    assert len(bench.net.attempts) - checks == 10


def test_another_credential_starts_without_a_history() -> None:
    bench = Bench(credentials=model.Credentials(token=model.Secret("a")))
    bench.last.answer(200)
    config = cluster_config(health_check=CHECK, credentials=model.Credentials(token=model.Secret("b")))
    after = Cluster(config, bench.shared, previous=bench.cluster)
    bench.answers(403)
    after.start()
    bench.cluster.stop(after)
    assert after.endpoints == bench.cluster.endpoints
    for _ in range(40):
        bench.clock.advance(1.0)
        assert bench.endpoint.ready
    after.stop()


def test_a_token_that_was_rotated_to_a_bad_one_does_not_take_the_endpoint_out(tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text("good")
    bench = Bench(credentials=model.Credentials(token_file=str(path)))
    bench.last.answer(200)
    path.write_text("bad!")
    bench.answers(401)
    for _ in range(60):
        bench.clock.advance(1.0)
        assert bench.endpoint.ready


def test_a_token_that_is_no_longer_accepted_takes_it_out(tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text("good")
    bench = Bench(credentials=model.Credentials(token_file=str(path)))
    bench.last.answer(200)
    bench.answers(401)
    bench.rounds(3)
    assert not bench.endpoint.ready


def test_a_refused_connection_of_a_request_counts_and_brings_the_check_forward() -> None:
    bench = Bench()
    bench.last.answer(200)
    bench.clock.advance(2.0)
    for _ in range(2):
        bench.endpoint.record_connect_failure(ConnectFailed("refused"))
    assert bench.endpoint.ready
    bench.clock.advance(0)
    assert len(bench.net.attempts) == 2
    bench.last.done.errback(ConnectionRefused("refused"))
    assert not bench.endpoint.ready


def test_a_storm_of_refused_connections_is_no_storm_of_checks() -> None:
    bench = Bench()
    bench.last.answer(200)
    bench.refuses()
    for _ in range(100):
        bench.endpoint.record_connect_failure(ConnectFailed("refused"))
        bench.clock.advance(0.05)
    assert len(bench.net.attempts) <= 6


def test_many_endpoints_are_checked_one_after_the_other_within_a_second() -> None:
    bench = Bench(*(endpoint_config(f"e{n}", f"10.0.0.{n}") for n in range(200)))
    begin = bench.clock.seconds()
    assert len(bench.net.attempts) == 1
    for _ in range(200):
        bench.clock.advance(0.005)
    times = [attempt.at - begin for attempt in bench.net.attempts]
    assert len({attempt.host for attempt in bench.net.attempts}) == 200
    assert times[-1] <= 1.0
    assert max(times.count(time) for time in times) <= 2


def test_stop_ends_checks_and_the_one_that_runs() -> None:
    bench = Bench()
    bench.last.open()
    bench.cluster.stop()
    assert bench.last.transport.disconnecting
    assert bench.endpoint.health.status is Health.UNCHECKED
    assert not bench.clock.getDelayedCalls()
    bench.endpoint.record_connect_failure(ConnectFailed("refused"))
    assert not bench.clock.getDelayedCalls()


def test_stop_between_checks_leaves_no_timer() -> None:
    bench = Bench()
    bench.last.answer(200)
    bench.cluster.stop()
    assert not bench.clock.getDelayedCalls()


def test_without_a_credential_it_is_still_checked(tmp_path: Any) -> None:
    bench = Bench(credentials=model.Credentials(token_file=str(tmp_path / "missing")))
    with pytest.raises(CredentialError):
        bench.cluster.credentials.authorization()
    bench.last.answer(200)
    assert b"Authorization" not in bench.last.sent
    assert bench.endpoint.ready


def test_a_plugin_that_hangs_delays_a_check_but_does_not_end_checks() -> None:
    bench = Bench(credentials=model.Credentials(exec=model.ExecPlugin(command="x")))
    assert not bench.net.attempts
    bench.clock.advance(3.0)
    bench.last.answer(200)
    assert bench.endpoint.ready


def test_a_401_has_the_token_file_read_again(tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    bench = Bench(credentials=model.Credentials(token_file=str(path)))
    path.write_text("new!")
    bench.last.answer(401)
    assert bench.cluster.credentials.authorization() == b"Bearer new!"


def test_a_check_with_a_credential_that_was_just_replaced_is_repeated_with_the_new_one(tmp_path: Any) -> None:
    """A rotation that revokes the old token at once must take no endpoint out."""
    path = tmp_path / "token"
    path.write_text("old")
    bench = Bench(credentials=model.Credentials(token_file=str(path)))
    bench.last.answer(200)
    bench.rounds(1)
    path.write_text("new!")
    bench.last.answer(401)
    bench.last.answer(200)
    assert b"Bearer new!" in bench.last.sent
    assert bench.endpoint.ready
    assert len(bench.net.attempts) == 3
    assert not bench.cluster.credentials.is_refused(bench.clock.seconds())
    bench.rounds(1)
    bench.last.answer(401)  # the new one is refused too: that is an answer
    assert len(bench.net.attempts) == 4
    assert bench.cluster.credentials.is_refused(bench.clock.seconds())


def test_a_mistake_of_ours_does_not_end_the_checks() -> None:
    bench = Bench()
    broken: Deferred[None] = bench.last.done
    with captured_logs() as events:
        broken.errback(RuntimeError("a mistake"))
    assert len(events) == 1
    bench.rounds(1)
    assert len(bench.net.attempts) == 2


def test_no_log_line_of_any_outcome_has_the_secret() -> None:
    outcomes: list[Callable[[Attempt], None]] = [
        lambda attempt: attempt.answer(200),
        lambda attempt: attempt.answer(401),
        lambda attempt: attempt.answer(500, b"[-]s3cre failed: reason withheld"),
        lambda attempt: attempt.done.errback(ConnectionRefused("refused")),
        lambda attempt: attempt.done.errback(RuntimeError("a mistake")),
        lambda attempt: attempt.open(),  # and never answers
    ]
    with captured_logs() as events:
        bench = Bench(credentials=model.Credentials(token=model.Secret("s3cret")))
        bench.last.answer(200)
        for outcome in outcomes * 4:
            bench.net.behaviour = outcome
            bench.rounds(2)
    assert any(b"Bearer s3cret" in attempt.sent for attempt in bench.net.attempts)
    assert len(events) >= 5
    for event in events:
        shown = [formatEvent(event), repr(event), eventAsText(event), eventAsJSON(event)]
        assert "s3cret" not in "".join(shown)
