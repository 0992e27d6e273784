"""Reading of resource versions: every form, earlier layouts, and everything that is no version."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.resource_version.formats import (
    KarmadaFormat,
    LongFormat,
    PackedFormat,
    PlainFormat,
    VersionFormat,
    version_format,
)
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import MAX_LENGTH, Expired, VersionReader
from mcproxy.kube.status import StatusError
from tests.kube.test_status import recorded

EAST_WEST = LayoutHistory(Layout(["east", "west"]))
READER = VersionReader(EAST_WEST)
LONG, PACKED = LongFormat(EAST_WEST.present), PackedFormat(EAST_WEST.present)
KARMADA = KarmadaFormat(EAST_WEST.present)
VERSIONS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("text", ["", "0", "00", "0" * 20])
def test_empty_and_zero_keep_their_meaning(text: str) -> None:
    assert READER.read(text) is None
    assert READER.owner_part(text, "east") == text


@given(VERSIONS, VERSIONS)
def test_all_forms_are_read_and_a_zero_is_a_vector_without_that_member(east: int, west: int) -> None:
    parts = {name: version for name, version in (("east", east), ("west", west)) if version}
    for form in (LONG, PACKED, KARMADA):
        assert READER.read(form.list_version((east, west))) == parts


@given(st.sampled_from(["east", "west"]), st.integers(1, 2**64 - 1), VERSIONS)
def test_the_owners_part_is_found_in_every_form(owner: str, version: int, other: int) -> None:
    place = EAST_WEST.present.index(owner)
    versions = (version, other) if owner == "east" else (other, version)
    texts = [str(version)]
    for form in (LONG, PACKED, KARMADA):
        texts += [
            form.object(place, version),
            form.event(versions, place, version),
            form.written((3, 4), place, version),
        ]
    for text in texts:
        assert READER.owner_part(text, owner) == str(version)


@given(st.dictionaries(st.sampled_from(["east", "west"]), st.integers(1, 2**64 - 1).map(str)), st.booleans())
def test_karmadas_form_in_either_alphabet_with_and_without_padding(versions: dict[str, str], spaces: bool) -> None:
    body = json.dumps(versions, separators=(", ", ": ") if spaces else None).encode()
    expected = {name: int(version) for name, version in versions.items()}
    for encoded in (base64.urlsafe_b64encode(body), base64.b64encode(body)):
        assert READER.read(encoded.decode()) == expected
        assert READER.read(encoded.decode().rstrip("=")) == expected


def test_karmadas_form_with_characters_of_both_alphabets() -> None:
    reader = VersionReader(LayoutHistory(Layout(["ÿ>?", "west"])))
    body = json.dumps({"ÿ>?": "5"}, ensure_ascii=False, separators=(",", ":")).encode()
    plain, safe = base64.b64encode(body).decode(), base64.urlsafe_b64encode(body).decode()
    assert plain != safe
    assert reader.read(plain) == reader.read(safe) == {"ÿ>?": 5}


def test_the_example_of_the_reference_page() -> None:
    reader = VersionReader(LayoutHistory(Layout(["cluster1", "cluster2"])))
    text = "eyJjbHVzdGVyMSI6IjEyMzQiLCJjbHVzdGVyMiI6IjU2NzgifQ"
    assert reader.read(text) == {"cluster1": 1234, "cluster2": 5678}
    assert reader.owner_part(text, "cluster2") == "5678"


def test_karmadas_empty_and_zero_parts_are_a_vector_without_that_member() -> None:
    text = base64.urlsafe_b64encode(b'{"east":"","west":"7"}').decode()
    assert READER.read(text) == {"west": 7}
    assert READER.read(base64.urlsafe_b64encode(b'{"east":"0"}').decode()) == {}


def test_a_plain_number_of_the_only_member() -> None:
    reader = VersionReader(LayoutHistory(Layout(["east"])))
    assert reader.read("398") == {"east": 398}
    assert reader.owner_part("398", "east") == "398"
    assert reader.read(str(2**64 - 1)) == {"east": 2**64 - 1}


def test_a_plain_number_where_there_are_several_members() -> None:
    assert READER.read("398", owner="west") == {"west": 398}
    assert READER.owner_part("398", "west") == "398"
    for owner in (None, "north"):
        with pytest.raises(Expired):
            READER.read("398", owner=owner)


@pytest.mark.parametrize("before", [LONG, PACKED, KARMADA])
def test_a_version_of_an_earlier_layout_is_read_by_it(before: VersionFormat) -> None:
    reader = VersionReader(EAST_WEST.changed(["west", "east", "north"]))
    assert reader.read(before.list_version((12, 34))) == {"east": 12, "west": 34}
    assert reader.owner_part(before.object(1, 34), "west") == "34"


@pytest.mark.parametrize("before", [LONG, PACKED, KARMADA])
def test_a_version_from_when_there_was_one_member_more(before: VersionFormat) -> None:
    reader = VersionReader(EAST_WEST.changed(["east"]))
    with pytest.raises(Expired):
        reader.read(before.list_version((12, 34)))
    assert reader.read(before.list_version((12, 0))) == {"east": 12}
    assert reader.list_part(before.list_version((12, 34)), "east") == "12"


def test_a_former_members_part_is_410_and_a_version_without_it_is_read() -> None:
    reader = VersionReader(EAST_WEST, ["west"])
    for form in (LONG, PACKED, KARMADA):
        with pytest.raises(Expired, match="west"):
            reader.read(form.list_version((12, 34)))
        assert reader.read(form.list_version((12, 0))) == {"east": 12}


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("names", [["west", "east"], ["east", "north"], ["east", "west", "north"], ["e"] * 4])
def test_another_order_or_set_of_members_is_410(names: list[str], long: bool) -> None:
    text = version_format(Layout(names), long=long).list_version(tuple(range(10, 10 + len(names))))
    with pytest.raises(Expired) as raised:
        READER.read(text)
    assert (raised.value.code, raised.value.reason) == (410, "Expired")


def test_a_part_of_an_unknown_member_is_410() -> None:
    text = KarmadaFormat(Layout(["east", "north"])).list_version((1, 2))
    with pytest.raises(Expired, match="north"):
        READER.read(text)


@pytest.mark.parametrize(
    "text",
    [
        KARMADA.object(0, 5),
        LONG.object(0, 5),
        LONG.list_version((5, 0)),
        PACKED.object(0, 5),
        PACKED.list_version((5, 0)),
        LongFormat(Layout(["north", "west"])).list_version((5, 6)),
        PackedFormat(Layout(["north", "west"])).list_version((5, 6)),
        KarmadaFormat(Layout(["north"])).list_version((5,)),
    ],
)
def test_a_write_with_no_part_of_the_owner_is_a_conflict(text: str) -> None:
    with pytest.raises(StatusError, match='pods "web"') as raised:
        READER.owner_part(text, "west", 'pods "web"')
    assert (raised.value.code, raised.value.reason) == (409, "Conflict")


def test_a_write_sends_the_objects_version_where_the_event_had_an_older_one_to_resume_from() -> None:
    # A member with several stores (namespaces) has the least of their versions as its part.
    text = LONG.event((90, 34), 0, 100)
    assert READER.owner_part(text, "east") == "100"
    assert READER.list_part(text, "east") == "90"
    assert READER.read(text) == {"east": 90, "west": 34}


@pytest.mark.parametrize("name", ["rv/configmaps-rv-bogus.json", "rv/configmaps-rv-negative.json"])
def test_the_message_for_what_is_no_version_is_kubernetes_own(name: str) -> None:
    response = recorded(name)
    text = "abc" if "bogus" in name else "-1"
    with pytest.raises(StatusError) as raised:
        READER.read(text)
    assert raised.value.body().decode() == response["body"]


def base64_of(body: bytes) -> str:
    return base64.urlsafe_b64encode(body).decode()


@pytest.mark.parametrize(
    "text",
    [
        "abc",
        "-1",
        "+1",
        "1.5",
        " 1",
        "1 ",
        "1_0",
        "\u0661\u0662",
        "eyJ",
        "=",
        "a=b=",
        "\x00",
        "18446744073709551616",  # 2**64
        "2" * 46,
        "1" * 39,  # below 2**127
        "4" * 39,  # above 2**128
        "0" + str(2**127),
        str(2**127) + "0",
        str(0b11 << 126 | 0b11 << 72),  # led by a fourth of three members
        "\u0661" * 39,
        "1" * 45,
        "1" * 47,
        "9" * 26,
        "1" * (MAX_LENGTH + 1),
        "A" * (MAX_LENGTH + 1),
        "1" + f"{EAST_WEST.present.crc(100_000):05d}" + "9" * 60,  # parts above 64 bits
        "1" + f"{EAST_WEST.present.crc(100_000):05d}" + "9" * 20 + "0" * 40,
        "1" * (MAX_LENGTH // 20 * 20 - 14 + 1),
        base64_of(b"{}{}"),
        base64_of(b"[]"),
        base64_of(b'{"east":5}'),
        base64_of(b'{"east":"-5"}'),
        base64_of(b'{"east":"1e3"}'),
        base64_of(b'{"east":" 5"}'),
        base64_of(b'{"east":"184467440737095516160"}'),
        base64_of(b'{"east":"99999999999999999999"}'),
        base64_of(b'{"east":null}'),
        base64_of(b'{"east":{"a":"b"}}'),
        base64_of(b'{"east":"5"'),
        base64_of(b"\xff\xff"),
        base64_of(b"[" * 40_000),
        base64_of(b'{"a":' * 8_000),
    ],
)
def test_what_is_no_version_is_400_and_its_message_short(text: str) -> None:
    with pytest.raises(StatusError) as raised:
        READER.read(text)
    assert (raised.value.code, raised.value.reason) == (400, "BadRequest")
    assert raised.value.message.startswith("invalid resource version")
    assert len(raised.value.message) < 600
    with pytest.raises(StatusError) as raised:
        READER.owner_part(text, "east")
    assert raised.value.code == 400


@given(st.text())
def test_any_text_is_a_version_or_a_status(text: str) -> None:
    code = 200
    try:
        READER.read(text)
    except StatusError as error:
        code = error.code
    assert code in (200, 400, 410)


@given(
    st.lists(
        st.permutations(["east", "west", "north"]).flatmap(
            lambda names: st.integers(1, 3).map(lambda count: names[:count])
        ),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
def test_whatever_a_replica_wrote_is_read_back_or_410_after_any_reloads(
    changes: list[list[str]], data: st.DataObject
) -> None:
    history = LayoutHistory(Layout(changes[0]))
    written: list[tuple[str, dict[str, int]]] = []
    for names in changes:
        history = LayoutHistory.from_json(history.changed(names).to_json())  # a reload, then a restart
        versions = data.draw(st.lists(st.integers(1, 50), min_size=len(names), max_size=len(names)))
        parts = dict(zip(names, versions, strict=True))
        layout = history.present
        written += [
            (form.list_version(tuple(versions)), parts)
            for form in (version_format(layout), LongFormat(layout), KarmadaFormat(layout))
            if not isinstance(form, PlainFormat)
        ]
        reader = VersionReader(history)
        for text, expected in written:
            if all(name in history.present for name in expected):
                assert reader.read(text) == expected
            else:
                with pytest.raises(Expired):
                    reader.read(text)
            for name, version in expected.items():
                assert reader.list_part(text, name) == str(version)
