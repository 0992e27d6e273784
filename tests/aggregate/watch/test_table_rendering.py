"""Tables of watches: what stands in a row's object, and columns in the first event only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.aggregate.watch.room import RecordedExchange, Room

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


def tables(exchange: RecordedExchange) -> list[dict[str, Any]]:
    return [event["object"] for event in exchange.events]


@pytest.mark.parametrize(
    ("include", "kind", "bookmark"),
    [
        ("", "PartialObjectMetadata", "PartialObjectMetadata"),
        ("Metadata", "PartialObjectMetadata", "PartialObjectMetadata"),
        ("Object", "ConfigMap", "ConfigMap"),
        ("None", None, None),
    ],
)
def test_include_object(include: str, kind: str | None, bookmark: str | None) -> None:
    room = Room("east", "west")
    room.sync("east", 10, ("a", 3))
    room.sync("west", 100, ("b", 90))
    exchange = room.watch(f"{INITIAL}&includeObject={include}", accept=TABLE)
    assert [event["type"] for event in exchange.events] == ["ADDED", "ADDED", "BOOKMARK"]
    found = tables(exchange)
    assert all(table["kind"] == "Table" and len(table["rows"]) == 1 for table in found)
    objects = [table["rows"][0]["object"] for table in found]
    assert [obj and obj["kind"] for obj in objects] == [kind, kind, bookmark]
    for table, obj in zip(found, objects, strict=True):
        assert obj is None or obj["metadata"]["resourceVersion"] == table["metadata"]["resourceVersion"]
    assert found[-1]["metadata"]["resourceVersion"] == room.version()


def test_columns_are_in_the_first_event_of_each_client_only() -> None:
    room = Room("east", "west")
    room.sync("east", 10)
    room.sync("west", 100)
    early = room.watch(f"resourceVersion={room.version()}", accept=TABLE)
    room.put("east", "a", 11)
    room.put("west", "a", 101)
    room.run()
    late = room.watch(f"resourceVersion={room.version()}", accept=TABLE)
    room.put("east", "a", 12)
    room.put("east", "a", 13)
    room.run()
    assert [bool(table["columnDefinitions"]) for table in tables(early)] == [True, False, False, False]
    assert [bool(table["columnDefinitions"]) for table in tables(late)] == [True, False]
    assert [column["name"] for column in tables(late)[0]["columnDefinitions"]] == ["Name", "Age"]


def test_a_bookmark_as_first_event_has_the_columns() -> None:
    room = Room("east", "west")
    room.sync("east", 10)
    room.sync("west", 100)
    exchange = room.watch(f"resourceVersion={room.version()}&allowWatchBookmarks=true", accept=TABLE)
    room.run(70)
    room.put("east", "a", 11)
    room.run()
    assert [event["type"] for event in exchange.events] == ["BOOKMARK", "ADDED"]
    assert [bool(table["columnDefinitions"]) for table in tables(exchange)] == [True, False]
    assert tables(exchange)[0]["rows"][0]["cells"] == ["", "<unknown>"]
