"""The forms of a resource version: 128 bits, the long form, Karmada's base64, and one member's own."""

from __future__ import annotations

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.resource_version.formats import (
    KarmadaFormat,
    LongFormat,
    PackedFormat,
    PlainFormat,
    VersionFormat,
    read_long,
    read_packed,
    version_format,
)
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from tests.aggregate.resource_version.comparison import compare

EAST_WEST = Layout(["east", "west"])
THREE = Layout(["east", "west", "north"])
MAXIMUM = 2**64 - 1


def layout_of(members: int) -> Layout:
    return Layout([f"n{number}" for number in range(members)])


def crc(layout: Layout) -> int:
    return zlib.crc32(",".join(layout.names).encode())


# -- 128 bits -----------------------------------------------------------------------------------------------------


def test_two_members_have_a_bit_each_for_the_length_and_the_third_a_crc_a_lead_its_place_and_the_other() -> None:
    form = PackedFormat(EAST_WEST)
    head = "10" + f"{crc(EAST_WEST) % 2**17:017b}"
    assert f"{int(form.list_version((12, 345))):b}" == head + f"{345:054b}" + "1" + f"{12:054b}"
    assert f"{int(form.event((12, 345), 0, 12)):b}" == head + f"{12:054b}" + "0" + f"{345:054b}"
    assert f"{int(form.object(1, 345)):b}" == head + f"{345:054b}" + "1" + f"{0:054b}"
    assert form.written((10, 345), 0, 12) == form.event((12, 345), 0, 12)


def test_three_members_likewise_with_shorter_parts() -> None:
    form = PackedFormat(THREE)
    head = "11" + f"{crc(THREE) % 2**16:016b}"
    assert f"{int(form.list_version((5, 9, 7))):b}" == head + f"{9:036b}" + "01" + f"{5:036b}{7:036b}"
    assert f"{int(form.event((5, 9, 7), 2, 7)):b}" == head + f"{7:036b}" + "10" + f"{5:036b}{9:036b}"
    assert f"{int(form.object(0, 5)):b}" == head + f"{5:036b}" + "00" + f"{0:036b}{0:036b}"


def test_of_equal_parts_the_last_leads() -> None:
    assert f"{int(PackedFormat(THREE).list_version((7, 7, 3))):b}"[54:56] == "01"
    assert f"{int(PackedFormat(THREE).list_version((0, 0, 0))):b}"[54:56] == "10"


@given(st.sampled_from([2, 3]), st.data())
def test_the_packed_form_has_128_bits_and_is_read_back(members: int, data: st.DataObject) -> None:
    form, part = PackedFormat(layout_of(members)), st.integers(0, 2 ** {2: 54, 3: 36}[members] - 1)
    versions = tuple(data.draw(st.lists(part, min_size=members, max_size=members)))
    place, version = data.draw(st.integers(0, members - 1)), data.draw(part)
    own = tuple(version if each == place else 0 for each in range(members))
    whole = (*versions[:place], version, *versions[place + 1 :])
    expected = {
        form.list_version(versions): (max(versions), versions),
        form.object(place, version): (version, own),
        form.object_template(place)(version).decode(): (version, own),
        form.event(versions, place, version): (version, whole),
        form.written(versions, place, version): (version, whole),
    }
    for text, found in expected.items():
        assert (int(text).bit_length(), len(text)) == (128, 39)
        number = read_packed(text)
        assert number is not None
        assert (number.lead, number.versions) == found
        assert number.crc == form.layout.crc(2 ** {2: 17, 3: 16}[members])


@given(st.sampled_from([2, 3]), st.data())
def test_what_does_not_fit_is_written_long(members: int, data: st.DataObject) -> None:
    bits = {2: 54, 3: 36}[members]
    form, long = PackedFormat(layout_of(members)), LongFormat(layout_of(members))
    great = data.draw(st.integers(2**bits, MAXIMUM))
    place = data.draw(st.integers(0, members - 1))
    versions = tuple(great if each == place else 5 for each in range(members))
    assert form.fits(2**bits - 1)
    assert not form.fits(2**bits)
    assert form.list_version(versions) == long.list_version(versions)
    assert form.object(place, great) == long.object(place, great)
    assert form.object_template(place)(great) == long.object(place, great).encode()
    for member, version in ((place, great), ((place + 1) % members, 5), (place, 5)):
        assert form.event(versions, member, version) == long.event(versions, member, version)
        assert form.written(versions, member, version) == long.written(versions, member, version)


