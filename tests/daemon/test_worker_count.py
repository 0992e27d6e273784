"""The number of workers."""

import os

import pytest

from mcproxy.config import model
from mcproxy.daemon.process_setup import worker_count


def test_a_number_is_that_many() -> None:
    assert worker_count(model.DaemonConfig()) == 1
    assert worker_count(model.DaemonConfig(workers=5)) == 5


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (6, 6), (200, 63)])
def test_auto_is_one_for_each_core_that_the_process_may_run_on(
    cores: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert worker_count(model.DaemonConfig(workers=model.AUTO)) == workers
