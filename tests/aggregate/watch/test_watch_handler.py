"""Watches on a view: the rules of the reference page "list-watch"."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.aggregate.view.view import AbsentMember
from mcproxy.aggregate.watch.watch_handler import WatchSettings
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.kube.status import StatusError
from tests.aggregate.watch.room import CONFIGMAPS, RecordedExchange, Room, WatchRequest
from tests.support.fake_members import FakeMember, as_member

INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
ALL = [("ADDED", "east/a", "3"), ("ADDED", "east/b", "7"), ("ADDED", "west/a", "90")]
END = ("BOOKMARK", "", "")


def two(**arguments: Any) -> Room:
    room = Room("east", "west", **arguments)
    room.sync("east", 10, ("a", 3), ("b", 7))
    room.sync("west", 100, ("a", 90))
    return room


def code(room: Room, query: str) -> tuple[int, str]:
    with pytest.raises(StatusError) as refused:
        room.watch(query)
    return refused.value.code, refused.value.reason


def vector(room: Room, exchange: RecordedExchange, number: int = -1) -> dict[str, int] | None:
    return room.view.reader.read(exchange.events[number]["object"]["metadata"]["resourceVersion"])


# -- where it begins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["", "resourceVersion=", "resourceVersion=0", "resourceVersion=000"])
def test_a_watch_without_a_version_begins_with_what_is_cached(query: str) -> None:
    room = two()
    exchange = room.watch(query)
    assert exchange.brief() == ALL
    room.put("east", "c", 11)
    room.put("west", "a", 101)
    room.delete("east", "a", 12)
    room.run()
    assert exchange.brief()[3:] == [
        ("ADDED", "east/c", "11"),
        ("MODIFIED", "west/a", "101"),
        ("DELETED", "east/a", "3"),
    ]
    assert not exchange.ended


def test_a_watch_from_a_version_has_every_change_behind_it_once() -> None:
    room = two()
    version = room.version()
    room.put("east", "c", 11)
    room.put("west", "c", 101)
    exchange = room.watch(f"resourceVersion={version}")
    room.put("east", "c", 12)
    room.run()
    assert exchange.brief() == [("ADDED", "east/c", "11"), ("ADDED", "west/c", "101"), ("MODIFIED", "east/c", "12")]
    assert [vector(room, exchange, number) for number in range(3)] == [
        {"east": 11, "west": 100},
        {"east": 11, "west": 101},
        {"east": 12, "west": 101},
    ]


def test_the_lead_of_an_event_is_its_owners_version() -> None:
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.put("east", "a", 11)
    room.run()
    assert exchange.version == room.view.format.event((11, 100), 0, 11)


def test_the_response_begins_at_once() -> None:
    request = two().open(INITIAL)
    assert request.recorded.head_written is not None
    status, fields = request.recorded.head_written
    assert status == 200
    assert b"Content-Type: application/json\r\n" in fields
    assert request.sessions_begun == 1
    assert request.served == ("east", "west")


def test_a_member_without_a_part_begins_with_its_objects() -> None:
    room = two()
    version = room.version(["west"])
    room.put("west", "b", 101)
    exchange = room.watch(f"resourceVersion={version}")
    assert exchange.brief() == [*ALL[:2], ("ADDED", "west/b", "101")]


def test_a_version_that_is_older_than_the_log_is_410_before_the_response_begins() -> None:
    room = two()
    assert code(room, f"resourceVersion={room.view.format.list_version((9, 100))}") == (410, "Expired")


def test_a_version_of_unknown_members_is_410_and_no_version_is_400() -> None:
    room = two()
    other = Room("north", "west", "east")
    assert code(room, f"resourceVersion={other.view.format.list_version((1, 2, 3))}") == (410, "Expired")
    assert code(room, "resourceVersion=100") == (410, "Expired")
    assert code(room, "resourceVersion=abc")[0] == 400
    assert len(room.watches) == 0


def test_a_plain_number_is_the_owners_where_one_object_is_watched() -> None:
    room = two()
    room.put("west", "a", 101)
    exchange = room.watch("fieldSelector=metadata.name%3Da&resourceVersion=100", namespace="demo")
    assert ("MODIFIED", "west/a", "101") not in exchange.brief()  # the first in order has it: east, which is at 10
    room = Room("east", "west")
    room.sync("east", 10, ("b", 3))
    room.sync("west", 100, ("a", 90))
    room.put("west", "a", 101)
    exchange = room.watch("fieldSelector=metadata.name%3Da&resourceVersion=100", namespace="demo")
    assert exchange.brief() == [("MODIFIED", "west/a", "101")]


def test_the_only_member_keeps_its_own_versions() -> None:
    room = Room("east")
    room.sync("east", 10, ("a", 3))
    exchange = room.watch("resourceVersion=10")
    room.put("east", "a", 12)
    room.run()
    assert exchange.version == "12"
    room.put("east", "a", 13)
    assert room.watch("resourceVersion=12").brief() == [("MODIFIED", "east/a", "13")]


def test_without_initial_events_it_begins_now() -> None:
    room = two()
    exchange = room.watch("sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
    assert exchange.brief() == []
    room.put("east", "c", 11)
    room.run()
    assert exchange.brief() == [("ADDED", "east/c", "11")]


def test_a_version_of_a_replica_that_is_ahead_is_waited_for_silently() -> None:
    room = two()
    room.probed["east"] = 12
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((12, 100))}")
    room.put("east", "c", 11)
    room.put("east", "d", 12)
    room.put("west", "b", 101)
    room.run()
    assert exchange.brief() == [("ADDED", "west/b", "101")]
    room.put("east", "e", 13)
    room.run()
    assert exchange.brief()[1:] == [("ADDED", "east/e", "13")]
    assert vector(room, exchange) == {"east": 13, "west": 101}


def test_a_version_that_the_member_itself_has_not_reached_is_of_another_cluster() -> None:
    room = two()
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((5000, 100))}")
    assert exchange.brief() == [("ERROR", "410", "Expired")]
    assert exchange.ended


def test_earlier_layouts_are_read_and_what_was_added_since_begins_with_its_objects() -> None:
    room = Room("east")
    room.sync("east", 10, ("a", 3))
    exchange = room.watch("resourceVersion=10")
    room.recompose("east", "west")
    version = room.version(["east"])
    room.sync("west", 100, ("a", 90))
    room.run()
    assert exchange.brief() == [("ADDED", "west/a", "90")]
    assert room.watch(f"resourceVersion={version}").brief() == [("ADDED", "west/a", "90")]


@pytest.mark.parametrize("karmada", [False, True])
def test_both_forms_are_read_whatever_is_written(karmada: bool) -> None:
    room = two(karmada=karmada)
    other = two(karmada=not karmada)
    room.put("east", "c", 11)
    for version in (room.view.format.list_version((10, 100)), other.view.format.list_version((10, 100))):
        assert room.watch(f"resourceVersion={version}").brief() == [("ADDED", "east/c", "11")]


# -- streaming lists and bookmarks ----------------------------------------------------------------------------------


def test_a_streaming_list_ends_its_initial_events_with_one_bookmark() -> None:
    room = two()
    exchange = room.watch(INITIAL)
    assert exchange.brief(bookmarks=True) == [*ALL, END]
    last = exchange.events[-1]["object"]
    assert last["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert last["metadata"]["resourceVersion"] == room.version()
    assert room.fresh.calls == ["current"]
    room.put("east", "c", 11)
    room.run()
    assert exchange.brief(bookmarks=True)[4:] == [("ADDED", "east/c", "11")]


def test_without_bookmarks_there_is_no_end_marker() -> None:
    exchange = two().watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan")
    assert exchange.brief(bookmarks=True) == ALL


def test_a_streaming_list_at_a_version_waits_for_it() -> None:
    room = two()
    text = room.view.format.list_version((10, 100))
    assert room.watch(f"{INITIAL}&resourceVersion={text}").brief(bookmarks=True) == [*ALL, END]
    assert room.fresh.calls == [{"east": 10, "west": 100}]
    room.fresh.error = StatusError(504, "Timeout: Too large resource version", reason="Timeout")
    exchange = room.watch(f"{INITIAL}&resourceVersion={text}")
    assert exchange.brief() == [("ERROR", "504", "Timeout")]
    assert exchange.ended


def test_a_streaming_list_waits_for_every_member_that_can_be_reached() -> None:
    room = Room("east", "west")
    room.sync("east", 10, ("a", 3))
    exchange = room.watch(INITIAL)
    assert exchange.brief(bookmarks=True) == [("ADDED", "east/a", "3")]
    assert vector(room, exchange) == {"east": 3}
    room.sync("west", 100, ("a", 90))
    room.run()
    assert exchange.brief(bookmarks=True)[1:] == [("ADDED", "west/a", "90"), END]


def test_a_member_that_is_down_does_not_hold_a_streaming_list_back() -> None:
    room = Room("east", "west")
    room.sync("east", 10, ("a", 3))
    exchange = room.watch(INITIAL)
    room.store("west").unavailable("refused")
    room.run()
    assert exchange.brief(bookmarks=True)[1:] == [END]
    assert vector(room, exchange) == {"east": 10}
    room.store("west").available()
    room.sync("west", 100, ("a", 90))
    room.run()
    assert exchange.brief(bookmarks=True)[2:] == [("ADDED", "west/a", "90")]


def test_a_member_of_which_nothing_is_known_is_waited_for_as_long_as_is_set() -> None:
    room = Room("east", settings=WatchSettings(initial_sync_timeout=5))
    room.undiscovered = (FakeMember("far"),)
    room.recompose("east", layout=("east", "far"))
    room.sync("east", 10, ("a", 3))
    exchange = room.watch(INITIAL)
    assert exchange.brief(bookmarks=True) == [("ADDED", "east/a", "3")]
    room.run(6)
    assert exchange.brief(bookmarks=True)[1:] == [END]


def test_bookmarks_come_about_once_a_minute_and_before_the_end() -> None:
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}&allowWatchBookmarks=true&timeoutSeconds=90")
    room.run(50)
    room.store("west").progress(150)
    assert exchange.events == []
    room.run(20)
    assert exchange.brief(bookmarks=True) == [END]
    assert vector(room, exchange) == {"east": 10, "west": 150}
    room.run(17.5)
    assert len(exchange.events) == 1
    room.run(1.5)
    assert len(exchange.events) == 2
    assert not exchange.ended
    room.run(2)
    assert bool(exchange.ended)
    assert not exchange.aborted


def bookmarks(exchange: RecordedExchange) -> int:
    return exchange.brief(bookmarks=True).count(END)


def test_after_an_event_of_a_cluster_that_does_not_lead_a_bookmark_comes_within_a_second() -> None:
    """Clients since 1.36 wait until what they have seen last compares as great as what they wrote (KEP-5504)."""
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}&allowWatchBookmarks=true")
    without = room.watch(f"resourceVersion={room.version()}")
    for version in range(11, 16):  # west is at 100
        room.put("east", "c", version)
        room.run(0.1)
    room.run(0.9)
    assert (bookmarks(exchange), bookmarks(without)) == (1, 0)
    assert exchange.brief(bookmarks=True)[-1] == END
    assert exchange.version == room.version()
    room.run(10)
    assert bookmarks(exchange) == 1
    room.put("west", "c", 101)  # leads
    room.run(10)
    assert bookmarks(exchange) == 1
    room.put("east", "c", 16)
    room.put("west", "c", 102)
    room.run(10)
    assert bookmarks(exchange) == 1
    for version in range(20, 70):  # five seconds
        room.put("east", "c", version)
        room.run(0.1)
    assert 4 <= bookmarks(exchange) <= 6
    room.run(1)
    assert exchange.brief(bookmarks=True)[-1] == END


def test_one_member_or_karmadas_form_needs_no_bookmark_after_a_burst() -> None:
    alone = Room("east")
    alone.sync("east", 10, ("a", 3))
    for room in (two(karmada=True), alone):
        exchange = room.watch(f"resourceVersion={room.version()}&allowWatchBookmarks=true")
        room.put("east", "c", 11)
        room.run(5)
        assert bookmarks(exchange) == 0


@pytest.mark.parametrize(("timeout", "at"), [(1, []), (2, []), (3, [1]), (14, [12])])
def test_the_first_bookmark_of_a_plain_watch(timeout: int, at: list[int]) -> None:
    """2 s before the deadline, as recorded (watch/cm-from-rv-bookmarks.json); none if the watch is no longer."""
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}&allowWatchBookmarks=true&timeoutSeconds={timeout}")
    began = room.clock.seconds()
    seen: list[float] = []
    while room.clock.seconds() < began + timeout - 0.1:
        room.run(0.05)
        if bookmarks(exchange) > len(seen):
            seen.append(room.clock.seconds() - began)
    assert seen == [pytest.approx(each, abs=0.35) for each in at]


def test_resuming_from_a_bookmark_loses_nothing() -> None:
    room = two()
    exchange = room.watch(f"resourceVersion={room.version()}&allowWatchBookmarks=true")
    room.put("east", "c", 11)
    room.run(70)
    version = exchange.version
    assert exchange.brief(bookmarks=True) == [("ADDED", "east/c", "11"), END, END]
    room.put("west", "c", 101)
    room.put("east", "c", 12)
    resumed = room.watch(f"resourceVersion={version}").brief()
    assert sorted(resumed) == [("ADDED", "west/c", "101"), ("MODIFIED", "east/c", "12")]


@pytest.mark.parametrize(("query", "seconds"), [("timeoutSeconds=3", 3), ("", 2700)])
def test_how_long_a_watch_lasts(query: str, seconds: int) -> None:
    room = two()
    exchange = room.watch(query)
    room.clock.advance(seconds - 1)
    room.run(0.3)
    assert not exchange.ended
    room.run(1.5)
    assert bool(exchange.ended)
    assert len(room.watches) == 0


# -- selection ------------------------------------------------------------------------------------------------------


def test_transitions_of_a_label_selector() -> None:
    room = Room("east", "west")
    room.sync("east", 10)
    room.sync("west", 100)
    exchange = room.watch("labelSelector=phase%3Da")
    room.put("east", "x", 11, phase="a")
    room.put("east", "x", 12, phase="b")
    room.put("east", "x", 13, phase="b")
    room.put("east", "x", 14, phase="a")
    room.delete("east", "x", 15)
    room.put("east", "y", 16, phase="b")
    room.run()
    assert exchange.brief() == [
        ("ADDED", "east/x", "11"),
        ("DELETED", "east/x", "11"),
        ("ADDED", "east/x", "14"),
        ("DELETED", "east/x", "14"),
    ]
    assert [vector(room, exchange, number) for number in range(4)] == [
        {"east": 11, "west": 100},
        {"east": 12, "west": 100},
        {"east": 14, "west": 100},
        {"east": 15, "west": 100},
    ]


def test_selectors_by_cluster_by_field_and_by_namespace() -> None:
    room = two()
    assert room.watch("labelSelector=mcproxy.io/cluster%3Dwest").brief() == ALL[2:]
    assert room.watch("fieldSelector=metadata.name%3Da").brief() == [ALL[0], ALL[2]]
    assert room.watch("fieldSelector=data.v%3D7").brief() == ALL[1:2]
    assert room.watch("", namespace="demo").brief() == ALL
    assert room.watch("", namespace="other").brief() == []
    assert code(room, "labelSelector=%21%21")[0] == 400


def test_the_path_of_one_object() -> None:
    room = two()
    exchange = room.watch(path="/api/v1/watch/namespaces/demo/configmaps/b")
    room.put("west", "b", 101)
    room.put("west", "c", 102)
    room.run()
    assert exchange.brief() == [("ADDED", "east/b", "7"), ("ADDED", "west/b", "101")]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("sendInitialEvents=true", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("timeoutSeconds=x", 400),
        ("fieldSelector=a", 400),
    ],
)
def test_invalid_options(query: str, status: int) -> None:
    assert code(two(), query)[0] == status


@pytest.mark.parametrize("accept", ["application/vnd.kubernetes.protobuf", "application/yaml", "text/html"])
def test_a_media_type_that_cannot_be_made_is_406(accept: str) -> None:
    with pytest.raises(StatusError) as refused:
        two().watch(accept=accept)
    assert refused.value.code == 406


def test_protobuf_with_json_beside_it_is_json() -> None:
    exchange = two().watch(accept="application/vnd.kubernetes.protobuf,application/json")
    assert exchange.brief() == ALL


# -- members that are down, come and go -----------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("east", "west"), ("east", "west", "north", "far")])
def test_a_member_that_is_down_does_not_end_the_watch_and_what_it_did_meanwhile_arrives(names: tuple[str, ...]) -> None:
    room = Room(*names)
    room.sync("east", 10, ("a", 3), ("b", 7))
    room.sync("west", 100, ("a", 90))
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.store("east").unavailable("refused")
    room.put("west", "b", 101)
    room.run()
    assert exchange.brief() == [("ADDED", "west/b", "101")]
    room.sync("east", 20, ("b", 15), ("c", 12))
    room.store("east").available()
    room.run()
    assert exchange.brief()[1:] == [("DELETED", "east/a", "3"), ("ADDED", "east/c", "12"), ("MODIFIED", "east/b", "15")]
    if len(names) == 2:  # one number for the object's version and for where to resume: within the outage, that is 410
        assert vector(room, exchange) == {"east": 15, "west": 101}
        assert code(room, f"resourceVersion={exchange.version}") == (410, "Expired")
    else:  # Who resumes behind the last of them need not list anew.
        assert vector(room, exchange) == {"east": 20, "west": 101}
        assert room.watch(f"resourceVersion={exchange.version}").brief() == []


def test_stale_objects_are_shown_with_a_warning() -> None:
    room = two()
    room.store("west").unavailable("refused")
    request = room.open()
    room.run()
    assert request.recorded.brief() == ALL
    assert request.recorded.head_written is not None
    assert b'Warning: 299 - "cluster west: unavailable since 2026-' in request.recorded.head_written[1]
    assert b"showing its last known objects" in request.recorded.head_written[1]
    room.store("west").unavailable("the cluster does not let the proxy watch pods (403)", refused=True)
    refused = room.open()
    assert refused.recorded.head_written is not None
    assert b"west: the proxy may not list configmaps there, showing" in refused.recorded.head_written[1]


def test_what_members_warn_of_themselves_is_passed_on() -> None:
    room = two()
    room.store("west").warnings = ('"v1alpha1" is deprecated',)
    request = room.open()
    room.run()
    assert request.recorded.head_written is not None
    assert b'Warning: 299 - "\\"v1alpha1\\" is deprecated"\r\n' in request.recorded.head_written[1]


def test_partial_leaves_out_what_is_down_until_it_is_back() -> None:
    room = two(settings=WatchSettings(unavailable=UnavailableMembers.PARTIAL))
    room.store("west").unavailable("refused")
    exchange = room.watch(INITIAL)
    assert exchange.brief(bookmarks=True) == [*ALL[:2], END]
    assert vector(room, exchange) == {"east": 10}  # a bookmark's
    room.put("east", "c", 11)
    room.run()
    room.store("west").available()
    room.run()
    assert exchange.brief()[2:] == [("ADDED", "east/c", "11"), ("ADDED", "west/a", "90")]
    assert vector(room, exchange) == {"east": 11, "west": 90}


def test_partial_goes_on_from_a_version_of_a_member_that_is_down() -> None:
    room = two(settings=WatchSettings(unavailable=UnavailableMembers.PARTIAL))
    version = room.version()
    room.store("west").unavailable("refused")
    exchange = room.watch(f"resourceVersion={version}")
    room.sync("west", 110, ("a", 105))
    room.store("west").available()
    room.run()
    assert exchange.brief() == [("MODIFIED", "west/a", "105")]


def test_fail_refuses_new_watches_and_leaves_running_ones() -> None:
    room = two(settings=WatchSettings(unavailable=UnavailableMembers.FAIL))
    exchange = room.watch()
    room.store("west").unavailable("refused")
    room.put("east", "c", 11)
    room.run()
    assert exchange.brief() == [*ALL, ("ADDED", "east/c", "11")]
    assert code(room, "")[0] == 503


def test_a_removed_member_is_deleted() -> None:
    room = two()
    exchange = room.watch()
    version = room.version()
    room.recompose("east")
    room.run()
    assert exchange.brief()[3:] == [("DELETED", "west/a", "90")]
    room.put("east", "c", 11)
    room.run()
    assert exchange.brief()[4:] == [("ADDED", "east/c", "11")]
    assert vector(room, exchange) == {"east": 11}
    assert len(exchange.version) == 39
    assert room.watch(f"resourceVersion={exchange.version}").brief() == []
    assert room.watch(f"resourceVersion={room.version()}").brief() == []
    assert room.version() == "11"
    assert code(room, f"resourceVersion={version}") == (410, "Expired")


def test_a_resume_amid_the_deletions_of_a_removed_member_is_410() -> None:
    room = Room("east", "west")
    room.sync("east", 10)
    room.sync("west", 100, ("a", 90), ("b", 91))
    exchange = room.watch()
    room.recompose("east")
    room.run()
    assert exchange.brief()[2:] == [("DELETED", "west/a", "90"), ("DELETED", "west/b", "91")]
    amid = exchange.events[2]["object"]["metadata"]["resourceVersion"]
    assert code(room, f"resourceVersion={amid}") == (410, "Expired")


def test_an_added_member_is_added_with_the_rights_to_it() -> None:
    room = two()
    exchange = room.watch()
    denied = room.watch()
    room.rights.denied = {"north"}
    room.recompose("east", "west", "north")
    room.sync("north", 50, ("a", 40))
    room.run()
    assert exchange.brief() == ALL
    room.rights.denied = set()
    room.run(31)
    assert exchange.brief()[3:] == denied.brief()[3:] == [("ADDED", "north/a", "40")]
    assert vector(room, exchange) == {"east": 10, "west": 100, "north": 40}


def test_a_watch_that_was_not_decided_for_an_added_member_is_opened_anew_and_gets_it() -> None:
    room = two()
    request = room.open(f"resourceVersion={room.version()}")
    request.members = ("east", "west")
    room.put("east", "c", 11)
    room.run()
    room.recompose("east", "west", "north")
    room.sync("north", 50, ("a", 40))
    room.run(6)
    assert request.recorded.brief() == [("ADDED", "east/c", "11")]
    assert request.recorded.ended
    assert not request.recorded.aborted
    assert room.watch(f"resourceVersion={request.recorded.version}").brief() == [("ADDED", "north/a", "40")]


def test_of_a_cluster_that_was_swapped_nothing_survives() -> None:
    room = two()
    exchange = room.watch()
    old = exchange.version
    room.store("west").clear()
    room.run()
    assert exchange.brief()[3:] == [("DELETED", "west/a", "90")]
    room.sync("west", 130, ("z", 20))
    room.put("west", "z", 131)
    room.run()
    assert exchange.brief()[4:] == [("ADDED", "west/z", "131")]
    assert vector(room, exchange) == {"east": 10, "west": 131}
    assert code(room, f"resourceVersion={old}") == (410, "Expired")


def test_a_member_that_was_put_back_ends_the_watches_that_have_seen_more_of_it() -> None:
    room = two()
    everywhere, elsewhere = room.watch(), room.open()
    elsewhere.recorded.limit = 0
    room.rights.denied = {"west"}
    east = room.watch()
    room.rights.denied = set()
    room.store("west").clear()
    room.run()
    between = room.watch()  # has seen nothing of it
    room.sync("west", 30, ("z", 20))
    room.run()
    assert everywhere.brief()[3:] == [("DELETED", "west/a", "90"), ("ERROR", "410", "Expired")]
    assert everywhere.ended
    assert elsewhere.recorded.ended, "one that does not read"
    assert not east.ended
    assert not between.ended
    assert between.brief()[-1] == ("ADDED", "west/z", "20")
    room.put("west", "z", 31)
    room.run()
    assert between.brief()[-1] == ("MODIFIED", "west/z", "31")


def test_of_a_member_that_was_put_back_nothing_is_deleted() -> None:
    """Most of its objects are there: an informer that saw DELETED for all would act on that."""
    room = two()
    everywhere = room.watch()
    room.rights.denied = {"west"}
    east = room.watch()
    room.rights.denied = set()
    room.store("west").put_back()
    room.run()
    assert everywhere.brief()[3:] == [("ERROR", "410", "Expired")]
    assert not east.ended
    room.sync("west", 20, ("a", 20))
    assert not room.store("west").older
    room.put("east", "c", 131)
    room.run()
    assert east.brief()[-1] == ("ADDED", "east/c", "131")


def test_the_last_watch_of_a_member_that_was_put_back_leaves_nothing() -> None:
    room = two()
    room.watch()
    room.store("west").put_back()
    room.run(1)
    assert len(room.watches) == 0
    assert room.clock.getDelayedCalls() == []


@pytest.mark.parametrize("filled", [True, False])
def test_a_watch_that_was_opened_while_a_member_was_away_ends_if_it_comes_back_older(filled: bool) -> None:
    """At a version of another replica, which this one has not reached: it was silent for good."""
    room = two() if filled else Room("east", "west")
    if not filled:
        room.sync("east", 10, ("a", 3))
    west = room.store("west")
    west.unavailable("cut off")
    room.probed["west"] = 120
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((10, 150))}")
    room.run(30)
    assert exchange.brief() == [], "what cannot be asked is waited for"
    west.available()
    if not filled:
        room.sync("west", 120, ("a", 90))
    room.run()
    assert exchange.brief() == [("ERROR", "410", "Expired")]
    room.run(1)
    assert room.clock.getDelayedCalls() == []


def test_a_member_that_is_put_back_at_once_is_asked_when_it_is_followed_again() -> None:
    room = two()
    room.probed["west"] = 160
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((10, 150))}")
    room.run(1)
    assert not exchange.ended
    room.probed["west"] = 120
    room.store("west").followed()
    room.run()
    assert exchange.brief() == [("ERROR", "410", "Expired")]


def test_a_member_that_does_not_answer_is_asked_again_while_a_watch_is_ahead_of_it() -> None:
    room = two()
    asked: list[float] = []

    async def probe(store: Any, timeout: float) -> int:
        asked.append(room.clock.seconds())
        if len(asked) < 3:
            raise MemberError("no answer")
        return 120

    room.watches._probe = probe
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((10, 150))}")
    room.run(25)
    assert exchange.brief() == [("ERROR", "410", "Expired")]
    assert len(asked) == 3
    room.run(20)
    assert len(asked) == 3
    assert room.clock.getDelayedCalls() == []


def test_a_member_that_is_removed_while_a_watch_is_ahead_of_it_is_410() -> None:
    """Which of its objects the client has is not known here, so nothing can tell which to delete."""
    room = two()
    room.probed["east"] = 12
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((12, 100))}")
    room.recompose("west", layout=("east", "west"))
    room.run()
    assert exchange.brief() == [("ERROR", "410", "Expired")]
    assert exchange.ended


def test_a_watch_is_no_longer_ahead_of_a_store_that_is_emptied_and_begins_with_its_objects() -> None:
    """A bookmark of the member got beyond the client's version, which it has not seen when the store is emptied."""
    room = Room("east", "west")
    room.sync("east", 10)
    room.sync("west", 100, ("a", 90))
    room.probed["east"] = 12
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((12, 100))}")
    assert exchange.handler is not None
    exchange.handler.pause_response()
    room.store("east").progress(20)
    room.store("east").clear()
    room.run()
    exchange.handler.resume_response()
    room.put("west", "b", 101)
    room.run()
    assert exchange.brief() == [("ADDED", "west/b", "101")]
    room.sync("east", 30, ("a", 25))
    room.run()
    assert exchange.brief()[1:] == [("ADDED", "east/a", "25")]
    room.recompose("west", layout=("east", "west"))
    room.put("west", "c", 102)
    room.run()
    assert exchange.brief()[2:] == [("DELETED", "east/a", "25"), ("ADDED", "west/c", "102")]
    assert not exchange.ended


