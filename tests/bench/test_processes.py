"""Processes are pinned, seen while they run, and gone afterwards."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from bench.lab import Cores
from bench.processes import Failed, Processes, wait_for_port
from tests.support.ports import reserved_port

SERVE = "import socket,sys;s=socket.create_server(('127.0.0.1',int(sys.argv[1])))\nwhile True: s.accept()"
SPIN = "while True: pass"
FORK = "import os,time;os.fork();time.sleep(60)"


def test_a_process_runs_on_its_core_and_ends_with_the_context(tmp_path: Path) -> None:
    core, port = min(os.sched_getaffinity(0)), reserved_port()
    with Processes(tmp_path) as processes:
        process = processes.start("server", [sys.executable, "-c", SERVE, str(port)], core)
        wait_for_port(process, port)
        assert os.sched_getaffinity(process.pid) == {core}
        assert process.rss() > 2**20
    assert not Path(f"/proc/{process.pid}").exists()


def test_processor_time_grows_while_a_process_computes(tmp_path: Path) -> None:
    # /proc counts in ticks of 10 ms, so that a process that only started may have used none.
    with Processes(tmp_path) as processes:
        process = processes.start("spin", [sys.executable, "-c", SPIN], min(os.sched_getaffinity(0)))
        deadline = time.monotonic() + 60
        while process.cpu_seconds() < 0.05:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_an_interruption_leaves_nothing_behind_not_even_children(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    started = []

    def interrupted() -> None:
        with Processes(tmp_path) as processes:
            process = processes.start("forks", [sys.executable, "-c", FORK], core)
            started.append(process.pid)
            while len(_session(process.pid)) < 2:
                process.check()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    deadline = time.monotonic() + 60
    while _session(started[0]) and time.monotonic() < deadline:
        time.sleep(0.01)  # an orphan that was killed takes the kernel a moment
    assert _session(started[0]) == []


def test_a_process_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    with Processes(tmp_path) as processes:
        process = processes.start("broken", [sys.executable, "-c", "raise SystemExit('no such file')"], core)
        with pytest.raises(Failed, match=r"broken ended with status 1; its last words:\nno such file"):
            wait_for_port(process, reserved_port())


def test_the_proxy_has_a_core_of_its_own_as_far_as_there_are_cores() -> None:
    assert Cores.choose([4]) == Cores(4, 4, 4)
    assert Cores.choose([5, 3]) == Cores(3, 5, 5)
    assert Cores.choose([0, 1, 2, 3]) == Cores(0, 1, 2)


def _session(leader: int) -> list[int]:
    """Return the living processes of a session (zombies aside)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found
