"""Where the control socket is if the file does not say."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from mcproxy.config import control_socket
from mcproxy.config.control_socket import MAIN_FILE, default_control_socket, possible_places
from mcproxy.config.load import load


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /run/mcproxy; it is not there yet."""
    folder = tmp_path / "run"
    monkeypatch.setattr(control_socket, "RUNTIME_FOLDER", str(folder))
    return folder


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "etc").mkdir()
    return str(tmp_path / "etc" / "site.yaml")


def test_the_file_of_the_unit_has_a_name_that_people_know() -> None:
    places = list(possible_places(MAIN_FILE, {"RUNTIME_DIRECTORY": "/run/mcproxy"}))
    assert places[:2] == ["/run/mcproxy/control.sock", "/etc/mcproxy/mcproxy.yaml.sock"]


def test_a_runtime_directory_is_taken_before_the_folder_of_the_file(run: Path, file: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert default_control_socket(file, {}) == f"{file}.sock"
    run.mkdir()
    first = default_control_socket(file, {})
    assert first is not None
    assert os.path.dirname(first) == str(run)
    named = default_control_socket(file, {"RUNTIME_DIRECTORY": f"{other}:/run/more"})
    assert named is not None
    assert os.path.dirname(named) == str(other)
    assert {first, named, f"{file}.sock"} <= set(possible_places(file, {"RUNTIME_DIRECTORY": str(other)}))


def test_files_of_one_folder_or_one_name_have_a_socket_each(run: Path, tmp_path: Path) -> None:
    run.mkdir()
    files = [tmp_path / folder / name for folder in "ab" for name in ("a.yaml", "a.yml", "b.yaml")]
    assert len({default_control_socket(str(each), {}) for each in files}) == len(files)
    for each in files:
        each.parent.mkdir(exist_ok=True)
    run.rmdir()
    assert len({default_control_socket(str(each), {}) for each in files}) == len(files)


def test_a_long_path_has_a_shorter_name_and_a_longer_one_none(run: Path, tmp_path: Path) -> None:
    room = 107 - len(os.fsencode(tmp_path)) - len("//.0123456789.sock")
    short, long = tmp_path / ("d" * max(room, 1)), tmp_path / ("d" * 200)
    for folder in (short, long):
        folder.mkdir()
    if room > 0:
        found = default_control_socket(str(short / "mcproxy.yaml"), {})
        assert found is not None
        assert os.path.basename(found).startswith(".")
        assert len(os.fsencode(found)) == 107
    assert default_control_socket(str(long / "mcproxy.yaml"), {}) is None
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        named = default_control_socket(str(long / ("n" * 200 + ".yaml")), {"RUNTIME_DIRECTORY": runtime})
    assert named is not None
    assert len(os.fsencode(named)) <= 107


def test_a_link_to_another_version_of_the_file_moves_nothing(run: Path, file: str, tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap."""
    places = []
    for version in ("one", "two"):
        folder = tmp_path / "etc" / version
        folder.mkdir()
        (folder / "site.yaml").write_text("version: 1\n")
        if os.path.islink(file):
            os.unlink(file)
        os.symlink(folder / "site.yaml", file)
        places.append(default_control_socket(file, {}))
    assert places == [f"{file}.sock"] * 2


def test_what_is_no_file_in_a_folder_has_none() -> None:
    assert [list(possible_places(each, {})) for each in ("-", "/dev/stdin", "/proc/self/fd/3")] == [[], [], []]


def test_the_socket_of_a_listener_is_not_taken(run: Path, file: str) -> None:
    text = 'version: 1\nlisteners: [{{name: a, serves: Admin, bind: "unix:{}"}}]\n'
    Path(file).write_text(text.format(f"{file}.sock"))
    found = load(file, environ={}).config.daemon
    assert found.control_socket is not None
    assert found.control_socket != f"{file}.sock"
    assert found.control_socket_is_default


def test_what_the_file_names_is_no_default(run: Path, file: str) -> None:
    Path(file).write_text("version: 1\ndaemon: {controlSocket: here.sock}\n")
    found = load(file, environ={}).config.daemon
    assert found.control_socket == os.path.join(os.path.dirname(file), "here.sock")
    assert not found.control_socket_is_default
