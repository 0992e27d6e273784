import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.suggestions import nearest, suggest

KEYS = ["clusters", "servers", "listeners", "certificates", "serverNames", "caFile", "keyFile", "certFile"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("cluster", "clusters"),
        ("cafile", "caFile"),
        ("CAFILE", "caFile"),
        ("server_names", "serverNames"),
        ("zzz", None),
    ],
)
def test_the_nearest_name_is_the_one_that_was_meant(wrong: str, right: str | None) -> None:
    assert nearest(wrong, KEYS) == right


@given(st.sampled_from(KEYS), st.integers(0, 5), st.characters(codec="ascii"))
def test_one_letter_too_many_still_finds_the_name(name: str, place: int, letter: str) -> None:
    assert nearest(name[:place] + letter + name[place:], [name]) == name


@given(st.text(max_size=30), st.lists(st.text(max_size=10), max_size=5))
def test_a_suggestion_is_one_of_the_names_or_none(wrong: str, names: list[str]) -> None:
    assert nearest(wrong, names) in [*names, None]


def test_what_is_suggested_where_nothing_is_near() -> None:
    assert suggest("zzz", ["a", "b"]) == "known are a, b"
    assert suggest("zzz", []) == "there are none"
    assert suggest("zzz", [f"n{i}" for i in range(20)]).endswith("n11, …")
