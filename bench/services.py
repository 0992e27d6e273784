"""Measures exported services: how soon a change is in every importing cluster, and what an idle daemon costs.

Run it as ``python -m bench.services [SERVICES [CLUSTERS]]`` from the top of the repository; it takes some minutes. Each
cluster is a simulated one in a process of its own; each service is of one of them, and exported to all others. Wanted
are 1 s, 2 % of a core, and no write while nothing changes.
"""

from __future__ import annotations

import http.client
import json
import select
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.api_services import processor_time
from bench.report import table

SERVICES, CLUSTERS = 1000, 20
_CHANGES = 20
_IDLE = 60.0  # seconds for which an idle daemon is measured
_QUIET = 15.0  # seconds before that in which nothing changes
_FIRST = 1800.0  # seconds that the first export may take
_SLICES = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices"


class Cluster:
    """A simulated cluster, in a process of its own."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        arguments = ["--name", name, "--dir", str(directory / name), "--starting-seconds", "0", "--empty"]
        (directory / name).mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kubesim.server.serve", *arguments, "--no-controllers", "--http2"],
            stdout=subprocess.PIPE,
            stderr=(directory / f"{name}.log").open("wb"),
        )
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> None:
        """Wait until it serves."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], 120)
        if not readable:
            raise RuntimeError(f"{self.name} did not start")
        self.ready = json.loads(self._process.stdout.readline())
        context = ssl.create_default_context(cafile=self.ready["ca"])
        address = self.ready["url"].removeprefix("https://")
        self._connection = http.client.HTTPSConnection(address, context=context, timeout=60)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request as admin; return the answer's object."""
        headers = {"Authorization": "Bearer admin-test-token", "Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        with self._connection.getresponse() as response:
            return json.loads(response.read())

    def create(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Create many objects at once."""
        body = json.dumps({"items": list(items)}).encode()
        request = urllib.request.Request(self.ready["control"] + "/objects", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=120).close()

    def slices(self) -> int:
        """Return how many EndpointSlices it has."""
        found = self.send("GET", f"{_SLICES}?limit=1")
        return len(found["items"]) + int(found["metadata"].get("remainingItemCount") or 0)

    def mark(self) -> int:
        """Return where its audit log is now."""
        with urllib.request.urlopen(f"{self.ready['control']}/audit?since={1 << 60}", timeout=120) as answer:
            return int(json.load(answer)["last"])

    def applies(self, mark: int, path: str = "") -> list[float]:
        """Return when something of which the path begins so was applied or deleted since a mark."""
        found: list[float] = []
        for method in ("PATCH", "DELETE"):
            query = urllib.parse.urlencode({"since": mark, "path": path, "method": method})
            with urllib.request.urlopen(f"{self.ready['control']}/audit?{query}", timeout=120) as answer:
                found += [record["time"] for record in json.load(answer)["records"]]
        return sorted(found)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def objects(service: str, address: str) -> list[dict[str, Any]]:
    """Return a Service and its EndpointSlice."""
    metadata = {"name": service, "namespace": "demo"}
    port = {"name": "http", "port": 80, "protocol": "TCP"}
    labels = {"kubernetes.io/service-name": service}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [port]}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [port],
        },
    ]


def configuration(clusters: Mapping[str, Mapping[str, Any]], services: Mapping[str, str], directory: Path) -> str:
    """Return a file with all clusters (name: url and ca), and each service of one of them exported to all others."""
    found = {
        "version": 1,
        "daemon": {"controlSocket": "control.sock"},
        "listeners": [{"name": "bench", "bind": f"unix:{directory}/bench.sock"}],
        "clusters": [
            {
                "name": name,
                "identity": "Proxy",
                "endpoints": [{"url": each["url"]}],
                "tls": {"caFile": each["ca"]},
                "credentials": {"token": "admin-test-token"},
                "healthCheck": {"interval": "30s"},
            }
            for name, each in clusters.items()
        ],
        "servers": [
            {"name": "bench", "default": True, "backend": {"cluster": next(iter(clusters))}, "authentication": "none"}
        ],
        "serviceExports": [
            {
                "name": service,
                "namespace": "demo",
                "service": service,
                "from": [source],
                "to": [name for name in clusters if name != source],
            }
            for service, source in services.items()
        ],
    }
    return json.dumps(found)  # JSON is YAML


def measure(services: int, clusters: int) -> list[list[str]]:
    """Return the rows of the report."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder)
        running = [Cluster(f"c{number}", directory) for number in range(clusters)]
        for cluster in running:
            stack.callback(cluster.stop)
        for cluster in running:
            cluster.wait_ready()
        sources = {f"s{number}": running[number % clusters].name for number in range(services)}
        for cluster in running:
            mine = [service for service, source in sources.items() if source == cluster.name]
            cluster.create([each for service in mine for each in objects(service, "10.1.0.1")])
        path = directory / "mcproxy.yaml"
        path.write_text(configuration({each.name: each.ready for each in running}, sources, directory))
        with _daemon(path) as process:
            return _rows(process, running, sources)


@contextmanager
def _daemon(path: Path) -> Iterator[int]:
    with (path.parent / "log").open("wb") as log:
        daemon = subprocess.Popen([sys.executable, "-m", "mcproxy", "run", "-c", str(path)], stdout=log, stderr=log)
    try:
        yield daemon.pid
    finally:
        daemon.terminate()
        daemon.wait(60)


def _rows(process: int, clusters: Sequence[Cluster], sources: Mapping[str, str]) -> list[list[str]]:
    begun = time.monotonic()
    for cluster in clusters:
        while cluster.slices() < len(sources):
            if time.monotonic() > begun + _FIRST:
                raise RuntimeError(f"{cluster.name} has {cluster.slices()} slices")
            time.sleep(0.5)
    first, spent = time.monotonic() - begun, processor_time(process)
    time.sleep(_QUIET)
    delays = []
    for number in range(_CHANGES):
        service, source = list(sources.items())[number * len(sources) // _CHANGES]
        delays.append(_change(clusters, service, source, f"10.2.0.{number + 1}"))
    time.sleep(_QUIET)
    marks, before = [each.mark() for each in clusters], processor_time(process)
    time.sleep(_IDLE)
    idle = (processor_time(process) - before) / _IDLE
    writes = sum(len(cluster.applies(mark)) for cluster, mark in zip(clusters, marks, strict=True))
    return [
        ["the first export of all, elapsed", f"{first:.0f} s", ""],
        ["… processor time of the daemon", f"{spent:.0f} s", ""],
        ["a change until the last importing cluster has it, median", f"{statistics.median(delays) * 1e3:.0f} ms", ""],
        [f"… the longest of {len(delays)}", f"{max(delays) * 1e3:.0f} ms", "1000 ms"],
        [f"idle daemon, over {_IDLE:g} s", f"{idle:.2%} of a core", "2 %"],
        ["… writes to services meanwhile", str(writes), "0"],
        ["memory of the daemon", f"{_resident(process) / 2**20:.0f} MiB", ""],
    ]


def _change(clusters: Sequence[Cluster], service: str, source: str, address: str) -> float:
    """Change a slice; return the seconds until the last of the other clusters got it."""
    owner = next(each for each in clusters if each.name == source)
    found = owner.send("GET", f"{_SLICES}/{service}")
    found["endpoints"][0]["addresses"] = [address]
    marks = {each.name: each.mark() for each in clusters}
    begun = time.time()
    owner.send("PUT", f"{_SLICES}/{service}", found)
    time.sleep(1.5)
    latest = 0.0
    for cluster in clusters:
        if cluster is owner:
            continue
        place = f"{_SLICES}/imported-{source}-{service}"
        until = time.monotonic() + 30
        while not (times := cluster.applies(marks[cluster.name], place)):
            if time.monotonic() > until:
                raise RuntimeError(f"{cluster.name} did not get {service}")
            time.sleep(0.2)
        latest = max(latest, times[0])
    return latest - begun


def _resident(process: int) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def main(arguments: list[str]) -> None:
    services = int(arguments[0]) if arguments else SERVICES
    clusters = int(arguments[1]) if len(arguments) > 1 else CLUSTERS
    print(f"### {services:,} exported services over {clusters} clusters\n")
    print(table(["what", "measured", "target"], measure(services, clusters)))


if __name__ == "__main__":
    main(sys.argv[1:])
