from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.json_edit import JSONLimitExceeded, MalformedJSON
from mcproxy.kube.label_maps import LABEL_MAPS, is_data, is_label_map, without
from tests.support.processor_time import processor_time

KEY = "mcproxy.io/cluster"
NAMES = st.sampled_from(["labels", "matchLabels", "selector", "spec", "data", "annotations", KEY, "a", 'q"\\\u0001/ü'])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just("east")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=5)),
    max_leaves=30,
)


def removed(value: Any, path: tuple[str, ...], *, keep_null: bool) -> Any:
    """The page's words, on decoded JSON."""
    if is_data(path):
        return value
    if isinstance(value, list):
        return [removed(each, (*path, "0"), keep_null=keep_null) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: removed(each, (*path, name), keep_null=keep_null)
        for name, each in value.items()
        if not (is_label_map(path) and name == KEY and not (keep_null and each is None))
    }


@given(st.dictionaries(NAMES, VALUES, max_size=6), st.booleans(), st.booleans(), st.sampled_from([None, 2]))
def test_the_key_goes_from_maps_of_labels_alone(
    value: dict[str, Any], keep_null: bool, ascii_: bool, indent: int | None
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_, indent=indent).encode()
    edited = without(body, KEY, keep_null=keep_null)
    assert json.loads(edited) == removed(value, (), keep_null=keep_null)
    if json.loads(edited) == value:
        assert edited == body


@given(VALUES, st.lists(NAMES, min_size=1, max_size=3))
def test_a_value_by_its_path(value: Any, path: list[str]) -> None:
    body = json.dumps(value).encode()
    assert json.loads(without(body, KEY, path)) == removed(value, tuple(path), keep_null=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"selector":{"mcproxy.io/cluster":"east"}}', '{"selector":{}}'),
        ('{"selector": { "mcproxy.io\\/cluster" : "east" , "a" : "b" } }', '{"selector": { "a" : "b" } }'),
        ('{"selector": {"a":"b", "\\u006dcproxy.io/cluster":{} }}', '{"selector": {"a":"b" }}'),
        ('{"selector": {"mc\\u0070roxy.io/cluster":[{}], "a":["b"]}}', '{"selector": {"a":["b"]}}'),
        ('{"labels":{"a":2,"mcproxy.io/cluster":3,"b":4}}', '{"labels":{"a":2,"b":4}}'),
        ('{"labels":{"labels":{"mcproxy.io/cluster":1},"mcproxy.io/cluster":{"labels":{"mcproxy.io/cluster":1}}}}',
         '{"labels":{"labels":{}}}'),
    ],
)  # fmt: skip
def test_all_other_text_stays(before: str, after: str) -> None:
    assert without(before.encode(), KEY).decode() == after


@pytest.mark.parametrize(
    "body",
    [
        b'{"data":{"selector":{"mcproxy.io/cluster":"x"}}}',
        b'{"metadata":{"annotations":{"mcproxy.io/cluster":"x"}}}',
        b'{"spec":{"nodeSelector":{"mcproxy.io/cluster":"x"},"values":["mcproxy.io/cluster"]}}',
        b'{"spec":{"selector":["mcproxy.io/cluster",{"mcproxy.io/cluster":"x"}],"labels":"mcproxy.io/cluster"}}',
        b'"mcproxy.io/cluster"',
    ],
)
def test_what_is_no_label_stays(body: bytes) -> None:
    assert without(body, KEY) == body


def test_data_is_only_what_stands_at_the_top() -> None:
    body = b'{"spec":{"data":{"labels":{"mcproxy.io/cluster":"x"}}}}'
    assert without(body, KEY) == b'{"spec":{"data":{"labels":{}}}}'


def test_deep_broken_and_ambiguous_bodies_are_refused() -> None:
    with pytest.raises(JSONLimitExceeded, match="nested more than 256"):
        without(b'{"spec":' * 256 + b'{"labels":{"mcproxy.io/cluster":"x"}}' + b"}" * 256, KEY)
    wide = b'{"x":[%b[]],"spec":' % (b"[]," * 2000)
    with pytest.raises(JSONLimitExceeded, match="nested too deeply in it"):
        without(wide * 100 + b'{"labels":{"mcproxy.io/cluster":"x"}}' + b"}" * 100, KEY)
    with pytest.raises(JSONLimitExceeded, match="more than 1000 times"):
        without(b'{"a":[%b{}]}' % (b'{"mcproxy.io/cluster":1},' * 1001), KEY)
    with pytest.raises(MalformedJSON):
        without(b'{"mcproxy.io/cluster":', KEY)
    with pytest.raises(JSONLimitExceeded, match="duplicate field"):
        without(b'{"labels":{"mcproxy.io/cluster":1,"a":2,"mcproxy.io\\/cluster":3}}', KEY)


@pytest.mark.parametrize(
    "many", [b"[[{}]],", b'"a":{},', b'{"a":{"b":[1]}},', b'"","\\u006d",', b"[]," * 9 + b"[[[]]],"]
)
def test_it_takes_linear_time_or_is_refused(many: bytes) -> None:
    array = not many.startswith(b'"a"')
    body = b'{"x":%b%b%b,"labels":{"mcproxy.io/cluster":"\\"x"}}' % (
        b"[" if array else b"{",
        (many * (500_000 // len(many)))[:-1],
        b"]" if array else b"}",
    )
    took = []
    for _ in range(3):
        with processor_time() as taken, contextlib.suppress(JSONLimitExceeded):  # where a key stands twice
            assert without(body, KEY).endswith(b',"labels":{}}')
        took.append(taken.seconds)
    assert min(took) < 0.02 + 0.05 * len(body) / 1e6


def test_names_of_the_maps() -> None:
    assert {"labels", "matchLabels", "selector"} == LABEL_MAPS
