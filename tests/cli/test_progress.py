"""Progress: on a terminal's standard error only, after a second only, and gone when the command is done."""

import io
import os
import pty
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mcproxy.cli import progress as module
from mcproxy.cli.progress import progress


@contextmanager
def terminal() -> Iterator[tuple[io.TextIOWrapper, Callable[[], str]]]:
    """A pseudoterminal to write to, and what was written so far."""
    parent, child = pty.openpty()
    os.set_blocking(parent, False)
    written = bytearray()

    def read() -> str:
        try:
            written.extend(os.read(parent, 65536))
        except BlockingIOError:
            pass
        return written.decode()

    with open(child, "w", encoding="utf-8") as stream:
        yield stream, read
    os.close(parent)


@pytest.fixture(autouse=True)
def able_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def started(before: set[threading.Thread]) -> set[threading.Thread]:
    """Return the threads that are new; of those from before, some that earlier tests have left may end meanwhile."""
    return set(threading.enumerate()) - before


def wait_for(text: str, read: Callable[[], str]) -> str:
    deadline = time.monotonic() + 60
    while text not in (shown := read()):
        assert time.monotonic() < deadline, shown
        time.sleep(0.005)
    return shown


def test_what_is_waited_for_is_shown_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.01)
    monkeypatch.setattr(module, "_INTERVAL", 0.01)
    before = set(threading.enumerate())
    with terminal() as (stream, read):
        with progress("starting the clusters", stream) as shown:
            assert wait_for("starting the clusters (", read)
            shown.say("starting the proxy")
            wait_for("starting the proxy (", read)
        assert read().endswith("\r\x1b[K")
        assert not started(before)


def test_what_is_done_within_a_second_shows_nothing() -> None:
    with terminal() as (stream, read):
        with progress("a moment", stream):
            pass
        assert read() == ""


def test_nothing_is_written_to_what_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.0)
    stream = io.StringIO()
    before = set(threading.enumerate())
    with progress("for nobody", stream):
        assert not started(before)
    assert stream.getvalue() == ""


def test_a_dumb_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with terminal() as (stream, read):
        before = set(threading.enumerate())
        with progress("for a log", stream):
            assert not started(before)
        assert read() == ""


def test_a_line_is_never_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.01)
    monkeypatch.setattr(module, "_columns", lambda stream: 20)
    with terminal() as (stream, read), progress("x" * 100, stream):
        shown = wait_for("x", read)
        assert shown.count("x") <= 19


def test_an_error_leaves_a_clean_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.01)
    with terminal() as (stream, read):
        with pytest.raises(AssertionError), progress("what fails", stream):
            raise AssertionError(wait_for("what fails", read))
        assert read().endswith("\r\x1b[K")
