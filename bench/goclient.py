"""The Go programs of the end-to-end tests as a bench's upstream and watchers (`tests/e2e/goclient`).

client-go and kube-apiserver are built on the same net/http, so streams, windows and records are as theirs.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from bench import golang
from bench.lab import Lab
from bench.processes import Failed, pinned
from bench.subjects import CACHE

_PATIENCE = 10.0


class GoClient:
    """One command of it that runs until the context ends; `said` is the first line that it printed."""

    def __init__(self, core: int, command: str, *options: str) -> None:
        argv = pinned([str(golang.client(CACHE)), command, *options], core)
        self._command = command
        self._popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = self._line()
        if not self.said:
            raise Failed(f"goclient {command} ended with status {self._popen.wait()}")

    def __enter__(self) -> GoClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                pipe.close()
        self._popen.kill()
        self._popen.wait()

    def _line(self) -> dict[str, Any]:
        """Return the next line that it prints, {} at its end; Failed when it says that something failed."""
        assert self._popen.stdout is not None
        said: dict[str, Any] = json.loads(self._popen.stdout.readline() or "{}")
        if said.get("failed"):
            raise Failed(f"goclient {self._command}: {said['failed']} failures, such as {said['failures'][:1]}")
        return said

    def finish(self) -> dict[str, Any]:
        """Tell it to end and return what it says last; Failed when something failed."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        last: dict[str, Any] = {}
        while said := self._line():
            last = said
        self._popen.wait()
        return last


def cluster(lab: Lab, *, http2: bool) -> GoClient:
    """Start the upstream; `said` has its `port`, and its `control` port for `emit`."""
    files = ("-certificate", str(lab.identity.certificate), "-key", str(lab.identity.key))
    return GoClient(lab.cores.upstream, "cluster", *files, *([] if http2 else ["-http1"]))


def watchers(lab: Lab, port: int, clients: int, each: int, *, http2: bool) -> GoClient:
    """Open `each` watches of so many clients through localhost:`port`; when this returns, all have begun."""
    url = ("-url", f"https://localhost:{port}", "-ca", str(lab.identity.authority))
    count = ("-clients", str(clients), "-each", str(each), "-events", "0", "-stay")
    return GoClient(lab.cores.load, "watches", *url, *count, *_protocol(http2))


def _protocol(http2: bool) -> Sequence[str]:
    return [] if http2 else ["-http1"]


def emit(connection: http.client.HTTPConnection, count: int) -> None:
    """Have the upstream send so many events to each watch; `connection` goes to its control port."""
    connection.request("POST", f"/events?count={count}")
    connection.getresponse().read()


def control(upstream: GoClient) -> http.client.HTTPConnection:
    """Return a connection to the control port of an upstream."""
    return http.client.HTTPConnection("127.0.0.1", upstream.said["control"], timeout=_PATIENCE)
