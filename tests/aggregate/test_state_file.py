"""Files under stateDir: whole or not at all, and put aside when they cannot be used."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mcproxy.aggregate import state_file
from tests.support.logged import captured_logs


def test_a_file_is_read_as_it_was_written_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "one"
    state_file.write(path, "decisions", 1, b"first\n")
    state_file.write(path, "decisions", 1, b"second\n\n")
    assert state_file.read(path, "decisions", 1) == b"second\n\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(path.parent) == ["one"]


def test_no_file_is_nothing(tmp_path: Path) -> None:
    assert state_file.read(tmp_path / "one", "decisions", 1) is None


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda content: content[:-1], "incomplete"),
        (lambda content: content[:-1] + b"X", "checksum"),
        (lambda content: content.replace(b"decisions", b"layouts", 1), "no file of decisions"),
        (lambda content: content.replace(b" 1 ", b" 2 ", 1), "another version"),
        (lambda content: b"", "no file of decisions"),
        (lambda content: os.urandom(300), "no file of decisions"),
    ],
)
def test_a_broken_file_is_put_aside_with_a_log_line(
    damage: Callable[[bytes], bytes], cause: str, tmp_path: Path
) -> None:
    path = tmp_path / "one"
    state_file.write(path, "decisions", 1, b"payload")
    path.write_bytes(damage(path.read_bytes()))
    with captured_logs() as events:
        assert state_file.read(path, "decisions", 1) is None
    assert os.listdir(tmp_path) == ["one.broken"]
    [event] = events
    assert cause in event["cause"]
    assert event["todo"]


def test_a_write_that_fails_leaves_the_last_state(tmp_path: Path) -> None:
    path = tmp_path / "one"
    state_file.write(path, "decisions", 1, b"payload")
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        state_file.write(tmp_path / "taken", "decisions", 1, b"payload")
    assert state_file.read(path, "decisions", 1) == b"payload"
    assert sorted(os.listdir(tmp_path)) == ["one", "taken"]
