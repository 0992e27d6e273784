"""The daemons of `mcproxy demo`, as its process sees them: the proxy, and with --tunnel the edge (demo_proxy.py)."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

from mcproxy.cli.demo_directory import DemoError
from mcproxy.daemon import interpreter

__all__ = ["HOST", "PATIENCE", "STOP_PATIENCE", "Proxy", "last_lines"]

HOST = "127.0.0.1"
PATIENCE = 60.0
"""Seconds within which a process must start. On an idle machine it takes less than one, under load many."""
STOP_PATIENCE = 5.0
"""Seconds within which a process must end; otherwise it is killed."""


class Proxy:
    """The daemon (demo_proxy.py). In its own process group it gets no Ctrl-C, so that the demo stops it in order."""

    def __init__(self, directory: Path, log: str = "mcproxy.log") -> None:
        self.log = directory / log
        self._stopped = False
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                interpreter.command("mcproxy.cli.demo_proxy"),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                process_group=0,
            )

    def serve(self, config: Path) -> None:
        """Start the daemon with `config`."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # wait_ready reports that the process has exited
            self.process.stdin.write(bytes(config) + b"\n")
            self.process.stdin.flush()

    def wait_ready(
        self, port: int, ca: Path, asked: list[tuple[str, str]], *, only_200: bool = True, edge: Proxy | None = None
    ) -> None:
        """Wait until each path is answered with 200, or with any status without `only_200`. Raises DemoError.

        `asked` has pairs of server name ("": the default server) and path. `edge`: the daemon beside west, which the
        answers need.
        """
        context = ssl.create_default_context(cafile=str(ca))
        deadline = time.monotonic() + PATIENCE
        for server, path in asked:
            while not _answers(port, context, server, path, only_200=only_200):
                if self.process.poll() is not None:
                    raise DemoError(f"the proxy did not start:\n{last_lines(self.log)}")
                if edge is not None and edge.process.poll() is not None:
                    raise DemoError(f"the edge did not start:\n{last_lines(edge.log)}")
                if time.monotonic() > deadline:
                    what = "with 200" if only_200 else f"on {HOST}:{port}"
                    raise DemoError(f"the proxy does not answer {path} {what}:\n{last_lines(self.log)}")
                time.sleep(0.05)  # each attempt costs a handshake, on processors that the starting processes need

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if it has not exited in time; kill remaining workers and wait for their exit."""
        if self._stopped:
            return
        self._stopped = True
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + STOP_PATIENCE
        with contextlib.suppress(ProcessLookupError):  # its process group has no process left
            while time.monotonic() < deadline:  # limited, since without an init process the killed workers stay
                os.killpg(self.process.pid, signal.SIGKILL)
                time.sleep(0.01)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


def _answers(port: int, context: ssl.SSLContext, server: str, path: str, *, only_200: bool) -> bool:
    connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=PATIENCE)
    try:
        with socket.create_connection((HOST, port), timeout=PATIENCE) as plain:
            connection.sock = context.wrap_socket(plain, server_hostname=server or HOST)
        connection.request("GET", path, headers={"Host": server or HOST})
        status = connection.getresponse().status
        return status == 200 or not only_200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def last_lines(log: Path) -> str:
    """Return the last lines of a log, for a message."""
    lines = log.read_text(errors="replace").splitlines()[-10:]
    return "\n".join(f"  {line}" for line in lines) or "  nothing"
