"""Starts the daemon as an operator would, and kubectl as a user would."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.e2e import with_workers

T = TypeVar("T")

REOPENED = "log files are reopened"
TIMEOUT = 120.0
"""Seconds to wait for what takes milliseconds, on a machine that may be busy."""


def wait_until(what: str, holds: Callable[[], bool], timeout: float = TIMEOUT) -> None:
    """Wait until `holds()`; fail with `what` if it never does."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        time.sleep(0.02)


def in_parallel(what: Callable[[str], T], names: Sequence[str]) -> dict[str, T]:
    """Do the same for each name, all at a time; gives what came of it."""
    with ThreadPoolExecutor(len(names)) as threads:
        return dict(zip(names, threads.map(what, names), strict=True))


class Daemon:
    """`mcproxy run` with a file of its own. Also a context manager, which starts it."""

    def __init__(self, directory: Path, config: str, *, environ: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.file = directory / "mcproxy.yaml"
        self.file.write_text(config)
        self.log_file = directory / "mcproxy.log"
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the daemon was not started"
        return self._process

    @property
    def command(self) -> list[str]:
        program = [with_workers.PROGRAM] if with_workers.VARIABLE in os.environ else ["-m", "mcproxy"]
        return [sys.executable, *program, "run", "-c", str(self.file)]

    def spawn(self, command: list[str] | None = None, *, pass_fds: tuple[int, ...] = ()) -> None:
        """Start without waiting, with a new log."""
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command or self.command,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=self._environ,
                pass_fds=pass_fds,
                process_group=0,
            )

    def start(self) -> Self:
        """Start and wait until it serves; one that does not is killed, for its caller has nothing to stop."""
        self.spawn()
        try:
            self.wait_for('msg="mcproxy is ready"')
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def lines(self, *texts: str) -> list[str]:
        """The log lines that have all `texts`, as far as they are written."""
        return [line for line in self.log.splitlines() if all(text in line for text in texts)]

    def wait_for(self, *texts: str, count: int = 1) -> list[str]:
        """Wait until the log has `count` lines with all `texts`; gives these lines."""
        deadline = time.monotonic() + TIMEOUT
        while len(found := self.lines(*texts)) < count:
            ended = self.process.poll()
            assert ended is None or len(self.lines(*texts)) >= count, f"ended with {ended}: {self.log}"
            assert time.monotonic() < deadline, f"no {count} lines with {texts} in: {self.log}"
            time.sleep(0.02)
        return found

    def all_lines(self, *texts: str) -> list[str]:
        """The same of everything that was logged until now."""
        self.log_is_written()
        return self.lines(*texts)

    def log_is_written(self) -> None:
        """Wait until all that was logged is in the file: lines are written in order, by a thread, some time later.

        The line that shows it, of access logs opened anew, is the log's last one then.
        """
        count = len(self.lines(REOPENED))
        self.signal(signal.SIGUSR1)
        self.wait_for(REOPENED, count=count + 1)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for its end; gives the exit status."""
        return self.process.wait(TIMEOUT)

    def stop(self) -> None:
        """Kill it with all its processes, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(TIMEOUT)

    def reload(self) -> subprocess.CompletedProcess[str]:
        """`mcproxy reload`."""
        return mcproxy("reload", "-c", str(self.file))

    def command_answer(self, request: Mapping[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
        """Send a command to the control socket. Raises OSError where nobody answers."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(self.directory / "control.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            received = b""
            while not received.endswith(b"\n"):
                data = connection.recv(65536)
                if not data:
                    raise ConnectionError("no whole answer")
                received += data
        answer: dict[str, Any] = json.loads(received)
        return answer

    def reload_quickly(self, timeout: float = 60.0) -> dict[str, Any]:
        """The command of `mcproxy reload`, without the 0.3 s that its interpreter takes to start."""
        return self.command_answer({"command": "reload", "file": str(self.file)}, timeout)

    @property
    def memory(self) -> int:
        """Resident bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS: the daemon has ended")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def mcproxy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of mcproxy to its end."""
    return subprocess.run(
        [sys.executable, "-m", "mcproxy", *arguments], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit status."""

    status: int
    stdout: str
    stderr: str


class Running:
    """A kubectl that goes on: its output is read as it comes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.output = b""
        self.errors = b""
        self._readers = [threading.Thread(target=self._read_output), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        while data := self.process.stdout.read1():  # type: ignore[attr-defined]
            self.output += data

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        while data := self.process.stderr.read1():  # type: ignore[attr-defined]
            self.errors += data

    def wait_for(self, text: str) -> None:
        """Wait until it has printed `text`."""
        wait_until(
            f"{text!r} from {self.process.args!r}",
            lambda: text.encode() in self.output or (self.process.poll() is not None and self._ended_without(text)),
        )

    def _ended_without(self, text: str) -> bool:
        for reader in self._readers:
            reader.join(TIMEOUT)
        assert text.encode() in self.output, f"no {text!r} in {self.output!r}; {self.errors!r}"
        return True

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def finish(self) -> Result:
        """Close its stdin, wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(TIMEOUT)
        for reader in self._readers:
            reader.join(TIMEOUT)
        return Result(status, self.output.decode(), self.errors.decode())

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT)
        for reader in self._readers:
            reader.join(TIMEOUT)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


DISCARDED = re.compile(r"^E\d{4} .*\] Unknown stream id [1-3], discarding message$", re.M)
"""What kubectl says of output that it has received and throws away."""
TRIES = 5


class Kubectl:
    """kubectl with one kubeconfig and context.

    By WebSocket, kubectl 1.29 to 1.33 reads messages in a goroutine that it starts before it has made the streams that
    they belong to (kubernetes/kubernetes#131189). Where the other goroutine has to wait for a processor just then, what
    has come is thrown away: the command prints nothing and exits with 0, or fails with `closed all streams`. It does
    so where no proxy is between, too, once in some hundred times on a machine with load. It says so on stderr, and only
    for that a command is run again: output that is lost on its way brings no such line.
    """

    def __init__(self, program: str, kubeconfig: str, context: str, home: Path) -> None:
        self._command = [program, "--kubeconfig", kubeconfig, "--context", context]
        self._environ = {**os.environ, "HOME": str(home), "KUBECTL_COMMAND_HEADERS": "true"}

    def __call__(
        self, *arguments: str, stdin: str = "", environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Result:
        """Run to the end; again where kubectl itself has discarded what it received."""
        for _ in range(TRIES):
            done = subprocess.run(
                [*self._command, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
                cwd=cwd,
                env={**self._environ, **(environ or {})},
            )
            if not DISCARDED.search(done.stderr):
                break
        return Result(done.returncode, done.stdout, done.stderr)

    def good(self, *arguments: str, stdin: str = "") -> str:
        """Run what must succeed; gives its stdout."""
        result = self(*arguments, stdin=stdin)
        assert result.status == 0, f"kubectl {arguments}: {result}"
        return result.stdout

    def begin(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Running:
        """Start it and go on; use it in a `with` statement."""
        process = subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self._environ, **(environ or {})},
        )
        return Running(process)
