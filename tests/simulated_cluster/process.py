"""Starts a simulated cluster in a process of its own, which is forked (fork_server.py).

Blocking code without aiohttp, for Twisted tests too: `start()` returns when the cluster serves.
"""

from __future__ import annotations

import json
import select
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.simulated_cluster import fork_server
from tests.simulated_cluster.fork_server import ForkedProcess

JSONDict = dict[str, Any]


class StartError(Exception):
    """The process did not start; the message has the end of its log."""


@dataclass(frozen=True)
class Credentials:
    """Paths of a client certificate and its key."""

    certificate: str
    key: str


class SimulatedClusterProcess:
    """One simulated cluster. `options` are arguments of `kubesim.server.serve`, such as `("--endpoints", "4")`.

    Unlike a real apiserver, and the module's own default, it authorizes as soon as its port is open, so that tests need
    not wait; `("--starting-seconds", "1")` makes it answer 403 for a second.

    After `start()`: `url` and `urls` (one per endpoint), `ports`, `control_url`, `ca` (path), `users` (admin, alice,
    mcproxy), `front_proxy`, `tokens` (by user) and `kubeconfig` (path). Also a context manager.
    """

    def __init__(self, name: str, *, options: Sequence[str] = (), directory: str | Path | None = None) -> None:
        self.name = name
        self.options = tuple(options)
        self._own_directory = directory is None
        self.directory = Path(directory) if directory is not None else Path(tempfile.mkdtemp(prefix=f"sim-{name}-"))
        self._process: ForkedProcess | None = None
        self.ready: JSONDict = {}

    def spawn(self) -> None:
        """Start the process without waiting for it; `wait_ready()` does that."""
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = ["--name", self.name, "--dir", str(self.directory), "--starting-seconds", "0", *self.options]
        with (self.directory / "log").open("ab") as log:
            self._process = fork_server.start(arguments, log)

    def wait_ready(self, timeout: float = 120.0) -> None:
        """Read the `ready` line. Raises StartError when the process ends or `timeout` seconds pass."""
        process = self._process
        assert process is not None
        deadline = time.monotonic() + timeout
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = process.stdout.readline() if readable else b""
            if not data:
                self.stop()
                log = (self.directory / "log").read_text(errors="replace")[-2000:]
                raise StartError(f"simulated cluster {self.name} did not start: {log}")
            line += data
        self.ready = json.loads(line)

    def start(self, timeout: float = 120.0) -> SimulatedClusterProcess:
        """Start and wait until it serves."""
        self.spawn()
        self.wait_ready(timeout)
        return self

    def stop(self, timeout: float = 5.0) -> int | None:
        """Send SIGTERM, and SIGKILL if it has not ended after `timeout` seconds. Return the exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        return process.returncode

    def kill(self) -> None:
        """Send SIGKILL: connections are reset."""
        if self._process is not None:
            self._process.kill()
            self.stop()

    def terminate(self) -> None:
        """Send SIGTERM without waiting for the end."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def cleanup(self) -> None:
        """Stop, and remove the directory if it is a temporary one."""
        self.stop()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> SimulatedClusterProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """https://127.0.0.1:<port> of the first endpoint."""
        return str(self.ready["url"])

    @property
    def urls(self) -> list[str]:
        return list(self.ready["urls"])

    @property
    def ports(self) -> list[int]:
        return [int(url.rpartition(":")[2]) for url in self.urls]

    @property
    def control_url(self) -> str:
        """http://127.0.0.1:<port> of the control API (control.py)."""
        return str(self.ready["control"])

    @property
    def ca(self) -> str:
        return str(self.ready["ca"])

    @property
    def kubeconfig(self) -> str:
        return str(self.ready["kubeconfig"])

    @property
    def tokens(self) -> dict[str, str]:
        """Static bearer tokens by user."""
        return dict(self.ready["tokens"])

    def user(self, name: str) -> Credentials:
        """Return the client certificate of admin, alice or mcproxy."""
        return Credentials(**self.ready["users"][name])

    @property
    def front_proxy(self) -> Credentials:
        """The client certificate of the front proxy, whose X-Remote-* headers the cluster trusts."""
        return Credentials(**self.ready["frontProxy"])

    def control(self, path: str, body: Any = None, *, method: str = "") -> Any:
        """Call the control API: POST with a JSON body, GET without one. Return the decoded response."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.control_url + path, data=data, method=method or ("GET" if data is None else "POST")
        )
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None
