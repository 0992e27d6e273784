"""The form of resource versions over a running watch, and what the versions of its events are good for."""

from __future__ import annotations

import pytest

from mcproxy.aggregate.resource_version.formats import read_karmada
from mcproxy.aggregate.resource_version.reader import Expired, VersionReader
from tests.aggregate.resource_version.comparison import compare
from tests.aggregate.watch.room import RecordedExchange, Room
from tests.aggregate.watch.test_watch_handler import INITIAL, code, two, vector

KARMADA = pytest.mark.parametrize("karmada", [False, True])


def vectors(room: Room, exchange: RecordedExchange) -> list[dict[str, int] | None]:
    return [room.view.reader.read(event["object"]["metadata"]["resourceVersion"]) for event in exchange.events]


def forms(exchange: RecordedExchange) -> list[int | str]:
    """Return the number of digits of each event's version, or that it is Karmada's."""
    texts = [event["object"]["metadata"]["resourceVersion"] for event in exchange.events]
    return [len(text) if text.isdecimal() else "Karmada" for text in texts]


# -- over reloads ---------------------------------------------------------------------------------------------------


@KARMADA
def test_a_running_watch_keeps_the_form_of_the_setting_it_began_with(karmada: bool) -> None:
    room = two(karmada=karmada)
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.karmada = not karmada
    room.recompose("east", "west")
    room.put("east", "c", 11)
    room.run()
    assert forms(exchange) == (["Karmada"] if karmada else [39])
    assert room.watch(f"resourceVersion={exchange.version}").brief() == []
    room.put("east", "d", 12)
    room.run()
    found = room.watch(f"resourceVersion={exchange.events[0]['object']['metadata']['resourceVersion']}")
    assert found.brief() == [("ADDED", "east/d", "12")]
    assert forms(found) == ([39] if karmada else ["Karmada"])


def test_a_running_watch_keeps_the_order_it_began_with() -> None:
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.put("east", "c", 11)
    room.run()
    room.recompose("west", "east")
    room.put("east", "c", 12)
    room.put("west", "c", 101)
    room.run()
    assert vectors(room, exchange) == [
        {"east": 11, "west": 100},
        {"east": 12, "west": 100},
        {"east": 12, "west": 101},
    ]
    first, second, _ = (event["object"]["metadata"]["resourceVersion"] for event in exchange.events)
    assert compare(first, second) == -1
    assert room.watch(f"resourceVersion={second}").brief() == [("ADDED", "west/c", "101")]


def test_a_removed_member_is_a_zero_in_a_running_watch_and_has_its_place_when_it_comes_back() -> None:
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.recompose("east")
    room.put("east", "c", 11)
    room.run()
    assert exchange.brief() == [("DELETED", "west/a", "90"), ("ADDED", "east/c", "11")]
    assert vector(room, exchange) == {"east": 11}
    assert forms(exchange) == [39, 39]
    room.recompose("east", "west")
    room.run()
    assert exchange.brief()[2:] == [("ADDED", "west/a", "90")]
    room.put("east", "c", 12)
    room.run()
    assert vectors(room, exchange)[2:] == [{"east": 11, "west": 90}, {"east": 12, "west": 100}]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 4), (4, 5)])
def test_an_added_member_takes_a_running_watch_into_the_new_form_which_is_greater(before: int, after: int) -> None:
    names = ("east", "west", "north", "far", "c0")
    room = Room(*names[:before])
    for name in names[:before]:
        room.sync(name, 10, ("a", 3))
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.put("east", "b", 11)
    room.run()
    room.recompose(*names[:after])
    room.put("east", "b", 12)
    room.sync(names[before], 10, ("a", 3))
    room.run()
    room.put("east", "b", 13)
    room.run()
    assert [data for _, _, data in exchange.brief()] == ["11", "12", "3", "13"]
    texts = [event["object"]["metadata"]["resourceVersion"] for event in exchange.events]
    assert compare(texts[0], texts[1]) == compare(texts[1], texts[3]) == -1
    room.put("east", "b", 14)
    if before > 1:  # a plain number is of nobody where there are several
        assert room.watch(f"resourceVersion={texts[1]}").brief() == [
            ("MODIFIED", "east/b", "13"),
            ("MODIFIED", "east/b", "14"),
            ("ADDED", f"{names[before]}/a", "3"),
        ]
    assert room.watch(f"resourceVersion={texts[3]}").brief() == [("MODIFIED", "east/b", "14")]


