"""Plugins as real processes: environment, output, bounds and their end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import deferLater

from mcproxy.upstream.exec_process import PluginNotFound, PluginProblem, PluginResult, PluginRunner


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "plugin"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


async def run(reactor: Any, *argv: str, timeout: float = 60.0, env: dict[str, str] | None = None) -> PluginResult:
    return await PluginRunner(reactor).run(argv, env=env or {}, cwd=None, timeout=timeout)


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:  # reaped, perhaps just now
        return False


async def test_output_environment_and_arguments_pass(tmp_path: Path, reactor: Any) -> None:
    command = script(tmp_path, 'echo "$1 $GIVEN"; echo noise >&2; echo complaint >&2; exit 3\n')
    result = await run(reactor, command, "argument", env={"GIVEN": "value"})
    assert (result.exit_status, result.output, result.complaint) == (3, b"argument value\n", "complaint")
    assert "value" not in repr(result)


async def test_stdin_is_empty(tmp_path: Path, reactor: Any) -> None:
    assert (await run(reactor, script(tmp_path, "wc -c\n"))).output.strip() == b"0"


async def test_a_missing_command_has_an_error_of_its_own(reactor: Any) -> None:
    with pytest.raises(PluginNotFound, match="/nowhere/plugin was not found"):
        await run(reactor, "/nowhere/plugin")


async def test_a_file_that_cannot_be_run_is_a_problem(tmp_path: Path, reactor: Any) -> None:
    path = tmp_path / "plain"
    path.write_text("x")
    with pytest.raises(PluginProblem, match="Permission denied"):
        await run(reactor, str(path))


async def test_a_plugin_that_hangs_is_ended_with_its_children(tmp_path: Path, reactor: Any) -> None:
    command = script(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child\nwait\n")
    child = tmp_path / "child"
    for seconds in (1, 4, 16, 64):  # until it has begun by then: a process may take seconds to start
        child.write_text("")
        with pytest.raises(PluginProblem, match=f"did not end within {seconds} s"):
            await run(reactor, command, timeout=seconds)
        if child.read_text():
            break
    deadline = time.monotonic() + 60
    while lives(child.read_text().strip()):
        assert time.monotonic() < deadline


async def test_closing_ends_what_runs(tmp_path: Path, reactor: Any) -> None:
    runner = PluginRunner(reactor)
    running = runner.run([script(tmp_path, f"touch {tmp_path}/begun; exec sleep 60\n")], env={}, cwd=None, timeout=60.0)
    while not (tmp_path / "begun").exists():
        await deferLater(reactor, 0.01)
    runner.close()
    assert (await running).exit_status == -9


async def test_what_begins_while_it_closes_is_ended_too(tmp_path: Path, reactor: Any) -> None:
    runner = PluginRunner(reactor)
    runner.close()
    running = runner.run([script(tmp_path, "exec sleep 60\n")], env={}, cwd=None, timeout=20.0)
    assert (await running).exit_status == -9


async def test_a_plugin_that_writes_without_end_is_ended(tmp_path: Path, reactor: Any) -> None:
    with pytest.raises(PluginProblem, match="more than"):
        await run(reactor, script(tmp_path, "exec yes\n"))


async def test_only_so_many_run_at_once(tmp_path: Path, reactor: Any) -> None:
    command = script(tmp_path, f"mkdir {tmp_path}/lock || exit 9\nsleep 0.05\nrmdir {tmp_path}/lock\n")
    runner = PluginRunner(reactor, parallel=1)
    runs = [runner.run([command], env={}, cwd=None, timeout=60.0) for _ in range(4)]
    assert [(await each).exit_status for each in runs] == [0, 0, 0, 0]
