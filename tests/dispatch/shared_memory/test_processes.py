"""Limits over real processes: exact, whatever they do at the same time, and whenever one is killed or stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.config.model import Per
from mcproxy.dispatch.shared_memory import LimitId, SharedMemory, SharedTables, layout
from mcproxy.dispatch.shared_memory.memory import Memory
from tests.dispatch.shared_memory.child import BUCKET, COUNT, NoReactor

#: How often processes are killed while they work; more by hand.
KILLS = int(os.environ.get("MCPROXY_KILLS", "40"))


class Child:
    """A process of `child`."""

    def __init__(self, memory: SharedMemory, column: int, what: str, *arguments: object) -> None:
        descriptors = memory.descriptors
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.dispatch.shared_memory.child", str(column), what, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=tuple(descriptors.values()),
            env={**os.environ, "DESCRIPTORS": json.dumps(descriptors)},
        )

    def said(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go(self, at: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{at}\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Family:
    """The memory, the processes, and this one, which has column 0."""

    def __init__(self) -> None:
        self.memory = SharedMemory.create()
        self.children: list[Child] = []
        self.tables = SharedTables(self.memory.memory, column=0, wakers=self.memory.wakers, reactor=NoReactor())

    def start(self, column: int, what: str, *arguments: object) -> Child:
        child = Child(self.memory, column, what, *arguments)
        self.children.append(child)
        return child

    def end(self) -> None:
        for child in self.children:
            child.kill()
        self.memory.close()


@pytest.fixture
def family() -> Iterator[Family]:
    family = Family()
    try:
        yield family
    finally:
        family.end()


def at_once(children: list[Child]) -> float:
    """Let all begin at the same moment; return it."""
    for child in children:
        assert child.said() == "ready"
    start = time.monotonic() + 0.05
    for child in children:
        child.go(start)
    return start


@pytest.mark.parametrize(("qps", "burst"), [(2000, 400)])  # as long as a burst takes may all be kept from running
def test_four_processes_take_burst_and_rate_and_no_token_more(family: Family, qps: int, burst: int) -> None:
    begun = time.monotonic()
    assert family.tables.buckets(BUCKET, qps, burst).fill("alice", begun) == burst
    children = [family.start(column, "take_tokens", qps, burst, 0.5) for column in range(1, 5)]
    at_once(children)
    taken = sorted(moment for child in children for moment in child.said())
    for number, moment in enumerate(taken, 1):
        assert number <= burst + qps * (moment - taken[0] + 1e-6) + 1e-6  # the tolerance of a token is 1 us
    assert len(taken) >= 0.95 * (burst + qps * (taken[-1] - taken[0]))
    assert taken[-1] - taken[0] > 0.2


def test_four_processes_never_have_more_in_flight_than_the_maximum(family: Family) -> None:
    maximum = 7
    children = [family.start(column, "take_and_release", maximum, 0.5) for column in range(1, 5)]
    at_once(children)
    spans = [span for child in children for span in child.said()]
    assert len(spans) > 500
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    assert most == maximum
    assert family.tables.counts(COUNT, maximum).count("alice") == 0


def test_a_killed_process_gives_its_hundred_permits_back(family: Family) -> None:
    child = family.start(1, "hold", 100, 100)
    assert child.said() == 100
    counts = family.tables.counts(COUNT, 100)
    assert not counts.take("alice")
    child.kill()
    family.memory.reclaim(1)
    assert sum(counts.take("alice") for _ in range(200)) == 100


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_stopped_inside_the_critical_section_blocks_nobody(
    family: Family, number: signal.Signals
) -> None:
    counts = family.tables.counts(COUNT, 5)
    assert counts.take("alice")
    child = family.start(1, "stay_inside", 5, 3600)
    assert child.said() == "inside"
    child.signal(number)
    if number == signal.SIGKILL:
        child.process.wait()
    begun = time.monotonic()
    assert counts.take("alice")
    assert time.monotonic() - begun < 1.0
    assert child.process.wait() == -signal.SIGKILL  # a stopped one was killed by who waited for it
    assert counts.count("alice") == 3  # nothing is left of what it was about to write
    family.memory.reclaim(1)
    assert counts.count("alice") == 2
    assert [counts.take("alice") for _ in range(4)] == [True, True, True, False]


def test_a_process_that_is_only_slow_inside_the_critical_section_is_waited_for(family: Family) -> None:
    counts = family.tables.counts(COUNT, 5)
    child = family.start(1, "stay_inside", 5, 0.5)
    assert child.said() == "inside"
    assert counts.take("alice")
    assert child.said() == "outside"
    assert child.process.poll() is None
    assert counts.count("alice") == 2


def test_a_stopped_process_that_is_not_ours_is_not_killed(family: Family) -> None:
    counts = family.tables.counts(COUNT, 5)
    child = family.start(1, "stay_inside", 5, 0.1)
    assert child.said() == "inside"
    family.memory.memory.words[layout.H_PIDS + 1] = 0
    child.signal(signal.SIGSTOP)
    with subprocess.Popen(["sh", "-c", f"sleep 0.6; kill -CONT {child.process.pid}"]):
        assert counts.take("alice")
    assert child.said() == "outside"


def test_whenever_processes_are_stopped_and_killed_nothing_is_left_of_them() -> None:
    argv = [sys.executable, "-m", "tests.dispatch.shared_memory.storm", str(KILLS), "11"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_few_that_wait_in_one_process_have_their_turns_beside_many_in_another(family: Family) -> None:
    many, few = family.start(1, "queue_up", 2, 30, 1.0), family.start(2, "queue_up", 2, 2, 1.0)
    dead = family.start(3, "queue_up", 2, 10, 30.0)
    start = at_once([many, few, dead])
    time.sleep(max(0.0, start + 0.2 - time.monotonic()))
    dead.kill()  # with places, given some, and with a queue
    killed = time.monotonic()
    family.memory.reclaim(3)
    of_many, of_few = (
        [asked + waited for asked, waited in child.said() if asked + waited > killed] for child in (many, few)
    )
    assert len(of_few) >= 0.1 * len(of_many) > 1
    assert family.tables.counts(LimitId("queued", "short", Per.ALL), 2).count("") <= 2


def test_memory_of_something_else_is_not_mapped(family: Family) -> None:
    fd = os.memfd_create("other")
    try:
        with pytest.raises(ValueError, match="not their memory"):
            Memory.attach(fd, 0)
        os.ftruncate(fd, layout.WORDS * layout.WORD)
        with pytest.raises(ValueError, match="another version"):
            Memory.attach(fd, 0)
    finally:
        os.close(fd)
