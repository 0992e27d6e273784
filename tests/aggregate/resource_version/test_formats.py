"""The forms of a resource version: comparable numbers, Karmada's base64, and one member's own."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.resource_version.formats import (
    KarmadaFormat,
    NumberFormat,
    PlainFormat,
    VersionFormat,
    version_format,
)
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from tests.aggregate.resource_version.comparison import compare

EAST_WEST = Layout(["east", "west"])
MAXIMUM = 2**64 - 1


def test_the_example_of_karmada() -> None:
    form = KarmadaFormat(Layout(["cluster2", "cluster1"]))
    assert form.whole((5678, 1234)) == "eyJjbHVzdGVyMSI6IjEyMzQiLCJjbHVzdGVyMiI6IjU2NzgifQ"


def test_karmadas_object_has_its_owners_part_alone() -> None:
    form = KarmadaFormat(EAST_WEST)
    text = form.object(0, 1000)
    assert base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) == b'{"east":"1000"}'
    assert form.written((7, 8), 0, 1000) == text
    assert form.object_template(0)(1000) == text.encode()


def test_karmadas_list_leaves_out_a_member_without_a_version() -> None:
    text = KarmadaFormat(EAST_WEST).whole((0, 8))
    assert json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))) == {"west": "8"}


def test_the_number_is_a_digit_a_crc_a_lead_and_a_part_for_each_member() -> None:
    form, crc = NumberFormat(EAST_WEST), f"{EAST_WEST.crc:05d}"
    assert form.whole((12, 345)) == f"1{crc}" + "00000000000000000345" + "00000000000000000012" + "00000000000000000345"
    assert form.whole((12, 345), 12) == f"1{crc}" + "00000000000000000012" * 2 + "00000000000000000345"
    assert form.object(0, 12) == f"1{crc}" + "00000000000000000012" * 2 + "0" * 20
    assert form.object(1, 12) == f"1{crc}" + "00000000000000000012" + "0" * 20 + "00000000000000000012"
    assert form.written((10, 345), 0, 12) == form.whole((12, 345), 12)


@given(
    st.sampled_from([NumberFormat(EAST_WEST), KarmadaFormat(EAST_WEST)]),
    st.tuples(st.integers(1, 99), st.integers(1, 99)),
    st.integers(1, 99),
)
def test_an_event_resumes_no_later_than_it_may_and_its_write_reaches_the_owner(
    form: VersionFormat, versions: tuple[int, int], version: int
) -> None:
    reader = VersionReader(LayoutHistory(EAST_WEST))
    text = form.event(versions, 0, version)
    parts = reader.read(text)
    assert parts is not None
    assert parts["east"] <= versions[0]
    assert parts["west"] == versions[1]
    if version <= versions[0] or isinstance(form, NumberFormat):
        assert reader.owner_part(text, "east") == str(version)


def test_one_member_keeps_its_numbers() -> None:
    form = PlainFormat()
    assert (form.whole((7,)), form.whole((9,), 7), form.object(0, 7), form.written((5,), 0, 7)) == ("7", "7", "7", "7")
    assert form.object_template(0)(7) == b"7"
    assert form.event((9,), 0, 7) == "7"


@pytest.mark.parametrize(
    ("names", "karmada", "form"),
    [
        (["east"], False, PlainFormat),
        (["east", "west"], False, NumberFormat),
        ([], False, NumberFormat),
        (["east"], True, KarmadaFormat),
        (["east", "west"], True, KarmadaFormat),
    ],
)
def test_the_form_follows_the_setting_and_the_number_of_members(
    names: list[str], karmada: bool, form: type[VersionFormat]
) -> None:
    assert type(version_format(Layout(names), karmada=karmada)) is form


@given(st.integers(1, 6), st.data())
def test_the_length_is_never_that_of_a_members_own(members: int, data: st.DataObject) -> None:
    form = NumberFormat(Layout([f"n{number}" for number in range(members)]))
    versions = tuple(data.draw(st.lists(st.integers(0, MAXIMUM), min_size=members, max_size=members)))
    assert len(form.whole(versions)) == 6 + 20 * (members + 1) > 20
    place, version = data.draw(st.integers(0, members - 1)), data.draw(st.integers(1, MAXIMUM))
    assert len(form.object(place, version)) == 6 + 20 * (members + 1)
    assert form.object_template(place)(version) == form.object(place, version).encode()


class Writer:
    """Writes the versions of one aggregate as lists, bookmarks, events, gets and writes' answers carry them."""

    def __init__(self, members: int) -> None:
        self.form = NumberFormat(Layout([f"n{number}" for number in range(members)]))

    def forms_of_object(self, versions: tuple[int, ...], member: int, version: int) -> list[str]:
        """Return every form of one state of an object, at a replica that has seen `versions`."""
        return [
            self.form.object(member, version),
            self.form.whole(versions, version),
            self.form.written(versions, member, version),
        ]


@given(st.integers(1, 4), st.data())
def test_a_later_state_compares_greater_in_every_form_at_every_replica(members: int, data: st.DataObject) -> None:
    writer = Writer(members)
    member = data.draw(st.integers(0, members - 1))
    earlier = data.draw(st.integers(1, MAXIMUM - 1))
    later = data.draw(st.integers(earlier + 1, MAXIMUM))
    seen = st.lists(st.integers(0, MAXIMUM), min_size=members, max_size=members).map(tuple)
    for old in writer.forms_of_object(data.draw(seen), member, earlier):
        for new in writer.forms_of_object(data.draw(seen), member, later):
            assert compare(old, new) == -1


@given(st.integers(1, 4), st.data())
def test_a_later_list_or_bookmark_compares_greater(members: int, data: st.DataObject) -> None:
    form = NumberFormat(Layout([f"n{number}" for number in range(members)]))
    versions = data.draw(st.lists(st.integers(1, 1000), min_size=members, max_size=members))
    text = form.whole(tuple(versions))
    for _ in range(data.draw(st.integers(1, 10))):
        moved = data.draw(st.lists(st.integers(0, 3), min_size=members, max_size=members))
        versions = [version + step for version, step in zip(versions, moved, strict=True)]
        later = form.whole(tuple(versions))
        assert compare(text, later) == (-1 if any(moved) else 0)
        text = later


@given(st.integers(2, 4), st.data())
def test_the_owners_form_stays_while_the_object_does(members: int, data: st.DataObject) -> None:
    form = NumberFormat(Layout([f"n{number}" for number in range(members)]))
    member, version = data.draw(st.integers(0, members - 1)), data.draw(st.integers(1, MAXIMUM))
    text = form.object(member, version)
    parts = [text[place : place + 20] for place in range(26, len(text), 20)]
    assert [int(part) for part in parts] == [version if place == member else 0 for place in range(members)]
    assert int(text[6:26]) == version
