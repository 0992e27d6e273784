"""The server of `bench aggregate-lists` has the lists that are measured, and the client reads them whole."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, succeed

from bench import aggregate_lists
from bench.configs import nginx_file
from bench.lab import open_lab
from bench.list_server import PERCENT, POD_BYTES, filled, handler, view
from bench.pki import Identity
from bench.report import Section
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.freshness import Freshness, FreshnessWaiter
from mcproxy.aggregate.reads.reads import Reads
from mcproxy.http.exchange import Exchange
from mcproxy.http.h1.h1_exchange import H1Exchange
from mcproxy.http.messages import RequestHead
from tests.aggregate.reads.harness import FakeConnection, Response
from tests.support.clock import Clock


def answer(target: str, count: int) -> Response:
    clock = Clock()
    stores = [filled(clock, "east", 0, count // 2), filled(clock, "west", count // 2, count - count // 2)]

    async def probe(store: Store, timeout: float) -> int:
        return store.version

    def in_thread(function: Any, data: bytes) -> Deferred[bytes]:
        return succeed(function(data))

    def failed(exchange: Exchange, error: Exception) -> None:
        raise error

    connection = FakeConnection(clock)
    head = RequestHead()
    head.method, head.target, head.fields, head.http11, head.length = b"GET", target.encode(), b"", True, 0
    head.te_trailers = False
    reads = Reads(clock, FreshnessWaiter(clock, probe, Freshness()), in_thread)
    handler(reads, view(stores), failed)(H1Exchange(cast(Any, connection), head, 0.0))
    while not connection.done:
        clock.advance(0)
    return Response(bytes(connection.wire))


def test_pods_have_the_size_and_one_in_a_hundred_the_label() -> None:
    found = answer("/api/v1/pods", 2000)
    items = found.json()["items"]
    assert len(items) == 2000
    assert POD_BYTES <= len(found.body) / 2000 < POD_BYTES * 1.1
    selected = answer(f"/api/v1/pods?labelSelector=percent%3D{PERCENT}", 2000).json()["items"]
    assert len(selected) == 20
    assert json.dumps(selected[0]) in [json.dumps(item) for item in items]


@pytest.mark.slow
def test_pages_selections_and_idle_listers_are_measured() -> None:
    section = Section("lists", ["what", "processor time ms", "elapsed ms"])
    with open_lab() as lab, aggregate_lists.server(lab, 400) as (process, port):
        aggregate_lists.measure_pages(lab, section, process, port, 400, 1, random.Random(1))
        aggregate_lists.measure_idle(lab, section, process, port)
        aggregate_lists.measure_selections(lab, section, process, port, 400, 1)
    assert [row[0] for row in section.rows[:1]] == ["100 pages of 4 pods"]
    assert "10 of 400 pods by a label selector" in section.rows[2][0]
    assert "MB" in section.targets[1].measured


def test_the_file_of_nginx(tmp_path: Path) -> None:
    identity = Identity(tmp_path / "a", tmp_path / "c", tmp_path / "k")
    text = nginx_file(tmp_path, 4443, identity, "/api/v1/pods", tmp_path / "list.json").read_text()
    assert f"location = /api/v1/pods {{ default_type application/json; alias {tmp_path}/list.json; }}" in text
