"""Limits over real processes: exact, whatever they do at the same time, and whenever one is killed or stopped."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mcproxy.config.model import Per
from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.limit_shares import LimitId
from mcproxy.dispatch.tables.memory import Memory
from mcproxy.dispatch.tables.mutexes import Mutexes
from mcproxy.dispatch.tables.shared_memory import SharedMemory
from tests.dispatch.tables.child import BUCKET, COUNT

#: How often processes are killed while they work; more by hand.
KILLS = int(os.environ.get("MCPROXY_KILLS", "40"))


class Child:
    """A process of `child`."""

    def __init__(self, memory: SharedMemory, column: int, what: str, *arguments: object) -> None:
        descriptors = memory.descriptors
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.dispatch.tables.child", str(column), what, *map(str, arguments)],
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
        self.tell(at)

    def tell(self, line: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
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
        self.tables = LimitTables(self.memory.memory, column=0, wake=self.memory.wake)

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


# A bucket that takes 8 s to fill loses no token to a pause of all processes, once it has given some.
@pytest.mark.parametrize(("qps", "burst"), [(500, 4000)])
def test_four_processes_take_burst_and_rate_and_no_token_more(family: Family, qps: int, burst: int) -> None:
    begun = time.monotonic()
    assert family.tables.buckets(BUCKET, qps, burst).fill("alice", begun) == burst
    children = [family.start(column, "take_tokens", qps, burst, 0.5) for column in range(1, 5)]
    at_once(children)
    said = [child.said() for child in children]
    taken = sorted(moment for times, _ in said for moment in times)
    refused = sorted(moment for _, times in said for moment in times)
    for number, moment in enumerate(taken, 1):
        assert number <= burst + qps * (moment - taken[0] + 1e-6) + 1e-6  # the tolerance of a token is 1 us
    # Until there was none for the last time, all had been taken; those apart that came to a full bucket at the
    # beginning, while a process stood still that knew the time already.
    assert sum(moment <= refused[-1] for moment in taken) >= 0.9 * (burst + qps * (refused[-1] - taken[0]))
    assert taken[-1] > refused[0]


@pytest.mark.slow
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
    assert time.monotonic() - begun < 30  # the holder would stay for an hour
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


class Patience:
    """Stands for the waiting for a mutex: each time something is done, and it was in vain; then it is waited for."""

    def __init__(self, family: Family, *meanwhile: Callable[[], None]) -> None:
        mutexes = family.memory.memory.mutexes
        assert isinstance(mutexes, Mutexes)
        self._mutexes = mutexes
        self._wait = self._mutexes._timed_lock
        self._meanwhile = list(meanwhile)
        self._mutexes._timed_lock = self._waited

    def _waited(self, pointer: Any, seconds: float) -> int:
        if self._meanwhile:
            self._meanwhile.pop(0)()
            return errno.ETIMEDOUT
        self._mutexes._timed_lock = self._wait
        return self._wait(pointer, 10.0)


def stopped(child: Child) -> None:
    """Stop it, and wait until it is."""
    child.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED | os.WNOWAIT)


def continued(child: Child) -> None:
    child.signal(signal.SIGCONT)
    os.waitid(os.P_PID, child.process.pid, os.WCONTINUED)


def test_a_holder_that_is_stopped_for_a_moment_lives(family: Family) -> None:
    """It is looked at twice in a row before it is killed, and here it ran between the looks."""
    counts = family.tables.counts(COUNT, 5)
    child = family.start(1, "stay_inside", 5, 0)
    assert child.said() == "inside"

    def goes_on() -> None:
        continued(child)
        child.go(0.0)

    Patience(
        family,
        lambda: stopped(child),
        lambda: continued(child),
        lambda: stopped(child),
        goes_on,
    )
    assert counts.take("alice")
    assert child.said() == "outside"
    assert child.process.poll() is None
    assert counts.count("alice") == 2


def test_a_holder_that_is_stopped_at_two_looks_in_a_row_is_killed(family: Family) -> None:
    counts = family.tables.counts(COUNT, 5)
    child = family.start(1, "stay_inside", 5, 0)
    assert child.said() == "inside"
    looks: list[int | None] = []
    Patience(
        family,
        lambda: stopped(child),
        lambda: looks.append(child.process.poll()),
    )
    assert counts.take("alice")
    assert looks == [None], "it lives at the second look"
    assert child.process.wait() == -signal.SIGKILL
    family.memory.reclaim(1)
    assert counts.count("alice") == 1


def test_another_holder_that_is_stopped_is_not_taken_for_the_first(family: Family) -> None:
    """Two looks at two processes are one look at each."""
    counts = family.tables.counts(COUNT, 5)
    mutexes = family.memory.memory.mutexes
    assert isinstance(mutexes, Mutexes)
    pointer = mutexes.pointers[counts._find("alice").mutex]
    child = family.start(1, "stay_inside", 5, 0)
    assert child.said() == "inside"
    stopped(child)
    assert mutexes._check_holder(pointer, os.getpid()) == child.process.pid
    assert child.process.poll() is None
    continued(child)
    assert mutexes._check_holder(pointer, child.process.pid) == 0
    child.go(0.0)
    assert child.said() == "outside"
    assert mutexes._check_holder(pointer, child.process.pid) == 0, "nobody holds it"


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
    argv = [sys.executable, "-m", "tests.dispatch.tables.storm", str(KILLS), "11"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_few_that_wait_in_one_process_have_their_turns_beside_many_in_another(family: Family) -> None:
    many, few = family.start(1, "queue_up", 2, 30), family.start(2, "queue_up", 2, 2)
    dead = family.start(3, "queue_up", 2, 10)
    start = at_once([many, few, dead])
    time.sleep(max(0.0, start + 0.2 - time.monotonic()))
    dead.kill()  # with places, given some, and with a queue
    killed = time.monotonic()
    family.memory.reclaim(3)
    # So many turns, not so many seconds: a process that waits for a processor has none.
    turns = []
    for child, more in ((many, 300), (few, 0)):
        child.tell(more)
        turns.append([turn for asked, waited in child.said() if (turn := asked + waited) > killed])
    of_many, of_few = turns
    assert sum(turn < of_many[-1] for turn in of_few) >= 0.1 * len(of_many) >= 30
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