def test_a_watch_that_a_bookmark_has_brought_level_goes_on_without_the_member() -> None:
    room = two()
    room.probed["east"] = 12
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((12, 100))}")
    room.store("east").progress(20)
    room.run()
    room.recompose("west", layout=("east", "west"))
    room.put("west", "b", 101)
    room.run()
    assert sorted(exchange.brief()) == [("ADDED", "west/b", "101"), *(("DELETED", *each[1:]) for each in ALL[:2])]
    assert not exchange.ended


def test_nobody_is_asked_for_watches_that_stand_at_what_is_known() -> None:
    room = two()
    asked: list[str] = []

    async def probe(store: Any, timeout: float) -> int:
        asked.append(store.member)
        return 1000

    room.watches._probe = probe
    exchange = room.watch(f"resourceVersion={room.version()}")
    ahead = room.watch(f"resourceVersion={room.view.format.list_version((10, 150))}")
    room.run(1)
    assert asked == ["west"]
    room.store("west").progress(150)  # as far as the watch has got, and no further
    room.run(30)
    assert asked == ["west"]
    assert not exchange.ended
    assert not ahead.ended


def test_a_definition_that_is_deleted_ends_the_watch_after_its_objects() -> None:
    room = two()
    exchange = room.watch()
    room.view.close(gone=True)
    room.run()
    assert exchange.brief()[3:] == [(("DELETED"), place, data) for _, place, data in ALL]
    assert exchange.ended
    assert not exchange.aborted
    assert len(room.watches) == 0


