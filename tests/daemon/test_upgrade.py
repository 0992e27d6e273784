"""Replacing the program: what the new one may do wrong, and two daemons from outside (the proxy in them is a fake)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet import reactor
from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import deferLater

from mcproxy.cli.control_client import send_command
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.upgrade import Successor, Takeover, Upgrade, UpgradeError, command_line
from tests.daemon.process import PATIENCE, Process

# What a new program does, as a script without imports that take time.
_SCRIPT = """
import array, json, os, signal, socket, struct, sys, time
end = socket.socket(fileno=int(os.environ["MCPROXY_HANDOVER"]))
asked = 0
def tell(kind, **fields):
    body = json.dumps({"kind": kind, **fields}).encode()
    end.sendall(struct.pack(">IH", len(body), 0) + body)
def receive():
    head = end.recv(6, socket.MSG_WAITALL)
    return json.loads(end.recv(struct.unpack(">IH", head)[0], socket.MSG_WAITALL)) if head else None
def ask(kind, **fields):
    global asked
    asked += 1
    tell(kind, id=asked, **fields)
    answer = receive()
    if answer is None or answer["kind"] != "reply":
        sys.exit(3)
def start():
    if os.fork():
        os._exit(0)
    tell("started", pid=os.getpid(), version="2.0")
"""


@dataclass
class Daemon:
    """The daemon that is to be replaced; `calls` has what the upgrade does to it."""

    listening: list[tuple[str, int]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def sockets_to_hand_over(self) -> tuple[list[tuple[str, int]], Mapping[str, int]]:
        return self.listening, {}

    def environment_of_successor(self) -> dict[str, str]:
        return {**os.environ, "GIVEN": "yes"}

    def free_control_socket(self) -> Deferred[None]:
        self.calls.append("free")
        return succeed(None)

    def name_successor(self, pid: int) -> None:
        self.calls.append(f"name {pid}")

    def upgrade(self, script: str, *, limit: float = 120.0, probation: float = 0.05, pid: int | None = None) -> Upgrade:
        command = [sys.executable, "-I", "-S", "-c", _SCRIPT + script]
        return Upgrade(reactor, self, command, limit=limit, probation=probation, pid=pid)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


async def error_of(upgrade: Upgrade) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        await upgrade.run()
    end = time.monotonic() + PATIENCE
    while alive(upgrade.pid):
        assert time.monotonic() < end
        await deferLater(reactor, 0.01)
    return caught.value


def alive(pid: int | None) -> bool:
    """Whether a process that is no child of ours runs."""
    if pid is None:
        return False
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the other one where it is reaped between open and read
        return False


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_the_new_program_serves_and_this_one_names_it(daemon: Daemon) -> None:
    upgrade = daemon.upgrade(
        'start(); receive(); assert os.environ["GIVEN"] == "yes"; ask("prepared", addresses=["a:1"]); ask("serving")'
    )
    successor = await upgrade.run()
    assert successor == Successor(successor.pid, "2.0", frozenset({"a:1"}))
    assert daemon.calls == ["free", f"name {successor.pid}"]


@pytest.mark.parametrize(
    ("script", "expected", "freed"),
    [
        ("sys.exit(3)", "it ended with status 3", False),
        ("start(); sys.exit(3)", "did not start to serve", False),
        ("start(); ask('prepared', addresses=[])", "did not start to serve", True),
        ("start(); receive(); ask('prepared', addresses=[]); tell('serving', id=9)", "did not start to serve", True),
        ("start(); os.kill(os.getpid(), signal.SIGKILL)", "did not start to serve", False),
    ],
)
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_program_that_ends_before_it_has_served_for_a_moment_changes_nothing(
    daemon: Daemon, script: str, expected: str, freed: bool
) -> None:
    error = await error_of(daemon.upgrade(script, probation=5.0))
    assert expected in error.cause
    assert not error.invalid
    assert daemon.calls == (["free"] if freed else [])


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_what_it_says_that_is_wrong_is_the_error(daemon: Daemon) -> None:
    error = await error_of(daemon.upgrade("start(); tell('failed', errors=['x: wrong', 'y: too'], invalid=True)"))
    assert error.errors == ("x: wrong", "y: too")
    assert error.invalid


@pytest.mark.parametrize("script", ["time.sleep(60)", "start(); time.sleep(60)", "start(); os.kill(os.getpid(), 19)"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_a_program_that_hangs_is_killed(daemon: Daemon, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcproxy.daemon.upgrade._GIVES_UP_WITHIN", 0.1)
    error = await error_of(daemon.upgrade(script, limit=0.5))
    assert "did not serve within 0.5 s" in error.cause


@pytest.mark.parametrize("claimed", ["0", "-1", "1", "os.getppid()"])
@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_nobody_else_is_killed_for_a_program_that_tells_a_wrong_id(
    daemon: Daemon, claimed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as 0, the whole process group; and the upgrade ends, since nothing else of the daemon goes on before."""
    monkeypatch.setattr("mcproxy.daemon.upgrade._GIVES_UP_WITHIN", 0.05)
    monkeypatch.setattr("mcproxy.daemon.upgrade._REAPED_WITHIN", 0.05)
    killed: list[int] = []
    monkeypatch.setattr("mcproxy.daemon.upgrade.os.kill", lambda pid, _: killed.append(pid))
    script = f"claimed = {claimed}\nif os.fork(): os._exit(0)\ntell('started', pid=claimed, version='2')\n"
    upgrade = daemon.upgrade(script + "while receive(): pass")
    assert "says that it is process" in (await error_of(upgrade)).cause
    assert upgrade.pid is None
    assert not {0, -1, 1, os.getpid()} & set(killed)


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_it_is_told_when_this_daemon_gives_up(daemon: Daemon, tmp_path: Path) -> None:
    told = tmp_path / "told"
    upgrade = daemon.upgrade(f"start(); receive(); open({str(told)!r}, 'w').write(receive()['why'])")
    running = ensureDeferred(error_of(upgrade))
    while upgrade.pid is None:
        await deferLater(reactor, 0.01)
    upgrade.abort("mcproxy is stopping")
    error = await running
    assert error.cause == "mcproxy is stopping"
    assert told.read_text() == "mcproxy is stopping"


