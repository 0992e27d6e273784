"""Layouts and their history, which is kept over reloads and restarts."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.resource_version.layout import MAX_EARLIER_LAYOUTS, Layout, LayoutHistory

NAMES = st.lists(st.sampled_from(["east", "west", "north", "south", "edge-1"]), unique=True)


@pytest.mark.parametrize("modulus", [100_000, 2**16, 2**17])
def test_the_crc_is_of_the_names_joined_by_commas(modulus: int) -> None:
    assert Layout(["east", "west"]).crc(modulus) == zlib.crc32(b"east,west") % modulus
    assert Layout(["east", "west"]).crc(modulus) != Layout(["west", "east"]).crc(modulus)


def test_a_layout_knows_the_places_of_its_members() -> None:
    layout = Layout(["east", "west"])
    assert (layout.index("west"), len(layout), "east" in layout, "north" in layout) == (1, 2, True, False)
    with pytest.raises(KeyError):
        layout.index("north")


def test_the_same_members_in_the_same_order_are_no_change() -> None:
    history = LayoutHistory(Layout(["east", "west"]))
    assert history.changed(["east", "west"]) is history


def test_a_change_keeps_the_layouts_before_it_the_latest_first() -> None:
    history = LayoutHistory(Layout(["a"])).changed(["a", "b"]).changed(["b"]).changed(["a", "b"])
    assert [layout.names for layout in history] == [("a", "b"), ("b",), ("a",)]


def test_of_layouts_that_look_alike_in_a_form_the_later_one_is_meant() -> None:
    first, modulus = Layout(["c", "d"]), 2**16
    layouts = (Layout([f"n{number}", "d"]) for number in range(1_000_000))
    twin = next(layout for layout in layouts if layout.crc(modulus) == first.crc(modulus))
    history = LayoutHistory(first).changed(twin.names)
    assert history.find(2, first.crc(modulus), modulus) is history.present
    assert history.find(2, first.crc(100_000), 100_000) == first
    assert history.find(1, first.crc(modulus), modulus) is None


def test_the_greatest_version_is_remembered_over_changes_and_restarts() -> None:
    history = LayoutHistory(Layout(["a"]))
    assert history.grown(0) is history
    history = history.grown(40).grown(37).changed(["a", "b"])
    assert LayoutHistory.from_json(history.to_json()).bits == history.bits == 40
    assert LayoutHistory.from_json(b'{"layouts":[["a"]]}').bits == 0  # as earlier versions wrote it


def test_the_number_of_layouts_is_bounded() -> None:
    history = LayoutHistory(Layout(["a"]))
    for number in range(MAX_EARLIER_LAYOUTS + 20):
        history = history.changed([f"n{number}", "a", "b"])
    assert len(history.earlier) <= MAX_EARLIER_LAYOUTS
    assert history.earlier[0].names == (f"n{MAX_EARLIER_LAYOUTS + 18}", "a", "b")
    assert LayoutHistory.from_json(history.to_json()) == history


@given(st.lists(NAMES, min_size=1, max_size=8))
def test_a_history_is_read_back_as_it_was_saved(changes: list[list[str]]) -> None:
    history = LayoutHistory(Layout(changes[0]))
    for names in changes[1:]:
        history = history.changed(names)
    assert LayoutHistory.from_json(history.to_json()) == history


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"layouts":[]}',
        b'{"layouts":[["a","a"]]}',
        b'{"layouts":[["a,b"]]}',
        b'{"layouts":[[""]]}',
        b'{"layouts":[["a"],3]}',
        b'{"layouts":[["a"]],"bits":-1}',
        b'{"layouts":[["a"]],"bits":65}',
        b'{"layouts":[["a"]],"bits":"40"}',
        b'{"layouts":' + b"[" * 5000,
        json.dumps({"layouts": [["a"]] * 100}).encode(),
        json.dumps({"layouts": [[f"n{number}" for number in range(2000)]]}).encode(),
        b"\xff\xfe",
    ],
)
def test_a_broken_history_is_an_error(data: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        LayoutHistory.from_json(data)
