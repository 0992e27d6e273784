"""Forks the processes of simulated clusters: to import what a cluster needs takes longer than all else of its start.

There is one server for each process that starts clusters; it is started with the first one and ends with its owner.

    owner  ──socket──>  arguments, directory and environment as JSON, with three descriptors: stdout, stderr, status
    owner  <──status──  {"pid": 1234} when it runs, {"status": -9} when it has ended, a line each
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).parents[2]
MODULE = "tests.simulated_cluster.fork_server"
_MOST_BYTES = 1 << 20  # of a request


class ForkedProcess:
    """A process of the server, with what `subprocess.Popen` has."""

    def __init__(self, server: socket.socket, arguments: Sequence[str], stderr: IO[bytes]) -> None:
        """Start one. Its standard output comes by `stdout`."""
        output, its_output = os.pipe()
        status, its_status = os.pipe()
        self.stdout: IO[bytes] = open(output, "rb")  # noqa: SIM115
        # Not buffered: what `select` says is of the next line.
        self._status: IO[bytes] = open(status, "rb", buffering=0)  # noqa: SIM115
        self.returncode: int | None = None
        request = json.dumps([list(arguments), os.getcwd(), dict(os.environ)]).encode()
        try:
            socket.send_fds(server, [request], [its_output, stderr.fileno(), its_status])
        finally:
            os.close(its_output)
            os.close(its_status)
        self.pid: int = json.loads(self._status.readline())["pid"]

    def poll(self) -> int | None:
        """Return the exit status as `subprocess` has it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
            line = self._status.readline()  # none if the server was killed
            self.returncode = int(json.loads(line)["status"]) if line else -signal.SIGKILL
            self._status.close()
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(arguments: Sequence[str], stderr: IO[bytes]) -> ForkedProcess:
    """Run `kubesim.server.serve` with these arguments."""
    return ForkedProcess(_server(os.getpid()), arguments, stderr)


@functools.cache
def _server(owner: int) -> socket.socket:
    """Return the socket of this process's server, which is started if it is not there."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        subprocess.Popen(
            [sys.executable, "-m", MODULE, str(its.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            cwd=ROOT,
            # aiohttp loads the system's CA certificates on import, which takes time; a cluster needs none
            env={**os.environ, "SSL_CERT_FILE": os.devnull},
        )
    return mine


# -- the server's side ------------------------------------------------------------------------------------------------


def _run(requests: socket.socket) -> None:
    """Start what is asked for and tell how it ends, until the owner has ended; then end all."""
    from kubesim.server import serve

    serve.load_http2()
    gc.freeze()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, int] = {}  # the descriptor for its status, by process id
    while True:
        ready, _, _ = select.select([requests.fileno(), ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_of_ends(running)
        if requests.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, 3)
            if not data:
                break
            output, errors, status = descriptors
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                requests.close()
                for other in (*running.values(), status, ended, wake):
                    os.close(other)
                _serve_cluster(data, output, errors)
            os.close(output)
            os.close(errors)
            running[pid] = status
            _tell(status, {"pid": pid})
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _tell_of_ends(running: dict[int, int]) -> None:
    """Tell the owner of all processes that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        descriptor = running.pop(pid)
        _tell(descriptor, {"status": os.waitstatus_to_exitcode(status)})
        os.close(descriptor)


def _tell(descriptor: int, what: dict[str, int]) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody asks for it any more
        os.write(descriptor, json.dumps(what).encode() + b"\n")


def _serve_cluster(request: bytes, output: int, errors: int) -> NoReturn:
    """Be the process of a cluster."""
    from kubesim.server import serve

    code = 1
    try:
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        sys.argv[1:], directory, environ = json.loads(request)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environ)
        time.tzset()
        code = serve.main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(io.UnsupportedOperation, OSError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _run(socket.socket(fileno=int(sys.argv[1])))
