"""A real redis-server on a unix socket, and on a TCP port with or without TLS where a test asks for one."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import redis

from mcproxy.config import model
from tests.support.ports import reserved_port

_START = 60.0  # seconds


class RedisServer:
    """One server; it can be stopped, started again (empty), and made to stand still."""

    def __init__(self, folder: Path, *options: str, tls: bool = False, node: bool = False) -> None:
        """`options` are those of redis-server; with `tls` they name its files. `node`: it is one of a cluster."""
        program = shutil.which("redis-server")
        assert program is not None, "redis-server is not on PATH: .ci/tools redis-server installs it"
        self._program, self._folder, self._options = program, folder, options
        self.socket = str(folder / "redis.sock")
        self.port = reserved_port() if tls or node else 0
        self.bus_port = reserved_port() if node else 0
        if node:
            self._options = (*options, "--cluster-enabled", "yes", "--cluster-port", str(self.bus_port))
        self._ports = ("--port", "0" if tls else str(self.port), *(("--tls-port", str(self.port)) if tls else ()))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> RedisServer:
        """Start it empty, and wait until it answers."""
        self._process = subprocess.Popen(
            [
                self._program,
                *("--unixsocket", self.socket, "--dir", str(self._folder), "--save", "", "--appendonly", "no"),
                *("--bind", "127.0.0.1", *self._ports, *self._options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._process.stdout is not None
        said, output = b"", self._process.stdout.fileno()
        poll = select.poll()  # not select(): the descriptor may be above 1,023
        poll.register(output, select.POLLIN)
        # The unix socket is the last to be opened.
        while b"ready to accept connections at" not in said and poll.poll(_START * 1000):
            chunk = os.read(output, 65536)
            if not chunk:
                break
            said += chunk
        assert b"ready to accept connections at" in said, said.decode()
        return self

    def stop(self) -> None:
        """Kill it, whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def stand_still(self) -> None:
        """Let it answer nothing, with its connections open."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def client(self, **options: Any) -> Any:
        """Return a client of its own for a test."""
        return redis.Redis(unix_socket_path=self.socket, decode_responses=True, protocol=2, **options)

    def config(self, **more: Any) -> model.RedisConfig:
        """Return the configuration of a daemon that uses it, by its unix socket."""
        return model.RedisConfig(url=f"unix://{self.socket}", socket=self.socket, **more)

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
