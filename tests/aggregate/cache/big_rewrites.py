"""Rewrites objects of 500 KB through stores, as their reflectors do, and prints the memory of the process.

python -m tests.aggregate.cache.big_rewrites STORES REWRITES_A_STORE

Eleven lines, at the beginning and after each tenth: the process's resident memory, and what the event logs hold, bytes.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.event_log import EVENTS_BUDGET, MemoryBudget
from mcproxy.aggregate.cache.store import Store
from tests.aggregate.cache.objects import PODS
from tests.support.clock import Clock

SIZE = 500 * 1024
NAMES = 3


def line(name: str, version: int) -> bytes:
    """Return an object as a member sends it; each is another text."""
    metadata = {"name": name, "namespace": "demo", "uid": f"uid-{name}", "resourceVersion": str(version)}
    text = f"{version:010d}" * (SIZE // 10)
    return json.dumps({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "data": text}).encode()


def report(budget: MemoryBudget) -> None:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * os.sysconf("SC_PAGESIZE"), budget.held, flush=True)


def main(stores: int, rewrites: int) -> None:
    budget, clock = MemoryBudget(EVENTS_BUDGET), Clock()
    found = [Store(clock, f"member-{number}", PODS, budget=budget) for number in range(stores)]
    for store in found:
        store.replace().commit(1)
    report(budget)
    for number in range(rewrites):
        for store in found:
            item = store.decoder.decode_item(line(f"pod-{number % NAMES}", number + 2), 0.0)
            assert isinstance(item, CachedObject)
            store.apply(EventType.MODIFIED, item)
        if (number + 1) % (rewrites // 10) == 0:
            report(budget)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
