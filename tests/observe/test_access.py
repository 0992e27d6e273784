"""The access log writes in batches, survives a stalled or full disk, and follows rotation."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.observe import access_log
from mcproxy.observe.access_log import AccessLog, AccessLogs
from mcproxy.observe.batched_log import FLUSH_AFTER, FLUSH_COUNT, POLL_AFTER, REPORT_EVERY
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.writer import FileWriter
from tests.support.clock import Clock


def record(uri: str = "/api") -> AccessRecord:
    return AccessRecord(time=1795261320.0, client="10.1.2.3", method="GET", uri=uri, status=200)


def lines(path: Path) -> list[str]:
    return [json.loads(line)["uri"] for line in path.read_text().splitlines()]


class StalledWriter:
    """A writer whose disk does nothing until the test says so."""

    def __init__(self, path: str, alone: bool) -> None:
        self.bytes_done = self.lines_done = self.lines_lost = 0
        self.error = self.reopen_error = ""
        self.handed: list[int] = []

    def write(self, data: bytes, lines: int) -> None:
        self.handed.append(lines)

    def close(self) -> None:
        pass

    def wait_closed(self, timeout: float) -> bool:
        return False


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    warned: list[dict[str, Any]] = []
    monkeypatch.setattr(access_log.log, "warn", lambda text, **fields: warned.append(fields))
    return warned


def test_lines_are_bytes_passed_together_after_a_while(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FileWriter", StalledWriter)
    log = AccessLog(clock, model.AccessLogConfig(file="/x"))
    for _ in range(5):
        log.finished(record())
    assert log._writer.handed == []  # type: ignore[attr-defined]
    clock.advance(FLUSH_AFTER)
    assert log._writer.handed == [5]  # type: ignore[attr-defined]
    log._writer.bytes_done = log.queued_bytes
    clock.advance(POLL_AFTER)
    assert clock.getDelayedCalls() == []


def test_many_lines_are_bytes_passed_at_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FileWriter", StalledWriter)
    log = AccessLog(clock, model.AccessLogConfig(file="/x"))
    for _ in range(FLUSH_COUNT + 1):
        log.finished(record())
    assert sum(log._writer.handed) == FLUSH_COUNT  # type: ignore[attr-defined]


def test_stalled_disk_costs_lines_which_are_counted_and_reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, warnings: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(access_log, "FileWriter", StalledWriter)
    monkeypatch.setattr(access_log, "LONGEST_BACKLOG", 10_000)
    log = AccessLog(clock, model.AccessLogConfig(file="/x"))
    for _ in range(3 * FLUSH_COUNT):
        log.finished(record())
    assert log.lost > FLUSH_COUNT
    clock.advance(FLUSH_AFTER)
    assert [fields["lines"] for fields in warnings] == [log.lost]
    assert warnings[0]["cause"] == "the file stalls"
    log.finished(record())
    clock.advance(FLUSH_AFTER)
    assert len(warnings) == 1
    clock.advance(REPORT_EVERY)
    assert [fields["lines"] for fields in warnings][1:] == [1]


@pytest.mark.parametrize("lost", [0, 1])
def test_lines_do_not_wait_until_it_is_time_to_look_what_became_of_those_before(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, warnings: list[dict[str, Any]], lost: int
) -> None:
    """A worker that is killed has lost what it had not passed on: some milliseconds, not a second or ten."""
    monkeypatch.setattr(access_log, "FileWriter", StalledWriter)
    log = AccessLog(clock, model.AccessLogConfig(file="/x"))
    for number in range(1, 5):
        log._writer.lines_lost += lost
        log.finished(record())
        clock.advance(FLUSH_AFTER)
        assert log._writer.handed == [1] * number  # type: ignore[attr-defined]
    assert len(warnings) == lost  # the others when it is time


def test_backlog_that_shrinks_takes_lines_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FileWriter", StalledWriter)
    monkeypatch.setattr(access_log, "LONGEST_BACKLOG", 1000)
    log = AccessLog(clock, model.AccessLogConfig(file="/x"))
    while not log.lost:
        log.finished(record())
    clock.advance(FLUSH_AFTER)
    lost = log.lost
    log._writer.bytes_done = log._bytes_passed
    for _ in range(FLUSH_COUNT):
        log.finished(record())
    assert log.lost == lost


def test_full_disk_is_reported_with_its_cause(clock: Clock, warnings: list[dict[str, Any]]) -> None:
    log = AccessLog(clock, model.AccessLogConfig(file="/dev/full"))
    log.finished(record())
    log.close()
    assert log.wait_closed(60)
    assert warnings[-1]["lines"] == 1
    assert warnings[-1]["cause"] == "/dev/full: No space left on device"


def test_new_file_is_not_world_readable(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    old = os.umask(0)
    try:
        log = AccessLog(clock, model.AccessLogConfig(file=str(path)))
    finally:
        os.umask(old)
    log.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_reopen_follows_a_rotated_file(clock: Clock, tmp_path: Path) -> None:
    path, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    logs = AccessLogs(clock)
    log = logs.open(model.AccessLogConfig(file=str(path)))
    log.finished(record("/before"))
    path.rename(rotated)
    logs.reopen()
    log.finished(record("/after"))
    logs.close()
    assert lines(rotated) == ["/before"]
    assert lines(path) == ["/after"]


def test_reopen_that_fails_goes_on_with_the_old_file(
    clock: Clock, tmp_path: Path, warnings: list[dict[str, Any]]
) -> None:
    directory = tmp_path / "logs"
    directory.mkdir()
    log = AccessLog(clock, model.AccessLogConfig(file=str(directory / "access.log")))
    directory.rename(tmp_path / "moved")
    log.reopen()
    log.finished(record("/after"))
    log.close()
    assert log.wait_closed(60)
    assert lines(tmp_path / "moved" / "access.log") == ["/after"]
    assert [fields["event"] for fields in warnings] == ["access_log_not_reopened"]
    assert "No such file" in warnings[0]["cause"]


def test_late_record_goes_to_the_log_now_in_force(clock: Clock, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    logs = AccessLogs(clock)
    before, after = logs.open(model.AccessLogConfig(file=str(old))), logs.open(model.AccessLogConfig(file=str(new)))
    before.finished(record("/in-time"))
    before.close()
    before.close()
    before.finished(record("/late"))
    after.finished(record("/new"))
    logs.close()
    before.finished(record("/too-late"))
    assert (lines(old), lines(new)) == (["/in-time"], ["/late", "/new"])
    assert clock.getDelayedCalls() == []


def test_reload_that_fails_leaves_the_old_log_in_force(clock: Clock, tmp_path: Path) -> None:
    logs = AccessLogs(clock)
    old = logs.open(model.AccessLogConfig(file=str(tmp_path / "old")))
    new = logs.open(model.AccessLogConfig(file=str(tmp_path / "new")))
    new.close()
    new.finished(record("/one"))
    old.finished(record("/two"))
    logs.close()
    assert lines(tmp_path / "old") == ["/one", "/two"]


def test_log_cut_off_by_a_stalled_disk_is_reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, warnings: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(access_log, "FileWriter", StalledWriter)
    logs = AccessLogs(clock)
    logs.open(model.AccessLogConfig(file="/x")).finished(record())
    logs.close(timeout=0)
    assert warnings[-1]["cause"] == "the file stalls"


def test_a_reload_does_not_wait_for_the_disk_of_the_log_before(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the reactor's thread that opens the new one."""
    waited: list[float] = []

    def wait_closed(_: StalledWriter, timeout: float) -> bool:
        waited.append(timeout)
        return False

    monkeypatch.setattr(access_log, "FileWriter", StalledWriter)
    monkeypatch.setattr(StalledWriter, "wait_closed", wait_closed)
    logs = AccessLogs(clock)
    logs.open(model.AccessLogConfig(file="before")).close()
    logs.open(model.AccessLogConfig(file="after"))
    assert waited == [0]


def test_log_that_cannot_be_opened_raises(clock: Clock, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        AccessLog(clock, model.AccessLogConfig(file=str(tmp_path / "no" / "access.log")))


def test_fifo_without_a_reader_is_an_error_not_a_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device"):
        FileWriter(str(tmp_path / "fifo"))


def test_dash_is_standard_output() -> None:
    program = (
        "from tests.support.clock import Clock\n"
        "from mcproxy.config import model\n"
        "from mcproxy.observe.access_log import AccessLog\n"
        "from tests.observe.test_access import record\n"
        "log = AccessLog(Clock(), model.AccessLogConfig(file='-', format='combined'))\n"
        "log.finished(record('/out'))\n"
        "log.close()\n"
        "assert log.wait_closed(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240)
    assert '"GET /out HTTP/1.1" 200' in done.stdout
