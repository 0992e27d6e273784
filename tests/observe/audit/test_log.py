"""The audit log at a disk that stalls or is full: nothing is lost without a count and a line that says so."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.observe.audit import log as audit_log
from mcproxy.observe.audit.event import AuditTrail
from mcproxy.observe.audit.log import AuditLog, AuditLogs
from mcproxy.observe.batched_log import FLUSH_AFTER, FLUSH_COUNT, POLL_AFTER, REPORT_EVERY
from tests.support.clock import Clock


def event(identifier: str = "a") -> str:
    return AuditTrail(None, identifier, '"/api"', '"get"', "{}", "", "", "t").received()


class Said:
    """The lines of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        for level in ("info", "warn", "error"):
            monkeypatch.setattr(audit_log.log, level, self._take(level))

    def _take(self, level: str) -> Any:
        return lambda text, **fields: self.lines.append((level, fields))

    @property
    def events(self) -> list[str]:
        return [fields["event"] for _, fields in self.lines]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(monkeypatch)


def wait(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_disk_that_stalls_costs_what_the_queue_cannot_take_and_says_how_much(
    clock: Clock, said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audit_log, "LONGEST_BACKLOG", 10_000)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # which reads nothing
    log = AuditLog(clock, model.AuditLogConfig(file=str(tmp_path / "pipe")))
    for _ in range(8 * FLUSH_COUNT):
        log.add(event())
    assert log.lost > 0
    assert log.queued_bytes > 10_000
    clock.advance(FLUSH_AFTER)
    assert [(level, fields["lines"], fields["cause"]) for level, fields in said.lines] == [
        ("error", log.lost, "the file stalls")
    ]
    before = log.lost
    log.add(event())
    clock.advance(POLL_AFTER)
    assert len(said.lines) == 1
    clock.advance(REPORT_EVERY)
    assert said.lines[1:] == [("error", {**said.lines[0][1], "lines": log.lost - before})]
    os.close(reader)


def test_a_full_disk_is_told_once_and_its_end_too_and_nothing_is_lost(clock: Clock, said: Said, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.symlink_to("/dev/full")
    log = AuditLog(clock, model.AuditLogConfig(file=str(path)))
    log.add(event())
    clock.advance(FLUSH_AFTER)
    wait(lambda: log._writer.error)
    for _ in range(3):
        clock.advance(POLL_AFTER)
    assert said.events == ["audit_log_unwritable"]
    assert said.lines[0][1]["cause"].endswith("No space left on device")
    path.unlink()
    log.reopen()
    wait(lambda: log.written == 1)
    clock.advance(POLL_AFTER)
    assert said.events == ["audit_log_unwritable", "audit_log_written_again"]
    log.close()
    assert log.wait_closed(60)
    assert (log.lost, log.queued_bytes, path.read_bytes().count(b"\n")) == (0, 0, 1)
    assert stat.S_IMODE(path.stat().st_mode) & 0o137 == 0


def test_what_cannot_be_written_at_the_end_is_lost_and_said(clock: Clock, said: Said) -> None:
    logs = AuditLogs(clock)
    opened = logs.open(model.AuditLogConfig(file="/dev/full"))
    opened.add(event())
    opened.add(event())
    logs.close()
    assert [(name, fields["lines"]) for name, (_, fields) in zip(said.events, said.lines, strict=True)] == [
        ("audit_log_incomplete", 2)
    ]


def test_counts_go_on_over_a_reload(clock: Clock, tmp_path: Path) -> None:
    logs = AuditLogs(clock)
    for name in ("one", "two"):
        opened = logs.open(model.AuditLogConfig(file=str(tmp_path / name)))
        opened.add(event())
        opened.close()
        assert opened.wait_closed(60)
    logs.open(model.AuditLogConfig(file=str(tmp_path / "three")))
    assert (logs.written, logs.lost, logs.queued_bytes) == (2, 0, 0)
    logs.close()
