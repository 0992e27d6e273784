"""A daemon with two workers as real processes: what one process would do, and what nobody else's death changes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.control_client import send_command
from mcproxy.cli.main import main
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.processes import children
from tests.e2e.processes import Daemon
from tests.support.ports import reserved_port

PATIENCE = 90.0


class Workers:
    """The daemon and the file that it reads."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self.folder = folder
        self.port = reserved_port()
        self.workers = workers
        self.access = "access.log"
        self.bind = f"127.0.0.1:{self.port}"
        self.control = str(folder / "control.sock")
        self.daemon = Daemon(folder, self.config())
        self.asked = 0
        """How many requests were sent."""

    def config(self) -> str:
        text = {
            "version": 1,
            "daemon": {"workers": self.workers, "controlSocket": self.control, "drainTimeout": "5s"},
            "logging": {
                "access": {"file": str(self.folder / self.access), "format": "json"},
                "audit": {"file": str(self.folder / "audit.log")},
            },
            "listeners": [
                {"name": "tcp", "bind": self.bind},
                {"name": "unix", "bind": f"unix:{self.folder}/api.sock"},
            ],
            "clusters": [{"name": "east", "identity": "Passthrough", "endpoints": [{"url": "http://127.0.0.1:1"}]}],
            "servers": [{"name": "s", "default": True, "listeners": ["tcp", "unix"], "backend": {"cluster": "east"}}],
        }
        return json.dumps(text, indent=1)

    def status(self) -> dict[str, Any]:
        return send_command(self.control, {"command": "status"}, PATIENCE)

    def pids(self) -> dict[str, int]:
        """The processes by name."""
        return {each["name"]: each["pid"] for each in self.status()["processes"]}

    def ask(self, connection: http.client.HTTPConnection | None = None) -> int:
        """Send a request that needs no cluster, and return the status of its answer."""
        self.asked += 1
        asked = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        asked.request("GET", "/api/v1/pods", headers={"Authorization": "Bearer x"})
        response = asked.getresponse()
        response.read()
        if connection is None:
            asked.close()
        return response.status

    def served_by(self) -> set[str]:
        """The names of the processes in the access log."""
        with contextlib.suppress(FileNotFoundError):
            whole = (self.folder / self.access).read_text().rpartition("\n")[0]  # the last line may be being written
            return {json.loads(line)["process"] for line in whole.splitlines()}
        return set()

    def write(self) -> None:
        self.daemon.file.write_text(self.config())

    def reload(self) -> dict[str, Any]:
        self.write()
        return send_command(self.control, {"command": "reload"}, PATIENCE)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the other one where it is reaped between open and read
        return True


