"""Daemons are found by their configuration file in a made-up /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mcproxy.cli.control_client import listening_sockets, running_files, runs_another_file

HEADER = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def process(proc: Path, pid: int, argv: list[str], cwd: Path, sockets: dict[int, str]) -> None:
    """A process; `sockets`: listening ones by inode, with a connected one beside each."""
    directory = proc / str(pid)
    (directory / "fd").mkdir(parents=True)
    (directory / "net").mkdir()
    (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    (directory / "cwd").symlink_to(cwd)
    table = HEADER
    for number, (inode, path) in enumerate(sockets.items()):
        (directory / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        table += f"0000000000000000: 00000002 00000000 00010000 0001 01 {inode} {path}\n"
        table += f"0000000000000000: 00000003 00000000 00000000 0001 03 {inode} {path}.connected\n"
    table += "0000000000000000: 00000002 00000000 00010000 0001 01 999 /run/of another.sock\n"
    (directory / "net" / "unix").write_text(table)


@pytest.mark.parametrize(
    "argv",
    [
        ["/usr/bin/python3", "-m", "mcproxy", "run", "-c", "{file}"],
        ["/opt/bin/python3", "/opt/bin/mcproxy", "run", "--config", "{file}"],
        ["/opt/bin/python3", "/opt/bin/mcproxy", "run", "--config={file}"],
        ["mcproxy", "run", "-c{file}"],
        ["mcproxy", "run", "-c", "mcproxy.yaml"],
    ],
)
def test_a_daemon_of_the_file(tmp_path: Path, argv: list[str]) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.touch()
    proc = tmp_path / "proc"
    process(proc, 7, [word.format(file=file) for word in argv], tmp_path, {1: "/run/a b.sock", 2: "@abstract"})
    (proc / "self").mkdir()
    assert listening_sockets(str(file), {os.geteuid()}, str(proc)) == ["/run/a b.sock"]
    assert listening_sockets(str(file), {os.geteuid() + 1}, str(proc)) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["mcproxy", "run", "-c", "other.yaml"],
        ["mcproxy", "run"],
        ["mcproxy", "reload", "-c", "mcproxy.yaml"],
        ["vi", "mcproxy.yaml"],
        [],
    ],
)
def test_any_other_process(tmp_path: Path, argv: list[str]) -> None:
    proc = tmp_path / "proc"
    process(proc, 7, argv, tmp_path, {1: "/run/a.sock"})
    (proc / "8").mkdir()  # one that has ended
    assert listening_sockets(str(tmp_path / "mcproxy.yaml"), {os.geteuid()}, str(proc)) == []


def test_a_process_that_is_known_to_run_another_file(tmp_path: Path) -> None:
    proc, file = tmp_path / "proc", str(tmp_path / "mcproxy.yaml")
    process(proc, 7, ["mcproxy", "run", "-c", "mcproxy.yaml"], tmp_path, {})
    process(proc, 8, ["mcproxy", "run", "-c", "other.yaml"], tmp_path, {})
    process(proc, 9, ["mcproxy", "demo"], tmp_path, {})
    assert [runs_another_file(file, pid, str(proc)) for pid in (7, 8, 9, 10)] == [False, True, True, False]
    assert [runs_another_file("-", pid, str(proc)) for pid in (7, 8, 9, 10)] == [False, False, True, False]


def test_the_files_of_all_daemons(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    process(proc, 7, ["mcproxy", "run", "-c", "a.yaml"], tmp_path, {})
    process(proc, 8, ["mcproxy", "run", "-c", "/etc/b/../b.yaml"], tmp_path, {})
    process(proc, 9, ["mcproxy", "demo"], tmp_path, {})
    process(proc, 10, ["mcproxy", "run", "-c", "-"], tmp_path, {})
    (proc / "11").mkdir()  # one that has ended
    assert running_files({os.geteuid()}, str(proc)) == ["/etc/b.yaml", f"{tmp_path}/a.yaml"]
    assert running_files({os.geteuid() + 1}, str(proc)) == []
