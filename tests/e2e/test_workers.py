"""Two workers and a keeper, as the daemon's operator and the users of kubectl see them, while processes are killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.control_client import send_command
from tests.e2e.aggregate_environment import AggregateEnvironment
from tests.e2e.http_client import Answer, Client, ask
from tests.e2e.processes import Daemon, Kubectl, wait_until

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=(debug|info|warn|error) "
    r"event=\w+ msg=\"(?:[^\"\\]|\\.)*\"( \w+=\S.*)?"
)
AS_ADMIN = (("Authorization", "Bearer admin"),)


class Site(AggregateEnvironment):
    """Two clusters as one aggregate, behind a daemon of several processes."""

    workers = "2"

    def config(self) -> str:
        self.state = f", workers: {self.workers}"
        return super().config()

    def status(self, daemon: Daemon | None = None) -> dict[str, Any]:
        return send_command(str((daemon or self.daemon).directory / "control.sock"), {"command": "status"}, 60.0)

    def processes(self) -> dict[str, dict[str, Any]]:
        return {process["name"]: process for process in self.status()["processes"]}

    def kill(self, name: str) -> None:
        """Kill a process, and wait for its successor."""
        before = self.processes()[name]
        os.kill(before["pid"], signal.SIGKILL)

        def replaced() -> bool:
            now = self.processes().get(name, before)
            return bool(now["pid"] != before["pid"] and now["restarts"] == before["restarts"] + 1)

        wait_until(f"the successor of {name}", replaced)
        self.daemon.wait_for('msg="a process is ready"', f"process={name}", count=before["restarts"] + 1)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("workers"))
    try:
        site.start()
        yield site
    finally:
        site.stop()


@pytest.fixture
def site(clusters: Site) -> Site:
    if clusters.daemon.process.poll() is not None:
        clusters.start_daemon()
    return clusters


def opened(site: Site) -> dict[str, int]:
    """How many requests each worker serves."""
    return {name: process["open"] for name, process in site.processes().items() if process["role"] == "worker"}


class Watch(Client):
    """A watch that has begun, and of which nothing is left to read."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.address)
        target = "/api/v1/configmaps?watch=1&fieldSelector=metadata.name%3Dabsent"
        self.response = self.begin("GET", target, AS_ADMIN)
        assert self.response.status == 200

    @property
    def is_cut(self) -> bool:
        """Whether the connection was closed without a word."""
        if not select.select([self.socket], [], [], 0)[0]:
            return False
        try:
            return socket.socket.recv(self.socket, 1, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            return True


def pod(kubectl: Kubectl) -> str:
    """A pod that only one of the clusters has."""
    names = [name.removeprefix("pod/") for name in kubectl.good("get", "pods", "-o", "name").split()]
    return next(name for name in names if names.count(name) == 1)


@pytest.mark.slow
def test_every_worker_answers_alike_and_the_access_log_names_it(site: Site) -> None:
    def answers() -> list[Answer]:
        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(lambda _: ask(site.address, "/api/v1/pods", headers=AS_ADMIN), range(40)))

    # Controllers of the clusters may still be at work.
    wait_until("all answers are alike", lambda: len({(answer.status, answer.body) for answer in answers()}) == 1)
    answer = ask(site.address, "/api/v1/pods", headers=AS_ADMIN)
    assert (answer.status, len(answer.json["items"]) > 10) == (200, True)
    log = site.directory / "access.log"
    wait_until("40 lines", lambda: len(log.read_text().splitlines()) >= 40)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["process"] for line in lines} == {"worker-0", "worker-1"}


