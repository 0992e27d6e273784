"""Watches that resume at a version which a member had twice: before it was put back to a backup, and since.

Nothing in a version tells the two apart. As soon as the member is beyond all that was seen of it before, such a watch
is 410, so what the client has of the state that is undone does not stay.
"""

from __future__ import annotations

import pytest

from tests.aggregate.watch.room import Room
from tests.aggregate.watch.test_watch_handler import code, two


def put_back(room: Room, version: int = 80) -> None:
    """West goes back to before `a` was written."""
    room.store("west").put_back()
    room.sync("west", version, ("z", 20))
    room.run()


@pytest.mark.parametrize("event", [True, False])
def test_beyond_what_was_seen_before_no_version_of_the_other_branch_is_resumed(event: bool) -> None:
    room = two()
    old = room.version()
    put_back(room)
    room.put("west", "y", 95)
    between = room.version()
    running = room.watch(f"resourceVersion={between}")
    room.store("west").progress(100)
    same = room.version()
    assert same == old
    assert not room.watch(f"resourceVersion={same}").ended, "it may be of the new branch, and must not list for ever"
    if event:
        room.put("west", "y", 101)
    else:
        room.store("west").progress(101)
    room.run()
    for version in (old, between, same):
        assert code(room, f"resourceVersion={version}") == (410, "Expired")
    assert not room.watch(f"resourceVersion={room.version()}").ended
    assert not running.ended
    room.put("west", "x", 102)
    room.run()
    assert running.brief()[-1] == ("ADDED", "west/x", "102")
    assert code(room, f"resourceVersion={old}") == (410, "Expired")


def test_a_list_that_brings_a_member_beyond_does_the_same() -> None:
    room = two()
    old = room.version()
    put_back(room)
    room.sync("west", 130, ("z", 20), ("x", 120))
    room.run()
    assert code(room, f"resourceVersion={old}") == (410, "Expired")
    assert not room.watch(f"resourceVersion={room.version()}").ended


def test_a_watch_that_waits_for_a_version_of_the_other_branch_ends_when_the_member_is_beyond() -> None:
    room = two()
    old = room.version()
    put_back(room)
    room.probed["west"] = 100  # it is further than the cache: nothing shows that it was put back
    waiting = room.watch(f"resourceVersion={old}")
    room.put("west", "y", 95)
    room.run()
    assert waiting.brief() == []
    room.put("west", "y", 101)
    room.run()
    assert waiting.brief() == [("ERROR", "410", "Expired")]


def test_of_a_cluster_in_the_place_of_another_it_is_the_same() -> None:
    room = two()
    old = room.version()
    room.store("west").clear()
    room.sync("west", 80, ("z", 20))
    room.put("west", "z", 101)
    room.run()
    assert code(room, f"resourceVersion={old}") == (410, "Expired")


def test_a_member_that_comes_back_beyond_has_nothing_undone() -> None:
    room = two()
    room.store("west").put_back()
    room.sync("west", 100, ("a", 90))
    version = room.version()
    room.put("west", "a", 101)
    room.run()
    assert code(room, f"resourceVersion={version}") == (410, "Expired"), "100 may be of either"
    version = room.version()
    room.put("west", "a", 102)
    room.run()
    resumed = room.watch(f"resourceVersion={version}")
    assert resumed.brief() == [("MODIFIED", "west/a", "102")]
