"""The store that is measured holds what it says, and a process of its own tells what that cost."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench import pods
from bench.aggregate_store import filled
from bench.fill_store import change, relisted
from bench.fill_store import filled as store_filled


def test_pods_are_realistic() -> None:
    texts = [pods.encoded(pods.pod(number, number + 1)) for number in range(2000)]
    assert all(1000 < len(text) < 4096 for text in texts)
    metadata = [json.loads(text)["metadata"] for text in texts]
    assert len({(item["namespace"], item["name"]) for item in metadata}) == 2000
    assert len({json.dumps(item["labels"]) for item in metadata}) == 2000 // pods.REPLICAS


def test_a_store_is_filled_changed_and_listed_again() -> None:
    store, figures = store_filled(2500)
    assert len(store) == 2500
    assert all(item.cells for item in store.snapshot())
    assert 2500 * 1000 < figures["json"] < 2500 * 4096
    change(store, 50)
    assert store.version == 2550
    relisted(store)
    assert (len(store), store.version) == (2500, 2551)


def test_a_process_tells_what_a_store_costs() -> None:
    figures = filled(2000, min(os.sched_getaffinity(0)), Path(sys.executable))
    assert figures["json"] < figures["end"] <= figures["peak"]
    assert figures["end"] < 3 * figures["allowed"]
    assert all(value > 0 for value in figures.values())
