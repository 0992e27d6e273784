"""The logs of requests, all of a process together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mcproxy.config import model
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.request_logs import REOPENED_WITHIN, RequestLogs
from tests.support.clock import Clock


def test_a_request_that_has_ended_before_the_files_are_reopened_is_in_the_old_one(tmp_path: Path) -> None:
    logs, metrics = RequestLogs(Clock()), Metrics()
    logs.count_into(metrics)
    log = logs.open_access(model.AccessLogConfig(file=str(tmp_path / "access.log")))
    waiting = [AccessRecord(1.0, "192.0.2.1", "GET", "/before", 200)]

    def tell() -> None:  # as the batch of requests does
        while waiting:
            log.finished(waiting.pop())

    metrics.read_at_flush(tell)
    (tmp_path / "access.log").rename(tmp_path / "access.log.1")
    logs.reopen()
    log.finished(AccessRecord(2.0, "192.0.2.1", "GET", "/after", 200))
    logs.close()
    assert "/before" in (tmp_path / "access.log.1").read_text()
    assert "/after" in (tmp_path / "access.log").read_text()


def test_files_are_told_to_be_reopened_when_they_are(tmp_path: Path) -> None:
    """Whoever rotates logs reads the old file then."""
    clock = Clock()
    logs = RequestLogs(clock)
    path = tmp_path / "access.log"
    log = logs.open_access(model.AccessLogConfig(file=str(path)))
    log.finished(AccessRecord(1.0, "192.0.2.1", "GET", "/before", 200))
    path.rename(tmp_path / "access.log.1")
    done: list[object] = []
    logs.reopen().addCallback(done.append)
    deadline = time.monotonic() + 60
    while log.reopening:  # by the writer's thread; the clock must not reach REOPENED_WITHIN before it
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert not done
    clock.advance(0.02)
    assert done == [None]
    assert path.exists()
    assert "/before" in (tmp_path / "access.log.1").read_text()
    logs.close()


def test_a_file_that_stalls_is_waited_for_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    logs = RequestLogs(clock)
    log = logs.open_access(model.AccessLogConfig(file=str(tmp_path / "access.log")))
    monkeypatch.setattr(type(log), "reopening", property(lambda _: True))
    done: list[object] = []
    logs.reopen().addCallback(done.append)
    clock.pump([REOPENED_WITHIN - 0.1, 0.05])
    assert not done
    clock.pump([0.05, 0.02])
    assert done == [None]
    logs.close()
