"""Kills and stops processes that share limits, at moments of chance: `python -m ...storm KILLS SEED`.

They are forked, which takes a hundredth of an interpreter's start. Ends with an error if one ends by itself, if a
maximum is exceeded, if anybody waits long for a stopped one, or if at the end anything is left in flight.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from random import Random

from mcproxy.dispatch.limit_tables import LimitTables
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.shared_memory import SharedMemory
from tests.dispatch.tables import child
from tests.dispatch.tables.child import COUNT, KEYS

MAXIMUM = 9
#: Seconds in which who waits for a mutex of a stopped process has it, on a machine that has much else to do.
PATIENCE = 20.0


def start(memory: SharedMemory, column: int) -> int:
    """Fork a process that does everything with limits; return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        memory.memory.words[layout.H_PIDS + column] = os.getpid()
        tables = LimitTables(memory.memory, column=column, wake=memory.wake)
        child.churn(tables, str(MAXIMUM))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def main(kills: int, seed: int) -> None:
    random = Random(seed)
    faulthandler.dump_traceback_later(180 + kills, exit=True)
    memory = SharedMemory.create()
    tables = LimitTables(memory.memory, column=0, wake=memory.wake)
    counts = tables.counts(COUNT, MAXIMUM)
    processes = {column: start(memory, column) for column in (1, 2, 3, 4)}
    for _ in range(kills):
        column = random.choice(list(processes))
        pid = processes[column]
        time.sleep(random.random() * 0.004)
        if random.random() < 0.3:
            os.kill(pid, signal.SIGSTOP)
            begun = time.monotonic()
            for key in KEYS:
                if counts.take(key):
                    counts.release(key)
            assert time.monotonic() - begun < PATIENCE
        os.kill(pid, signal.SIGKILL)
        end(memory, column, pid)
        assert all(counts.count(key) <= MAXIMUM for key in KEYS)
        processes[column] = start(memory, column)
    for column, pid in processes.items():
        os.kill(pid, signal.SIGKILL)
        end(memory, column, pid)
    assert [counts.count(key) for key in KEYS] == [0, 0, 0]
    for key in KEYS:
        assert sum(counts.take(key) for _ in range(2 * MAXIMUM)) == MAXIMUM


def end(memory: SharedMemory, column: int, pid: int) -> None:
    """Do what the supervisor does when a process has ended."""
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    memory.reclaim(column)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