@pytest_twisted.ensureDeferred  # type: ignore[untyped-decorator]
async def test_process_1_and_a_program_that_is_gone_are_refused(daemon: Daemon) -> None:
    assert "process 1" in (await error_of(daemon.upgrade("", pid=1))).cause
    error = await error_of(Upgrade(reactor, daemon, ["/no/such/mcproxy"]))
    assert error.cause == "/no/such/mcproxy: No such file or directory"


def test_it_is_started_by_its_script_whose_interpreter_may_be_another_one_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "mcproxy"
    script.write_text("#!/opt/mcproxy-2/bin/python\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "orig_argv", ["/opt/mcproxy-1/bin/python", str(script), "run", "-c", "x"])
    assert command_line() == [str(script), "run", "-c", "x"]
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "mcproxy", "run"])
    assert command_line() == ["python", "-m", "mcproxy", "run"]


def test_a_single_file_program_is_started_anew_and_not_the_interpreter_that_it_has_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys._xoptions, "mcproxy_program", "/usr/local/bin/mcproxy")
    monkeypatch.setattr(sys, "argv", ["/var/cache/mcproxy/unpacked-1/…/mcproxy/__main__.py", "run", "-c", "x"])
    assert command_line() == ["/usr/local/bin/mcproxy", "run", "-c", "x"]


def test_a_variable_that_nobody_has_set_for_this_process_is_an_error_of_the_operator() -> None:
    environ = {"MCPROXY_HANDOVER": "soon"}
    with pytest.raises(DaemonError, match="invalid literal") as caught:
        Takeover.from_environ(environ)
    assert "MCPROXY_HANDOVER" in caught.value.todo
    assert environ == {}
    assert Takeover.from_environ({}) is None


# -- two daemons ---------------------------------------------------------------------------------------------