def test_a_watch_that_has_no_place_for_an_added_member_ends_with_410() -> None:
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.recompose("east")
    room.run()
    room.recompose("east", "north")
    room.sync("north", 50, ("a", 40))
    room.run()
    assert exchange.brief() == [("DELETED", "west/a", "90"), ("ERROR", "410", "Expired")]
    assert exchange.ended


def test_members_that_the_user_may_not_read_need_no_place() -> None:
    room = two()
    room.rights.denied = {"north"}
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.recompose("north", "west", "east")
    room.put("east", "c", 11)
    room.run()
    assert exchange.brief() == [("ADDED", "east/c", "11")]
    assert vectors(room, exchange) == [{"east": 11, "west": 100}]


# -- versions that do not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("names", "bits"), [(("east", "west"), 54), (("east", "west", "north"), 36)])
def test_a_watch_ends_with_410_when_a_member_passes_what_it_can_tell(names: tuple[str, ...], bits: int) -> None:
    room = Room(*names)
    for name in names:
        room.sync(name, 10, ("a", 3))
    exchange = room.watch(f"resourceVersion={room.version()}")
    before = room.version()
    room.grow(bits + 1)
    room.put("west", "a", 2**bits)
    room.run()
    assert exchange.brief() == [("ERROR", "410", "Expired")]
    assert compare(before, room.version()) == -1
    assert room.watch(f"resourceVersion={before}").brief() == [("MODIFIED", "west/a", str(2**bits))]
    after = room.watch()
    assert {len(event["object"]["metadata"]["resourceVersion"]) for event in after.events} == {26 + 20 * len(names)}


def test_a_client_from_a_replica_that_has_seen_more_changes_the_form_of_its_own_watch_alone() -> None:
    room, ahead = two(), two()
    ahead.grow(60)
    ahead.recompose("east", "west")
    room.probed["west"] = 2**59
    other = room.watch(f"resourceVersion={room.version()}")
    exchange = room.watch(f"resourceVersion={ahead.view.format.list_version((10, 2**59))}")
    room.put("east", "c", 11)
    room.run()
    assert (forms(other), forms(exchange)) == ([39], [66])
    assert vectors(room, exchange) == [{"east": 11, "west": 2**59}]
    assert len(room.version()) == 39


def test_members_with_several_namespaces_are_told_in_the_long_form() -> None:
    room = Room("east", "west", namespaces={"east": ("demo", "shop")})
    room.sync("east", 10, ("a", 3), namespace="demo")
    room.sync("east", 10, namespace="shop")
    room.sync("west", 100)
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.put("east", "a", 12)
    room.run()
    assert vectors(room, exchange) == [{"east": 10, "west": 100}]
    assert VersionReader(room.history).owner_part(exchange.version, "east") == "12"


# -- what an event's object is good for -----------------------------------------------------------------------------


@KARMADA
@pytest.mark.parametrize("names", [("east",), ("east", "west"), ("east", "west", "north", "far")])
def test_each_object_of_initial_events_can_be_written_back_and_resumed_from(
    names: tuple[str, ...], karmada: bool
) -> None:
    room = Room(*names, karmada=karmada)
    for name in names:
        room.sync(name, 100)
        for number in range(6):
            room.put(name, f"o{number}", 101 + number)
        room.store(name).progress(150)
    for query in (INITIAL, "", "resourceVersion=0", f"{INITIAL}&labelSelector=a!%3D1"):
        exchange = room.watch(query)
        check_objects(room, exchange, len(names) * 6)


