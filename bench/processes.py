"""Processes of a run: started pinned to a core, watched through /proc, and none of them left behind.

`Processes` is their one owner. Each gets its own session (so that its children can be ended with it) and, through
setpriv, a death signal, so that even a killed harness leaves nothing running.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """The measurement cannot go on; the text says why in words for whoever started it."""


class Process:
    """One running process and whatever it forks."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    def check(self) -> None:
        """Raise Failed, with the end of its log, when it has ended."""
        status = self._popen.poll()
        if status is not None:
            raise Failed(f"{self.name} ended with status {status}; its last words:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of what it has written."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def rss(self) -> int:
        """Return resident memory in bytes, of it and its children."""
        return sum(_rss(pid) for pid in self.family())

    def cpu_seconds(self) -> float:
        """Return the processor time used so far (user and system), of it and its living children."""
        return sum(_cpu_seconds(pid) for pid in self.family())

    def stop(self, patience: float = 2.0) -> None:
        """End it: SIGTERM, and SIGKILL for its whole session after `patience` seconds. Harmless when it has ended."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(patience)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._popen.wait()

    def cpu_by_process(self) -> dict[int, float]:
        """Return the same for each of its living processes, by pid; the first one is itself."""
        return {pid: _cpu_seconds(pid) for pid in self.family()}

    def family(self) -> list[int]:
        """Return its pid and those of its living descendants."""
        family = [self.pid]
        for pid in family:
            try:
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            except OSError:
                continue
            family.extend(int(child) for child in children.split())
        return family


class Processes:
    """Starts processes and, on leaving the context, ends them all, newest first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[Process] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._running:
            self._running.pop().stop()

    def start(
        self, name: str, argv: Sequence[str], core: int | Sequence[int], env: Mapping[str, str] | None = None
    ) -> Process:
        """Start `argv` on `core`, or on several; output goes to `name`.log. Failed when the program does not exist."""
        log = self._directory / f"{name}.log"
        with log.open("ab") as output:
            popen = subprocess.Popen(
                pinned(argv, core),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._directory,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        process = Process(name, popen, log)
        self._running.append(process)
        return process

    def stop(self, process: Process) -> None:
        """End one of them before the others."""
        process.stop()
        self._running.remove(process)


def pinned(argv: Sequence[str], core: int | Sequence[int]) -> list[str]:
    """Return the command that runs `argv` on one core, or on several, and ends it when the harness dies."""
    cores = str(core) if isinstance(core, int) else ",".join(map(str, core))
    return ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", cores, *argv]


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(process: Process, port: int, timeout: float = 15.0) -> None:
    """Return as soon as `port` accepts; Failed when the process ends first or `timeout` seconds pass."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        process.check()
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.002)
        else:
            return
    raise Failed(f"{process.name} does not accept on port {port} after {timeout:.0f} s:\n{process.last_words()}")


def _rss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it ended between the two looks
    return 0


def _cpu_seconds(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()  # the name before may hold blanks; utime and stime are fields 14 and 15
    return (int(fields[11]) + int(fields[12])) / _TICKS
