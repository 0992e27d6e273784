"""`mcproxy run` as an operator meets it: the real daemon, a real file, real signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.cli.main import main
from mcproxy.daemon.log_formats import escape

PATIENCE = 20.0

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
listeners:
  - {{name: local, bind: "unix:{directory}/api.sock"}}
clusters:
  - name: east
    endpoints: [{{url: "http://127.0.0.1:9"}}]
    identity: Passthrough
servers:
  - {{name: east, default: true, backend: {{cluster: east}}}}
logging: {{access: {{file: access.log}}}}
"""


class Daemon:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file = directory / "mcproxy.yaml"
        self.file.write_text(CONFIG.format(directory=directory))
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "mcproxy", "run", "-c", self.file], stderr=log)

    def wait_for(self, text: str) -> None:
        """Wait until the log has a line with `text`."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{text!r} is not in the log: {self.log.read_text()}"
            time.sleep(0.02)

    def get(self, path: str) -> tuple[int, dict[str, object]]:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(self.directory / "api.sock"))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: east\r\nConnection: close\r\n\r\n".encode())
            head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    try:
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait(PATIENCE)


def test_life_of_a_daemon(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.wait_for('msg="mcproxy serves"')
    code, status = daemon.get("/api")
    assert (code, status["kind"]) == (503, "Status")

    assert main(["reload", "-c", str(daemon.file)]) == 0
    good = daemon.file.read_text()
    daemon.file.write_text(good + "nonsense: true\n")
    assert main(["reload", "-c", str(daemon.file)]) == 78
    assert "mcproxy.yaml:12:1: nonsense" in capsys.readouterr().err
    assert daemon.get("/api")[0] == 503

    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(PATIENCE) == 0
    records = [json.loads(line) for line in (daemon.directory / "access.log").read_text().splitlines()]
    assert [(record["uri"], record["status"], record["server"]) for record in records] == [("/api", 503, "east")] * 2
    assert not os.path.exists(daemon.directory / "control.sock")
    assert "traceback" not in daemon.log.read_text()


def test_address_that_is_taken_is_one_line_and_status_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file = tmp_path / "mcproxy.yaml"
        file.write_text(CONFIG.format(directory=tmp_path).replace(f"unix:{tmp_path}/api.sock", f"127.0.0.1:{port}"))
        done = subprocess.run(
            [sys.executable, "-m", "mcproxy", "run", "-c", file],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "level=error" in line]
    assert f"127.0.0.1:{port}" in line
    assert "traceback" not in done.stderr
    assert not os.path.exists(tmp_path / "control.sock")


def test_wrong_file_has_the_errors_of_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text(CONFIG.format(directory=tmp_path) + "nonsense: true\nmore: true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mcproxy", "run", "-c", file], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 78
    assert main(["check", "-q", "-c", str(file)]) == 78
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith(str(file))]
    lines = [line for line in done.stderr.splitlines() if "event=config_error" in line]
    assert [line.partition("cause=")[2].strip('"') for line in lines] == [escape(each, 10_000) for each in told]
    assert len(told) == 2