def sockets_of(pid: int) -> set[str]:
    """The sockets, pipes and memory that a process has open, but for its output."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if int(name) > 2:
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    made = Workers(tmp_path_factory.mktemp("workers"))
    with made.daemon:
        yield made


def test_both_serve_and_say_who_they_are(workers: Workers) -> None:
    def served() -> bool:
        workers.ask()
        return workers.served_by() == {"worker-0", "worker-1"}

    until(served)
    processes = workers.status()["processes"]
    assert [each["name"] for each in processes] == ["supervisor", "worker-0", "worker-1"]
    assert processes[0]["pid"] == workers.daemon.process.pid
    assert stat.S_ISSOCK(os.stat(workers.folder / "api.sock").st_mode)


def test_commands_show_all_processes_as_one(workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the real daemon, with a cluster that nobody can reach."""
    for _ in range(8):
        workers.ask()
    until(lambda: workers.status()["totals"]["requests"] == workers.asked)
    until(lambda: workers.status()["clusters"][0]["endpoints"][0]["state"] == "out")
    file = str(workers.daemon.file)
    assert main(["status", "-c", file, "-o", "json"]) == 3
    shown = json.loads(capsys.readouterr().out)
    (server,), (endpoint,) = shown["servers"], shown["clusters"][0]["endpoints"]
    assert (server["name"], server["requestsTotal"]) == ("s", workers.asked)
    assert server["errorsTotal"] >= 8
    assert (endpoint["ready"], endpoint["state"], "refused" in endpoint["cause"]) == (False, "out", True)
    assert [each["residentBytes"] > 1e6 for each in shown["processes"]] == [True] * 3
    addresses = [each["address"] for each in shown["listeners"]]
    assert addresses == [f"127.0.0.1:{workers.port}", f"unix:{workers.folder}/api.sock"]
    assert main(["status", "-c", file]) == 3
    text = capsys.readouterr().out
    assert "broken: cluster east has no endpoint that is ready: " in text
    assert "worker-1" in text
    assert main(["top", "-c", file, "-b", "1", "-d", "0.3", "-o", "json"]) == 0
    (sample,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (sample["requestsPerSecond"], len(sample["processes"])) == (0.0, 3)


def test_children_have_no_descriptor_of_each_other(workers: Workers) -> None:
    """But for what is meant to be shared: the unix socket, and the memory and wakers of limits."""
    pids = workers.pids()
    first, second = (sockets_of(pids[f"worker-{index}"]) for index in (0, 1))
    shared = {each for each in first & second if each.startswith("socket:")}
    assert len(shared) == 1
    listening = {f"socket:[{inode}]" for inode in _listening(workers.port)}
    assert len(listening) == 2
    assert len(first & listening) == len(second & listening) == 1
    allowed = ("anon_inode:[event", "/memfd:mcproxy-limits", str(workers.folder))
    assert [each for each in first & second - shared if not each.startswith(allowed)] == []
    assert not any("memfd:mcproxy-config" in each for each in first | second)


def _listening(port: int) -> list[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port]


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_for_the_group_change_no_worker(workers: Workers, name: str) -> None:
    pids = workers.pids()
    os.kill(pids["worker-0"], signal.Signals[name])
    assert workers.ask() in (502, 503)
    assert workers.pids() == pids
    (mask,) = re.findall("SigIgn:\t(.*)", Path(f"/proc/{pids['worker-0']}/status").read_text())
    assert not int(mask, 16) >> signal.Signals[name] - 1 & 1, "its exec plugins would ignore the signal, too"


def test_a_reload_that_a_worker_refuses_names_the_place_in_the_file(workers: Workers) -> None:
    workers.access = "missing/access.log"
    refused = workers.reload()
    workers.access = "access.log"
    assert workers.reload()["ok"]
    (error,) = refused["errors"]
    line = next(number for number, text in enumerate(workers.config().splitlines(), 1) if '"file"' in text)
    assert error == (
        f"{workers.daemon.file}:{line}:12: logging.access.file: {workers.folder}/missing/access.log: "
        "No such file or directory; create it, or its folder, for the daemon's user"
    )


def test_a_killed_worker_is_replaced_and_the_others_connections_live(workers: Workers) -> None:
    connections: dict[int, http.client.HTTPConnection] = {}
    pids = workers.pids()
    by_pid = {pid: name for name, pid in pids.items()}

    def one_each() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", workers.port, timeout=PATIENCE)
        assert workers.ask(connection) in (502, 503)
        connections[_owner(connection.sock, by_pid)] = connection
        return len(connections) == 2

    until(one_each)
    os.kill(pids["worker-0"], signal.SIGKILL)
    until(lambda: workers.pids().get("worker-0", pids["worker-0"]) != pids["worker-0"])
    assert workers.ask(connections[pids["worker-1"]]) in (502, 503)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        workers.ask(connections[pids["worker-0"]])
    workers.daemon.wait_for('msg="a process is ready" process=worker-0')
    assert {each["name"]: each["restarts"] for each in workers.status()["processes"]}["worker-0"] == 1
    for _ in range(10):
        assert workers.ask() in (502, 503)
    for connection in connections.values():
        connection.close()


def _owner(client: socket.socket, pids: dict[int, str]) -> int:
    ends = [client.getpeername()[1], client.getsockname()[1]]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = [row[9] for row in rows if [int(end.split(":")[1], 16) for end in row[1:3]] == ends and row[3] == "01"]
    return next(pid for pid in pids if f"socket:[{inode}]" in sockets_of(pid))


def test_a_terminated_worker_hands_over_to_its_successor(workers: Workers) -> None:
    before = workers.pids()
    os.kill(before["worker-1"], signal.SIGTERM)
    until(lambda: gone(before["worker-1"]))
    assert workers.pids()["worker-1"] != before["worker-1"]
    assert not workers.daemon.lines('msg="a process ended unexpectedly and is replaced" process=worker-1')


def test_log_files_are_reopened_by_all(workers: Workers) -> None:
    for name in ("access", "audit"):
        os.rename(workers.folder / f"{name}.log", workers.folder / f"rotated-{name}.log")
    workers.daemon.signal(signal.SIGUSR1)

    def in_the_new_file() -> bool:
        workers.ask()
        return workers.served_by() == {"worker-0", "worker-1"}

    until(in_the_new_file)


def assert_audited_once(folder: Path) -> None:
    """Each request in the access logs, of whichever process, is in the audit logs with its two events."""
    logged = lines_of(folder, "access.log")
    audited = Counter((event["auditID"], event["stage"]) for event in lines_of(folder, "audit.log"))
    assert (folder / "audit.log").stat().st_size > 0
    assert audited == Counter(
        (line["requestId"], stage) for line in logged for stage in ("RequestReceived", "ResponseComplete")
    )
    written_by = {event.get("annotations", {}).get("mcproxy.io/process") for event in lines_of(folder, "audit.log")}
    assert written_by >= {"worker-0", "worker-1"}


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a log, with those that were rotated."""
    files = [folder / f"rotated-{name}", folder / name]
    return [json.loads(line) for file in files for line in file.read_text("ascii").splitlines()]


def test_the_last_test_stops_it_all_processes_end_and_the_files_go(workers: Workers) -> None:
    pids = workers.pids()
    workers.daemon.signal(signal.SIGTERM)
    assert workers.daemon.end() == 0
    assert all(gone(pid) for pid in pids.values())
    assert not (workers.folder / "api.sock").exists()
    assert not os.path.exists(workers.control)
    assert workers.daemon.lines('msg="mcproxy has stopped" cut=0')
    assert_audited_once(workers.folder)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["access", "bind"])
def test_a_start_that_fails_ends_with_status_1_and_leaves_nothing(tmp_path: Path, wrong: str) -> None:
    workers = Workers(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        if wrong == "access":
            workers.access = "missing/access.log"
        else:
            workers.bind = f"127.0.0.1:{taken.getsockname()[1]}"
        workers.write()
        workers.daemon.spawn()
        try:
            assert workers.daemon.process.wait(3 * PATIENCE) == 1
        finally:  # with the address free again it would start
            workers.daemon.stop()
    (line,) = workers.daemon.log.splitlines()
    assert 'msg="mcproxy does not start"' in line
    assert f"{workers.daemon.file}:" in line
    assert not (tmp_path / "api.sock").exists()


def test_the_workers_of_a_killed_supervisor_end_and_another_daemon_starts(tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    with workers.daemon:
        pids = workers.pids()
        workers.daemon.signal(signal.SIGKILL)
        workers.daemon.process.wait(PATIENCE)
        until(lambda: len(workers.daemon.lines("the supervisor died", "process=worker-")) == 2)
        until(lambda: gone(pids["worker-0"]) and gone(pids["worker-1"]))
        assert len(workers.daemon.lines('msg="process has stopped"')) == 2
        with pytest.raises(OSError):
            workers.ask()
        workers.daemon.spawn()
        until(lambda: bool(workers.daemon.lines('msg="mcproxy is ready"')))
        assert workers.ask() in (502, 503)


def test_a_process_whose_end_cannot_be_watched_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def refuse(pid: int) -> int:
        started.append(pid)
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    monkeypatch.setattr(children, "CHILD_MODULE", "this")
    with socket.socket() as end, pytest.raises(DaemonError, match="pidfd_open: Operation not permitted"):
        children.Interpreter(None, "worker-0", end, lambda status: None)
    assert gone(started[0])
