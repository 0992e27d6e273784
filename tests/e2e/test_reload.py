"""200 reloads while clients are at work: not one request fails, watches and an exec session live through all of it."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcproxy.cli.main import main
from tests.e2e.environment import CONFIG, Environment
from tests.e2e.http_client import Client, ask, lines_of
from tests.e2e.processes import TIMEOUT, wait_until

RELOADS = 200
SETTLED = 60
"""Reloads after which memory is looked at first: caches are filled by then."""
MEMORY_GROWTH = 12 << 20
PODS = "/api/v1/namespaces/demo/pods"
CONFIGMAPS = "/api/v1/namespaces/demo/configmaps"
RELOADED = 'msg="configuration reloaded"'
REFUSED = 'msg="reload refused'
NUMBERS = itertools.count()
BODY = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "never"}, "data": {"a": "b" * 500}})


def on_a_taken_port(text: str) -> str:
    """The file with one more listener, where a simulated cluster listens already."""
    (taken, *_) = re.findall(r"https://(127\.0\.0\.1:\d+)", text)
    return text.replace("certificates:\n", f'  - {{name: more, bind: "{taken}"}}\ncertificates:\n', 1)


# Exit status of `mcproxy reload`, what is done to the file, what the error names.
WRONG: tuple[tuple[int, Callable[[str], str], str], ...] = (
    (78, lambda text: text + "nonsense: true\n", "nonsense"),
    (78, lambda text: text.replace("proxy.key", "ca.crt"), "keyFile"),
    (78, lambda text: text.replace("backend: {cluster: east}", "backend: {cluster: north}"), "north"),
    (78, lambda text: text + "unfinished: [", "mcproxy.yaml"),
    (1, on_a_taken_port, "the address is in use"),
)


class Load:
    """Clients in threads. The first failure of each is kept; nothing is tried again."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.name = f"counter-{next(NUMBERS)}"
        self.stopping = threading.Event()
        self.failures: list[str] = []
        self.counts = [0] * 6
        self.seen: list[list[int]] = [[], []]
        self.sent = 0
        loops: list[Callable[[], None]] = [
            *(functools.partial(self._keep_asking, number) for number in range(4)),
            lambda: self._ask_anew(4),
            lambda: self._change(5),
        ]
        self._watches = [Client(environment.route("path").address), Client(environment.route("name").address)]
        self._threads = [threading.Thread(target=self._guard, args=(loop,)) for loop in loops]
        self._watchers = [threading.Thread(target=self._guard, args=(self._watcher(index),)) for index in range(2)]

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def _keep_asking(self, number: int) -> None:
        """GET and POST in turns on one connection that must never close."""
        route = self.environment.route("path" if number % 2 else "name")
        with Client(route.address) as client:
            while not self.stopping.is_set():
                answer = client.request("GET", f"{route.path}{PODS}/db-0")
                assert answer.status == 200, answer
                assert answer.json["metadata"]["name"] == "db-0"
                headers = [("Content-Type", "application/json")]
                answer = client.request("POST", f"{route.path}{CONFIGMAPS}?dryRun=All", headers, BODY.encode())
                assert answer.status == 201, answer
                self.counts[number] += 2
                time.sleep(0.02)

    def _ask_anew(self, number: int) -> None:
        """A connection for each request, as kubectl does."""
        route = self.environment.route("path")
        while not self.stopping.is_set():
            assert ask(route.address, route.path + "/version").status == 200
            self.counts[number] += 1
            time.sleep(0.02)

    def _change(self, number: int) -> None:
        """Change what the watches look at; each change is an event that they must see."""
        route = self.environment.route("path")
        headers = [("Content-Type", "application/merge-patch+json")]
        with Client(route.address) as client:
            while not self.stopping.is_set():
                body = json.dumps({"data": {"count": str(self.sent + 1)}}).encode()
                answer = client.request("PATCH", f"{route.path}{CONFIGMAPS}/{self.name}", headers, body)
                assert answer.status == 200, answer
                self.sent += 1
                self.counts[number] += 1
                time.sleep(0.05)

    def _watcher(self, index: int) -> Callable[[], None]:
        route = self.environment.route("path" if index == 0 else "name")
        query = f"watch=true&fieldSelector=metadata.name%3D{self.name}"

        def follow() -> None:
            response = self._watches[index].begin("GET", f"{route.path}{CONFIGMAPS}?{query}")
            assert response.status == 200
            for line in lines_of(response):
                count = int(json.loads(line)["object"]["data"]["count"])
                self.seen[index].append(count)
                if count < 0:
                    return
            raise AssertionError("the watch ended")

        return follow

    def start(self) -> None:
        route = self.environment.route("path")
        body = json.dumps(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": {"count": "0"}}
        )
        headers = [("Content-Type", "application/json")]
        assert (
            ask(route.address, route.path + CONFIGMAPS, method="POST", headers=headers, body=body.encode()).status
            == 201
        )
        for watcher in self._watchers:
            watcher.start()
        wait_until("both watches run", lambda: all(self.seen) or bool(self.failures))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the load, then tell the watches by a last event that it is over."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT)
        route = self.environment.route("path")
        headers = [("Content-Type", "application/merge-patch+json")]
        body = b'{"data": {"count": "-1"}}'
        target = f"{route.path}{CONFIGMAPS}/{self.name}"
        assert ask(route.address, target, method="PATCH", headers=headers, body=body).status == 200
        for watcher in self._watchers:
            watcher.join(TIMEOUT)
        for client in self._watches:
            client.close()


