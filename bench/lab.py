"""The laboratory of one measurement: a directory, cores, an upstream, and the subjects in front of it.

The proxy has a core to itself; upstream and load share the other one (or have one each, where there are three), as a
proxy's peers would be on other machines.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import configs, pki
from bench.processes import Failed, Process, Processes, free_port, wait_for_port
from bench.python import Python, describe
from bench.subjects import Place, Subject, nginx_argv, script_argv


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core does what."""

    proxy: int
    upstream: int
    load: int

    @classmethod
    def choose(cls, available: Sequence[int]) -> Cores:
        """Spread over what there is; with one core everything shares it."""
        cores = sorted(available)
        return cls(cores[0], cores[min(1, len(cores) - 1)], cores[min(2, len(cores) - 1)])


@dataclass(frozen=True, slots=True)
class Running:
    """A subject that accepts connections on `port`; direct has no process."""

    name: str
    port: int
    process: Process | None


class Lab:
    """Starts what a measurement needs; `open_lab` makes one and cleans up after it."""

    def __init__(self, directory: Path, cores: Cores, processes: Processes, python: Python) -> None:
        self.directory = directory
        self.cores = cores
        self.processes = processes
        self.python = python
        self._status_port = 0
        self.identity = pki.make_identity(directory / "tls", "localhost", "localhost")

    def start_nginx_upstream(self, hosts: Sequence[configs.VirtualHost] = (), *, http2: bool = False) -> int:
        """Start the upstream of small objects, of HTTP/1.1 or of both versions; return its port."""
        port, self._status_port = free_port(), free_port()
        first = configs.VirtualHost("localhost", self.identity)
        file = configs.nginx_upstream(self.directory, port, [first, *hosts], self._status_port, http2=http2)
        process = self.processes.start("upstream", nginx_argv(self.directory, file), self.cores.upstream)
        wait_for_port(process, port)
        return port

    def requests_served(self) -> int:
        """Return how many requests the upstream of small objects has got since its start, this look included."""
        with socket.create_connection(("127.0.0.1", self._status_port), timeout=5) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            received = b""
            while data := connection.recv(4096):
                received += data
        return configs.served(received.decode())

    def count_at(self, port: int) -> None:
        """Let `requests_served` ask the stub_status of another upstream, which a measurement has started itself."""
        self._status_port = port

    def start_origin(self) -> int:
        """Start the upstream of watches and logs; return its port."""
        port = free_port()
        argv = [*script_argv("origin.py"), str(port), str(self.identity.certificate), str(self.identity.key)]
        wait_for_port(self.processes.start("origin", argv, self.cores.upstream), port)
        return port

    def start_subject(self, subject: Subject, upstream: int, cores: Sequence[int] = ()) -> Running:
        """Start `subject` in front of `upstream`, on the proxy's core or on `cores`, and wait until it accepts."""
        place = self.place(subject.name, upstream)
        argv = subject.argv(place)
        if argv is None:
            return Running(subject.name, upstream, None)
        process = self.processes.start(subject.name, argv, cores or self.cores.proxy)
        wait_for_port(process, place.listen)
        return Running(subject.name, place.listen, process)

    def place(self, name: str, upstream: int) -> Place:
        # Not `name` itself: a directory "mcproxy" in the working directory would hide the package of that name.
        directory = self.directory / f"{name}-files"
        directory.mkdir(exist_ok=True)
        return Place(directory, self.identity, free_port(), upstream, self.python.program)


@contextmanager
def open_lab(python: Python | None = None) -> Iterator[Lab]:
    """Make a laboratory whose Python subjects run on `python` (None: on this one); nothing of it is left afterwards.

    The harness itself moves to the core of the load for as long, and may open as many files as the system lets it.
    """
    before = os.sched_getaffinity(0)
    cores = Cores.choose(sorted(before))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    directory = Path(tempfile.mkdtemp(prefix="mcproxy-bench-"))
    try:
        with Processes(directory) as processes:
            os.sched_setaffinity(0, {cores.load})
            yield Lab(directory, cores, processes, python or describe(Path(sys.executable)))
    finally:
        os.sched_setaffinity(0, before)
        shutil.rmtree(directory, ignore_errors=True)


def require(programs: Sequence[str]) -> None:
    """Raise Failed with what to install when one of `programs` is missing."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise Failed(
            f"not found: {', '.join(missing)}. On Debian: apt-get install -y nginx-light wrk nghttp2-client util-linux "
            "redis-server (/usr/sbin must be in PATH)"
        )
