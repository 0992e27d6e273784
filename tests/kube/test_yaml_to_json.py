"""YAML as JSON: values, bounds, and what is refused; tests/e2e/test_yaml_as_kubectl_reads_it.py has the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.yaml_nodes import RepeatedKey, YAMLLimitExceeded, to_json


def read(text: str) -> Any:
    return json.loads(to_json(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("a: b # c\n", {"a": "b"}),
        ("- 1\n- [2, {}]\n", [1, [2, {}]]),
        ("a: |\n  b\n  c\n", {"a": "b\nc\n"}),
        ("'1'", "1"),
        ('"\\u00e9"', "é"),
        ("!!str 1", "1"),
        ("! yes", "yes"),
        ("!!map {a: !!seq [b]}", {"a": ["b"]}),
        ("18446744073709551616", 18446744073709551616),
        ("9" * 401, "9" * 401),
        ("\u0665", "\u0665"),  # a digit, but not in YAML
        ("1e400x", "1e400x"),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: .nan", "not finite"),
        ("a: -.inf", "not finite"),
        ("a: 1e400", "not finite"),
        ("? [a]\n: b", "a key of it is a list or mapping"),
        ("{null: a}", "a key of it is null"),
        ("{<<: {a: b}}", "merge keys"),
        ("a: &a b\nc: *a", "aliases"),
        ("!!binary aGk=", "the tag tag:yaml.org,2002:binary"),
        ("!!set {a}", "the tag"),
        ("a: !mine [b]", "the tag !mine"),
        ("a\n---\nb", "more than one document"),
        ("[" * 25_000 + "]" * 25_000, "nested more than 100 levels deep"),
        ("{a: " * 25_000 + "}" * 25_000, "nested more than 100 levels deep"),
        ("- a\n" * 5_001, "more than 5000 keys and values"),
    ],
)
def test_what_has_no_one_meaning_or_is_beyond_a_bound_is_refused(text: str, reason: str) -> None:
    with pytest.raises(YAMLLimitExceeded, match=reason):
        to_json(text)


@pytest.mark.parametrize("text", ["[", "a: b: c", "\x00", "'a", "a: *none"])
def test_what_is_no_yaml_is_an_error(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        to_json(text)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("metadata:\n  resourceVersion: '1'\n  resourceVersion: '1'\n", 3, "resourceVersion"),
        ("metadata:\n  labels: {a: a,\n  a: a}\n", 3, "a"),
        ("metadata: {}\nkind: A\nmetadata: {}\n", 3, "metadata"),
    ],
)
def test_a_key_that_stands_twice_in_metadata_is_refused_in_the_words_of_kubernetes(
    text: str, line: int, key: str
) -> None:
    with pytest.raises(RepeatedKey, match=f'^line {line}: key "{key}" already set in map$'):
        to_json(text)


def test_a_key_that_stands_twice_elsewhere_stays_so_for_the_member_to_judge() -> None:
    assert to_json("spec: {a: 1, a: 2}") == b'{"spec":{"a":1,"a":2}}'


# What YAML takes in a text as it is; escaped surrogates, as JSON has them, it does not take.
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_json_is_yaml_that_means_itself(value: Any) -> None:
    assert read(json.dumps(value, ensure_ascii=False)) == value


@given(st.dictionaries(texts, texts, max_size=4))
def test_strings_that_pyyaml_quotes_are_read(value: dict[str, str]) -> None:
    assert read(yaml.safe_dump(value, default_style='"')) == value
