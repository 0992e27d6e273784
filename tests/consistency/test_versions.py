"""Versions are read back from every form, compared as KEP-5504 says, and what is no version of a layout is refused."""

from __future__ import annotations

import base64
import json
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consistency.versions import Layout, NoVersion, compare, decode

TWO, THREE, FOUR = ("east", "west"), ("east", "north", "west"), ("a", "b", "c", "d")


def long_form(names: Layout, parts: list[int], lead: int) -> str:
    crc = crc32(",".join(names).encode()) % 100_000
    return f"1{crc:05d}" + "".join(f"{part:020d}" for part in (lead, *parts))


def packed(names: Layout, parts: list[int], owner: int) -> str:
    crc_bits, size, place_bits = (17, 54, 1) if len(names) == 2 else (16, 36, 2)
    crc = crc32(",".join(names).encode()) % (1 << crc_bits)
    bits = f"1{len(names) - 2}{crc:0{crc_bits}b}{parts[owner]:0{size}b}{owner:0{place_bits}b}"
    bits += "".join(f"{part:0{size}b}" for place, part in enumerate(parts) if place != owner)
    assert len(bits) == 128
    return str(int(bits, 2))


def karmada(parts: dict[str, int]) -> str:
    text = json.dumps({name: str(part) for name, part in sorted(parts.items())}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@given(st.sampled_from([TWO, THREE]), st.data())
def test_128_bits_are_read_back(names: Layout, data: st.DataObject) -> None:
    top = 54 if len(names) == 2 else 36
    parts = [data.draw(st.integers(0, 2**top - 1)) for _ in names]
    owner = data.draw(st.integers(0, len(names) - 1))
    text = packed(names, parts, owner)
    assert len(text) == 39
    version = decode(text, [FOUR, TWO, THREE])
    assert [version.part(name) for name in names] == parts
    assert (version.lead, version.owner, version.layout) == (parts[owner], names[owner], names)


@given(st.sampled_from([TWO, THREE, FOUR]), st.data())
def test_the_long_form_is_read_back(names: Layout, data: st.DataObject) -> None:
    parts = [data.draw(st.integers(0, 2**63)) for _ in names]
    version = decode(long_form(names, parts, parts[0]), [TWO, THREE, FOUR])
    assert [version.part(name) for name in names] == parts
    assert version.lead == parts[0]
    assert version.parts.keys() == {name for name, part in zip(names, parts, strict=True) if part}


def test_karmadas_form_and_a_members_own_are_read() -> None:
    version = decode(karmada({"east": 7, "west": 9}), [THREE])
    assert version.parts == {"east": 7, "west": 9}
    assert not version.comparable
    assert decode("17", [("east",)]).parts == {"east": 17}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "17",
        "x",
        "1" * 39,
        long_form(("x", "y"), [1, 2], 2),
        long_form(TWO, [1, 2], 2) + "0",
        packed(("x", "y"), [1, 2], 1),
        karmada({"elsewhere": 1}),
        base64.urlsafe_b64encode(b'{"west": "1", "east": "2"}').decode().rstrip("="),
        base64.urlsafe_b64encode(b"[1]").decode().rstrip("="),
    ],
)
def test_what_is_no_version_of_a_layout_is_refused(text: str) -> None:
    with pytest.raises(NoVersion):
        decode(text, [TWO, THREE, FOUR])


def test_longer_is_newer_and_of_one_length_the_text_decides() -> None:
    assert compare("9", "10") < 0
    assert compare("100", "99") > 0
    assert compare("12", "12") == 0
    with pytest.raises(NoVersion):
        compare("abc", "1")
    with pytest.raises(NoVersion):
        compare("01", "1")
