"""Tables of watches: what stands in a row's object, and columns in the first event only."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from mcproxy.aggregate.cache.cached_object import EventType
from tests.aggregate.watch.room import RecordedExchange, Room, make_object

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


# -- columns that become known, or others, while a watch is open -----------------------------------------------------


def columns(*names: str) -> bytes:
    return json.dumps([{"name": name, "type": "string"} for name in names]).encode()


def put_row(room: Room, member: str, name: str, version: int, *cells: object) -> None:
    """An event of the member's watch, as a Table."""
    store = room.store(member)
    obj = make_object(store, name, version)
    store.apply(EventType.MODIFIED, msgspec.structs.replace(obj, cells=json.dumps(cells).encode()))


def shown(exchange: RecordedExchange) -> list[tuple[list[str] | None, list[Any]]]:
    """Return columns, where they are told, and cells of each event."""
    return [
        (
            table["columnDefinitions"] and [column["name"] for column in table["columnDefinitions"]],
            table["rows"][0]["cells"],
        )
        for table in tables(exchange)
    ]


def test_a_watch_that_began_before_the_columns_were_known_is_told_of_them() -> None:
    room = Room("east", "west")
    room.sync("east", 10)
    room.sync("west", 100)
    watches = [room.watch(f"{INITIAL}", accept=TABLE) for _ in range(3)]
    assert room.store("east").take_columns(columns("Name", "Data", "Age"))
    put_row(room, "east", "a", 11, "a", "0", "1s")
    put_row(room, "east", "b", 12, "b", "0", "1s")
    room.run()
    late = room.watch(f"resourceVersion={room.version()}", accept=TABLE)
    put_row(room, "east", "c", 13, "c", "0", "1s")
    room.run()
    for exchange in watches:
        headings = [heading for heading, _ in shown(exchange)]
        assert headings == [["Name", "Age"], ["Name", "Data", "Age"], None, None]
        assert [len(cells) for _, cells in shown(exchange)] == [2, 3, 3, 3]
        assert [cells[1] for _, cells in shown(exchange)[1:]] == ["0", "0", "0"]
    assert [heading for heading, _ in shown(late)] == [["Name", "Data", "Age"]]
    assert len({exchange.sent for exchange in watches}) == 1


def test_a_watch_is_told_of_the_columns_that_a_relist_has_changed() -> None:
    room = Room("east", "west")
    room.store("east").take_columns(columns("Name", "Old"))
    room.store("west").take_columns(columns("Name", "Old"))
    room.sync("east", 10)
    room.sync("west", 100)
    exchange = room.watch(f"resourceVersion={room.version()}", accept=TABLE)
    put_row(room, "east", "a", 11, "a", "1")
    room.run()
    assert room.store("west").take_columns(columns("Name", "New"))
    put_row(room, "west", "b", 101, "b", "2")
    put_row(room, "east", "a", 12, "a", "3")
    room.run()
    assert shown(exchange) == [
        (["Name", "Old"], ["a", "1"]),
        (["Name", "New", "Old"], ["b", "2", None]),
        (None, ["a", None, "3"]),
    ]


def test_a_member_that_holds_nothing_and_knows_no_columns_adds_none() -> None:
    room = Room("east", "west")
    room.store("east").take_columns(columns("Name", "Color"))
    room.sync("east", 10)
    room.sync("west", 100)
    exchange = room.watch(f"resourceVersion={room.version()}", accept=TABLE)
    put_row(room, "east", "a", 11, "a", "red")
    room.run()
    room.put("west", "b", 101)  # a member that gives no Tables
    room.run()
    assert [heading for heading, _ in shown(exchange)] == [["Name", "Color"], ["Name", "Age", "Color"]]
    assert [cells[0] for _, cells in shown(exchange)] == ["a", "b"]


def test_columns_of_members_that_may_not_be_read_are_not_shown() -> None:
    room = Room("east", "west")
    room.store("east").take_columns(columns("Name", "Color"))
    room.store("west").take_columns(columns("Name", "Secret"))
    room.sync("east", 10)
    room.sync("west", 100)
    every = room.watch(f"resourceVersion={room.version()}", accept=TABLE)
    room.rights.denied = {"west"}
    exchange = room.watch(f"resourceVersion={room.version(['east'])}", accept=TABLE)
    put_row(room, "east", "a", 11, "a", "red")
    room.run()
    assert shown(exchange) == [(["Name", "Color"], ["a", "red"])]
    assert shown(every) == [(["Name", "Secret", "Color"], ["a", None, "red"])]
