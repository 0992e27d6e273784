"""An aggregate of one cluster against recordings of a real kube-apiserver: the same script, the same streams.

The store is fed with what the recorded cluster's watch sent, and every other recorded watch is asked of the aggregate.
Differences are those of the reference page: label and annotation, and initial events by version instead of by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.decoder import ObjectEvent
from mcproxy.aggregate.encoding.objects import error_event
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError
from tests.aggregate.watch.room import START, Room

GOLDEN = Path(__file__).parents[2] / "golden"
VERBS = frozenset({"list", "watch", "get"})
CONFIGMAPS = APIResource(GroupVersionResource("", "v1", "configmaps"), "ConfigMap", "configmap", True, VERBS)
PODS = APIResource(GroupVersionResource("", "v1", "pods"), "Pod", "pod", True, VERBS)
WIDGETS = APIResource(GroupVersionResource("example.com", "v1", "widgets"), "Widget", "widget", True, VERBS)
BEFORE = 398
"""The cluster's version before the script."""
RECORDED = [
    *(
        (CONFIGMAPS, "cm-plain-no-rv", "cm-table", name)
        for name in (
            "cm-from-rv",
            "cm-deprecated-watch-path",
            "cm-single-watch-path",
            "cm-label-selector",
            "cm-legacy-watch1-rv0",
            "cm-name",
            "cm-name-norv",
            "cm-partialmeta",
            "cm-partialmeta-watchlist",
            "cm-plain-no-rv",
            "cm-pretty",
            "cm-table",
            "cm-table-object",
            "cm-table-watchlist",
            "cm-watchlist",
            "cm-watchlist-empty",
            "cm-watchlist-false",
            "cm-watchlist-rv",
            "cm-watchlist-rv0",
        )
    ),
    *(
        (PODS, "pods-all", "pods-table", name)
        for name in ("pods-all", "pods-field-node", "pods-field-phase", "pods-table")
    ),
    *(
        (WIDGETS, "widgets-watchlist", "widgets-table", name)
        for name in (
            "widgets-plain",
            "widgets-field-color",
            "widgets-table",
            "widgets-watchlist",
        )
    ),
]