@KARMADA
def test_each_object_that_arrives_after_an_outage_can_be_written_back(karmada: bool) -> None:
    room = Room("east", "west", karmada=karmada)
    room.sync("east", 100, ("a", 30), ("b", 60))
    room.sync("west", 10)
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.store("east").unavailable("refused")
    room.sync("east", 200, ("b", 180), ("c", 120), ("d", 130))
    room.store("east").available()
    room.put("west", "x", 11)
    room.delete("west", "x", 12)
    room.run()
    assert [kind for kind, _, _ in exchange.brief()] == ["DELETED", "ADDED", "ADDED", "MODIFIED", "ADDED", "DELETED"]
    check_objects(room, exchange, 6)


@KARMADA
def test_each_object_of_several_namespaces_can_be_written_back(karmada: bool) -> None:
    room = Room("east", "west", namespaces={"east": ("demo", "shop")}, karmada=karmada)
    room.sync("east", 20, ("a", 5), ("b", 15), namespace="demo")
    room.sync("east", 20, ("a", 7), ("b", 11), namespace="shop")
    room.sync("west", 100, ("a", 90))
    exchange = room.watch()
    room.put("east", "c", 25)
    room.put("east", "c", 22, namespace="shop")
    room.put("west", "a", 101)
    room.run()
    room.put("east", "c", 26, namespace="shop")
    room.run()
    check_objects(room, exchange, 9)
    texts = [event["object"]["metadata"]["resourceVersion"] for event in exchange.events]
    found = room.watch(f"resourceVersion={texts[-3]}")
    check_objects(room, found, len(found.events))
    assert found.brief() == [("ADDED", "east/c", "25"), ("MODIFIED", "east/c", "26"), ("MODIFIED", "west/a", "101")]


def check_objects(room: Room, exchange: RecordedExchange, count: int) -> None:
    """Write each object back, and resume from each."""
    events = [event for event in exchange.events if event["type"] in ("ADDED", "MODIFIED", "DELETED")]
    assert len(events) == count
    for number, event in enumerate(events):
        metadata = event["object"]["metadata"]
        text, owner = metadata["resourceVersion"], metadata["labels"]["mcproxy.io/cluster"]
        own = room.view.reader.owner_part(text, owner)
        if event["type"] == "DELETED":
            assert int(own) >= int(event["object"]["data"]["v"])
        else:
            assert own == event["object"]["data"]["v"]
        if room.karmada and owner not in room.namespaces:
            assert read_karmada(text)[owner] == own
        found = resumed(room, text)
        if found is None:
            continue  # it lists anew
        rest = {name for _, name, _ in exchange.brief()[number + 1 :]}
        assert rest <= {name for _, name, _ in found.brief()}


def resumed(room: Room, version: str) -> RecordedExchange | None:
    """Return a watch from a version; None: 410."""
    try:
        return room.watch(f"resourceVersion={version}")
    except Expired:
        return None


@KARMADA
@pytest.mark.parametrize("names", [("east", "west"), ("east", "west", "north", "far")])
def test_who_resumes_amid_or_behind_the_deletions_of_a_removed_member_keeps_and_loses_nothing(
    names: tuple[str, ...], karmada: bool
) -> None:
    room, other = Room(*names, karmada=karmada), Room(*names, karmada=karmada)
    for each in (room, other):
        each.sync("east", 10, ("a", 3))
        each.sync("west", 100, ("a", 90), ("b", 91), ("c", 92))
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.recompose(*(name for name in names if name != "west"))
    room.run()
    texts = [event["object"]["metadata"]["resourceVersion"] for event in exchange.events]
    assert len(texts) == 3
    for replica in (room, other):  # the other one has not been reloaded
        for text in texts[:2]:
            assert code(replica, f"resourceVersion={text}") == (410, "Expired")
    assert room.watch(f"resourceVersion={texts[2]}").brief() == []
    added = [("ADDED", "west/a", "90"), ("ADDED", "west/b", "91"), ("ADDED", "west/c", "92")]
    assert other.watch(f"resourceVersion={texts[2]}").brief() == added
