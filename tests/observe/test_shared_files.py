"""One access log and one audit log for all workers: every line is whole and names its process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcproxy.config import model
from mcproxy.observe.access_log import AccessLogs
from mcproxy.observe.audit.log import AuditLogs
from mcproxy.observe.batched_log import FLUSH_AFTER, BatchedLog
from mcproxy.observe.record import AccessRecord
from tests.observe.audit.test_log import event
from tests.support.clock import Clock

Write = Callable[[str], None]


def opened(kind: str, clock: Clock, process: str, path: Path) -> tuple[BatchedLog, Write]:
    """Return a process's log, and what writes a line with this text to it, at once."""
    if kind == "audit":
        audit = AuditLogs(clock, process).open(model.AuditLogConfig(file=str(path)))
        return audit, lambda text: write(clock, audit, lambda: audit.add(event(text)))
    access = AccessLogs(clock, process).open(model.AccessLogConfig(file=str(path)))

    def add(text: str) -> None:
        access.finished(AccessRecord(time=1795261320.0, client="10.1.2.3", method="GET", uri=text, status=200))

    return access, lambda text: write(clock, access, lambda: add(text))


def write(clock: Clock, log: BatchedLog, add: Callable[[], None]) -> None:
    before = log.written
    add()
    clock.advance(FLUSH_AFTER)
    deadline = time.monotonic() + 60
    while log.written == before:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("kind", ["access", "audit"])
def test_what_one_worker_left_half_spoils_no_line_of_another(kind: str, tmp_path: Path) -> None:
    """The other one had found the file to end with a whole line, and wrote behind it since."""
    clock, path = Clock(), tmp_path / "log"
    (one, write_one), (two, write_two) = (opened(kind, clock, f"worker-{number}", path) for number in range(2))
    write_one("/1")
    write_two("/2")
    half = path.read_bytes().splitlines()[0][:40]
    with path.open("ab") as torn:  # a disk that was full, or a worker that was killed within a write
        torn.write(half)
    write_one("/3")
    write_two("/4")
    for log in (one, two):
        log.close()
        assert log.wait_closed(60)
    lines = path.read_bytes().splitlines()
    assert len(lines) == 5
    assert lines[2] == half
    whole = [json.loads(line) for line in (*lines[:2], *lines[3:])]
    if kind == "access":
        found = [(each["uri"], each["process"]) for each in whole]
        assert found == [("/1", "worker-0"), ("/2", "worker-1"), ("/3", "worker-0"), ("/4", "worker-1")]


@pytest.mark.parametrize("kind", ["access", "audit"])
@pytest.mark.parametrize("process", ["", "worker-0"])
def test_only_workers_lock_the_file_for_each_batch(
    kind: str, process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is alone with its file looks at its end once: each look costs its requests time."""
    clock = Clock()
    looked: list[int] = []
    pread = os.pread

    def counted(*arguments: int) -> bytes:
        looked.append(1)
        return pread(*arguments)

    monkeypatch.setattr(os, "pread", counted)
    log, add = opened(kind, clock, process, tmp_path / "log")
    for number in range(4):
        add(f"/{number}")
    log.close()
    assert log.wait_closed(60)
    assert len(looked) == (3 if process else 0)  # the first time it is empty