@pytest.mark.parametrize(
    "text",
    [
        str(2**127 - 1),
        str(2**128),
        "0" + str(2**127),
        str(0b11 << 126 | 0b11 << 72),  # three members, led by a fourth
        "9" * 39,
        "1" * 38,
        "1" * 40,
        "",
    ],
)
def test_what_is_not_of_the_packed_form(text: str) -> None:
    assert read_packed(text) is None


# -- the long form --------------------------------------------------------------------------------------------------


def test_the_long_form_is_a_digit_a_crc_a_lead_and_a_part_for_each_member() -> None:
    form, head = LongFormat(EAST_WEST), f"1{crc(EAST_WEST) % 100_000:05d}"
    assert (
        form.list_version((12, 345)) == head + "00000000000000000345" + "00000000000000000012" + "00000000000000000345"
    )
    assert form.event((12, 345), 0, 12) == head + "00000000000000000012" * 2 + "00000000000000000345"
    assert form.event((10, 345), 0, 12)[26:46] == "00000000000000000010"  # where to resume is not the object's version
    assert form.object(0, 12) == head + "00000000000000000012" * 2 + "0" * 20
    assert form.object(1, 12) == head + "00000000000000000012" + "0" * 20 + "00000000000000000012"
    assert form.written((10, 345), 0, 12) == form.event((12, 345), 0, 12)


@given(st.integers(1, 8), st.data())
def test_no_form_has_the_length_of_another(members: int, data: st.DataObject) -> None:
    form = LongFormat(layout_of(members))
    versions = tuple(data.draw(st.lists(st.integers(0, MAXIMUM), min_size=members, max_size=members)))
    texts = [form.list_version(versions)]
    place, version = data.draw(st.integers(0, members - 1)), data.draw(st.integers(1, MAXIMUM))
    texts += [form.object(place, version), form.object_template(place)(version).decode()]
    for text in texts:
        assert len(text) == 6 + 20 * (members + 1)
        assert len(text) not in (*range(1, 21), 39)
        assert read_packed(text) is None
        assert read_long(text) is not None


# -- Karmada's ------------------------------------------------------------------------------------------------------


