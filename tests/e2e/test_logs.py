"""A daemon whose log or access log is not read goes on serving, and stops on a signal."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcproxy.daemon.daemon_log import BURST
from mcproxy.log_once import PERIOD
from tests.e2e.processes import TIMEOUT, wait_until

CONFIG = """
version: 1
logging: {{level: info{access}}}
listeners:
  - {{name: local, bind: "unix:{directory}/l"}}
servers:
  - {{name: s, default: true, listeners: [local], backend: {{cluster: c}}, authentication: {authentication}}}
clusters:
  - name: c
    identity: Passthrough
    endpoints: [{{url: "http://127.0.0.1:1"}}]
authentication:
  - {{name: corp, tokenFile: {directory}/tokens.csv}}
"""


def full_pipe() -> tuple[int, int]:
    """A pipe that takes not a byte more until it is read."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    return reading, writing


def listens(path: Path) -> bool:
    """Whether the socket takes connections: its file is there a moment before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@contextmanager
def daemon(directory: Path, stream: str, access: str = "", authentication: str = "corp") -> Iterator[tuple[int, Path]]:
    """Runs a daemon whose `stream` is a full pipe; gives the end to read from and the socket to connect to."""
    (directory / "tokens.csv").write_text("good,alice,1\n")
    (directory / "tokens.csv").chmod(0o600)
    file = directory / "mcproxy.yaml"
    file.write_text(CONFIG.format(directory=directory, access=access, authentication=authentication))
    reading, writing = full_pipe()
    command = [sys.executable, "-m", "mcproxy", "run", "-c", str(file)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **{stream: writing})  # type: ignore[call-overload]
    os.close(writing)
    try:
        wait_until("the listener is open", lambda: listens(directory / "l"))
        yield reading, directory / "l"
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(TIMEOUT)


class Client(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(str(self._path))

    def status(self, token: str) -> int:
        self.request("GET", "/api/v1/pods", headers={"Authorization": f"Bearer {token}"})
        response = self.getresponse()
        response.read()
        return response.status


def read_to_end(reading: int) -> str:
    data = b""
    while piece := os.read(reading, 65536):
        data += piece
    os.close(reading)
    return data.decode()


@pytest.mark.slow
def test_log_that_is_not_read_stops_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path, "stderr") as (reading, path):
        client = Client(path)
        assert {client.status(f"wrong{number}") for number in range(3000)} == {401}
        assert client.status("good") == 503
        client.close()
    log = read_to_end(reading)  # what did not fit into the pipe was given up at the end, after a bounded wait
    assert log.strip(".") == ""


@pytest.mark.slow
def test_log_that_is_read_late_is_whole_and_bounded(tmp_path: Path) -> None:
    with daemon(tmp_path, "stderr") as (reading, path):
        begun = time.monotonic()
        client = Client(path)
        assert {client.status(f"wrong{number}") for number in range(3000)} == {401}
        client.close()
        periods = 1 + (time.monotonic() - begun) // PERIOD
        log = os.read(reading, 1 << 20).decode()
        while "event=token_refused" not in log:
            log += os.read(reading, 1 << 20).decode()
    log += read_to_end(reading)
    refused = [line for line in log.splitlines() if "event=token_refused" in line]
    summaries = [int(found[1]) for line in refused if (found := re.search(r"suppressed=(\d+)", line))]
    assert 1 <= len(summaries) <= periods
    assert len(refused) - len(summaries) <= BURST * periods
    assert len(refused) - len(summaries) + sum(summaries) == 3000
    assert 'msg="mcproxy is ready' in log
    assert 'msg="mcproxy stopped' in log.splitlines()[-1] or "stop" in log


@pytest.mark.slow
def test_access_log_on_standard_output_that_is_not_read_stops_nothing(tmp_path: Path) -> None:
    with daemon(tmp_path, "stdout", access=', access: {file: "-"}') as (reading, path):
        client = Client(path)
        assert {client.status(f"wrong{number}") for number in range(3000)} == {401}
        client.close()
    os.close(reading)
