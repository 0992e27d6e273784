"""`bench aggregate-store`: what 100,000 pods cost in a store of the aggregated API.

Memory at the end and at the peak of the initial sync is what the process grew by (VmRSS, VmHWM), with all that the
allocator keeps. Each round is a process of its own (`bench/fill_store.py`) on the proxy's core and Python.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from bench.lab import Lab
from bench.processes import Failed, pinned
from bench.report import Section, limit
from bench.stats import spread
from bench.subjects import script_argv

OBJECTS = 100_000
_BYTES_EACH = 1024  # beside 1.1 times the JSON
_PATIENCE = 600.0

Figures = dict[str, float]


def measure(lab: Lab, objects: int, rounds: int) -> Section:
    """Fill a store in `rounds` processes."""
    figures = [filled(objects, lab.cores.proxy, lab.python.program) for _ in range(rounds)]
    section = Section(f"A store of {objects:,} pods", ["what", "measured"])
    for what, key, scale, digits, unit in (
        ("JSON of the pods", "json", 1e6, 0, "MB"),
        ("memory", "end", 1e6, 0, "MB"),
        ("memory beside the JSON, each", "beside", 1.0, 0, "bytes"),
        ("initial list, each object", "ingest us", 1.0, 1, "us"),
        ("its commit, at once", "commit ms", 1.0, 1, "ms"),
        ("list without a change, each object", "relist us", 1.0, 1, "us"),
        ("decode an event", "decode event us", 1.0, 1, "us"),
        ("apply it while a snapshot is held", "change us", 1.0, 1, "us"),
        ("take a snapshot", "snapshot us", 1.0, 2, "us"),
        ("save it to a file, in a thread", "save s", 1.0, 1, "s"),
        ("load it again, in a thread", "load s", 1.0, 1, "s"),
        ("the longest that either stopped the reactor", "longest wait ms", 1.0, 0, "ms"),
    ):
        values = [each[key] for each in figures]
        section.rows.append([what, f"{spread(values).show(digits, scale)} {unit}"])
    section.figures["ingest of an object"] = [each["ingest us"] for each in figures]
    section.figures["apply a change"] = [each["change us"] for each in figures]
    section.targets += [
        limit("memory / (1.1 JSON + 1 KB an object)", [each["end"] / each["allowed"] for each in figures], at_most=1),
        limit("peak of the initial sync / end", [each["peak"] / each["end"] for each in figures], at_most=2),
    ]
    return section


def filled(objects: int, core: int, python: Path) -> Figures:
    """Return the figures of one process that fills a store."""
    argv = pinned([*script_argv("fill_store.py", python), str(objects)], core)
    path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=_PATIENCE, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    if done.returncode:
        raise Failed(f"filling a store ended with status {done.returncode}: {done.stderr}")
    figures: Figures = json.loads(done.stdout)
    figures["beside"] = (figures["end"] - figures["json"]) / objects
    figures["allowed"] = 1.1 * figures["json"] + _BYTES_EACH * objects
    return figures