class Systemd:
    """Receives what the main process notifies, as NotifyAccess=main has it; `refused` has what others sent."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.settimeout(PATIENCE)
        self.main = 0
        self.refused: list[tuple[int, str]] = []

    def next(self) -> str:
        """Return the first line of the next message of the main process."""
        while True:
            data, controls, _, _ = self._socket.recvmsg(4096, 1024)
            pid = int.from_bytes(controls[0][2][:4], sys.byteorder)
            line = data.decode().partition("\n")[0]
            if pid != self.main:
                self.refused.append((pid, line))
                continue
            if line.startswith("MAINPID="):
                self.main = int(line.partition("=")[2])
            return line

    def wait_for(self, line: str) -> None:
        while self.next() != line:
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.close()


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def ask(control: str, command: str) -> dict[str, Any]:
    return send_command(control, {"command": command}, PATIENCE)


@pytest.fixture
def control(tmp_path: Path) -> str:
    return str(tmp_path / "control.sock")


@pytest.mark.slow
def test_systemd_learns_of_the_new_main_process_before_that_speaks_and_a_reload_meanwhile_fails(
    tmp_path: Path, systemd: Systemd, control: str
) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
    moved = str(tmp_path / "moved.sock")
    with Process(tmp_path, control_socket=control, environ=environ) as daemon:
        old = systemd.main = daemon.process.pid
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=moved)
        daemon.signal(signal.SIGUSR2)
        daemon.wait_for("the new program is being started")
        with socket.socket(socket.AF_UNIX) as reloading:
            reloading.settimeout(PATIENCE)
            reloading.connect(control)
            reloading.sendall(b'{"command": "reload"}\n')
            while systemd.main == old:
                systemd.next()
            [error] = json.loads(reloading.makefile().readline())["errors"]
        new = systemd.main
        try:
            assert error.startswith(f"the program was replaced meanwhile, by process {new}; reload again")
            assert parent_of(new) != old
            assert [systemd.next() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
            daemon.wait_for("retired")
            assert f"replacedBy={new}" in daemon.wait_for("mcproxy has stopped; the daemon that replaced it serves")
            assert daemon.process.wait(PATIENCE) == 0
            assert systemd.refused == []
            assert ask(moved, "status")["pid"] == new
            assert not os.path.exists(control)
        finally:
            os.kill(new, signal.SIGTERM)
        systemd.wait_for("STOPPING=1")
        daemon.wait_for('msg="mcproxy has stopped" cut=')


@pytest.mark.slow
def test_new_daemon_that_cannot_serve_changes_nothing(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=control, problems=["it is wrong"])
        answer = ask(control, "upgrade")
        assert (answer["ok"], answer["invalid"]) == (False, True)
        assert answer["errors"] == ["a.key: it is wrong; another value"]
        daemon.wait_for('msg="the program was not replaced; this one continues" cause="a.key: it is wrong')
        taken = tmp_path / "taken"
        taken.write_text("no socket")
        daemon.configure(control_socket=str(taken))
        answer = ask(control, "upgrade")  # it is known only once this one has freed its own
        assert (answer["ok"], answer["invalid"]) == (False, False)
        assert "a file that is not a socket is in its place" in answer["errors"][0]
        assert ask(control, "status")["pid"] == daemon.process.pid
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0


def test_second_upgrade_is_refused_and_a_stop_ends_the_first(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=control, start_delay=600)
        with socket.socket(socket.AF_UNIX) as first:
            first.settimeout(PATIENCE)
            first.connect(control)
            first.sendall(b'{"command": "upgrade"}\n')
            new = int(re.search(r"pid=(\d+)", daemon.wait_for("upgrade: the new program was started"))[1])  # type: ignore[index]
            assert "being replaced already" in ask(control, "upgrade")["errors"][0]
            daemon.wait_for("another request to replace the program is refused")
            daemon.signal(signal.SIGTERM)
            assert "mcproxy is stopping" in json.loads(first.makefile().readline())["errors"][0]
        assert daemon.end() == 0
        assert not alive(new)


def test_new_daemon_goes_on_alone_if_the_old_one_dies(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=control, start_delay=0.5)
        daemon.signal(signal.SIGUSR2)
        new = int(re.search(r"pid=(\d+)", daemon.wait_for("upgrade: the new program was started"))[1])  # type: ignore[index]
        daemon.signal(signal.SIGKILL)
        try:
            daemon.wait_for("mcproxy is ready")
            assert ask(control, "status")["pid"] == new
        finally:
            os.kill(new, signal.SIGTERM)
        daemon.wait_for("mcproxy has stopped")
