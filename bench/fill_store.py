"""Fills one store of the aggregated API with pods and prints what that cost, as JSON: ``fill_store.py COUNT``.

The pods come in Tables of 500 in the order of their names, as a kube-apiserver answers a reflector. Making them is not
measured, and is done for 1,000 at a time, so that they do not count as memory of the store. Times are
processor time but for saving and loading.
"""

from __future__ import annotations

import gc
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from twisted.internet.task import Clock

from bench import pods
from mcproxy.aggregate.cache import persistence
from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.decoder import ObjectEvent
from mcproxy.aggregate.cache.store import Store
from mcproxy.kube.resource import APIResource, GroupVersionResource

PODS = APIResource(
    GroupVersionResource("", "v1", "pods"), "Pod", "pod", True, frozenset({"get", "list", "watch"}), ("po",)
)
_PAGE = 500
_BATCH = 1000  # pods of one namespace
_CHANGES = 2000
_TURN = 0.001  # seconds


def main(arguments: list[str]) -> int:
    count = int(arguments[0])
    warm, _ = filled(_BATCH)
    change(warm, 100)
    del warm
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak (VmHWM) begins anew
    store, figures = filled(count)
    figures["peak"] = _resident("VmHWM") - before
    figures["end"] = _resident("VmRSS") - before
    figures["snapshot us"] = _each(lambda: store.snapshot(), 10_000)
    figures["change us"], figures["decode event us"] = change(store, min(_CHANGES, count))
    figures["relist us"] = relisted(store)["ingest us"]
    figures["save s"], figures["load s"], figures["longest wait ms"] = saved(store)
    print(json.dumps(figures))
    return 0


def filled(count: int) -> tuple[Store, dict[str, float]]:
    """Return a store with so many pods, and the bytes of their JSON, the time for each, that of the last step."""
    store = Store(Clock(), "east", PODS)
    return store, _list(store, count)


def relisted(store: Store) -> dict[str, float]:
    """List the same pods once more."""
    return _list(store, len(store))


def change(store: Store, changes: int) -> tuple[float, float]:
    """Return microseconds for one change while a snapshot is held, and for decoding its event."""
    applied = decoded = 0.0
    known = list(islice(store.snapshot(), 0, None, max(1, len(store) // changes)))[:changes]
    for item in known:
        version = store.version + 1
        text = item.json(store.type_prefix, b"%d" % version)
        line = b'{"type":"MODIFIED","object":%s}\n' % text
        began = time.process_time()
        event = store.decoder.decode_event(line, 1.0)
        middle = time.process_time()
        assert isinstance(event, ObjectEvent)
        snapshot = store.snapshot()
        store.apply(event.type, event.object)
        applied += time.process_time() - middle
        decoded += middle - began
        assert snapshot.get(item.namespace, item.name) is not event.object
    return applied / len(known) * 1e6, decoded / len(known) * 1e6


def saved(store: Store) -> tuple[float, float, float]:
    """Return seconds of writing the store to a file and of reading it, in a thread; and by how many milliseconds that
    kept this thread, which stands for the reactor, from running at its worst.
    """
    state, chunks = persistence.state_of(store, ""), store.snapshot().objects.chunks
    with TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        save, save_wait = _in_thread(lambda: persistence.write(path, state, chunks))
        load, load_wait = _in_thread(lambda: persistence.read(path, state))
    return save, load, max(save_wait, load_wait) * 1e3


def _in_thread(work: Callable[[], object]) -> tuple[float, float]:
    thread = Thread(target=work)
    longest, began = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        before = time.perf_counter()
        time.sleep(_TURN)
        longest = max(longest, time.perf_counter() - before - _TURN)
    return time.perf_counter() - began, longest


def _list(store: Store, count: int) -> dict[str, float]:
    size, spent = 0, 0.0
    replacement = store.replace()
    for page, items in _pages(count):
        size += sum(map(len, items))
        began = time.process_time()
        decoded = store.decoder.decode_page(page, 1.0)
        replacement.columns = decoded.columns
        for item in decoded:
            assert isinstance(item, CachedObject), item
            replacement.add(item)
        spent += time.process_time() - began
    began = time.process_time()
    replacement.commit(max(count, store.version + 1))
    last = time.process_time() - began
    assert len(store) == count
    return {"json": size, "ingest us": (spent + last) / count * 1e6, "commit ms": last * 1e3}


def _pages(count: int) -> Iterator[tuple[bytes, list[bytes]]]:
    for start in range(0, count, _BATCH):
        batch = [pods.pod(number, number + 1) for number in range(start, min(start + _BATCH, count))]
        batch.sort(key=lambda item: str(item["metadata"]["name"]))
        items = [pods.encoded(item) for item in batch]
        del batch
        for place in range(0, len(items), _PAGE):
            yield pods.table_page(items[place : place + _PAGE], count), items[place : place + _PAGE]


def _each(call: Callable[[], object], times: int) -> float:
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times * 1e6


def _resident(name: str) -> int:
    """Return VmRSS or VmHWM in bytes."""
    gc.collect()
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no {name} in /proc/self/status")
    return int(found[1]) * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
