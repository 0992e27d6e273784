"""The folder of daemon.stateDir belongs to the daemon's user alone."""

import os
import stat
from pathlib import Path

import pytest

from mcproxy.daemon import process_setup
from mcproxy.daemon.errors import DaemonError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_it_is_made_for_the_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        process_setup.prepare_state_directory(str(tmp_path / "state"))
    finally:
        os.umask(before)
    assert mode(tmp_path / "state") == 0o700
    process_setup.prepare_state_directory(str(tmp_path / "state"))  # a restart


def test_no_folder_above_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match="no/state: No such file or directory") as caught:
        process_setup.prepare_state_directory(str(tmp_path / "no" / "state"))
    assert "StateDirectory=" in caught.value.todo
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("wrong", [0o755, 0o750, 0o701, 0o600])
def test_one_that_others_can_use_is_refused_and_left_as_it_is(tmp_path: Path, wrong: int) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(wrong)
    with pytest.raises(DaemonError, match=f"mode 0{wrong:o}") as caught:
        process_setup.prepare_state_directory(str(folder))
    assert caught.value.todo == f"chmod 700 {folder}"
    assert mode(folder) == wrong


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process_setup.prepare_state_directory(str(tmp_path / "state"))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(DaemonError, match="belongs to another user"):
        process_setup.prepare_state_directory(str(tmp_path / "state"))


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(DaemonError, match="it is not a folder"):
        process_setup.prepare_state_directory(str(tmp_path / "state"))
