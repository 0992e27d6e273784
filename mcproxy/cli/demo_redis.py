"""The Redis of `mcproxy demo`, where redis-server is installed: limits over replicas are counted there.

It listens on a unix socket in the demo's directory alone. The demo goes on when it ends: that is something to try.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

from mcproxy.cli import demo_files


def is_possible(directory: Path) -> bool:
    """Whether one can be started, and looked into, in `directory`."""
    fits = len(bytes(directory / demo_files.REDIS_SOCKET)) <= demo_files.LONGEST_SOCKET_PATH
    return fits and shutil.which("redis-server") is not None and shutil.which("redis-cli") is not None


class Redis:
    """A server that keeps nothing; like the other processes it ends with the demo, however that ends."""

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
        """Send SIGTERM, and SIGKILL if it has not ended after `patience` seconds."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
            return
        self.process.kill()
        self.process.wait()
