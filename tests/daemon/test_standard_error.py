"""Where the log goes decides its form: the journal is known by device and inode, a terminal by isatty(3)."""

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.daemon.log_lines import (
    Stream,
    format_for,
    format_journal,
    format_journal_json,
    format_json,
    format_text,
    stream_of,
)


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    yield fd
    os.close(fd)


def test_the_journal_is_the_descriptor_that_systemd_names(file: int, tmp_path: Path) -> None:
    found = os.fstat(file)
    environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    assert stream_of(file, environ) is Stream.JOURNAL
    redirected = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    assert stream_of(redirected, environ) is Stream.OTHER
    os.close(redirected)
    for wrong in ("", "x", f"{found.st_dev}", f"{found.st_dev + 1}:{found.st_ino}", f"{found.st_dev}:{found.st_ino}9"):
        assert stream_of(file, {"JOURNAL_STREAM": wrong}) is Stream.OTHER


def test_a_terminal_is_one_and_a_closed_descriptor_is_nothing(file: int) -> None:
    parent, child = pty.openpty()
    assert stream_of(child, {}) is Stream.TERMINAL
    os.close(parent)
    os.close(child)
    assert stream_of(child, {}) is Stream.OTHER
    assert stream_of(file, {}) is Stream.OTHER


@pytest.mark.parametrize(
    ("stream", "form", "wanted"),
    [
        (Stream.OTHER, "text", format_text),
        (Stream.OTHER, "json", format_json),
        (Stream.JOURNAL, "text", format_journal),
        (Stream.JOURNAL, "json", format_journal_json),
        (Stream.TERMINAL, "json", format_json),
    ],
)
def test_the_form_fits_the_stream(stream: Stream, form: str, wanted: object) -> None:
    assert format_for(stream, form, {}) is wanted


@pytest.mark.parametrize(
    ("environ", "colours"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_has_colours_unless_they_are_not_wanted(environ: dict[str, str], colours: bool) -> None:
    line = format_for(Stream.TERMINAL, "text", environ)({"log_format": "up", "event": "up"})
    assert ("\x1b[" in line) is colours
