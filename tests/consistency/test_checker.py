"""The checker finds what is false, and nothing in what is right: each kind of wrong record, against a known history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.consistency.checker import Checker, lifetimes
from tests.consistency.history import Key, Kind, MemberHistory, Selection
from tests.consistency.records import (
    RELOADED,
    Answer,
    Asked,
    Disturbance,
    Disturbances,
    Ended,
    Got,
    Item,
    Listed,
    Marked,
    Opened,
    Refused,
    Seen,
    Wrote,
)
from tests.consistency.test_versions import karmada, packed

LAYOUT = ("east", "west")
END = 100.0
"""When all records are from: behind all that is in the histories."""


class World:
    """Two members whose history is written by hand, one second for each revision, and a checker."""

    def __init__(self, tmp_path: Path) -> None:
        self.disturbances = Disturbances()
        self.histories = {name: MemberHistory(name, tmp_path / name) for name in LAYOUT}
        for history in self.histories.values():
            history._path.touch()
            history.take({"at": 0, "started": 1})
        self.checker = Checker(self.histories, self.disturbances)
        self.checker.layouts.append(LAYOUT)
        self.data: dict[tuple[str, Key], dict[str, str]] = {}
        self.at = 0.0

    def change(self, member: str, name: str, kind: Kind = "MODIFIED", *, group: str = "", **data: str) -> int:
        """Change an object of the namespace `n`; return the revision."""
        self.at += 1
        history, key = self.histories[member], ("n", name)
        revision = max(history.present.head, 1) + 1
        known = self.data.get((member, key), {"n": "-1", "p": ""})
        if kind != "DELETED":
            known = {"n": str(int(known["n"]) + 1), "p": known["p"], "w": f"{member}.{revision}@{self.at:.0f}"}
            known |= {"k": "put", **data}
            self.data[member, key] = known
        metadata = {"namespace": key[0], "name": name, "uid": f"{member}/{name}", "labels": {"group": group}}
        item = {"metadata": metadata, "data": known}
        line = {"at": self.at, "revision": revision, "type": kind, "storage": ["", "configmaps"], "object": item}
        history.take(line)
        return revision

    def restore(self, member: str, revision: int) -> None:
        self.at += 1
        self.histories[member].take({"at": self.at, "restored": revision})

    def compact(self, member: str) -> None:
        self.at += 1
        history = self.histories[member]
        history.take({"at": self.at, "compacted": history.present.head})

    # -- what clients see --------------------------------------------------------------------------------------------

    def version(self, east: int, west: int, owner: str = "") -> str:
        lead = (0 if east > west else 1) if not owner else LAYOUT.index(owner)
        return packed(LAYOUT, [east, west], lead)

    def item(self, member: str, revision: int, version: str = "", branch: int = -1) -> Item:
        """Return an object as it was made by a revision; of a deletion with the last state before it."""
        history = self.histories[member].branches[branch]
        change = next(one for one in history.changes if one.revision == revision)
        own = {"east": 0, "west": 0, member: revision}
        text = version or self.version(own["east"], own["west"], member)
        return Item(member, change.key, change.uid, change.data, text, member)

    def answer(self, request: str = "a request", status: int = 200, since: float = END, **more: Any) -> Answer:
        return Answer("client", "one", request, since, END, status, **more)

    def listed(self, east: int, west: int, *items: Item, asked: Asked = "0", since: float = END, **more: Any) -> Listed:
        warnings = more.pop("warnings", frozenset())
        selection = more.pop("selection", Selection())
        answer = self.answer(since=since, warnings=warnings)
        return Listed(answer, selection, asked, more.pop("version", self.version(east, west)), items, **more)

    def disturb(self, what: str = "a fault", *, forgets: bool = False, members: frozenset[str] = frozenset()) -> None:
        self.disturbances.add(Disturbance(what, END - 1, END, members, forgets=forgets))

    def wrong(self, *records: Any) -> str:
        """Return what the checker says of these records."""
        before = len(self.checker.wrong)
        for record in records:
            self.checker.take(record)
        return "\n".join(self.checker.wrong[before:])

    def opened(self, east: int = 0, west: int = 0, **more: Any) -> Opened:
        version = self.version(east, west) if east or west else ""
        return Opened("informer", "one", END, more.pop("selection", Selection()), version, **more)

    def seen(self, kind: Kind, member: str, revision: int, east: int, west: int) -> Seen:
        """An event. `east` and `west` are the vector; a deletion shows the last state, with its own revision."""
        shown = revision
        if kind == "DELETED":
            history = self.histories[member].present
            key = next(one.key for one in history.changes if one.revision == revision)
            shown = [one.revision for one in history.of(key) if one.revision <= revision and one.kind != "DELETED"][-1]
        return Seen("informer", END, kind, self.item(member, shown, self.version(east, west, member)))

    def marked(self, east: int, west: int, *, initial_end: bool = False, later: float = 0.0) -> Marked:
        return Marked("informer", END + later, self.version(east, west), initial_end)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """East has a at 2 and b at 3, a again at 4, b is gone at 5; west has c at 2."""
    world = World(tmp_path)
    world.change("east", "a", "ADDED", group="x")
    world.change("east", "b", "ADDED")
    world.change("east", "a", group="x")
    world.change("east", "b", "DELETED")
    world.change("west", "c", "ADDED")
    return world


def _present(world: World) -> tuple[Item, ...]:
    return world.item("east", 4), world.item("west", 2)


# -- lists ------------------------------------------------------------------------------------------------------------


def test_right_lists_are_right(world: World) -> None:
    assert world.wrong(world.listed(5, 2, *_present(world), asked="")) == ""
    assert world.wrong(world.listed(3, 2, world.item("east", 2), world.item("east", 3), world.item("west", 2))) == ""
    assert world.wrong(world.listed(5, 2, world.item("east", 4), selection=Selection("n", "x"))) == ""


def test_a_list_that_lacks_an_object_at_its_version_is_found(world: World) -> None:
    assert "east at 5 is not what the list has: no ('n', 'a')" in world.wrong(world.listed(5, 2, world.item("west", 2)))


def test_a_list_with_an_older_state_or_with_what_is_gone_is_found(world: World) -> None:
    old = world.listed(5, 2, world.item("east", 2), world.item("west", 2))
    assert "('n', 'a') is east.2@1 and should be east.4@3" in world.wrong(old)
    gone = world.listed(5, 2, world.item("east", 3), *_present(world))
    assert "('n', 'b') is gone" in world.wrong(gone)


def test_a_version_beyond_the_truth_is_found(world: World) -> None:
    assert "the version says 6 for east, which had reached 5" in world.wrong(world.listed(6, 2, *_present(world)))


def test_a_list_older_than_the_request_is_found_if_it_asked_for_the_newest_state(world: World) -> None:
    items = (world.item("east", 2), world.item("east", 3), world.item("west", 2))
    assert "older than the request, east at 3 lacks" in world.wrong(world.listed(3, 2, *items, asked="", since=10.0))
    assert world.wrong(world.listed(3, 2, *items, asked="", since=2.5)) == "", "it changed after the request"
    world.disturb(members=frozenset({"east"}))
    assert world.wrong(world.listed(3, 2, *items, asked="", warnings=frozenset({"east"}))) == ""


def test_a_member_that_is_left_out_without_a_reason_is_found(world: World) -> None:
    only = world.listed(0, 2, world.item("west", 2))
    assert "nothing explains that east is not in it" in world.wrong(only)
    world.disturb(members=frozenset({"east"}))
    assert world.wrong(only) == ""


def test_an_object_twice_a_page_of_another_version_and_an_objects_false_version_are_found(world: World) -> None:
    east, west = _present(world)
    assert "stands in it twice" in world.wrong(world.listed(5, 2, east, east, west))
    assert "its pages have the versions" in world.wrong(
        world.listed(5, 2, east, west, page_versions=(world.version(5, 2), world.version(4, 2)))
    )
    false = world.item("east", 4, world.version(5, 0, "east"))
    assert "has the version {'east': 5}" in world.wrong(world.listed(5, 2, false, west))


def test_a_list_that_is_not_at_the_version_it_was_asked_for_is_found(world: World) -> None:
    items = (world.item("east", 2), world.item("east", 3), world.item("west", 2))
    late = world.listed(3, 2, *items, asked="NotOlderThan", wanted=world.version(4, 2))
    assert "3 of east is not NotOlderThan 4" in world.wrong(late)
    assert world.wrong(world.listed(3, 2, *items, asked="NotOlderThan", wanted=world.version(2, 2))) == ""
    exact = world.listed(3, 2, *items, asked="Exact", wanted=world.version(2, 2))
    assert "3 of east is not Exact 2" in world.wrong(exact)


def test_a_member_that_is_out_of_the_file_has_no_version_to_wait_for(world: World) -> None:
    """While a reload that puts it back goes on: the layout that was noted last has it already."""
    without = world.listed(5, 0, world.item("east", 4), asked="NotOlderThan", wanted=world.version(5, 2))
    world.disturb()
    assert "0 of west is not NotOlderThan 2" in world.wrong(without)
    world.disturbances.add(Disturbance(RELOADED, END - 1, END, removes="west"))
    assert world.wrong(without) == ""


def test_a_state_that_never_was_is_found(world: World) -> None:
    made_up = Item("east", ("n", "a"), "east/a", {"n": "7", "w": "nobody"}, world.version(4, 0, "east"), "east")
    assert "never was" in world.wrong(world.listed(5, 2, made_up, world.item("west", 2)))
    elsewhere = Item("west", ("n", "a"), "east/a", {}, world.version(4, 0, "east"), "east")
    assert "said to be of 'west' and cached from 'east'" in world.wrong(world.listed(5, 2, elsewhere))


def test_a_version_that_is_not_led_by_its_greatest_part_is_found(world: World) -> None:
    led = world.listed(5, 2, *_present(world), version=packed(LAYOUT, [5, 2], 1))
    assert "is led by 2 of west" in world.wrong(led)


def test_versions_that_do_not_compare_are_found(world: World) -> None:
    east, west = _present(world)
    assert world.wrong(world.listed(5, 2, east, west)) == ""
    world.change("east", "d", "ADDED")
    lower = packed(LAYOUT, [2, 6], 1).replace("9", "9")  # of a layout in another order: as chance will have it
    world.checker.layouts.append(("west", "east"))
    assert world.wrong(world.listed(6, 2, east, west, world.item("east", 6))) == ""
    assert "6 for west, which had reached 2" in world.wrong(world.listed(2, 6, east, version=lower))


# -- gets and writes --------------------------------------------------------------------------------------------------


def _got(world: World, name: str, item: Item | None, since: float = END, asked: Asked = "") -> Got:
    status = 200 if item is not None else 404
    return Got(world.answer(status=status, since=since), "east", ("n", name), asked, item)


def test_a_404_for_an_object_that_exists_is_found(world: World) -> None:
    assert "it was east.4@3 in east then, and absent was answered" in world.wrong(_got(world, "a", None))
    assert world.wrong(_got(world, "b", None)) == ""
    assert world.wrong(_got(world, "b", None, since=3.5)) == "", "it was deleted meanwhile"
    assert "absent was answered" in world.wrong(_got(world, "a", None, asked="0")), "it is there for long"
    world.disturb(members=frozenset({"east"}))
    away = Got(world.answer(status=404, warnings=frozenset({"east"})), "east", ("n", "a"), "", None)
    assert "absent was answered" in world.wrong(away), "it is 503 while its member is away"


def test_an_old_state_is_found_unless_it_was_the_newest_at_some_time_of_the_request(world: World) -> None:
    old = world.item("east", 2)
    assert "and east.2@1 was answered" in world.wrong(_got(world, "a", old))
    assert world.wrong(_got(world, "a", old, since=2.0)) == ""
    assert world.wrong(_got(world, "a", old, asked="0")) == ""


def _wrote(world: World, verb: str, status: int, write: str = "", base: Item | None = None, version: str = "") -> Wrote:
    return Wrote(world.answer(status=status, since=2.5), verb, "east", ("n", "a"), write, base, version)


def test_a_write_that_was_answered_and_never_made_is_found(world: World) -> None:
    assert "has never seen the write nobody" in world.wrong(_wrote(world, "put", 200, "nobody"))
    right = _wrote(world, "put", 200, "east.4@3", version=world.version(4, 2, "east"))
    assert world.wrong(right) == ""
    false = _wrote(world, "put", 200, "east.4@3", version=world.version(5, 2, "east"))
    assert "written at 4, and the answer's version is {'east': 5" in world.wrong(false)


def test_a_conflict_without_a_change_and_a_404_are_found(world: World) -> None:
    base = world.item("east", 2)
    assert world.wrong(_wrote(world, "put", 409, base=base)) == ""
    now = Wrote(world.answer(status=409), "put", "east", ("n", "a"), "w", world.item("east", 4))
    assert "which is what the write was for" in world.wrong(now)
    layout = world.answer(status=409, message='Operation cannot be: the resource version has no part of cluster "east"')
    of_another_layout = Wrote(layout, "put", "east", ("n", "a"), "w", world.item("east", 4))
    assert "which is what the write was for" in world.wrong(of_another_layout)
    world.disturb(RELOADED)
    assert world.wrong(of_another_layout) == ""
    assert "which is what the write was for" in world.wrong(now)
    assert "it was there all the time" in world.wrong(_wrote(world, "put", 404, base=base))
    assert world.wrong(Wrote(world.answer(status=409), "create", "east", ("n", "a"), "w", None)) == ""
    assert "there was none" in world.wrong(Wrote(world.answer(status=409), "create", "east", ("n", "z"), "w", None))


def test_a_lost_update_is_found(world: World) -> None:
    world.checker.read_histories()
    assert world.checker.wrong == []
    world.change("east", "a", n="1")
    world.checker.read_histories()
    assert "('n', 'a')" in world.checker.wrong[-1]
    world.change("west", "c", p="patched", k="patch", n="0")
    world.change("west", "c", p="", n="1")
    world.checker.read_histories()
    assert "'p': 'patched'" in world.checker.wrong[-1]


def test_refusals_without_a_fault_are_found(world: World) -> None:
    for status in (0, 410, 503, 504):
        assert "nothing explains" in world.wrong(Refused(world.answer(status=status)))
    assert "nothing explains the warning of east" in world.wrong(
        world.listed(5, 2, *_present(world), warnings=frozenset({"east"}))
    )
    world.disturb(forgets=True)
    for status in (0, 410, 503, 504):
        assert world.wrong(Refused(world.answer(status=status))) == ""
    for status in (400, 403, 404, 422, 500):
        assert "never to be answered" in world.wrong(Refused(world.answer(status=status)))


def test_a_version_that_was_not_waited_for_is_found(world: World) -> None:
    world.disturb()
    message = "Timeout: Too large resource version: 8, current: 7"
    assert "was not waited for" in world.wrong(Refused(world.answer(status=504, since=END - 1, message=message)))
    assert world.wrong(Refused(world.answer(status=504, since=END - 3, message=message))) == ""
    world.restore("east", 3)
    assert world.wrong(Refused(world.answer(status=504, since=END - 1, message=message))) == ""


def test_what_is_disturbed_elsewhere_explains_nothing(world: World) -> None:
    world.disturbances.add(Disturbance("elsewhere", END - 1, END, proxies=frozenset({"two"})))
    assert "nothing explains" in world.wrong(Refused(world.answer(status=503)))
    world.disturbances.add(Disturbance("long ago", 1, 2))
    assert "nothing explains" in world.wrong(Refused(world.answer(status=503)))


# -- watches ----------------------------------------------------------------------------------------------------------


def _started(world: World) -> None:
    """An informer has listed east at 3 and west at 2, and watches from there."""
    items = (world.item("east", 2), world.item("east", 3), world.item("west", 2))
    assert world.wrong(world.listed(3, 2, *items, follower="informer"), world.opened(3, 2)) == ""


def test_a_right_watch_is_right_and_ends_with_what_there_is(world: World) -> None:
    _started(world)
    assert "('n', 'a') is east.2@1 and should be" in world.checker.behind()["informer"]
    events = (world.seen("MODIFIED", "east", 4, 4, 2), world.seen("DELETED", "east", 5, 5, 2), world.marked(5, 2))
    assert world.wrong(*events) == ""
    assert world.checker.behind() == {}


def test_a_missing_event_is_found(world: World) -> None:
    _started(world)
    wrong = world.wrong(world.seen("DELETED", "east", 5, 5, 2))
    assert "DELETED ('n', 'b')" in wrong
    assert "MODIFIED ('n', 'a') at 4 was next" in wrong


def test_an_event_twice_is_found(world: World) -> None:
    _started(world)
    event = world.seen("MODIFIED", "east", 4, 4, 2)
    assert world.wrong(event) == ""
    assert "DELETED ('n', 'b') at 5 was next" in world.wrong(event)


def test_an_event_of_another_kind_is_found(world: World) -> None:
    _started(world)
    assert "ADDED ('n', 'a')" in world.wrong(world.seen("ADDED", "east", 4, 4, 2))


def test_a_bookmark_or_an_event_that_claims_what_has_not_come_is_found(world: World) -> None:
    _started(world)
    assert "it claims 4 of east, and MODIFIED ('n', 'a') at 4 has not come" in world.wrong(world.marked(4, 2))
    world.change("west", "c")
    _started(world)
    assert "it claims 4 of east" in world.wrong(world.seen("MODIFIED", "west", 3, 4, 3))


def test_an_event_that_is_led_by_something_else_is_found(world: World) -> None:
    _started(world)
    false = Seen("informer", END, "MODIFIED", world.item("east", 4, world.version(5, 2, "east")))
    assert "is led by 5" in world.wrong(false)


def test_a_part_that_goes_back_is_found(world: World) -> None:
    _started(world)
    assert world.wrong(world.seen("MODIFIED", "east", 4, 4, 2)) == ""
    assert "the part of east went back from 4 to 3" in world.wrong(world.marked(3, 2))


def test_a_watch_that_changes_the_form_of_its_versions_is_found(world: World) -> None:
    world.checker.layouts.append(("west", "east"))
    _started(world)
    assert world.wrong(world.seen("MODIFIED", "east", 4, 4, 2)) == ""
    other = Marked("informer", END, packed(("west", "east"), [2, 4], 1))
    assert "the watch began with versions of ('east', 'west')" in world.wrong(other)


def test_a_watch_list_that_is_opened_after_a_reload_has_the_form_that_it_begins_with(world: World) -> None:
    world.checker.layouts.append(("west", "east"))
    _started(world)
    assert world.wrong(world.seen("MODIFIED", "east", 4, 4, 2)) == ""
    end = Marked("informer", END, packed(("west", "east"), [2, 5], 1), initial_end=True)
    initial = world.seen("ADDED", "west", 2, 0, 2), world.seen("ADDED", "east", 4, 4, 2)
    texts = packed(("west", "east"), [2, 0], 0), packed(("west", "east"), [2, 4], 1)
    other = [replace(each, item=replace(each.item, version=text)) for each, text in zip(initial, texts, strict=True)]
    assert world.wrong(world.opened(initial=True), *other, end) == ""


def test_a_selection_sees_what_enters_and_what_leaves(world: World) -> None:
    selection = Selection("", "x")
    world.change("east", "a", group="y")
    begin = (
        world.listed(3, 2, world.item("east", 2), selection=selection, follower="informer"),
        world.opened(3, 2, selection=selection),
    )
    assert world.wrong(*begin, world.seen("MODIFIED", "east", 4, 4, 2)) == ""
    left = Seen("informer", END, "DELETED", world.item("east", 4, world.version(6, 2, "east")))
    assert world.wrong(left) == ""
    assert world.checker.behind() == {}


def test_a_watch_list_is_followed_from_its_end(world: World) -> None:
    initial = (
        world.opened(initial=True),
        world.seen("ADDED", "west", 2, 0, 2),
        world.seen("ADDED", "east", 4, 4, 2),
        world.marked(5, 2, initial_end=True),
    )
    assert world.wrong(*initial) == ""
    assert world.checker.behind() == {}
    world.change("east", "d", "ADDED")
    world.change("east", "d")
    assert "ADDED ('n', 'd') at 6 was next" in world.wrong(world.seen("MODIFIED", "east", 7, 7, 2))


def test_initial_events_that_lack_an_object_are_found(world: World) -> None:
    initial = (world.opened(initial=True), world.seen("ADDED", "west", 2, 0, 2), world.marked(5, 2, initial_end=True))
    assert "it claims 5 of east, and ('n', 'a') at 4 has not come" in world.wrong(*initial)
    assert "no ('n', 'a')" in world.checker.behind()["informer"]


def test_a_difference_may_leave_changes_out_only_where_the_member_has_forgotten_them(world: World) -> None:
    world.change("east", "a")
    _started(world)
    event = world.seen("MODIFIED", "east", 6, 6, 2)
    assert "MODIFIED ('n', 'a') at 4 was next" in world.wrong(event)
    _started(world)
    world.compact("east")
    deleted = Seen("informer", END, "DELETED", world.item("east", 3, world.version(3, 2, "east")))
    assert world.wrong(deleted, event, world.marked(6, 2, later=5.0)) == ""
    assert world.checker.behind() == {}
    world.change("east", "a")
    world.change("east", "a")
    assert "MODIFIED ('n', 'a') at 7 was next" in world.wrong(world.seen("MODIFIED", "east", 8, 8, 2))


def test_what_is_gone_comes_first_in_a_difference_at_the_version_before_it(world: World) -> None:
    begin = (
        world.listed(4, 2, world.item("east", 3), *_present(world), follower="informer"),
        world.opened(4, 2),
        Seen("informer", END, "DELETED", world.item("east", 3, world.version(4, 2, "east"))),
    )
    assert "DELETED ('n', 'b') at 5 is led by 4" in world.wrong(*begin)
    world.compact("east")
    world.change("east", "a")
    assert world.wrong(*begin, world.seen("MODIFIED", "east", 6, 6, 2)) == ""


def test_a_difference_is_up_to_the_list_and_some_of_it_is_as_if_told_singly(world: World) -> None:
    """A replica at 5 found all up to 6 forgotten, and listed at 9: what changed once until then comes as it was."""
    world.change("east", "a")
    begin = world.listed(5, 2, *_present(world), follower="informer"), world.opened(5, 2)
    single = world.seen("MODIFIED", "east", 6, 6, 2)
    world.compact("east")
    world.change("east", "d", "ADDED")
    world.change("east", "e", "ADDED")
    world.change("east", "d")
    difference = single, world.seen("ADDED", "east", 8, 8, 2), world.seen("ADDED", "east", 9, 9, 2)
    assert world.wrong(*begin, *difference, world.marked(9, 2, later=5.0)) == ""
    assert world.checker.behind() == {}
    world.change("east", "a")
    world.change("east", "a")
    assert "MODIFIED ('n', 'a') at 10 was next" in world.wrong(world.seen("MODIFIED", "east", 11, 11, 2))
    resumed = world.listed(6, 2, world.item("east", 6), world.item("west", 2), follower="informer"), world.opened(6, 2)
    assert "ADDED ('n', 'd') at 7 was next" in world.wrong(*resumed, difference[1])


def test_what_was_added_and_removed_before_the_list_of_a_difference_never_comes(world: World) -> None:
    """Seed 760923402: the difference was one change, which was as if told singly, and then a bookmark of the list."""
    world.change("east", "d", "ADDED")
    world.change("east", "e", "ADDED")
    world.change("east", "e", "DELETED")
    begin = world.listed(5, 2, *_present(world), follower="informer"), world.opened(5, 2)
    difference = world.seen("ADDED", "east", 6, 6, 2), world.marked(8, 2)
    assert "it claims 8 of east, and ADDED ('n', 'e') at 7 has not come" in world.wrong(*begin, *difference)
    world.histories["east"].take({"at": world.at, "compacted": 6})
    assert world.wrong(*begin, *difference, world.marked(8, 2, later=5.0)) == ""
    assert world.checker.behind() == {}
    world.change("east", "f", "ADDED")
    assert "it claims 9 of east, and ADDED ('n', 'f') at 9 has not come" in world.wrong(world.marked(9, 2, later=6.0))
    is_awaiting = begin[0], begin[1], world.marked(8, 2)
    assert "('n', 'd') at 6 has not come" in world.wrong(*is_awaiting)


def test_what_has_left_the_selection_comes_with_its_last_change_in_a_difference(world: World) -> None:
    selection = Selection("", "x")
    begin = (
        world.listed(5, 2, world.item("east", 4), selection=selection, follower="informer"),
        world.opened(5, 2, selection=selection),
    )
    world.change("east", "a", group="y")
    left = Seen("informer", END, "DELETED", world.item("east", 4, world.version(7, 2, "east")))
    world.change("east", "a", group="y")
    assert "DELETED ('n', 'a') at 6 is led by 7" in world.wrong(*begin, left)
    world.compact("east")
    assert world.wrong(*begin, left, world.marked(7, 2, later=5.0)) == ""
    assert world.checker.behind() == {}


def test_a_difference_that_lacks_something_is_found(world: World) -> None:
    world.change("east", "a")
    _started(world)
    world.compact("east")
    event = world.seen("MODIFIED", "east", 6, 6, 2)
    assert "the end of ('n', 'b') at 5 has not come" in world.wrong(event)


def test_a_watch_that_goes_on_beyond_a_restored_backup_is_found(world: World) -> None:
    _started(world)
    before = world.item("east", 4, world.version(4, 2, "east"))
    world.restore("east", 3)
    world.change("east", "e", "ADDED")
    assert world.wrong(Seen("informer", END, "MODIFIED", before)) == "", "it came late"
    assert "no ('n', 'e')" in world.checker.behind()["informer"]
    world.change("east", "e")
    gone = Seen("informer", END, "DELETED", before)
    assert world.wrong(gone) == "", "it may be told that all is gone before it ends"
    goes_on = world.wrong(world.seen("MODIFIED", "east", 5, 5, 2), world.marked(5, 2))
    assert "goes on beyond the backup of east: from 4 to what came after 3" in goes_on


def test_a_watch_that_stood_before_the_backup_goes_on_with_the_new_changes(world: World) -> None:
    _started(world)
    world.restore("east", 3)
    world.change("east", "e", "ADDED")
    assert world.wrong(world.seen("ADDED", "east", 4, 4, 2), world.marked(4, 2)) == ""
    assert world.checker.behind() == {}


def test_a_replica_that_has_not_seen_the_restored_backup_yet_goes_on_with_what_it_has(world: World) -> None:
    world.restore("east", 3)
    world.change("east", "e", "ADDED")
    items = (world.item("east", 2), world.item("east", 3), world.item("east", 4), world.item("west", 2))
    begin = world.listed(4, 2, *items, follower="informer"), world.opened(4, 2)
    undone = Seen("informer", END, "DELETED", world.item("east", 3, world.version(5, 2, "east"), branch=0))
    assert "(east.3@2, 3) of east came after 4, and nothing was next" in world.wrong(*begin, undone)
    world.disturb("member_restored", members=frozenset({"east"}))
    assert world.wrong(*begin, undone) == ""
    world.change("east", "e")
    goes_on = world.wrong(world.seen("MODIFIED", "east", 5, 5, 2))
    assert "goes on beyond the backup of east: from 5 to what came after 3" in goes_on


def test_a_watch_that_ended_before_its_branch_was_known_is_resumed_in_the_one_that_reached_its_version(
    world: World,
) -> None:
    """Seed 760923402: a WatchList that began without a member, which came later, ended within three seconds."""
    world.restore("east", 3)
    for _ in range(6):
        world.change("east", "a")
    begin = world.opened(0, 0, initial=True), world.marked(0, 2, initial_end=True)
    world.disturb(members=frozenset({"east"}))
    came = world.seen("ADDED", "east", 3, 3, 2), world.seen("ADDED", "east", 9, 9, 2)
    seen_west = Seen("informer", END, "ADDED", world.item("west", 2, world.version(0, 2, "west")))
    assert world.wrong(begin[0], seen_west, begin[1], *came, Ended("informer", "one", END, "end")) == ""
    world.change("east", "a")
    assert world.wrong(world.opened(9, 2), world.seen("MODIFIED", "east", 10, 10, 2)) == ""
    assert world.checker.behind() == {}


def test_an_event_that_two_branches_explain_is_of_the_one_that_its_version_is_of(world: World) -> None:
    """Seed 33002: the same object leaves the selection next, at one revision before the backup and at another after."""
    selection = Selection("", "x")
    world.change("east", "a", group="y")  # 6, and undone
    world.restore("east", 4)
    world.change("east", "e", "ADDED")
    world.change("east", "f", "ADDED")
    world.data["east", ("n", "a")] = dict(world.item("east", 4).data)
    world.change("east", "a", "DELETED")  # 7
    world.disturb("member_restored", members=frozenset({"east"}))
    shown = world.item("east", 4)

    def seen(version: str) -> str:
        begin = (
            world.listed(5, 2, shown, selection=selection, follower="informer"),
            Opened("informer", "one", END, selection, world.version(5, 2)),
        )
        return world.wrong(*begin, Seen("informer", END, "DELETED", Item(*_but(shown, version))))

    assert seen(world.version(7, 2, "east")) == ""
    assert world.checker.behind() == {}
    assert seen(karmada({"east": 7, "west": 2})) == ""
    assert seen(world.version(6, 2, "east")) == "", "of a replica that has not seen the backup yet"
    assert "DELETED ('n', 'a') at 6 is led by 5" in seen(world.version(5, 2, "east"))


def test_a_list_of_before_a_restored_backup_is_found_if_the_newest_state_was_asked_for(world: World) -> None:
    items = _present(world)
    world.restore("east", 3)
    assert "it was undone" in world.wrong(world.listed(5, 2, *items, asked=""))
    assert world.wrong(world.listed(5, 2, *items)) == ""
    after = (world.item("east", 2), world.item("east", 3), world.item("west", 2))
    assert world.wrong(world.listed(3, 2, *after, asked="")) == ""


def test_karmadas_versions_may_say_less_and_then_events_come_again(world: World) -> None:
    item = world.item("east", 4)
    event = Seen("informer", END, "MODIFIED", Item(*_but(item, karmada({"east": 3, "west": 2}))))
    items = (
        Item(*_but(world.item("east", 2), karmada({"east": 2}))),
        Item(*_but(world.item("east", 3), karmada({"east": 3}))),
        Item(*_but(world.item("west", 2), karmada({"west": 2}))),
    )
    whole = karmada({"east": 3, "west": 2})
    opened = Opened("informer", "one", END, Selection(), whole)
    assert world.wrong(world.listed(3, 2, *items, version=whole, follower="informer"), opened, event) == ""
    assert world.wrong(Ended("informer", "one", END, "end"), opened, event) == ""


def _but(item: Item, version: str) -> tuple[Any, ...]:
    return item.cluster, item.key, item.uid, item.data, version, item.annotated


def test_the_ends_of_watches_are_checked(world: World) -> None:
    assert world.wrong(Ended("informer", "one", END, "end")) == ""
    assert "no bookmark either" in world.wrong(Ended("informer", "one", END, "silence"))
    for end in (
        Ended("i", "one", END, "error", 410),
        Ended("i", "one", END, "broken"),
        Ended("i", "one", END, "error", 504),
    ):
        assert "nothing explains" in world.wrong(end)
    assert "400" in world.wrong(Ended("informer", "one", END, "error", 400))
    world.disturb(forgets=True)
    for end in (
        Ended("i", "one", END, "error", 410),
        Ended("i", "one", END, "broken"),
        Ended("i", "one", END, "error", 504),
    ):
        assert world.wrong(end) == ""


def test_the_lifetimes_of_an_object_over_a_restored_backup(world: World) -> None:
    world.restore("east", 3)
    a, b = (lifetimes(world.histories["east"], ("n", name)) for name in "ab")
    assert [(since, until, ident and ident[1]) for since, until, ident in a] == [
        (0.0, 1.0, None),
        (1.0, 3.0, "east.2@1"),
        (3.0, 6.0, "east.4@3"),
        (6.0, float("inf"), "east.2@1"),
    ]
    assert [until for _, until, ident in b if ident is not None] == [4.0, float("inf")]
