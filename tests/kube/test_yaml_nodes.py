"""YAML is read within bounds of depth and of number, whichever way it is nested."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube import yaml_nodes
from mcproxy.kube.yaml_nodes import YAMLLimitExceeded, compose, entry, items, plain, text_of
from tests.support.processor_time import processor_time

NESTED = {
    "lists": ("[", "", "]"),
    "mappings": ("{", "", "}"),
    "values": ("{a: ", "", "}"),
    "keys": ("? ", "", ""),
    "entries": ("- ", "", ""),
    "entries of keys": ("? - ", "", ""),
    "lines": ("[\n", "", "]\n"),
    "keys of lists": ("{[", "", "]: 1}"),
    "anchors": ("&a [", "", "]"),
    "tags": ("!!seq [", "", "]"),
}


def nested(name: str, depth: int) -> str:
    before, middle, after = NESTED[name]
    return before * depth + middle + after * depth


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("depth", [101, 25_000])
def test_deep_nesting_is_refused_and_not_read(name: str, depth: int) -> None:
    """25,000 brackets, closed again, ended the process: libyaml's composer recurses."""
    with processor_time() as taken, pytest.raises(YAMLLimitExceeded, match="nested more than 100 levels deep"):
        compose(nested(name, depth))
    assert taken.seconds < 0.5


def test_a_block_of_many_indents_is_refused() -> None:
    with pytest.raises(YAMLLimitExceeded, match="nested more"):
        compose("".join(f"{' ' * depth}a:\n" for depth in range(700)))


@pytest.mark.parametrize("name", ["lists", "mappings", "values", "entries"])
def test_nesting_up_to_the_bound_is_read(name: str) -> None:
    assert compose(nested(name, 100)) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("".join(f"%TAG !a{number}! b\n" for number in range(16_000)), "%TAG"),
        ("--- a\n...\n%TAG ! b\n---\nc", "%TAG"),
        ("- \n" * 20_000, "more than 5000"),
        ("{" + "a," * 20_000 + "}", "more than 5000"),
        ("a: &a [x]\nb: *a\n", "aliases"),
        ("a: *b\n", "aliases"),
        ("a\n---\nb\n", "more than one document"),
    ],
)
def test_what_is_beyond_a_bound(text: str, why: str) -> None:
    with processor_time() as taken, pytest.raises(YAMLLimitExceeded, match=why):
        compose(text)
    assert taken.seconds < 0.3


def test_aliases_where_they_are_wanted() -> None:
    root = compose("a: &a {name: x}\nb: [*a, *a]\nc: &c [*c]\n", aliases=True)
    assert [text_of(entry(one, "name")) for one in items(entry(root, "b"))] == ["x", "x"]
    assert len(items(items(entry(root, "c"))[0])) == 1
    with pytest.raises(YAMLLimitExceeded):
        compose("a: *b\n", aliases=True)


def test_entries() -> None:
    root = compose("a: {b: 1, b: 2}\n[k]: v\n")
    assert text_of(entry(root, "a", "b")) == "2"
    assert entry(root, "a", "b", "c") is None
    assert text_of(entry(root, "a")) is None
    assert items(entry(root, "a")) == []
    assert compose("") is None
    assert plain(None) is None
    with pytest.raises(YAMLLimitExceeded, match="a key of it"):
        plain(root)


texts = st.text(alphabet="ab:{}[],-? \n'\"|>#&!", max_size=40)


@given(texts)
def test_nodes_are_those_of_the_library(text: str) -> None:
    try:
        ours = yaml_nodes.plain(compose(text))
    except yaml.YAMLError:
        return
    # Each takes some texts that the other refuses: libyaml `>#`.
    assert ours == yaml.load(text, Loader=yaml.CBaseLoader) or ours == yaml.load(text, Loader=yaml.BaseLoader)


values = st.recursive(
    st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(values, st.booleans())
def test_what_is_written_is_read(value: object, flow: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True, default_style='"')
    assert plain(compose(text)) == value


def test_several_documents_are_read_where_they_are_wanted() -> None:
    roots = yaml_nodes.compose_all("a: &x 1\n---\nb: 2\n---\n", documents=3)
    assert [plain(root) for root in roots] == [{"a": "1"}, {"b": "2"}, ""]
    assert yaml_nodes.compose_all("", documents=1) == []
    with pytest.raises(YAMLLimitExceeded, match="more than 2 documents"):
        yaml_nodes.compose_all("a\n---\nb\n---\nc\n", documents=2)
    with pytest.raises(YAMLLimitExceeded, match="more than one document"):
        compose("a\n---\nb\n")
    with pytest.raises(YAMLLimitExceeded, match="aliases"):
        yaml_nodes.compose_all("- &a b\n- *a\n", documents=1)
    with pytest.raises(YAMLLimitExceeded, match="more than 4 keys"):
        yaml_nodes.compose_all("[a, b]\n---\n[c, d]\n", documents=2, events=4)
