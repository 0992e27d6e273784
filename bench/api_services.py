"""Measures a server with many API services: discovery from cache, how soon a change is seen, what an idle daemon costs.

Run it as ``python -m bench.api_services [NUMBER]`` from the top of the repository; it takes two minutes. The API
servers are one process with a port for each; they answer discovery with an ETag, probes and reviews. Wanted are 50 ms,
2 s and 1 % of a core.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.configs import ACCESS_REVIEW_PATH, access_review
from bench.report import table
from mcproxy.kube.discovery import AGGREGATED_MEDIA_TYPE

NUMBER = 200
_IDLE = 60.0  # seconds for which an idle daemon is measured
_QUIET = 20.0  # seconds for which nobody asks before
_READS = 50
_CORE = "core"
_HEALTH = "healthCheck: {interval: 30s}"

_Responses = dict[str, tuple[bytes, str, str]]


def documents(name: str, resources: list[str]) -> _Responses:
    """Return what an API server answers by path: body, content type and ETag."""
    group = f"{name}.bench.example.com"
    found = [
        {
            "resource": each,
            "responseKind": {"group": group, "version": "v1", "kind": each.title()},
            "scope": "Namespaced",
            "singularResource": each,
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }
        for each in resources
    ]
    item = {"metadata": {"name": group}, "versions": [{"version": "v1", "resources": found, "freshness": "Current"}]}
    groups = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [item]}
    legacy = {"kind": "APIResourceList", "groupVersion": f"{group}/v1", "resources": []}
    empty = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": []}
    aggregated = json.dumps(groups).encode()
    return {
        "/apis": (aggregated, AGGREGATED_MEDIA_TYPE, f'"{hashlib.sha256(aggregated).hexdigest()}"'),
        "/api": (json.dumps(empty).encode(), AGGREGATED_MEDIA_TYPE, '"core"'),
        f"/apis/{group}/v1": (json.dumps(legacy).encode(), "application/json", ""),
        ACCESS_REVIEW_PATH: (access_review().encode(), "application/json", ""),
        "/readyz": (b"ok", "text/plain", ""),
        "/livez": (b"ok", "text/plain", ""),
    }


class _Servers:
    """All API servers, in one process; `/bench/change` of one gives it another resource."""

    def __init__(self, names: list[str]) -> None:
        self._answers = {name: documents(name, [f"kind{number}" for number in range(5)]) for name in names}

    async def serve(self) -> None:
        ports = {}
        for name in self._answers:
            server = await asyncio.start_server(self._handler(name), "127.0.0.1", 0)
            ports[name] = server.sockets[0].getsockname()[1]
        print(json.dumps(ports), flush=True)
        await asyncio.Event().wait()

    def _handler(self, name: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    first, *lines = head.split("\r\n")
                    fields = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
                    await reader.readexactly(int(fields.get("content-length", 0)))
                    writer.write(self._answer(name, first.split(" ")[1].partition("?")[0], fields))
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        return handle

    def _answer(self, name: str, path: str, fields: dict[str, str]) -> bytes:
        if path == "/bench/change":
            self._answers[name] = documents(name, ["changed"])
            path = "/readyz"
        body, kind, etag = self._answers[name].get(path, (b"{}", "application/json", ""))
        more = f"ETag: {etag}\r\n" if etag else ""
        if etag and fields.get("if-none-match") == etag:
            return f"HTTP/1.1 304 Not Modified\r\n{more}\r\n".encode()
        status = "201 Created" if "selfsubject" in path else "200 OK"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        return head.encode() + body


def configuration(ports: dict[str, int], port: int) -> str:
    """Return a file with one server whose backend is `core` and that has an API service of each other one."""
    names = [name for name in ports if name != _CORE]
    clusters = [
        f'  - {{name: {name}, identity: Proxy, endpoints: [{{url: "http://127.0.0.1:{at}"}}], {_HEALTH}}}'
        for name, at in ports.items()
    ]
    services = [f"      - {{group: {name}.bench.example.com, version: v1, cluster: {name}}}" for name in names]
    return "\n".join(
        [
            "version: 1",
            "daemon: {controlSocket: control.sock}",
            f'listeners: [{{name: bench, bind: "127.0.0.1:{port}"}}]',
            "clusters:",
            *clusters,
            "servers:",
            f"  - name: bench\n    default: true\n    backend: {{cluster: {_CORE}}}\n    apiServices:",
            *services,
            "",
        ]
    )


def get(port: int, path: str) -> tuple[float, bytes]:
    """Return how long a GET took, in seconds, and its body."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": AGGREGATED_MEDIA_TYPE})
    begun = time.perf_counter()
    with urllib.request.urlopen(request, timeout=30) as answer:
        body: bytes = answer.read()
    return time.perf_counter() - begun, body