def test_the_end_of_the_aggregate_says_nothing_of_objects() -> None:
    room = two()
    exchange = room.watch()
    room.view.close(gone=False)
    room.run()
    assert exchange.brief() == ALL
    assert exchange.ended


# -- rights ---------------------------------------------------------------------------------------------------------


def test_members_that_the_user_may_not_read_are_left_out() -> None:
    room = two()
    room.rights.denied = {"west"}
    request = room.open()
    room.put("west", "b", 101)
    room.run()
    assert request.recorded.brief() == ALL[:2]
    assert request.recorded.head_written is not None
    assert b"cluster west: its objects are left out: no" in request.recorded.head_written[1]
    assert vector(room, request.recorded) == {"east": 7}


def test_nobody_allowed_is_403() -> None:
    room = two()
    room.rights.denied = {"east", "west"}
    assert code(room, "")[0] == 403


def test_a_version_with_a_part_that_may_not_be_read_is_410_so_that_nothing_of_it_is_kept() -> None:
    room = two()
    version = room.version()
    room.rights.denied = {"west"}
    assert code(room, f"resourceVersion={version}") == (410, "Expired")
    assert room.watch(f"resourceVersion={room.version(['east'])}").brief() == []


def test_who_loses_a_member_lists_anew_and_who_loses_all_is_ended() -> None:
    room = two()
    exchange = room.watch()
    room.run(35)
    assert not exchange.ended
    room.rights.denied = {"west"}
    room.run(31)
    assert exchange.brief()[3:] == [("ERROR", "410", "Expired")]
    assert bool(exchange.ended)
    exchange = room.watch()
    room.rights.denied = {"east", "west"}
    room.run(31)
    assert exchange.brief()[2:] == [("ERROR", "403", "Forbidden")]
    assert exchange.ended