def recorded(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def events_of(document: Any) -> list[dict[str, Any]]:
    return [json.loads(entry["line"]) for entry in document["response"]["stream"] if entry["line"].strip()]


def rows_by_version(*names: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the recorded rows by resource version, and the columns."""
    rows: dict[str, Any] = {}
    columns: list[dict[str, Any]] = []
    for name in names:
        for event in events_of(recorded(f"watch/{name}")):
            table = event["object"]
            rows[table["metadata"]["resourceVersion"]] = table["rows"][0]
            columns = columns or table["columnDefinitions"]
    return rows, columns


class Script:
    """The store before the script, and the recorded changes."""

    def __init__(self, resource: APIResource, base: str, table: str) -> None:
        self.room = Room("east", resource=resource)
        self.store = self.room.store("east")
        tables = (table, "cm-table-watchlist") if resource is CONFIGMAPS else (table,)
        self.rows, self.columns = rows_by_version(*tables)
        events = [event for event in events_of(recorded(f"watch/{base}")) if event["type"] != "BOOKMARK"]
        replacement = self.store.replace()
        replacement.columns = json.dumps(self.columns, separators=(",", ":")).encode()
        for event in events:
            if int(event["object"]["metadata"]["resourceVersion"]) <= BEFORE:
                replacement.add(self.decoded(event["object"]))
        replacement.commit(BEFORE)
        self.changes = [event for event in events if int(event["object"]["metadata"]["resourceVersion"]) > BEFORE]

    def row(self, obj: Any) -> bytes:
        row = self.rows.get(obj["metadata"]["resourceVersion"])
        some = next(iter(self.rows.values()))["cells"]
        cells = row["cells"] if row else [obj["metadata"]["name"], *some[1:]]  # one that no Table was recorded of
        return json.dumps({"cells": cells, "object": obj}, separators=(",", ":"), ensure_ascii=False).encode()

    def decoded(self, obj: Any) -> CachedObject:
        found = self.store.decoder.decode_row(self.row(obj), START)
        assert isinstance(found, CachedObject), found
        return found

    def play(self) -> None:
        """Make the recorded changes, through the decoder of the member's watch (as Tables)."""
        for event in self.changes:
            obj = event["object"]
            table: dict[str, Any] = {
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {},
                "columnDefinitions": None,
                "rows": [],
            }
            text = json.dumps({"type": event["type"], "object": table}, separators=(",", ":"))
            line = text.replace('"rows":[]', f'"rows":[{self.row(obj).decode()}]').encode()
            decoded = self.store.decoder.decode_event(line, START)
            assert isinstance(decoded, ObjectEvent), decoded
            self.store.apply(decoded.type, decoded.object)


def plain(value: Any, ages: set[int]) -> Any:
    """Return an event without what the aggregate adds, and without ages."""
    if isinstance(value, list):
        return [plain(item, ages) for item in value]
    if not isinstance(value, dict):
        return value
    out = {key: plain(item, ages) for key, item in value.items()}
    if "cells" in out:
        out["cells"] = [cell for number, cell in enumerate(out["cells"]) if number not in ages]
    for field, mark in (("labels", "mcproxy.io/cluster"), ("annotations", "resource.karmada.io/cached-from-cluster")):
        if isinstance(out.get(field), dict) and mark in out[field]:
            del out[field][mark]
            if not out[field]:
                del out[field]
    return out


@pytest.mark.parametrize(("resource", "base", "table", "name"), RECORDED, ids=[case[3] for case in RECORDED])
def test_the_stream_is_the_recorded_one(resource: APIResource, base: str, table: str, name: str) -> None:
    document = recorded(f"watch/{name}")
    script = Script(resource, base, table)
    accept = next(value for field, value in document["request"]["headers"] if field == "Accept")
    path, _, query = document["request"]["path"].partition("?")
    exchange = script.room.watch(query, path=path, accept=accept)
    script.play()
    script.room.run()
    ages = {number for number, column in enumerate(script.columns) if column["name"] == "Age"}
    wanted = [plain(event, ages) for event in events_of(document)]
    found = [plain(event, ages) for event in exchange.events]
    # Bookmarks of the minute are left out.
    wanted = [event for event in wanted if event["type"] != "BOOKMARK" or "initial-events-end" in json.dumps(event)]

    def version(event: dict[str, Any]) -> int:
        return int(event["object"]["metadata"]["resourceVersion"])

    initial = [event for event in wanted if version(event) <= BEFORE and event["type"] == "ADDED"]
    assert len(found) == len(wanted)
    assert found[: len(initial)] == sorted(initial, key=version)
    assert found[len(initial) :] == wanted[len(initial) :]


@pytest.mark.parametrize("name", ["cm-from-rv", "cm-watchlist"])
def test_lines_are_the_recorded_bytes_but_for_label_and_annotation(name: str) -> None:
    document = recorded(f"watch/{name}")
    script = Script(CONFIGMAPS, "cm-plain-no-rv", "cm-table")
    exchange = script.room.watch(document["request"]["path"].partition("?")[2], namespace="demo")
    script.play()
    script.room.run()
    marks = (
        b'"mcproxy.io/cluster":"east",',
        b',"mcproxy.io/cluster":"east"',
        b'"annotations":{"resource.karmada.io/cached-from-cluster":"east"},',
        b',"annotations":{"resource.karmada.io/cached-from-cluster":"east"}',
        b'"labels":{"mcproxy.io/cluster":"east"},',
    )
    found = exchange.sent
    for mark in marks:
        found = found.replace(mark, b"")
    wanted = "".join(entry["line"] for entry in document["response"]["stream"]).encode()
    assert sorted(found.splitlines()) == sorted(wanted.replace(b"\n\n", b"\n").splitlines())


def test_an_expired_version_is_the_recorded_status() -> None:
    (event,) = events_of(recorded("expired/compacted-watch-cr"))
    script = Script(WIDGETS, "widgets-watchlist", "widgets-table")
    with pytest.raises(StatusError) as refused:
        script.room.watch("resourceVersion=260", path="/apis/example.com/v1/namespaces/demo/widgets")
    wanted = event["object"]
    assert (refused.value.code, refused.value.reason) == (wanted["code"], wanted["reason"])
    assert refused.value.message.startswith("too old resource version: 260 (")
    assert json.loads(error_event(refused.value))["object"].keys() == wanted.keys()


def test_a_version_in_the_future_waits_silently() -> None:
    document = recorded("expired/compacted-watch-future")
    assert document["response"]["stream"] == []
    script = Script(CONFIGMAPS, "cm-plain-no-rv", "cm-table")
    script.room.probed["east"] = 200_000
    exchange = script.room.watch("resourceVersion=100524&timeoutSeconds=2", namespace="demo")
    script.play()
    script.room.run(2.5)
    assert exchange.events == []
    assert exchange.ended


def test_a_watch_while_the_definition_is_deleted() -> None:
    wanted = events_of(recorded("crd/watchlist-while-crd-deleted"))
    temps = APIResource(GroupVersionResource("tmp.example.com", "v1", "temps"), "Temp", "temp", True, VERBS)
    room = Room("east", resource=temps)
    store = room.store("east")
    replacement = store.replace()
    decoded = store.decoder.decode_item(json.dumps(wanted[0]["object"]).encode(), START)
    assert isinstance(decoded, CachedObject)
    replacement.add(decoded)
    replacement.commit(1371)
    exchange = room.watch(
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", namespace="demo"
    )
    room.delete("east", "t1", 1374)
    room.run()
    room.view.close(gone=True)
    room.run()
    assert [plain(event, set()) for event in exchange.events] == wanted
    assert exchange.ended
    assert not exchange.aborted


def test_yaml_is_refused() -> None:
    document = recorded("watch/cm-yaml")
    script = Script(CONFIGMAPS, "cm-plain-no-rv", "cm-table")
    with pytest.raises(StatusError) as refused:
        script.room.watch("resourceVersion=398", namespace="demo", accept="application/yaml")
    assert refused.value.code == document["response"]["status"]
    assert refused.value.message == "only the following media types are accepted: application/json;stream=watch"
