"""Endpoints' health with several processes: checked by one, known to all, whoever starts, dies, stops or reloads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.logger import eventAsText

from mcproxy.config import model
from mcproxy.net.connect_errors import ConnectFailed, ConnectionRefused
from mcproxy.upstream.credentials import CredentialSource
from mcproxy.upstream.health_state import Health
from tests.daemon.processes.family import Family, Process
from tests.support.logged import captured_logs
from tests.upstream.fakes import Attempt, endpoint_config

CHECK = model.HealthCheck(interval=5.0, timeout=3.0, unhealthy_after=3, healthy_after=2)
OTHER_TLS = model.ClusterTLS(insecure_skip_verify=True)


def answers(process: Process, status: int) -> None:
    process.net.behaviour = lambda attempt: attempt.answer(status)


def refuses(process: Process) -> None:
    process.net.behaviour = lambda attempt: attempt.done.errback(ConnectionRefused("it refused the connection"))


def rounds(family: Family, count: int) -> None:
    for _ in range(count):
        family.clock.advance(5.0)


def seen(process: Process) -> dict[str, Any]:
    """What a process knows of its endpoint, without what only its log needs."""
    state = process.endpoint.export_state()
    return {"ready": process.endpoint.ready, "message": process.endpoint.state_message, "state": state}


def three(**fields: Any) -> tuple[Family, Process, Process, Process]:
    family = Family(**{"health_check": CHECK, **fields})
    first, second, third = family.start(), family.start(), family.start()
    answers(first, 200)
    family.lead(first)
    return family, first, second, third


def test_one_process_checks_and_all_know() -> None:
    family, first, second, third = three()
    rounds(family, 4)
    assert len(first.net.attempts) == 5
    assert not second.net.attempts
    assert not third.net.attempts
    assert all(process.endpoint.ready for process in (first, second, third))
    refuses(first)
    rounds(family, 3)
    assert not any(process.endpoint.ready for process in (first, second, third))
    assert second.endpoint.health.cause == "it refused the connection"
    answers(first, 200)
    rounds(family, 2)
    assert all(process.endpoint.ready for process in (first, second, third))


def test_all_know_that_one_which_was_never_ready_answers_late_and_may_serve() -> None:
    family = Family(health_check=CHECK)
    processes = [family.start(), family.start()]
    leader = processes[0]
    leader.net.behaviour = lambda attempt: attempt.open()
    family.lead(leader)
    family.clock.advance(3.0)
    patient = leader.net.attempts[-1]
    family.clock.pump([1.0] * 5)
    assert [process.endpoint.health.may_serve for process in processes] == [False, False]
    patient.protocol.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    family.clock.pump([1.0] * 10)
    assert [process.endpoint.health.status for process in processes] == [Health.FAILED] * 2
    assert [process.endpoint.health.may_serve for process in processes] == [True, True]


@settings(max_examples=60, deadline=None)
@given(
    outcomes=st.lists(
        st.sampled_from(["200", "403", "500", "refused", "silent", "move", "late", "rotate"]), min_size=1, max_size=25
    )
)
def test_all_processes_come_to_the_same_state(outcomes: list[str]) -> None:
    token = ["a"]
    family = Family(health_check=CHECK)
    processes = [family.start(), family.start()]
    for process in processes:
        use_token(process, token)
    family.lead(processes[0])
    for outcome in outcomes:
        leader = next(process for process in processes if process.health.leads)
        if outcome == "move":
            family.lead(processes[(processes.index(leader) + 1) % len(processes)])
        elif outcome == "late":
            processes.append(family.start())
            use_token(processes[-1], token)
        elif outcome == "rotate":
            token[0] += "x"
        elif outcome == "refused":
            refuses(leader)
        elif outcome == "silent":
            leader.net.behaviour = lambda attempt: attempt.open()
        else:
            answers(leader, int(outcome))
        family.clock.pump([1.0] * 12)
        results = [seen(process) for process in processes]
        assert all(result == results[0] for result in results), (outcome, results)


class RotatedToken(CredentialSource):
    """The first of `token`, which the test changes."""

    certificate = None
    header = None

    def __init__(self, token: list[str]) -> None:
        self.token = token

    def authorization(self) -> bytes:
        return self.token[0].encode()


def use_token(process: Process, token: list[str]) -> None:
    process.cluster.credentials = RotatedToken(token)


def test_a_late_comer_knows_every_endpoint_when_its_cluster_starts() -> None:
    family = Family(endpoint_config("a", "10.0.0.1"), endpoint_config("b", "10.0.0.2"), health_check=CHECK)
    first = family.start()
    first.net.behaviour = lambda attempt: attempt.answer(200 if attempt.host == "10.0.0.1" else 500)
    family.lead(first)
    family.clock.advance(0.1)
    rounds(family, 3)
    with captured_logs() as events:
        second = family.start()
    assert [endpoint.ready for endpoint in second.cluster.endpoints] == [True, False]
    assert second.cluster.endpoints[1].state_message == "answered 500 on /readyz (out for 15 s)"
    assert not events, "what another process has logged is no news"


def test_a_state_that_nobody_has_confirmed_for_long_is_not_taken_over() -> None:
    family, first, *_ = three()
    family.die(first)
    family.clock.advance(3 * (5 + 3) + 16)
    assert family.start().endpoint.health.status is Health.UNCHECKED


@pytest.mark.parametrize("dies", [True, False])
def test_another_leader_goes_on_where_the_former_one_was(dies: bool) -> None:
    family, first, second, third = three()
    refuses(first)
    rounds(family, 2)  # one more takes it out
    if dies:
        family.die(first)
    answers(second, 200)
    with captured_logs() as events:
        family.lead(second)
        rounds(family, 1)
    assert second.endpoint.ready
    assert third.endpoint.ready
    assert not [event for event in events if event["log_namespace"].startswith("mcproxy.")]
    refuses(second)
    rounds(family, 3)
    assert not third.endpoint.ready


def test_the_results_of_a_leader_that_was_stopped_are_dropped() -> None:
    family, first, second, third = three()
    rounds(family, 1)
    family.children.leader = second.child  # and the former one does not read what it is told
    first.channel.held = []
    answers(second, 200)
    second.health.lead(True)
    family.clock.advance(0)
    refuses(first)
    rounds(family, 5)
    assert second.endpoint.ready
    assert third.endpoint.ready
    first.channel.held.append(lambda: first.health.lead(False))
    first.channel.release()
    assert not first.health.checks
    rounds(family, 2)
    assert first.endpoint.ready, "it follows the new leader's results"


def test_a_check_whose_time_ran_out_while_the_process_stood_still_is_made_again() -> None:
    family, first, second, _ = three(health_check=replace(CHECK, unhealthy_after=1))
    first.net.behaviour = None
    family.clock.advance(5.0)
    hanging = first.net.attempts[-1]
    answers(first, 200)
    family.clock.advance(12.0)  # one step: nothing was read meanwhile
    assert hanging.cancelled
    assert first.net.attempts[-1] is not hanging
    assert first.endpoint.ready
    assert second.endpoint.ready
    first.net.behaviour = None
    family.clock.pump([1.0] * 12)
    assert not first.endpoint.ready, "an answer that does not come in its time is a failure"


def test_an_endpoint_that_refuses_the_connections_of_one_process_goes_out_in_all() -> None:
    family, first, second, third = three()
    rounds(family, 1)
    refused = [ConnectionRefused("it refused the connection") for _ in range(20)]
    for problem in refused[:2]:
        second.endpoint.record_connect_failure(problem)
    assert "health_out" not in second.channel.told, "a few refusals between successes take nothing out elsewhere"
    with captured_logs() as events:
        for problem in refused[2:]:
            second.endpoint.record_connect_failure(problem)
    assert not any(process.endpoint.ready for process in (first, second, third))
    assert all(process.endpoint.silent for process in (first, second, third))
    assert second.channel.told.count("health_out") == 1
    assert {event["log_subject"] for event in events} == {("endpoint", "east", "http://10.0.0.1:6443")}
    rounds(family, 2)
    assert all(process.endpoint.ready for process in (first, second, third))
    third.endpoint.record_connect_failure(refused[0])
    assert third.endpoint.ready, "it begins anew"


@pytest.mark.parametrize("where", [0, 1])
def test_checks_and_connections_that_take_it_out_together_take_it_out_in_all(where: int) -> None:
    family, *processes = three()
    rounds(family, 1)
    refuses(processes[0])
    for _ in range(2):
        processes[where].endpoint.record_connect_failure(ConnectionRefused("it refused the connection"))
    family.clock.advance(1.0)  # the early check
    assert not any(process.endpoint.ready for process in processes)


def test_checks_alone_take_it_out_without_more_words() -> None:
    family, first, second, _ = three()
    refuses(first)
    rounds(family, 3)
    assert not second.endpoint.ready
    assert "health_out" not in [*first.channel.told, *second.channel.told]


def test_refusals_that_come_late_do_not_count() -> None:
    """A supervisor that was stopped passes on what it had not read."""
    family, first, second, _ = three()
    rounds(family, 1)
    second.channel.peer.held = []
    for _ in range(3):
        second.endpoint.record_connect_failure(ConnectionRefused("it refused the connection"))
    family.clock.pump([1.0] * 4)
    second.channel.peer.release()
    assert not second.endpoint.ready
    assert first.endpoint.ready


def test_refusals_of_other_connections_than_a_process_has_do_not_count_there() -> None:
    family, first, second, _ = three()
    second.apply(replace(family.config, tls=OTHER_TLS))
    rounds(family, 1)
    second.endpoint.record_check(None)
    for _ in range(3):
        second.endpoint.record_connect_failure(ConnectionRefused("it refused the connection"))
    assert not second.endpoint.ready
    assert first.endpoint.ready


def test_connections_that_failed_otherwise_count_where_they_failed_and_ask_for_one_check() -> None:
    family, first, second, third = three()
    rounds(family, 1)
    family.clock.advance(2.0)
    before = len(first.net.attempts)
    refuses(first)
    for _ in range(50):
        second.endpoint.record_connect_failure(ConnectFailed("it is dead"))
    assert second.channel.told.count("health_soon") == 1
    assert not second.endpoint.ready
    assert first.endpoint.ready
    family.clock.advance(0)
    assert len(first.net.attempts) == before + 1
    family.clock.advance(0)
    for _ in range(50):
        second.endpoint.record_connect_failure(ConnectFailed("it is dead"))
    family.clock.advance(1.0)
    assert second.channel.told.count("health_soon") == 2, "each result may be doubted once"
    assert len(first.net.attempts) == before + 2
    answers(first, 200)
    rounds(family, 2)
    assert bool(second.endpoint.ready)
    assert third.endpoint.ready


def test_an_endpoint_of_the_leader_is_checked_early_as_with_one_process() -> None:
    family, first, second, _ = three()
    family.clock.advance(2.0)
    before = len(first.net.attempts)
    first.endpoint.record_connect_failure(ConnectFailed("it is dead"))
    family.clock.advance(0)
    assert len(first.net.attempts) == before + 1
    assert "health_soon" not in first.channel.told
    assert not second.net.attempts


def test_a_wish_that_arrives_at_a_process_that_checks_no_longer_is_dropped() -> None:
    family, first, second, _ = three()
    family.clock.advance(2.0)
    before = len(first.net.attempts)
    first.channel.held = []
    second.endpoint.request_check()
    first.health.lead(False)
    first.channel.release()
    family.clock.advance(0)
    assert len(first.net.attempts) == before


def test_a_reload_where_the_leader_swaps_first() -> None:
    """Results for what the others do not know yet are kept for them."""
    family, first, second, third = three()
    added = replace(family.config, endpoints=(*family.config.endpoints, endpoint_config("b", "10.0.0.2")))
    first.apply(added)
    family.clock.advance(1.0)
    assert first.cluster.endpoints[1].ready
    second.apply(added)
    assert second.cluster.endpoints[1].ready
    third.apply(added)
    assert third.cluster.endpoints[1].ready
    assert third.endpoint.ready, "and what they knew stays"


def test_a_reload_where_the_leader_swaps_last() -> None:
    family, first, second, third = three()
    added = replace(family.config, endpoints=(*family.config.endpoints, endpoint_config("b", "10.0.0.2")))
    second.apply(added)
    third.apply(added)
    assert second.cluster.endpoints[1].unchecked
    rounds(family, 1)
    first.apply(added)
    family.clock.advance(1.0)
    assert second.cluster.endpoints[1].ready
    assert third.cluster.endpoints[1].ready


def test_results_got_with_other_certificates_are_not_used() -> None:
    family, first, second, _ = three()
    changed = replace(family.config, tls=OTHER_TLS)
    second.apply(changed)
    assert second.endpoint.unchecked, "what was known was of other connections"
    rounds(family, 2)
    assert second.endpoint.unchecked
    answers(first, 500)
    first.apply(changed)
    family.clock.advance(1.0)
    assert second.endpoint.health.status is Health.FAILED


def test_a_result_with_new_certificates_waits_for_those_that_still_have_the_old_ones() -> None:
    family, first, second, _ = three()
    changed = replace(family.config, tls=OTHER_TLS)
    answers(first, 500)
    first.apply(changed)
    family.clock.advance(1.0)
    assert first.endpoint.health.status is Health.FAILED
    assert second.endpoint.ready, "its connections are still the old ones"
    second.apply(changed)
    assert second.endpoint.health.status is Health.FAILED


def test_a_change_of_the_connections_number_keeps_the_state() -> None:
    family, first, second, _ = three()
    for process, most in ((first, 3), (second, 2)):
        process.apply(replace(family.config, connections=model.Connections(max_connections=most)))
        assert process.endpoint.ready, "each process has its part of maxConnections"
    refuses(first)
    rounds(family, 3)
    assert not second.endpoint.ready


def test_thresholds_that_change_hold_for_all() -> None:
    family, first, second, third = three()
    refuses(first)
    rounds(family, 2)
    strict = replace(family.config, health_check=replace(CHECK, unhealthy_after=4))
    for process in (second, first, third):
        process.apply(strict)
    family.clock.advance(0)  # the check of the new configuration
    assert third.endpoint.ready
    rounds(family, 1)
    assert not any(process.endpoint.ready for process in (first, second, third))


def test_a_renamed_endpoint_goes_on() -> None:
    family, first, second, third = three()
    renamed = replace(family.config, endpoints=(replace(family.config.endpoints[0], name="other"),))
    second.apply(renamed)
    refuses(first)
    rounds(family, 2)
    first.apply(renamed)
    third.apply(renamed)
    family.clock.advance(0)
    assert [process.endpoint.ready for process in (first, second, third)] == [False] * 3


def test_a_removed_endpoint_is_forgotten() -> None:
    family, first, *_ = three()
    gone = replace(family.config, endpoints=(endpoint_config("b", "10.0.0.2"),))
    for child in tuple(family.children.all):
        child.process.apply(gone)
    family.configured(gone)
    first.net.behaviour = None
    late = family.start(config=gone)
    late.apply(family.config)
    assert late.endpoint.unchecked, "what it was before it was removed says nothing"


def test_equal_urls_of_one_cluster_are_two_endpoints() -> None:
    family = Family(endpoint_config("a"), endpoint_config("b"), health_check=CHECK)
    first, second = family.start(), family.start()
    turns = [0]

    def every_other(attempt: Attempt) -> None:
        turns[0] += 1
        attempt.answer(200 if turns[0] % 2 else 500)

    first.net.behaviour = every_other
    family.lead(first)
    family.clock.pump([0.1] * 5)
    assert [endpoint.ready for endpoint in second.cluster.endpoints] == [True, False]


def test_a_missing_right_is_logged_once_whoever_leads() -> None:
    with captured_logs() as events:
        family, first, second, third = three(credentials=model.Credentials(token=model.Secret("t")))
        answers(first, 403)
        first.endpoint.health.use_credential("")  # forget that it answered 200
        second.endpoint.health.use_credential("")
        for process in (first, second, third):
            process.apply(replace(family.config, tls=OTHER_TLS))
        family.clock.pump([1.0] * 40)
        answers(second, 403)
        family.lead(second)
        family.clock.pump([1.0] * 40)
    assert [event["event"] for event in events].count("health_check_credential_refused") == 1
    assert all(process.endpoint.ready for process in (first, second, third))


def test_without_a_word_of_the_supervisor_each_process_checks_for_itself() -> None:
    family, first, second, third = three()
    refuses(first)
    rounds(family, 3)
    answers(second, 200)
    assert not second.endpoint.ready
    for process in (first, second, third):
        process.channel.heard_at = family.clock.seconds()
    first.channel.peer.held = []  # the supervisor reads nothing
    answers(first, 200)
    third.net.behaviour = None
    with captured_logs() as events:
        family.clock.pump([1.0] * 25)
    assert sum("is silent" in eventAsText(event) for event in events) == 2, "all but the leader, which checks anyway"
    assert bool(second.endpoint.ready)
    assert third.net.attempts
    assert "health_result" not in second.channel.told
    for process in (first, second, third):
        process.channel.heard_at = float("inf")
    first.channel.peer.release()
    family.clock.pump([1.0] * 6)
    checks = len(second.net.attempts)
    rounds(family, 3)
    assert len(second.net.attempts) == checks
    assert third.endpoint.ready


def test_a_process_that_stood_still_itself_does_not_blame_the_supervisor() -> None:
    family, first, second, _ = three()
    second.channel.heard_at = family.clock.seconds()
    family.clock.advance(60.0)
    assert not second.health.checks
    second.channel.heard_at = float("inf")
    rounds(family, 2)
    assert not second.net.attempts
    assert first.net.attempts


def test_nothing_of_the_credential_is_told() -> None:
    told: list[str] = []
    family = Family(health_check=CHECK, credentials=model.Credentials(token=model.Secret("s3cret")))
    first = family.start()
    original = first.channel.tell

    def tell(kind: str, **fields: Any) -> None:
        told.append(repr(fields))
        original(kind, **fields)

    first.channel.tell = tell  # type: ignore[method-assign]
    answers(first, 200)
    family.lead(first)
    assert told
    assert not any("s3cret" in line for line in told)