@pytest.mark.parametrize("query", ["", INITIAL + "&"])
@pytest.mark.parametrize("unavailable", list(UnavailableMembers))
def test_a_version_with_a_part_of_a_member_that_cannot_be_asked_is_503(
    query: str, unavailable: UnavailableMembers
) -> None:
    """Upon 410 the client would list without the member, and delete all its objects."""
    room = two(settings=WatchSettings(unavailable=unavailable))
    version = room.version()
    room.rights.unasked = {"west"}
    assert code(room, f"{query}resourceVersion={version}") == (503, "ServiceUnavailable")
    if unavailable is not UnavailableMembers.FAIL:
        exchange = room.watch(f"resourceVersion={room.version(['east'])}")
        room.put("west", "b", 101)
        room.run()
        assert exchange.brief() == []


@pytest.mark.parametrize("query", ["", INITIAL + "&"])
def test_a_version_with_a_part_of_a_member_that_was_never_reached_here_is_503(query: str) -> None:
    room = two()
    version = room.version()
    far = FakeMember("west")
    room.absent = (AbsentMember(as_member(far), ("",)),)
    room.recompose("east", layout=("east", "west"))
    assert code(room, f"{query}resourceVersion={version}") == (503, "ServiceUnavailable")
    far.discovery.set()
    if not query:  # it is known now that it has no such resource
        assert code(room, f"resourceVersion={version}") == (410, "Expired")


