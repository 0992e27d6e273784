"""`bench aggregate-reflectors`: what reflectors cost that have nothing to do.

50 members with 20 resources each, all empty: 1,000 watches, polled discovery and health checks, against one process
that plays the members (`bench/fake_api_server.py`). The daemon's part is a process (`bench/follow.py`) on the proxy's
core; what health checks and discovery cost alone is measured, too. Then a whole daemon with the same members reloads a
configuration in which one of them has changed.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

from bench import configs
from bench.client import client_context, get
from bench.fake_api_server import GROUP, resource_name
from bench.lab import Lab
from bench.processes import Failed, Process, free_port, wait_for_port
from bench.report import Section, limit
from bench.subjects import MCPROXY, mcproxy_argv, script_argv

_PATIENCE = 180.0
_SETTLE = 5.0  # seconds after the last initial list
_RELOADS = 7


def measure(lab: Lab, clusters: int, resources: int, seconds: float, *, settle: float = _SETTLE) -> Section:
    """Follow `resources` of each cluster, wait `settle` seconds, measure for `seconds`; then without reflectors."""
    port = free_port()
    files = lab.identity
    argv = [*script_argv("fake_api_server.py"), str(port), str(files.certificate), str(files.key), str(resources)]
    wait_for_port(lab.processes.start("members", argv, lab.cores.upstream), port)
    whole, memory, synced = _measured(lab, port, clusters, resources, seconds, settle)
    without, memory_without, _ = _measured(lab, port, clusters, 0, seconds, settle)
    section = Section(
        f"{clusters * resources:,} reflectors on empty stores, {clusters} members", ["what", "% of a core", "RSS MB"]
    )
    section.rows.append(["all", f"{whole:.2f}", f"{memory:.0f}"])
    section.rows.append(["health checks (each 5 s) and discovery alone", f"{without:.2f}", f"{memory_without:.0f}"])
    section.comparisons.append(f"all stores had their initial state {synced:.1f} s after the start of the process")
    section.targets.append(limit("processor time of idle members", [whole], unit="% of a core", at_most=3))
    section.targets.append(limit("memory of idle members, the process included", [memory], unit="MB", at_most=200))
    reloads = _reloads(lab, port, clusters, resources)
    section.targets.append(limit("reload that changes one member", reloads, unit="ms", at_most=200))
    return section


def _measured(
    lab: Lab, port: int, clusters: int, resources: int, seconds: float, settle: float
) -> tuple[float, float, float]:
    """Return the processor time (% of a core), the memory (MB), and the seconds until all had synced."""
    began = time.monotonic()
    process = _follow(lab, port, clusters, resources)
    synced = time.monotonic() - began
    time.sleep(settle)
    cpu, start = process.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    share = (process.cpu_seconds() - cpu) / (time.monotonic() - start) * 100
    process.check()
    memory = process.rss() / 1e6
    lab.processes.stop(process)
    process.log.unlink()
    return share, memory, synced


def _follow(lab: Lab, port: int, clusters: int, resources: int) -> Process:
    """Start the reflectors; return when all have their initial state."""
    argv = [*script_argv("follow.py", lab.python.program), str(port), str(lab.identity.authority), str(clusters)]
    path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH"))))
    process = lab.processes.start("reflectors", [*argv, str(resources)], lab.cores.proxy, {"PYTHONPATH": path})
    deadline = time.monotonic() + _PATIENCE
    while "ready" not in process.log.read_text():
        process.check()
        if time.monotonic() > deadline:
            raise Failed(f"the reflectors did not sync within {_PATIENCE:.0f} s:\n{process.last_words()}")
        time.sleep(0.1)
    return process


def _reloads(lab: Lab, port: int, clusters: int, resources: int) -> list[float]:
    """Return how long a daemon takes for reloads that change one member, in ms, as it tells itself."""
    place = lab.place("fleet", port)

    def write(seconds: int) -> Path:
        return configs.mcproxy_fleet(
            place.directory, place.listen, port, place.identity, clusters, GROUP, f"{seconds}s"
        )

    process = lab.processes.start(MCPROXY, mcproxy_argv(write(5), place.python), lab.cores.proxy)
    wait_for_port(process, place.listen)
    context, deadline = client_context(lab), time.monotonic() + _PATIENCE
    for number in range(resources):
        path = f"/apis/{GROUP}/v1/{resource_name(number)}"
        while (answer := get(place.listen, context, path)).status != 200:
            process.check()
            if time.monotonic() > deadline:
                raise Failed(f"{path} is still answered with {answer.status}: {answer.body[:300]!r}")
            time.sleep(0.1)
    time.sleep(_SETTLE)
    taken = []
    for number in range(_RELOADS):
        command = [str(place.python), "-P", "-m", "mcproxy", "reload", "-c", str(write(6 + number))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.search(r" in ([0-9.]+) s", done.stdout)
        if done.returncode or found is None or "c000" not in done.stdout:
            raise Failed(f"the reload failed: {done.stdout}{done.stderr}")
        taken.append(float(found[1]) * 1e3)
    lab.processes.stop(process)
    return taken
