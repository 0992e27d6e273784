import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.names import covers, is_server_name, nearest, suggest

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


@pytest.mark.parametrize(
    "name", ["a", "a.example.com", "*.example.com", "10.0.0.1", "fd00::1", "a_b.example.com", "1a.x1"]
)
def test_a_server_name(name: str) -> None:
    assert is_server_name(name)


@pytest.mark.parametrize(
    "name",
    ["", "*", "a.*.com", "*a.com", "A", "a..b", ".a", "a.", "-a", "a-", "a b", "a:1", "10.0.0.256", "a.1", "é", "a\n",
     "a" * 64, ".".join(["a" * 60] * 5)],
)  # fmt: skip
def test_no_server_name(name: str) -> None:
    assert not is_server_name(name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("a.example.com", "a.example.com", True),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "*.example.com", True),
        ("*.example.com", "a.b.example.com", False),
        ("*.example.com", "example.com", False),
        ("*.example.com", "*.b.example.com", False),
        ("*.com", "*.example.com", False),
        ("a.example.com", "*.example.com", False),
        ("*.0.0.1", "10.0.0.1", False),
        ("10.0.0.1", "10.0.0.1", True),
    ],
)
def test_which_names_a_certificate_name_covers(pattern: str, name: str, expected: bool) -> None:
    assert covers(pattern, name) is expected