def test_status_has_the_sums_and_each_process(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(contextlib.closing(Watch(site)))
        wait_until("six are open", lambda: site.status()["open"] == 6)
        status = site.status()
    assert status["pid"] == site.daemon.process.pid
    assert [(process["name"], process["role"]) for process in status["processes"]] == [
        ("supervisor", "supervisor"), ("keeper", "keeper"), ("worker-0", "worker"), ("worker-1", "worker"),
    ]  # fmt: skip
    assert [process["name"] for process in status["processes"] if process["leader"]] == ["worker-0"]
    (listener,) = status["listeners"]
    assert listener["requests"] == {"HTTP/1.1": 6, "HTTP/2.0": 0}
    assert status["open"] == sum(p["open"] for p in status["processes"] if p["role"] == "worker") == 6


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_its_own_connections_and_is_replaced(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(contextlib.closing(Watch(site))) for _ in range(24)]
        wait_until("these are open, and no others", lambda: sum(opened(site).values()) == len(watches))
        before = opened(site)
        site.kill("worker-0")
        assert sum(watch.is_cut for watch in watches) == before["worker-0"]
        wait_until("the others go on", lambda: opened(site) == {**before, "worker-0": 0})
        wait_until("there is a leader", lambda: bool(site.processes()["worker-1"]["leader"]))
    (line,) = site.daemon.lines("process=worker-0", "and is replaced")
    assert "level=error" in line
    assert 'cause="SIGKILL ended it" todo="if nobody killed it, see whether the kernel did' in line


@pytest.mark.slow
def test_a_keeper_that_is_killed_ends_watches_between_two_events_and_reads_wait_for_its_successor(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(contextlib.closing(Watch(site))) for _ in range(4)]
        client = stack.enter_context(contextlib.closing(Client(site.address)))
        assert client.request("GET", "/api/v1/pods", AS_ADMIN).status == 200
        os.kill(site.processes()["keeper"]["pid"], signal.SIGKILL)
        assert client.request("GET", "/api/v1/pods", AS_ADMIN).json["items"]
        assert [watch.response.read() for watch in watches] == [b""] * 4  # their end, and no error
    site.daemon.wait_for('msg="a process is ready"', "process=keeper")


@pytest.mark.slow
def test_exec_goes_on_while_all_processes_but_its_own_are_killed(site: Site, kubectl: str) -> None:
    admin = site.kubectl(kubectl)
    name = pod(admin)
    wait_until("nothing is open", lambda: not any(opened(site).values()))
    idle = opened(site)
    with admin.begin("exec", "-i", name, "--", "cat") as session:
        session.write(b"one\n")
        session.wait_for("one")
        own = next(worker for worker, number in opened(site).items() if number > idle[worker])
        other = "worker-1" if own == "worker-0" else "worker-0"
        for process in ("keeper", other):
            site.kill(process)
            assert name in admin.good("get", "pods")
            assert admin.good("logs", name, "--tail=1")
        session.write(b"two\n")
        session.wait_for("two")
        assert session.finish().status == 0


@pytest.mark.slow
def test_reload_changes_the_number_above_one(site: Site, kubectl: str) -> None:
    admin = site.kubectl(kubectl)
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(admin.begin("exec", "-i", pod(admin), "--", "cat"))
        for site.workers in ("3", "2"):
            site.reload()
            assert set(site.processes()) >= {f"worker-{index}" for index in range(int(site.workers))}
            assert "db-0" in admin.good("get", "pods")
        session.write(b"still there\n")
        session.wait_for("still there")
    site.daemon.file.write_text(site.config().replace("proxy.crt", "absent.crt"))
    refused = site.daemon.reload()
    assert (refused.returncode, refused.stderr.count("absent.crt")) == (78, 1)
    assert "db-0" in admin.good("get", "pods")
    site.reload()


def test_every_line_of_the_log_is_whole_and_those_of_children_name_them(site: Site) -> None:
    lines = site.daemon.all_lines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert [line for line in lines if "traceback=" in line] == []
    (serves,) = site.daemon.lines('msg="mcproxy is ready"')
    assert "process=" not in serves
    assert serves.endswith(" workers=2")
    assert len(site.daemon.lines('msg="a process is ready"')) == sum(p["restarts"] for p in site.processes().values())


@pytest.mark.slow
def test_sigterm_ends_all_processes(site: Site) -> None:
    pids = [process["pid"] for process in site.processes().values()]
    assert len(pids) == 4
    with contextlib.closing(Watch(site)) as watch:
        site.daemon.signal(signal.SIGTERM)
        assert site.daemon.end() == 0
        assert watch.response.read() == b""  # its end, and no error
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert "cut=0" in site.daemon.log.splitlines()[-1]
