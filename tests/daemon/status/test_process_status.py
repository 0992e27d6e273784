"""What a process uses, as the kernel says."""

import time
from pathlib import Path

from mcproxy.daemon.status.process_status import KEYS, of_process


def test_the_figures_of_a_process_are_those_of_the_kernel() -> None:
    before = time.process_time()
    found = of_process(0.25)
    assert tuple(found) == KEYS
    assert 10e6 < found["residentBytes"] < found["virtualBytes"]
    assert found["cpuSeconds"] >= round(before, 3)
    assert 3 <= found["descriptors"] < found["maxDescriptors"]
    assert abs(found["startedAt"] - time.time()) < 3600 * 24
    assert found["loopLagSeconds"] == 0.25


def test_without_proc_they_are_not_known(tmp_path: Path) -> None:
    found = of_process(proc=str(tmp_path))
    unknown = ("residentBytes", "virtualBytes", "descriptors", "startedAt", "loopLagSeconds")
    assert [found[key] for key in unknown] == [None] * len(unknown)
