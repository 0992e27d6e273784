"""Which directories `mcproxy demo --dir` takes, and which files it leaves alone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcproxy.cli import demo_files
from mcproxy.cli.demo_directory import MARKER, DemoError, open_directory
from mcproxy.cli.main import main

NAMES = ("mcproxy.yaml", "kubeconfig")


@pytest.mark.parametrize("name", demo_files.NAMES)
def test_a_directory_with_a_foreign_file_is_refused_and_left_alone(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("mine")
    assert main(["demo", "--dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"mcproxy demo: {tmp_path} is not a directory of the demo's and holds {name}, which the demo would overwrite; "
        "choose another directory with --dir\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_dangling_link_in_the_place_of_a_file_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DemoError, match="holds kubeconfig"), open_directory(tmp_path, NAMES):
        pass


def test_other_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with open_directory(tmp_path, NAMES) as directory:
        directory.write("kubeconfig", "one")
    assert (tmp_path / "notes").read_text() == "mine"
    assert (tmp_path / "kubeconfig").read_text() == "one"


def test_only_one_process_has_a_directory(tmp_path: Path) -> None:
    with open_directory(tmp_path, NAMES) as directory:
        directory.record({})
        with pytest.raises(DemoError) as refused, open_directory(tmp_path, NAMES):
            pass
        assert f"is in use by another demo (process {os.getpid()})" in str(refused.value)
    with open_directory(tmp_path, NAMES):
        pass


def test_a_file_system_without_locks_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(DemoError, match=r"cannot lock .*: No locks available"), open_directory(tmp_path, NAMES):
        pass


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from mcproxy.cli.demo_directory import open_directory\n"
        "with open_directory(Path(sys.argv[1]), ()): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    with open_directory(tmp_path, NAMES) as directory:
        assert directory.path == tmp_path


def test_an_edited_file_is_kept_until_it_is_removed(tmp_path: Path) -> None:
    with open_directory(tmp_path, NAMES) as directory:
        directory.record({"proxy": 1234})
        directory.write("mcproxy.yaml", "one")
        assert not directory.edited("mcproxy.yaml")
    with open_directory(tmp_path, NAMES) as directory:
        assert directory.ports == {"proxy": 1234}
        directory.write("mcproxy.yaml", "two")
        assert (tmp_path / "mcproxy.yaml").read_text() == "two"
        (tmp_path / "mcproxy.yaml").write_text("mine")
        assert directory.edited("mcproxy.yaml")
        directory.write("mcproxy.yaml", "three")
        assert (tmp_path / "mcproxy.yaml").read_text() == "mine"
        (tmp_path / "mcproxy.yaml").unlink()
        assert not directory.edited("mcproxy.yaml")
        directory.write("mcproxy.yaml", "three")
        assert (tmp_path / "mcproxy.yaml").read_text() == "three"


def test_a_demo_killed_between_its_record_and_its_file_has_edited_nothing(tmp_path: Path) -> None:
    with open_directory(tmp_path, NAMES) as directory:
        directory.write("mcproxy.yaml", "one")
        directory.write("mcproxy.yaml", "two")
        (tmp_path / "mcproxy.yaml").write_text("one")
        assert not directory.edited("mcproxy.yaml")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"ports": 1, "written": [], "pid": "x"}', "\xff"])
def test_a_broken_record_keeps_what_is_there(tmp_path: Path, content: str) -> None:
    (tmp_path / MARKER).write_text(content)
    (tmp_path / "mcproxy.yaml").write_text("one")
    with open_directory(tmp_path, NAMES) as directory:
        assert directory.ports == {}
        assert directory.edited("mcproxy.yaml")
        directory.write("mcproxy.yaml", "two")
    assert (tmp_path / "mcproxy.yaml").read_text() == "one"


def test_a_marker_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / MARKER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DemoError, match="cannot write to"), open_directory(tmp_path, NAMES):
        pass
    assert (tmp_path / "elsewhere").read_text() == "mine"
