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
from mcproxy.config.control_socket import possible_places
from mcproxy.daemon.log_lines import escape

PATIENCE = 120.0

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
    daemon.wait_for('msg="mcproxy is ready"')
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


def started(file: Path, log: Path, **environ: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        command = [sys.executable, "-m", "mcproxy", "run", "-c", str(file)]
        process = subprocess.Popen(command, stderr=output, env={**os.environ, **environ})
    deadline = time.monotonic() + PATIENCE
    while 'msg="mcproxy is ready"' not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    return process


@pytest.fixture
def ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("runtime_directory", [False, True])
def test_daemons_of_two_files_in_one_folder_are_told_apart_without_a_control_socket_in_the_files(
    tmp_path: Path,
    ended: list[subprocess.Popen[bytes]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    runtime_directory: bool,
) -> None:
    environ = {}
    if runtime_directory:  # the commands of an operator do not have the unit's environment
        (tmp_path / "run").mkdir()
        environ["RUNTIME_DIRECTORY"] = str(tmp_path / "run")
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    pids = {}
    for name in ("one", "two"):
        file = tmp_path / f"{name}.yaml"
        text = CONFIG.replace("controlSocket: control.sock, ", "").replace("access.log", f"{name}.log")
        file.write_text(text.format(directory=tmp_path).replace("api.sock", f"{name}-api.sock"))
        ended.append(started(file, tmp_path / f"{name}.out", **environ))
        pids[name] = ended[-1].pid
    for name, pid in pids.items():
        named = str(tmp_path / f"{name}.yaml")
        assert main(["reload", "-c", named]) == 0
        capsys.readouterr()
        main(["status", "-c", named, "-o", "json"])
        assert json.loads(capsys.readouterr().out)["pid"] == pid
        assert main(["check", "-c", named]) == 0
        assert main(["upgrade", "-c", named]) == 0
        capsys.readouterr()
        main(["status", "-c", named, "-o", "json"])
        found = json.loads(capsys.readouterr().out)
        assert found["pid"] != pid
        os.kill(found["pid"], signal.SIGKILL)
    for process in ended:
        assert process.wait(PATIENCE) == 0  # replaced


@pytest.mark.slow
def test_a_place_that_is_taken_or_not_to_be_had_keeps_no_daemon_from_starting(
    tmp_path: Path, ended: list[subprocess.Popen[bytes]]
) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text(CONFIG.format(directory=tmp_path).replace("controlSocket: control.sock, ", ""))
    own = tmp_path / "run"
    own.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        (place,) = [each for each in possible_places(str(file), {"RUNTIME_DIRECTORY": str(own)}) if str(own) in each]
        other.bind(place)
        other.listen()
        ended.append(started(file, tmp_path / "log", RUNTIME_DIRECTORY=str(own)))
    (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if "control_socket_missing" in line]
    assert "level=warn" in line
    assert place in line
    assert os.path.exists(place)  # the other's
    ended[0].send_signal(signal.SIGHUP)
    deadline = time.monotonic() + PATIENCE
    while "config_reloaded" not in (tmp_path / "log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert main(["reload", "-c", str(file)]) == 0  # with that the place was free, and the reload had taken it