def test_a_streaming_list_that_a_member_that_is_away_is_behind_is_503() -> None:
    room = two()
    version = room.view.format.list_version((10, 105))
    room.store("west").unavailable("no route")
    assert code(room, f"{INITIAL}&resourceVersion={version}") == (503, "ServiceUnavailable")
    assert room.watch(f"resourceVersion={version}").brief() == []  # what comes later is not lost
    room.store("west").clear()
    assert code(room, f"{INITIAL}&resourceVersion={room.view.format.list_version((10, 100))}")[0] == 503


@pytest.mark.parametrize("state", ["away", "unasked"])
def test_a_streaming_list_of_a_name_that_may_be_a_members_is_503(state: str) -> None:
    room = two()
    if state == "away":
        room.store("west").unavailable("no route")
    else:
        room.rights.unasked = {"west"}
    query = INITIAL + "&fieldSelector=metadata.name%3D"
    assert code(room, query + "none") == (503, "ServiceUnavailable")
    assert room.watch(query + "a").brief()[0][0] == "ADDED"
    assert room.watch("fieldSelector=metadata.name%3Dnone").brief() == []  # says nothing of what is there


def test_a_plain_number_of_an_object_whose_owner_may_be_away_is_503() -> None:
    room = two()
    room.rights.unasked = {"west"}
    assert code(room, "fieldSelector=metadata.name%3Dnone&resourceVersion=12") == (503, "ServiceUnavailable")
    room.rights.unasked, room.rights.denied = set(), {"west"}
    assert code(room, "fieldSelector=metadata.name%3Dnone&resourceVersion=12") == (410, "Expired")


