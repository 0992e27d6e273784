"""Token files: rotation, the pace of looking, trouble later, and a 401."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mcproxy.upstream.credentials import CredentialError, TokenFile
from tests.support.clock import Clock
from tests.support.logged import captured_logs, told


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


def opened(path: Path, clock: Clock) -> TokenFile:
    return TokenFile(str(path), None, clock=clock, cluster="east")


def replace(path: Path, token: str) -> None:
    """Rotate as careful writers do: a new file that takes the old one's name."""
    new = path.with_name("new")
    new.write_text(token)
    os.replace(new, path)


def test_the_token_is_used_without_its_line_end(path: Path, clock: Clock) -> None:
    assert opened(path, clock).authorization() == b"Bearer first"


def test_a_rotated_token_is_used_within_a_second(path: Path, clock: Clock) -> None:
    source = opened(path, clock)
    replace(path, "other")
    assert source.authorization() == b"Bearer first"
    clock.advance(1.0)
    assert source.authorization() == b"Bearer other"


def test_a_file_written_in_place_with_the_same_length_is_noticed(path: Path, clock: Clock) -> None:
    source = opened(path, clock)
    path.write_text("fIrst\n")
    os.utime(path, ns=(1, 1))
    clock.advance(1.0)
    assert source.authorization() == b"Bearer fIrst"


def test_a_rotation_by_symbolic_link_is_noticed(tmp_path: Path, clock: Clock) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(name)
    (tmp_path / "data").symlink_to("one")
    source = opened(tmp_path / "data" / "token", clock)
    assert source.authorization() == b"Bearer one"
    (tmp_path / "data").unlink()
    (tmp_path / "data").symlink_to("two")
    clock.advance(1.0)
    assert source.authorization() == b"Bearer two"


def test_an_unchanged_file_is_not_read_again(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    source = opened(path, clock)
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("it was read"))
    clock.advance(5.0)
    assert source.authorization() == b"Bearer first"


def test_a_401_reads_the_file_at_once(path: Path, clock: Clock) -> None:
    source = opened(path, clock)
    replace(path, "other")
    assert source.invalidate(b"Bearer first")
    assert source.authorization() == b"Bearer other"


def test_a_401_for_the_token_that_is_in_the_file_is_final(path: Path, clock: Clock) -> None:
    assert not opened(path, clock).invalidate(b"Bearer first")


def test_a_401_for_a_token_that_was_replaced_meanwhile_is_worth_another_try(path: Path, clock: Clock) -> None:
    assert opened(path, clock).invalidate(b"Bearer older")


@pytest.mark.parametrize("damage", ["gone", "empty", "control", "directory", "huge"])
def test_later_failure_keeps_the_last_token_and_is_logged_once(path: Path, clock: Clock, damage: str) -> None:
    source = opened(path, clock)
    path.unlink()
    match damage:
        case "empty":
            path.write_text("")
        case "control":
            path.write_text("sec\x01ret")
        case "directory":
            path.mkdir()
        case "huge":
            path.write_text("x" * 70_000)
    with captured_logs() as events:
        for _ in range(3):
            clock.advance(1.0)
            assert source.authorization() == b"Bearer first"
    lines = [told(event) for event in events]
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "ret" not in lines[0].replace(str(path), "").replace("characters", "")


def test_a_file_that_comes_back_is_read_and_a_new_failure_is_logged_again(path: Path, clock: Clock) -> None:
    source = opened(path, clock)
    with captured_logs() as events:
        for token in ("two", "three"):
            path.unlink()
            clock.advance(1.0)
            source.authorization()
            path.write_text(token)
            clock.advance(1.0)
            assert source.authorization() == b"Bearer " + token.encode()
    assert len(events) == 2


def test_a_file_that_was_never_readable_is_an_error_until_it_is(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "late"
    source = opened(path, clock)
    with pytest.raises(CredentialError, match=r"cannot read the token file .*late"):
        source.authorization()
    path.write_text("now")
    clock.advance(1.0)
    assert source.authorization() == b"Bearer now"


def test_repr_names_the_file_and_not_the_token(path: Path, clock: Clock) -> None:
    assert "first" not in repr(opened(path, clock))


def test_largest_file_that_is_read_has_64_kib(path: Path, clock: Clock) -> None:
    path.write_bytes(b"t" * 65536)
    assert opened(path, clock).authorization() == b"Bearer " + b"t" * 65536
    path.write_bytes(b"t" * 65537)
    with pytest.raises(CredentialError, match="larger than 65536 bytes"):
        opened(path, clock).authorization()
    path.write_bytes(b"t" * 65535 + b"\n")
    assert len(opened(path, clock).authorization() or b"") == len(b"Bearer ") + 65535


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_neither_blocks_nor_replaces_the_token(path: Path, clock: Clock, make: Any) -> None:
    source = opened(path, clock)
    before = len(os.listdir("/proc/self/fd"))
    path.unlink()
    make(path)
    clock.advance(1.0)
    with captured_logs() as events:
        assert source.authorization() == b"Bearer first"
    assert "is not a regular file" in told(events[0])
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_refusal_is_of_the_token_that_was_sent(path: Path, clock: Clock) -> None:
    source = opened(path, clock)
    source.note_refusal(clock.seconds(), b"Bearer first")
    assert source.is_refused(clock.seconds())
    replace(path, "other")
    assert source.invalidate(b"Bearer first")
    assert not source.is_refused(clock.seconds())
    source.note_refusal(clock.seconds(), b"Bearer first")  # by an answer that comes late
    assert not source.is_refused(clock.seconds())
    source.note_refusal(clock.seconds(), b"Bearer other")
    assert source.is_refused(clock.seconds())
    clock.advance(60.0)
    assert not source.is_refused(clock.seconds())
