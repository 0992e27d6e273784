"""The log never blocks its caller, keeps its order, and reports dropped lines."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator

import pytest

from mcproxy.daemon.daemon_log import LogWriter

PIPE = 4096


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE)
    yield reading, writing
    for fd in (reading, writing):
        try:
            os.close(fd)
        except OSError:
            pass


def dropped(count: int) -> str:
    return f"dropped {count}\n"


def read_until(reading: int, text: str) -> str:
    seen = ""
    while text not in seen:
        seen += os.read(reading, 65536).decode()
    return seen


def test_lines_are_written_in_their_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, dropped)
    for number in range(1000):
        writer.write(f"{number}\n")
    assert read_until(reading, "\n999\n").split() == [str(number) for number in range(1000)]
    assert writer.flush(60)


def test_unread_pipe_does_not_block_and_dropped_lines_are_counted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"." * (PIPE - 1) + b"\n")  # it is full: nothing is written before something is read
    writer = LogWriter(writing, dropped, max_queued=10_000)
    begun = time.monotonic()
    for number in range(5000):
        writer.write(f"line {number:04d}\n")  # 10 bytes
    assert not writer.flush(0.01)
    assert time.monotonic() - begun < 60
    seen = read_until(reading, "dropped")
    seen += "" if seen.endswith("\n") else read_until(reading, "\n")
    _full, *kept, report = seen.splitlines()
    assert kept == [f"line {number:04d}" for number in range(1000)]
    assert report == "dropped 4000"
    assert writer.flush(60)
    writer.write("again\n")
    assert read_until(reading, "\n") == "again\n"


def test_reader_that_is_gone_ends_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    writer = LogWriter(writing, dropped)
    writer.write("x\n")
    assert writer.flush(60)
    writer.write("y\n")
    assert writer.flush(60)


def test_non_blocking_descriptor_loses_nothing(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    writer = LogWriter(writing, dropped)
    for number in range(2000):
        writer.write(f"line {number:04d}\n")
    lines = read_until(reading, "line 1999\n").splitlines()
    assert lines == [f"line {number:04d}" for number in range(2000)]


def test_lines_of_several_threads_stay_whole(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing, dropped)

    def work(name: str) -> None:
        for _ in range(200):
            writer.write(name * 50 + "\n")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    seen = ""
    while seen.count("\n") < 800:
        seen += os.read(reading, 65536).decode()
    assert set(seen.splitlines()) == {name * 50 for name in "abcd"}


def test_lines_of_a_failed_write_are_reported_after_one_that_did_not_fail(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    elsewhere = os.dup(writing)
    os.close(writing)  # until another descriptor has its number
    writer = LogWriter(writing, dropped)
    for number in range(3):
        writer.write(f"lost {number}\n")
        assert writer.flush(60)
    os.dup2(elsewhere, writing)
    os.close(elsewhere)
    writer.write("written\n")
    assert read_until(reading, "dropped 3\n") == "written\ndropped 3\n"
