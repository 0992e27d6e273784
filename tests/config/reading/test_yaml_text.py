import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcproxy.config.problem import Problems
from mcproxy.config.reading import yaml_text
from mcproxy.config.reading.nodes import Mapping, Node, Scalar, Sequence
from mcproxy.config.reading.yaml_text import read_yaml, resolve
from tests.support.processor_time import processor_time


def plain(node: Node | None) -> object:
    if isinstance(node, Mapping):
        return {name: plain(entry.node) for name, entry in node.entries.items()}
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    assert isinstance(node, Scalar)
    return node.value


def read(text: str | bytes) -> object:
    problems = Problems()
    data = text if isinstance(text, bytes) else text.encode()
    value = plain(read_yaml("f", data, problems))
    assert problems.errors == ()
    return value


def errors(text: str | bytes) -> list[str]:
    problems = Problems()
    read_yaml("f", text if isinstance(text, bytes) else text.encode(), problems)
    return [str(problem) for problem in problems.errors]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"), ("22:22", "22:22"), ("1:2:3", "1:2:3"),
        ("0123", 123), ("0o17", 15), ("0x1F", 31), ("0b11", "0b11"), ("1_000", "1_000"), ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"), ("true", True), ("False", False), ("TRUE", True),
        ("tRUE", "tRUE"), ("null", None), ("~", None), ("Null", None), ("none", "none"), ("-5", -5), ("+5", 5),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("-", "-"), (".", "."), ("1.2.3", "1.2.3"), ("<<", "<<"),
        ("-.inf", -math.inf), (".INF", math.inf), ("10.0.0.1", "10.0.0.1"), ("5s", "5s"), ("5e", "5e"), ("٣", "٣"),
    ],
)  # fmt: skip
def test_a_plain_word_means_what_a_reader_sees(word: str, value: object) -> None:
    assert resolve(word) == value
    assert type(resolve(word)) is type(value)


def test_not_a_number_is_a_float() -> None:
    value = resolve(".nan")
    assert isinstance(value, float)
    assert math.isnan(value)


def test_quoted_words_are_texts() -> None:
    assert read("""['1', "true", '~', "", '0x1']""") == ["1", "true", "~", "", "0x1"]
    assert read("a: |\n  1\n") == {"a": "1\n"}


def test_marks_count_from_one_and_in_characters() -> None:
    problems = Problems()
    node = read_yaml("f", "ä:\n  - {bü: x, c: y}\n".encode(), problems)
    assert isinstance(node, Mapping)
    sequence = node.entries["ä"].node
    assert isinstance(sequence, Sequence)
    inner = sequence.items[0]
    assert isinstance(inner, Mapping)
    assert [str(inner.mark), str(inner.entries["c"].mark), str(inner.entries["c"].node.mark)] == [
        "f:2:5",
        "f:2:13",
        "f:2:16",
    ]


def test_a_byte_order_mark_and_windows_line_ends_are_accepted() -> None:
    assert read(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n") == {"a": 1, "b": 2}
    assert errors(b"a: 1\r\nb: @\r\n") == ["f:2:4: an unquoted value cannot begin with @; put the string in quotes"]


def test_an_alias_is_what_it_names() -> None:
    assert read("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}


def test_a_merge_key_gives_defaults_and_own_keys_win() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: {'<<': 1}\n"
    value = read(text)
    assert isinstance(value, dict)
    assert (value["c"], value["d"]) == ({"x": 3, "y": 1, "z": 2}, {"<<": 1})


def test_a_yaml_version_line_is_allowed_and_a_tag_line_not() -> None:
    assert read("%YAML 1.2\n---\na: 1\n") == {"a": 1}
    assert errors("%TAG ! tag:x,2000:\n---\na: 1\n") == [
        "f:1:1: a %TAG directive; leave it out: tags are not used here"
    ]


def test_every_doubled_key_is_reported() -> None:
    assert len(errors("a: 1\na: 2\nb: {c: 1, c: 2, 'c': 3}\n")) == 3


def test_a_file_that_is_too_large_is_refused() -> None:
    text = b"# " + b"x" * yaml_text.MAX_BYTES
    assert errors(text) == ["f:1:1: is larger than 16 MiB; split it with include"]


@pytest.mark.parametrize("char", ["\x07", "\x7f", "\u2028", "\ufeff", "\x85", "\ufffe"])
def test_what_cannot_be_seen_is_refused(char: str) -> None:
    [problem] = errors(f"a: 1\nbc: x{char}y\n")
    assert problem.startswith(f"f:2:6: the invisible character U+{ord(char):04X}; ")


def test_deep_nesting_ends_at_the_bound_however_deep_it_is() -> None:
    [problem] = errors("[" * 100_000)
    assert "nested more than 40 deep" in problem
    [problem] = errors("".join(" " * depth + "a:\n" for depth in range(200)))
    assert "nested more than 40 deep" in problem


@given(st.binary(max_size=200))
@example(b"\xff\xfea\x00:\x00")
def test_junk_bytes_give_errors_with_a_place_and_nothing_else(data: bytes) -> None:
    problems = Problems()
    node = read_yaml("f", data, problems)
    assert node is not None or problems.errors
    assert all(problem.mark is not None and problem.right for problem in problems.errors)


@given(st.text(alphabet="ab01:-[]{},&*!|>'\"%@`#?~<. \n\t\\", max_size=120))
def test_junk_yaml_gives_errors_with_a_place_and_nothing_else(text: str) -> None:
    problems = Problems()
    node = read_yaml("f", text.encode(), problems)
    assert node is not None or problems.errors
    lines = text.count("\n") + 2
    assert all(problem.mark is not None and 1 <= problem.mark.line <= lines for problem in problems.errors)


_texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Zl", "Zp", "Cf", "Co"]), max_size=20
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=15,
)


@given(_values, st.sampled_from([None, 2, "\t"]))
def test_json_is_read_as_what_it_means(value: object, indent: int | str | None) -> None:
    assert read(json.dumps(value, ensure_ascii=False, indent=indent)) == value


def test_keys_within_keys_are_no_way_around_the_bound_of_nesting() -> None:
    (found,) = errors("? " * 5000 + "a")
    assert "a list or mapping as a key" in found
    (found,) = errors("{" * 25_000 + "}" * 25_000)
    assert "a list or mapping as a key" in found


def test_many_tag_directives_are_not_compared_with_one_another() -> None:
    with processor_time() as taken:
        (found,) = errors("# a\n" + "".join(f"%TAG !a{number}! b\n" for number in range(16_000)))
        assert found.startswith("f:2:1: a %TAG directive")
    assert taken.seconds < 0.3