def test_a_running_watch_keeps_a_member_whose_last_decision_ends_while_it_is_away() -> None:
    room = two()
    exchange = room.watch()
    room.store("west").unavailable("no route")
    room.rights.unasked = {"west"}
    room.run(61)
    room.put("east", "n", 11)
    room.run()
    assert exchange.brief()[3:] == [("ADDED", "east/n", "11")]
    assert vector(room, exchange) == {"east": 11, "west": 100}
    asked = room.rights.asked
    room.rights.unasked = set()
    room.store("west").available()  # it is asked at once
    assert room.rights.asked > asked
    room.put("west", "b", 101)
    room.run(31)
    assert exchange.brief()[4:] == [("ADDED", "west/b", "101")]
    assert not exchange.ended


def test_a_running_watch_shows_nothing_more_of_a_member_that_is_there_and_cannot_be_asked() -> None:
    room = two()
    exchange = room.watch()
    room.rights.unasked = {"west"}
    room.run(31)
    assert exchange.brief()[3:] == [("ERROR", "503", "ServiceUnavailable")]
    assert exchange.ended

    room.rights.unasked = set()
    exchange = room.watch()
    room.store("west").unavailable("no route")
    room.rights.unasked = {"west"}
    room.run(31)
    assert not exchange.ended
    room.store("west").available()
    room.put("west", "c", 110)
    room.run()
    assert exchange.brief()[3:] == [("ERROR", "503", "ServiceUnavailable")]


