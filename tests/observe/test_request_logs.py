"""The logs of requests, all of a process together."""

from __future__ import annotations

from pathlib import Path

from twisted.internet.task import Clock

from mcproxy.config import model
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.request_logs import RequestLogs


def test_a_request_that_has_ended_before_the_files_are_reopened_is_in_the_old_one(tmp_path: Path) -> None:
    logs, metrics = RequestLogs(Clock()), Metrics()
    logs.count_into(metrics)
    log = logs.open_access(model.AccessLog(file=str(tmp_path / "access.log")))
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