def decoded(text: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return found


def test_the_example_of_karmada() -> None:
    form = KarmadaFormat(Layout(["cluster2", "cluster1"]))
    assert form.list_version((5678, 1234)) == "eyJjbHVzdGVyMSI6IjEyMzQiLCJjbHVzdGVyMiI6IjU2NzgifQ"


def test_karmadas_object_has_its_owners_part_alone() -> None:
    form = KarmadaFormat(EAST_WEST)
    text = form.object(0, 1000)
    assert decoded(text) == {"east": "1000"}
    assert form.written((7, 8), 0, 1000) == text
    assert form.object_template(0)(1000) == text.encode()


def test_karmadas_list_leaves_out_a_member_without_a_version() -> None:
    assert decoded(KarmadaFormat(EAST_WEST).list_version((0, 8))) == {"west": "8"}


def test_karmadas_event_has_the_objects_own_version() -> None:
    form = KarmadaFormat(EAST_WEST)
    assert decoded(form.event((20, 8), 0, 15)) == {"east": "15", "west": "8"}
    # Another store of the member has not got so far: the part is where to resume.
    text = form.event((10, 8), 0, 15)
    assert decoded(text) == {"east": "10", "east/object": "15", "west": "8"}
    reader = VersionReader(LayoutHistory(EAST_WEST))
    assert reader.read(text) == {"east": 10, "west": 8}
    assert reader.owner_part(text, "east") == "15"
    assert reader.list_part(text, "east") == "10"


# -- all of them ----------------------------------------------------------------------------------------------------

FORMS = [
    PackedFormat(EAST_WEST),
    PackedFormat(THREE),
    LongFormat(EAST_WEST),
    LongFormat(layout_of(5)),
    KarmadaFormat(EAST_WEST),
    PlainFormat(Layout(["east"])),
]


@given(st.sampled_from(FORMS), st.data())
def test_an_event_resumes_no_later_than_it_may_and_its_write_reaches_the_owner(
    form: VersionFormat, data: st.DataObject
) -> None:
    names = form.layout.names
    versions = tuple(data.draw(st.lists(st.integers(1, 99), min_size=len(names), max_size=len(names))))
    place = data.draw(st.integers(0, len(names) - 1))
    version = data.draw(st.integers(1, versions[place] if form.single_number else 99))
    reader = VersionReader(LayoutHistory(form.layout))
    text = form.event(versions, place, version)
    parts = reader.read(text)
    assert parts is not None
    for each, name in enumerate(names):
        assert parts.get(name, 0) <= versions[each]
        if each != place and not isinstance(form, PlainFormat):
            assert parts.get(name, 0) == versions[each]
    assert reader.owner_part(text, names[place]) == str(version)


def test_one_member_keeps_its_numbers() -> None:
    form = PlainFormat(Layout(["east"]))
    assert (form.list_version((7,)), form.event((9,), 0, 7), form.object(0, 7), form.written((5,), 0, 7)) == ("7",) * 4
    assert form.object_template(0)(7) == b"7"


@pytest.mark.parametrize(
    ("members", "options", "form"),
    [
        (1, {}, PlainFormat),
        (1, {"bits": 64}, PlainFormat),
        (1, {"long": True}, LongFormat),
        (2, {}, PackedFormat),
        (2, {"bits": 54}, PackedFormat),
        (2, {"bits": 55}, LongFormat),
        (2, {"long": True}, LongFormat),
        (3, {"bits": 36}, PackedFormat),
        (3, {"bits": 37}, LongFormat),
        (4, {}, LongFormat),
        (0, {}, LongFormat),
        (1, {"karmada": True}, KarmadaFormat),
        (3, {"karmada": True, "bits": 60}, KarmadaFormat),
    ],
)
def test_the_form_follows_the_setting_the_number_of_members_and_the_greatest_version(
    members: int, options: dict[str, int], form: type[VersionFormat]
) -> None:
    assert type(version_format(layout_of(members), **options)) is form  # type: ignore[arg-type]


def forms_of_object(form: VersionFormat, versions: tuple[int, ...], member: int, version: int) -> list[str]:
    """Return every form of one state of an object, at a replica that has seen `versions`."""
    return [
        form.object(member, version),
        form.event(versions, member, version),
        form.written(versions, member, version),
    ]


def numbers(members: int) -> tuple[list[VersionFormat], int]:
    """Return the forms of so many members, and the greatest version that fits into all of them."""
    long = LongFormat(layout_of(members))
    short = version_format(long.layout)
    return [long, short], MAXIMUM if not isinstance(short, PackedFormat) else 2 ** {2: 54, 3: 36}[members] - 1


@given(st.integers(1, 5), st.integers(0, 1), st.data())
def test_a_later_state_compares_greater_in_every_form_at_every_replica(
    members: int, which: int, data: st.DataObject
) -> None:
    forms, greatest = numbers(members)
    member = data.draw(st.integers(0, members - 1))
    earlier = data.draw(st.integers(1, greatest - 1))
    later = data.draw(st.integers(earlier + 1, greatest))
    seen = st.lists(st.integers(0, greatest), min_size=members, max_size=members).map(tuple)
    for old in forms_of_object(forms[which], data.draw(seen), member, earlier):
        for new in forms_of_object(forms[which], data.draw(seen), member, later):
            assert compare(old, new) == -1


@given(st.integers(1, 5), st.integers(0, 1), st.data())
def test_a_later_list_or_bookmark_compares_greater(members: int, which: int, data: st.DataObject) -> None:
    form = numbers(members)[0][which]
    versions = data.draw(st.lists(st.integers(1, 1000), min_size=members, max_size=members))
    text = form.list_version(tuple(versions))
    for _ in range(data.draw(st.integers(1, 10))):
        moved = data.draw(st.lists(st.integers(0, 3), min_size=members, max_size=members))
        versions = [version + step for version, step in zip(versions, moved, strict=True)]
        later = form.list_version(tuple(versions))
        assert compare(text, later) == (-1 if any(moved) else 0)
        text = later


@given(st.integers(1, 8), st.data())
def test_a_form_of_a_greater_rank_compares_greater_whatever_is_written(members: int, data: st.DataObject) -> None:
    part = st.integers(0, 2**36 - 1)
    found = []
    for count in (members, members + 1):
        versions = tuple(data.draw(st.lists(part, min_size=count, max_size=count)))
        place, version = data.draw(st.integers(0, count - 1)), data.draw(part) + 1
        for form in numbers(count)[0]:
            if form.fits(version):
                found += [(form.rank, text) for text in [*forms_of_object(form, versions, place, version)]]
                found += [(form.rank, form.list_version(versions))] if any(versions) else []
    for rank, text in found:
        for other_rank, other in found:
            if rank < other_rank:
                assert compare(text, other) == -1
