"""A full disk: what was cut short stands alone on its line, what is kept is written when there is space again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcproxy.observe.writer import FileWriter

_LIMITED = """
import resource, sys, time
from mcproxy.observe.writer import FileWriter
path, keep, alone = sys.argv[1], sys.argv[2] == "keep", sys.argv[3] == "alone"
# Writes beyond are cut short, as by a full disk.
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
writer = FileWriter(path, keep=keep, alone=alone)
for first in range(0, 30, 10):
    writer.write(b"".join(b"%03d %s\\n" % (line, b"x" * 60) for line in range(first, first + 10)), 10)
deadline = time.monotonic() + 60
while not writer.error and time.monotonic() < deadline:
    time.sleep(0.01)
print(writer.error.rpartition(": ")[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.write(b"999 end\\n", 1)
if keep:
    while (writer.error or writer.lines_done < 31) and time.monotonic() < deadline:
        time.sleep(0.01)
writer.close()
assert writer.wait_closed(60)
print(writer.lines_done, writer.lines_lost, writer.bytes_done, repr(writer.error))
"""
LINES = [f"{number:03d} {'x' * 60}" for number in range(30)]


def limited(path: Path, keep: str, alone: str) -> tuple[list[str], list[str]]:
    """Return what the program says, and the lines of the file."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path), keep, alone],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout.splitlines(), path.read_text().splitlines()


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("alone", ["alone", "with others"])
def test_what_is_kept_is_written_once_there_is_space(tmp_path: Path, alone: str) -> None:
    said, lines = limited(tmp_path / "log", "keep", alone)
    whole = [line for line in lines if line in LINES]
    assert whole == LINES
    assert lines[-1] == "999 end"
    torn = [line for line in lines[:-1] if line not in LINES]
    assert len(torn) <= 1
    assert all(any(each.startswith(line) for each in LINES) for line in torn)
    assert said[0] == "File too large"
    assert said[1].startswith("31 0 ")
    assert said[1].endswith(" ''")


@pytest.mark.parametrize("alone", ["alone", "with others"])
def test_what_is_not_kept_is_counted_and_the_next_begins_on_its_own_line(tmp_path: Path, alone: str) -> None:
    said, lines = limited(tmp_path / "log", "lose", alone)
    written, lost = map(int, said[1].split()[:2])
    assert written + lost == 31
    assert lost > 0
    assert len([line for line in lines if line in LINES]) == written - 1
    assert lines[-1] == "999 end"


def test_a_line_that_another_process_left_half_is_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"half')
    writer = FileWriter(str(path), alone=True)
    writer.write(b"whole\n", 1)
    writer.close()
    assert writer.wait_closed(60)
    assert path.read_bytes() == b'{"half\nwhole\n'


def test_a_lock_that_a_reader_holds_delays_but_does_not_stop(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "log"
    path.touch()
    with path.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        writer = FileWriter(str(path))
        writer.write(b"line\n", 1)
        writer.close()
        assert writer.wait_closed(60)
    assert path.read_bytes() == b"line\n"


def test_a_file_that_may_be_appended_to_but_not_read_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch(0o200)
    os.chmod(path, 0o200)
    writer = FileWriter(str(path))
    writer.write(b"line\n", 1)
    writer.close()
    assert writer.wait_closed(60)
    os.chmod(path, 0o600)
    assert path.read_bytes() == b"line\n"


def test_a_reopen_is_heeded_while_batches_wait(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    writer = FileWriter(str(path), keep=True)
    writer.write(b"one\n", 1)
    wait(lambda: bool(writer.error))
    path.unlink()
    writer.reopen()
    writer.write(b"two\n", 1)
    wait(lambda: writer.lines_done == 2)
    writer.close()
    assert writer.wait_closed(60)
    assert path.read_bytes() == b"one\ntwo\n"
    assert (writer.error, writer.lines_lost) == ("", 0)


def test_a_file_is_reopening_until_the_thread_has_done_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileWriter, "_work", lambda self: None)  # the test does it
    writer = FileWriter(str(tmp_path / "log"))
    assert not writer.reopening
    for _ in range(2):
        writer.reopen()
        assert bool(writer.reopening)
        writer._take(writer._commands.get())
        assert not writer.reopening
    writer._file.close()
