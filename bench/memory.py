"""`bench memory`: what the tables of the access layer cost when many callers are known.

10,000 service accounts with a cached token each, and 100,000 users with a bucket each. A table is filled in a process
of its own (`bench/fill.py`), and what counts is by how much that one's resident memory (VmRSS) grows meanwhile: with
all that the allocator cannot give back, which tracemalloc would not show.
"""

from __future__ import annotations

import subprocess

from bench.lab import Lab
from bench.processes import Failed, pinned
from bench.report import Section, limit
from bench.stats import spread
from bench.subjects import script_argv

TOKENS, USERS = 10_000, 100_000
_PATIENCE = 120.0


def measure(lab: Lab, rounds: int) -> Section:
    """Fill each table in `rounds` processes."""
    section = Section("Memory of the access layer", ["what", "RSS grows by MB", "bytes each"])
    for table, name, count, most in (
        ("tokens", "cached tokens", TOKENS, 20),
        ("buckets", "users in token buckets", USERS, 30),
    ):
        what = f"{count:,} {name}"
        grown = [grown_by(table, count, lab.cores.proxy) for _ in range(rounds)]
        section.rows.append([what, spread(grown).show(1, 1e6), spread(grown).show(0, count)])
        section.targets.append(limit(what, [one / 1e6 for one in grown], unit="MB", digits=1, at_most=most))
    return section


def grown_by(table: str, count: int, core: int) -> int:
    """Return by how many bytes a process grows that fills a table with so many entries."""
    argv = pinned([*script_argv("fill.py"), table, str(count)], core)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    if done.returncode:
        raise Failed(f"filling {table} ended with status {done.returncode}: {done.stderr}")
    return int(done.stdout)
