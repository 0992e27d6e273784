"""The number of workers, and what of it a reload can change."""

import os
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.daemon.worker_count import WorkersChangedError, check_reload, worker_count


def test_a_number_is_that_many() -> None:
    assert worker_count(model.Daemon()) == 1
    assert worker_count(model.Daemon(workers=5)) == 5


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (6, 6), (200, 63)])
def test_auto_is_one_for_each_core_that_the_process_may_run_on(
    cores: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert worker_count(model.Daemon(workers=model.AUTO)) == workers


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 4), (4, 2), (1, "Auto"), ("Auto", 1)])
def test_a_reload_brings_another_number_above_one(before: Any, after: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    check_reload(model.Daemon(workers=before), model.Daemon(workers=after))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_reload_does_not_make_several_of_one_process(before: int, after: int) -> None:
    with pytest.raises(WorkersChangedError, match=f"from {before} to {after}") as refused:
        check_reload(model.Daemon(workers=before), model.Daemon(workers=after))
    assert "mcproxy upgrade" in refused.value.todo
