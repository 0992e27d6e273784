"""Two workers against one process: what ratios are taken of, and what the machine allows."""

from __future__ import annotations

import os
import socket
from collections import Counter

import pytest

from bench import kernel_sockets, workers
from bench.cost import CHAIN
from bench.subjects import MCPROXY
from bench.workers import BEFORE, TWO, Choice, Round, Sample, allowed

CHOICE = Choice(Counter({"worker-0": 30, "worker-1": 34}), moved=0, foreign=0, requests=3200, shared_sockets=0)


def sample(requests: int, *microseconds: float, others: float = 20.0, errors: str = "") -> Sample:
    """A window of one second in which each process used so much processor time for each request."""
    cpu = tuple(requests * one / 1e6 for one in microseconds)
    return Sample(requests, 1.0, cpu, sum(cpu) + requests * others / 1e6, errors)


def taken(one: float, two: tuple[float, ...]) -> Round:
    return {
        (name, count): sample(10_000, *costs)
        for count in workers.CONNECTIONS
        for name, costs in ((MCPROXY, (one,)), (MCPROXY + TWO, two), (CHAIN, (one,)), (CHAIN + TWO, two))
    }


def test_the_cost_of_two_workers_is_that_of_all_processes_in_the_same_round() -> None:
    section = workers.summarise_workers([taken(50, (0, 26, 27)), taken(100, (0, 52, 54))], 2, CHOICE)
    rows = {(row[0], row[1]): row for row in section.rows}
    assert rows[MCPROXY + TWO, "16"][3] == "1.06 [1.06 to 1.06]"
    assert rows[MCPROXY + TWO, "100"][5] == "51 [51 to 51] : 49 [49 to 49]"
    assert rows[MCPROXY, "16"][3] == "-"
    assert all(target.met for target in section.targets)
    section = workers.summarise_workers([taken(50, (0, 30, 30))], 2, CHOICE)
    assert [target.met for target in section.targets] == [False] * 2 + [True]


def test_what_two_cores_allow_with_load_and_upstream_on_them() -> None:
    """At 50 us for the proxy and 25 for the others, one core is full at 20,000/s, and two of them at 26,667."""
    assert allowed(sample(1000, 50.0, others=25.0), True, 2) == pytest.approx(4 / 3)
    assert allowed(sample(1000, 50.0, others=0.0), True, 2) == pytest.approx(2.0)
    assert allowed(sample(1000, 50.0, others=75.0), True, 2) == pytest.approx(1.0)


@pytest.mark.parametrize("wrong", [{"foreign": 1}, {"moved": 1}, {"shared_sockets": 1}])
def test_one_request_at_another_worker_misses_the_target(wrong: dict[str, int]) -> None:
    values = {"moved": 0, "foreign": 0, "shared_sockets": 0, **wrong}
    section = workers.summarise_workers([taken(50, (25, 25))], 2, Choice(CHOICE.connections, requests=3200, **values))
    assert [target.what for target in section.targets if not target.met] == [
        "requests served by a worker that the kernel did not choose"
    ]


def test_a_round_with_an_error_counts_in_no_ratio() -> None:
    broken = {case: sample(10_000, 500.0, errors="1 timeout") for case in taken(50, (50,))}
    section = workers.summarise_workers([taken(50, (25, 25)), broken], 2, CHOICE)
    assert all(row[-1] == "1" for row in section.rows)
    assert all(target.met for target in section.targets)
    assert "errors: 1 timeout" in section.comparisons


def test_one_process_is_compared_with_what_it_was_before() -> None:
    costs = {MCPROXY: 50.0, MCPROXY + BEFORE: 49.0, CHAIN: 60.0, CHAIN + BEFORE: 50.0}
    rounds = [{(name, count): sample(1000, cost) for name, cost in costs.items() for count in workers.CONNECTIONS}]
    section = workers.summarise_before(rounds)
    assert [target.met for target in section.targets] == [True, True, False, False]


def test_the_kernel_says_who_has_a_connection_and_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert kernel_sockets.owners([os.getpid()], port) == {}  # nobody has accepted it
            accepted, _ = listening.accept()
            with accepted:
                assert kernel_sockets.owners([os.getpid(), 1], port) == {client.getsockname()[1]: os.getpid()}
                assert len(kernel_sockets.listening([os.getpid()], port)[os.getpid()]) == 1
                assert kernel_sockets.listening([2**22], port) == {2**22: set()}
