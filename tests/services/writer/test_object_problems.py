"""The lines about single objects that are not written."""

from __future__ import annotations

from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey
from mcproxy.services.writer.cluster_writer import ObjectProblems

WEB, SHOP = ServiceKey("demo", "web"), ServiceKey("demo", "shop")


def place(name: str) -> ObjectKey:
    return ObjectKey("east", "", "v1", "services", "demo", name)


def test_lines_go_with_the_objects_of_their_service() -> None:
    notes = ObjectProblems(10)
    assert notes.note(WEB, place("a"), "one")
    assert notes.note(WEB, place("b"), "two")
    assert notes.note(SHOP, place("c"), "three")
    assert not notes.note(WEB, place("a"), "another")
    assert dict(notes.items()) == {place("a"): "another", place("b"): "two", place("c"): "three"}
    notes.keep(WEB, {place("b")})
    assert dict(notes.items()) == {place("b"): "two", place("c"): "three"}
    notes.remove(place("c"))
    notes.remove(place("c"))
    assert set(notes.services()) == {WEB}
    notes.clear()
    assert not notes.services()
    assert not len(notes)


def test_an_object_that_another_service_has_now_is_of_that_one() -> None:
    notes = ObjectProblems(10)
    notes.note(WEB, place("a"), "one")
    notes.note(SHOP, place("a"), "two")
    notes.keep(WEB, ())
    assert dict(notes.items()) == {place("a"): "two"}


def test_there_are_no_more_than_so_many() -> None:
    notes = ObjectProblems(1)
    notes.note(WEB, place("a"), "one")
    assert not notes.note(WEB, place("b"), "two")
    assert len(notes) == 1
    assert not notes.note(WEB, place("a"), "changed")
    assert dict(notes.items()) == {place("a"): "changed"}