def configurations(environment: Environment) -> Iterator[str]:
    """Files that differ: the order of endpoints, the access log, the drain time, another server."""
    for number in itertools.count():
        text = CONFIG
        if number % 2:
            a, b = '      - {{name: a, url: "{east_a}"}}\n', '      - {{name: b, url: "{east_b}"}}\n'
            text = text.replace(a + b, b + a)
        if number % 3 == 0:
            text = text.replace("logging: {{access: {{file: access.log}}}}\n", "")
        if number % 5 == 0:
            text = text.replace(
                "servers:\n", "servers:\n  - {{name: more, serverNames: [more], backend: {{cluster: west}}}}\n"
            )
        text = text.replace("drainTimeout: 5s", f"drainTimeout: {5 + number % 7}s")
        yield environment.config(text)


def listening_inode(port: int) -> str:
    """The inode of the socket that listens on a port of 127.0.0.1."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == f"0100007F:{port:04X}" and fields[3] == "0A":
            return fields[9]
    raise AssertionError(f"nobody listens on {port}")


def replace_file(path: Path, text: str) -> None:
    """As editors do: never half a file."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def serial(environment: Environment) -> object:
    """The serial number of the certificate that a new connection gets."""
    connection = environment.route("path").address.connect()
    try:
        certificate = connection.getpeercert()
    finally:
        connection.close()
    assert certificate is not None
    return certificate["serialNumber"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_reloads_under_load_lose_nothing(
    disturbed: Environment, kubectl: str, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = disturbed
    daemon = environment.daemon
    inode = listening_inode(environment.port)
    files = configurations(environment)
    load = Load(environment)
    memory: list[int] = []
    wrong = itertools.cycle(WRONG)
    refused = 0
    arguments = ("exec", "-i", "db-0", "--", "cat")
    reloads = len(daemon.all_lines(RELOADED))
    refusals = len(daemon.lines(REFUSED))
    with environment.kubectl(kubectl, "name").begin(*arguments) as tunnel:
        tunnel.write(b"begin\n")
        tunnel.wait_for("begin\n")
        load.start()
        try:
            for number in range(1, RELOADS + 1):
                if number % 4 == 0:
                    environment.write_certificate()
                before = serial(environment) if number % 20 == 0 else None
                good = next(files)
                if number % 10 == 5:
                    status, spoil, named = next(wrong)
                    replace_file(daemon.file, spoil(good))
                    assert main(["reload", "-c", str(daemon.file)]) == status
                    assert named in capsys.readouterr().err
                    refused += 1
                replace_file(daemon.file, good)
                if number % 2:
                    done = len(daemon.all_lines(RELOADED))
                    daemon.signal(signal.SIGHUP)
                    daemon.wait_for(RELOADED, count=done + 1)
                else:
                    assert main(["reload", "-c", str(daemon.file)]) == 0, capsys.readouterr().err
                if before is not None:
                    assert serial(environment) != before
                if number % 25 == 0:
                    tunnel.write(b"reload %d\n" % number)
                    tunnel.wait_for(f"reload {number}\n")
                if number in (SETTLED, RELOADS):
                    memory.append(daemon.memory)
                assert load.failures == [], f"after {number} reloads"
        finally:
            load.stop()
        result = tunnel.finish()
    assert load.failures == []
    assert (result.status, result.stdout.splitlines()[-1]) == (0, f"reload {RELOADS}")
    for seen in load.seen:
        assert seen == [*range(load.sent + 1), -1]
    assert all(count > 20 for count in load.counts), load.counts
    assert listening_inode(environment.port) == inode
    assert len(daemon.all_lines(RELOADED)) - reloads == RELOADS
    assert len(daemon.lines(REFUSED)) - refusals == refused == RELOADS / 10
    assert [line for line in daemon.lines() if re.search("traceback|Unhandled", line, re.I)] == []
    assert memory[1] - memory[0] < MEMORY_GROWTH, [f"{size / 2**20:.1f} MiB" for size in memory]