def processor_time(process: int) -> float:
    """Return the seconds of processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(number: int) -> list[list[str]]:
    """Return the rows of the report."""
    names = [_CORE, *(f"s{index}" for index in range(number))]
    with tempfile.TemporaryDirectory() as directory:
        servers = subprocess.Popen(
            [sys.executable, "-m", "bench.api_services", "serve", str(number)], stdout=subprocess.PIPE
        )
        daemon = None
        try:
            assert servers.stdout is not None
            ports: dict[str, int] = json.loads(servers.stdout.readline())
            port = 20_000 + os.getpid() % 10_000
            path = Path(directory) / "mcproxy.yaml"
            path.write_text(configuration(ports, port))
            log = (Path(directory) / "log").open("wb")
            daemon = subprocess.Popen([sys.executable, "-m", "mcproxy", "run", "-c", str(path)], stdout=log, stderr=log)
            _wait(port, number)
            return _rows(port, ports, daemon.pid, names[-1])
        finally:
            for process in (daemon, servers):
                if process is not None:
                    process.terminate()
                    process.wait(30)


def _wait(port: int, number: int) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            body = get(port, "/apis")[1]
        except OSError:
            body = b""
        if body.count(b'"freshness":"Current"') >= number:
            return
        time.sleep(0.5)
    raise RuntimeError("the API services did not come into discovery")


def _rows(port: int, ports: dict[str, int], process: int, changed: str) -> list[list[str]]:
    reads = []
    for _ in range(_READS):
        reads.append(get(port, "/apis")[0] * 1000)
        time.sleep(0.02)
    size = len(get(port, "/apis")[1])
    group = f"{changed}.bench.example.com".encode()
    assert group in get(port, "/apis")[1]
    time.sleep(3)
    urllib.request.urlopen(f"http://127.0.0.1:{ports[changed]}/bench/change").read()
    begun = time.monotonic()
    polls = []
    while True:
        took, body = get(port, "/apis")
        polls.append(took * 1000)
        if b'"changed"' in body:
            break
        time.sleep(0.1)
    seen = time.monotonic() - begun
    time.sleep(_QUIET)
    before = processor_time(process)
    time.sleep(_IDLE)
    idle = (processor_time(process) - before) / _IDLE
    return [
        ["discovery from cache, median", f"{statistics.median(reads):.1f} ms", "50 ms"],
        ["… longest, while a change is looked for, too", f"{max(*reads, *polls):.1f} ms", ""],
        ["size of /apis", f"{size / 1024:.0f} KiB", ""],
        ["a change seen by who asks each 0.1 s", f"{seen:.2f} s", "2 s"],
        [f"idle daemon, over {_IDLE:g} s", f"{idle:.2%} of a core", "1 %"],
    ]


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["serve"]:
        asyncio.run(_Servers([_CORE, *(f"s{index}" for index in range(int(arguments[1])))]).serve())
        return
    number = int(arguments[0]) if arguments else NUMBER
    print(f"### {number} API services\n")
    print(table(["what", "measured", "target"], measure(number)))


if __name__ == "__main__":
    main(sys.argv[1:])