def test_a_member_that_refuses_ends_the_watch_whoever_else_cannot_be_asked() -> None:
    room = two()
    exchange = room.watch()
    room.store("west").unavailable("no route")
    room.rights.denied, room.rights.unasked = {"east"}, {"west"}
    room.run(31)
    assert exchange.brief()[3:] == [("ERROR", "410", "Expired")]


# -- the client -----------------------------------------------------------------------------------------------------


def test_the_drain_ends_a_watch_between_two_events() -> None:
    room = two()
    exchange = room.watch()
    assert exchange.handler is not None
    exchange.handler.end_gracefully()
    assert exchange.ended
    assert exchange.brief() == ALL
    assert len(room.watches) == 0


def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    room = two()
    exchange = room.watch()
    assert exchange.handler is not None
    exchange.handler.cancelled()
    room.put("east", "c", 11)
    room.run()
    assert exchange.brief() == ALL
    assert len(room.watches) == 0
    room.run(2)
    assert room.clock.getDelayedCalls() == []


def test_the_end_of_all_watches() -> None:
    room = two()
    first, second = room.watch(), room.watch("labelSelector=a")
    room.watches.stop()
    assert first.ended
    assert second.ended
    assert not first.aborted


def test_objects_are_the_members_bytes_but_for_label_annotation_and_version() -> None:
    room = Room("east")
    room.sync("east", 10, ("a", 3))
    (line,) = room.watch().lines
    obj = json.loads(line)["object"]
    assert line.startswith(b'{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a",')
    assert obj["metadata"]["labels"] == {"mcproxy.io/cluster": "east"}
    assert obj["metadata"]["annotations"] == {"resource.karmada.io/cached-from-cluster": "east"}
    assert obj["metadata"]["resourceVersion"] == "3"


def test_a_bookmark_that_finds_that_something_was_missed_is_410() -> None:
    room = two()
    room.probed["east"] = 15
    exchange = room.watch(f"resourceVersion={room.view.format.list_version((15, 100))}&allowWatchBookmarks=true")
    room.run(1)
    room.sync("east", 30, ("a", 3), ("b", 7))  # what came and went between 10 and 30 is not known here
    room.run(1)
    assert exchange.brief() == [("ERROR", "410", "Expired")]
    assert exchange.ended


@pytest.mark.parametrize("gone", [True, False])
def test_a_watch_whose_view_ends_while_the_members_are_asked_is_refused(gone: bool) -> None:
    room = two()
    answer = room.rights.waiting = Deferred[None]()
    request = WatchRequest(f"{CONFIGMAPS.gvr.path()}?watch=true")
    served = Deferred.fromCoroutine(room.watches.serve(cast(Any, request), room.view, cast(Any, room.rights)))
    room.watches.stop()
    room.view.close(gone=gone)
    answer.callback(None)
    problems: list[Any] = []
    served.addErrback(lambda failure: problems.append(failure.value))
    assert [(error.code, error.headers) for error in problems] == [(503, ((b"Retry-After", b"1"),))]
    assert len(room.watches) == 0
