"""Processor time of a subject: what each of its processes used while it was measured."""

from __future__ import annotations

import os
from typing import Any, cast

from bench.meter import Meter
from bench.processes import Process


class Measured:
    """A process with children, as `Process` shows it."""

    def __init__(self) -> None:
        self.used = {1: 10.0, 2: 3.0}

    def cpu_by_process(self) -> dict[int, float]:
        return dict(self.used)


def test_a_child_that_ends_takes_nothing_off_and_a_new_one_counts() -> None:
    measured: Any = Measured()
    meter = Meter(cast(Process, measured), min(os.sched_getaffinity(0)))
    measured.used = {1: 10.5, 3: 0.25}
    assert meter.read().cpu == 0.75
