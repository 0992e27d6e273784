"""The Redis of `mcproxy demo`, if redis-server is installed; it counts limits over replicas.

It listens only on a unix socket in the demo's directory. The demo continues when Redis exits, so that users can try
such a failure.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from mcproxy.cli import demo_files
from mcproxy.config.control_socket import MAX_PATH


def is_possible(directory: Path) -> bool:
    """Return whether Redis and its client can run in `directory`."""
    fits = len(bytes(directory / demo_files.REDIS_SOCKET)) <= MAX_PATH
    return fits and shutil.which("redis-server") is not None and shutil.which("redis-cli") is not None


class Redis:
    """A Redis server without persistence. Like the other processes, it exits with the demo, even if that is killed."""

    def __init__(self, directory: Path) -> None:
        setpriv = shutil.which("setpriv")
        self.process = subprocess.Popen(
            [
                *([setpriv, "--pdeathsig", "TERM"] if setpriv is not None else []),
                "redis-server",
                *("--port", "0", "--unixsocket", str(directory / demo_files.REDIS_SOCKET), "--unixsocketperm", "700"),
                *("--dir", str(directory), "--save", "", "--appendonly", "no"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def stop(self, patience: float) -> None:
        """Send SIGTERM, and SIGKILL if it has not exited after `patience` seconds."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
            return
        self.process.kill()
        self.process.wait()
