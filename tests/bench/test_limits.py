"""Every way of counting is measured, by one process and by four at once."""

from __future__ import annotations

import os

import pytest

from bench.limits import CONTENDED, LOCAL, SHARED, WHATS, Taken, summarise, take


@pytest.mark.slow
def test_processes_say_what_they_took() -> None:
    cores = sorted(os.sched_getaffinity(0))
    for what, where in (("bucket", LOCAL), ("permit", CONTENDED)):
        taken = take(what, where, 0.05, cores)
        assert 1e-7 < taken.cost < 1e-3
        assert taken.rate > 1000


def test_a_row_for_each_way_and_targets_for_one_process_alone() -> None:
    cases = [(what, where) for what in WHATS for where in (LOCAL, SHARED, CONTENDED)]
    costs = {LOCAL: 1e-6, SHARED: 3e-6, CONTENDED: 50e-6}
    section = summarise(cases, [{case: Taken(costs[case[1]], 1 / costs[case[1]]) for case in cases}])
    assert [row[1] for row in section.rows] == [LOCAL, SHARED, CONTENDED] * 2
    assert [row[3] for row in section.rows[:2]] == ["-", "3.0 [3.0 to 3.0]"]
    assert [target.met for target in section.targets] == [True, True]
