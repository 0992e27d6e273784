"""Columns of Tables: taken from whatever brings them, first; a list anew only where cells were printed for others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.collection import COLUMN_RELIST_INTERVAL, ColumnRelists
from mcproxy.aggregate.reflector.initial_list import MemberLimits
from mcproxy.aggregate.reflector.reflector import Reflector
from tests.aggregate.reflector.fake_server import FakeServer, event, follow, item, page, plain, stream
from tests.aggregate.reflector.harness import (
    CONFIG_MAPS,
    WIDGETS,
    Site,
    config_map,
    crd,
    names,
    options,
    reads,
    send,
)
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

END = {"k8s.io/initial-events-end": "true"}
OLD = ("Name", "Data", "Age")
NEW = ("Name", "Size", "Age")


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture
def server(reactor: Any, site: Site) -> Iterator[FakeServer]:
    server = FakeServer(reactor)
    yield server
    server.close()


def definitions(*columns: str) -> list[dict[str, Any]]:
    return [{"name": name, "type": "string", "format": "", "description": "", "priority": 0} for name in columns]


def table(version: int, *objects: dict[str, Any], columns: tuple[str, ...] = ()) -> dict[str, Any]:
    rows = [{"cells": [obj.get("metadata", {}).get("name", ""), "x", "1s"], "object": obj} for obj in objects]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": str(version)},
        "columnDefinitions": definitions(*columns) if columns else None,
        "rows": rows,
    }


def bookmark(version: int, *columns: str, end: bool = False) -> bytes:
    metadata = {"resourceVersion": str(version), **({"annotations": END} if end else {})}
    partial = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}
    return event("BOOKMARK", table(version, partial, columns=columns))


def added(name: str, version: int, *columns: str) -> bytes:
    return event("ADDED", table(version, item(name, version), columns=columns))


def columns_of(store: Store) -> list[str] | None:
    return None if store.columns is None else [column["name"] for column in json.loads(store.columns)]


def cells_of(store: Store, name: str) -> Any:
    found = store.get("default", name)
    assert found is not None
    return None if found.cells is None else json.loads(found.cells)


async def test_with_a_watch_list_of_nothing_the_columns_are_in_the_bookmark(site: Site, server: FakeServer) -> None:
    server.watch = lambda target: stream(bookmark(9, *OLD, end=True), added("a", 11))
    store = follow(site, server)
    await site.until(lambda: names(store) == ["a"])
    assert columns_of(store) == list(OLD)
    assert cells_of(store, "a") == ["a", "x", "1s"]
    assert len(server.asked) == 1


async def test_an_empty_page_has_the_columns(site: Site, server: FakeServer) -> None:
    server.watch = lambda target: plain(b"{}", 400) if "sendInitial" in target else stream(added("a", 11, *OLD))
    server.list = lambda target: plain(json.dumps(table(9, columns=OLD)).encode())
    store = follow(site, server)
    assert await store.when_synced(60)
    assert columns_of(store) == list(OLD)
    await site.until(lambda: names(store) == ["a"])
    assert len(server.asked) == 3, "it was listed again"


@pytest.mark.parametrize(
    "first",
    [
        added("a", 11, *OLD),
        bookmark(10, *OLD) + added("a", 11),
        event("ADDED", table(10, {"kind": "ConfigMap"}, columns=OLD)) + added("a", 11),
    ],
    ids=["event", "bookmark", "an event whose object is none"],
)
async def test_a_cache_that_began_without_columns_takes_them_from_the_next_event_that_has_them(
    site: Site, server: FakeServer, first: bytes
) -> None:
    server.watch = lambda target: plain(b"{}", 400) if "sendInitial" in target else stream(first)
    server.list = lambda target: plain(page())  # a List, as of a server that printed none then
    store = follow(site, server)
    await site.until(lambda: names(store) == ["a"])
    assert columns_of(store) == list(OLD)
    assert cells_of(store, "a") == ["a", "x", "1s"]
    assert len(server.asked) == 3


async def test_columns_that_change_while_there_are_objects_are_listed_for_once(site: Site, server: FakeServer) -> None:
    """API servers of two versions behind one name: lists have other columns than watches."""
    server.watch = lambda target: (
        plain(b"{}", 400) if "sendInitial" in target else stream(added("b", 11, *NEW), added("c", 12))
    )
    server.list = lambda target: plain(json.dumps(table(9, item("a"), columns=OLD)).encode())
    store = follow(site, server)
    await site.until(lambda: names(store) == ["a", "b", "c"])
    await site.wait(0.5)
    lists = [query for query in server.asked if "watch" not in query]
    assert len(lists) == 2, "the list was repeated more than once"
    assert columns_of(store) == list(OLD)
    assert cells_of(store, "a") == ["a", "x", "1s"]
    assert [cells_of(store, name) for name in "bc"] == [None, None], "cells stand below other columns"


async def test_pages_with_other_columns_than_the_first(site: Site, server: FakeServer) -> None:
    def pages(target: str) -> bytes:
        if "continue" in target:
            return plain(json.dumps(table(9, item("b"), columns=NEW)).encode())
        first = table(9, item("a"), columns=OLD)
        first["metadata"]["continue"] = "more"
        return plain(json.dumps(first).encode())

    server.watch = lambda target: plain(b"{}", 400) if "sendInitial" in target else stream()
    server.list = pages
    store = follow(site, server)
    assert await store.when_synced(60)
    assert columns_of(store) == list(OLD)
    assert cells_of(store, "a") == ["a", "x", "1s"]
    assert cells_of(store, "b") is None


async def test_a_member_that_gives_no_tables_any_more_has_no_columns(site: Site, server: FakeServer) -> None:
    answers = [
        stream(added("a", 5, *OLD), bookmark(9, end=True), event("ERROR", {"kind": "Status", "code": 410})),
        stream(
            event("ADDED", item("a")), event("BOOKMARK", {"metadata": {"resourceVersion": "9", "annotations": END}})
        ),
    ]
    server.watch = lambda target: answers.pop(0) if len(answers) > 1 else answers[0]
    store = follow(site, server)
    await site.until(lambda: len(server.asked) == 2 and store.lists == 2)
    assert columns_of(store) is None
    assert cells_of(store, "a") is None


def test_a_collection_is_listed_anew_for_the_same_columns_once_in_a_while() -> None:
    relists = ColumnRelists()
    assert relists.allow(b"a", 0.0)
    assert not relists.allow(b"a", COLUMN_RELIST_INTERVAL - 1)
    assert relists.allow(b"b", COLUMN_RELIST_INTERVAL - 1)
    assert relists.allow(b"a", COLUMN_RELIST_INTERVAL)
    assert not all(relists.allow(b"%d" % number, COLUMN_RELIST_INTERVAL) for number in range(100)), (
        "the columns are not bounded"
    )


# -- the simulated cluster, as a real one ---------------------------------------------------------------------------


@pytest.fixture
def east() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=options("--bookmark-seconds", "0.5")) as process:
        yield process


def columned(*columns: str) -> dict[str, Any]:
    definition = crd()
    definition["spec"]["versions"][0]["additionalPrinterColumns"] = [
        {"name": name, "type": "string", "jsonPath": f".spec.{name.lower()}"} for name in columns
    ]
    return definition


def widget(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": {"size": "5"}}


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATH = "/apis/example.com/v1/namespaces/default/widgets"


@pytest.mark.parametrize("objects", [0, 1])
async def test_columns_of_a_definition_that_is_made_and_changed_at_run_time(
    site: Site, east: SimulatedClusterProcess, objects: int
) -> None:
    assert send(east, "POST", CRDS, columned("Color"))[0] == 201
    store = site.follow(east, WIDGETS)
    assert await store.when_synced(60)
    assert columns_of(store) == ["Name", "Color"]
    for number in range(objects):
        assert send(east, "POST", PATH, widget(f"w{number}"))[0] == 201
    patch = [{"op": "replace", "path": "/spec/versions/0", "value": columned("Size")["spec"]["versions"][0]}]
    status, _ = send(east, "PATCH", f"{CRDS}/widgets.example.com", patch, kind="application/json-patch+json")
    assert status == 200
    await site.until(lambda: columns_of(store) == ["Name", "Size"])
    assert send(east, "POST", PATH, widget("z"))[0] == 201
    await site.until(lambda: "z" in names(store))
    assert [cells_of(store, name) for name in names(store)] == [[name, "5"] for name in names(store)]


@pytest.mark.parametrize("saved", [None, b'[{"name":"Name","type":"string"}]'])
@pytest.mark.parametrize("objects", [0, 1])
async def test_a_store_from_disk_takes_the_columns(
    site: Site, east: SimulatedClusterProcess, saved: bytes | None, objects: int
) -> None:
    """Saved without columns, or with those of an earlier version of the cluster."""
    control = ControlClient(east.control_url)
    path = "/api/v1/namespaces/kube-system/configmaps"
    for number in range(objects):
        control.create([config_map(f"m{number}", "kube-system")])
    first = site.follow(east, CONFIG_MAPS, "kube-system")
    assert await first.when_synced(60)
    member = site.reflectors.member("east")
    store = Store(site.reactor, "east", CONFIG_MAPS, "kube-system")
    store.restore(first.snapshot().objects, first.version, saved)
    held = len(store)
    mark = control.mark()
    reflector = Reflector(member, store, MemberLimits(4), site.reactor, site.shared.random)
    reflector.start(member.uid)
    await site.until(lambda: columns_of(store) == ["Name", "Data", "Age"])
    control.create([config_map("z", "kube-system")])
    await site.until(lambda: "z" in names(store))
    reflector.stop()
    listed = [query for query in reads(control, mark, path) if "sendInitial" in query]
    assert len(listed) == (1 if held else 0)
