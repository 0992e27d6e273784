"""Edits of JSON: what they change, and that they change nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube import json_edit
from mcproxy.kube.json_edit import JSONLimitExceeded, MalformedJSON, MetadataEdit

LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
REMOVED = MetadataEdit({LABEL: None}, {ANNOTATION: None})
ADDED = MetadataEdit({LABEL: "east"}, {ANNOTATION: "east"})


class TestMetadata:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ('{"metadata":{"labels":{"a":"b","mcproxy.io/cluster":"x"}}}', '{"metadata":{"labels":{"a":"b"}}}'),
            ('{"metadata":{"labels":{"mcproxy.io/cluster":"x","a":"b"}}}', '{"metadata":{"labels":{"a":"b"}}}'),
            (
                '{"metadata": {"labels": {"a": 1, "mcproxy.io/cluster": "x", "b": 2}}}',
                '{"metadata": {"labels": {"a": 1, "b": 2}}}',
            ),
            ('{"metadata":{"labels":{"mcproxy.io/cluster":"x"},"name":"n"}}', '{"metadata":{"name":"n"}}'),
            ('{"metadata":{"name":"n","labels":{"mcproxy.io/cluster":"x"}}}', '{"metadata":{"name":"n"}}'),
            ('{"metadata":{"labels":{"mcproxy.io/cluster":null}}}', '{"metadata":{}}'),  # a merge patch
            ('{"metadata":{"labels":{"mcproxy.io\\/cluste\\u0072":"x"}}}', '{"metadata":{}}'),
            (
                '{"metadata":{"annotations":{"resource.karmada.io/cached-from-cluster":"x"}}, "a" : [ ] }\n',
                '{"metadata":{}, "a" : [ ] }\n',
            ),
        ],
    )
    def test_label_and_annotation_are_taken_off(self, before: str, after: str) -> None:
        assert json_edit.edit_metadata(before.encode(), REMOVED).decode() == after

    @pytest.mark.parametrize(
        "body",
        [
            '{"metadata":{"labels":{"a":"b"},"annotations":{}}}',
            '{"metadata":{"labels":{}}}',
            '{"metadata":{"labels":null}}',
            '{"metadata":null}',
            '{"spec":{"metadata":{"labels":{"mcproxy.io/cluster":"x"}}}}',  # of a pod template: its own business
            '{"Metadata":{"labels":{"mcproxy.io/cluster":"x"}}}',
            '{"labels":{"mcproxy.io/cluster":"x"}}',
            "[]",
            "null",
            ' \n {"metadata" : {"name":"\\ud800 é","n":1e300,"m":-0.0}}',
        ],
    )
    def test_all_else_stays(self, body: str) -> None:
        before = body.encode()
        assert json_edit.edit_metadata(before, REMOVED) is before

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (
                '{"metadata":{"name":"n"}}',
                '{"metadata":{"name":"n","labels":{"mcproxy.io/cluster":"east"},'
                '"annotations":{"resource.karmada.io/cached-from-cluster":"east"}}}',
            ),
            (
                '{"metadata":{"labels":{"mcproxy.io/cluster":"forged","a":"b"},'
                '"annotations":{"resource.karmada.io/cached-from-cluster":"forged"}}}',
                '{"metadata":{"labels":{"mcproxy.io/cluster":"east","a":"b"},'
                '"annotations":{"resource.karmada.io/cached-from-cluster":"east"}}}',
            ),
            (
                '{"metadata":{}}',
                '{"metadata":{"labels":{"mcproxy.io/cluster":"east"},'
                '"annotations":{"resource.karmada.io/cached-from-cluster":"east"}}}',
            ),
        ],
    )
    def test_they_are_set(self, before: str, after: str) -> None:
        assert json_edit.edit_metadata(before.encode(), ADDED).decode() == after

    def test_the_version(self) -> None:
        edit = MetadataEdit(resource_version=lambda version: version + '"0')
        before = b'{"metadata":{"resourceVersion" : "1"},"spec":{"resourceVersion":"1"}}'
        after = b'{"metadata":{"resourceVersion" : "1\\"0"},"spec":{"resourceVersion":"1"}}'
        assert json_edit.edit_metadata(before, edit) == after

    def test_bytes_that_are_no_utf8_stay(self) -> None:
        before = b'{"metadata":{"labels":{"mcproxy.io/cluster":"x"}},"data":{"a":"\xff\xfe"}}'
        assert json_edit.edit_metadata(before, REMOVED) == b'{"metadata":{},"data":{"a":"\xff\xfe"}}'

    def test_rows_of_a_table(self) -> None:
        def table(metadata: str) -> bytes:
            row = '{"cells":["a"],"object":{"kind":"PartialObjectMetadata","metadata":{' + metadata + "}}}"
            rows = row + ', {"object":null}'
            return ('{"kind":"Table","metadata":{"resourceVersion":"1"},"rows":[' + rows + "]}").encode()

        added = f'"labels":{{"{LABEL}":"east"}},"annotations":{{"{ANNOTATION}":"east"}}'
        edit = MetadataEdit(ADDED.labels, ADDED.annotations, lambda version: "9" + version)
        after = table('"resourceVersion":"91",' + added)
        assert json_edit.edit_rows(table('"resourceVersion":"1"'), edit) == after


class TestStrings:
    def test_the_version_of_preconditions(self) -> None:
        body = b'{"preconditions": {"uid":"u", "resourceVersion": "700"}, "resourceVersion":"700"}'
        path = ("preconditions", "resourceVersion")
        assert json_edit.string_at(body, path) == "700"
        assert json_edit.change_string(body, path, lambda _: "7") == body.replace(b'"700"', b'"7"', 1)

    def test_none_is_added(self) -> None:
        assert json_edit.change_string(b"{}", ("a", "b"), lambda _: "x") == b"{}"
        assert json_edit.string_at(b'{"a":{"b":1}}', ("a", "b")) is None
        assert json_edit.string_at(b'{"a":"c"}', ("a", "b")) is None


class TestMalformed:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b'{"metadata"}',
            b'{"metadata":',
            b'{"metadata":{]}',
            b"{a:1}",
            b'{"a":1,}',
            b'{"a":"\x01"}',
            b'{"a":' + b"[" * 200_000,
            b"\xef\xbb\xbf{}",
        ],
    )
    def test_it_is_refused_or_left_alone(self, body: bytes) -> None:
        try:
            assert json_edit.edit_metadata(body, ADDED) == body
        except MalformedJSON:
            return
        assert not body.startswith(b"{")

    def test_a_number_of_many_digits_is_skipped(self) -> None:
        body = b'{"a":' + b"9" * 100_000 + b',"metadata":{"labels":{"mcproxy.io/cluster":"x"}}}'
        assert json_edit.edit_metadata(body, REMOVED).endswith(b',"metadata":{}}')


values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
labels = st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=3)
indents = st.sampled_from([None, 1, "\t"])


@given(
    values,
    st.booleans(),
    st.fixed_dictionaries({}, optional={"labels": labels, "annotations": labels, "x": values}),
    indents,
)
def test_what_is_added_and_taken_off_again_changes_no_byte(
    rest: Any, long: bool, metadata: dict[str, Any], indent: Any
) -> None:
    document = {"spec": rest, "metadata": metadata | {"resourceVersion": "5"}, "kind": "A"}
    if long:  # read in another way
        document = {"first": "x" * 20_000, **document, "last": [[[]]]}
    before = json.dumps(document, indent=indent, ensure_ascii=not long).encode("utf-8", "surrogatepass")
    edited = json_edit.edit_metadata(
        before, MetadataEdit(ADDED.labels, ADDED.annotations, lambda version: "1" + version)
    )
    expected = metadata | {
        "resourceVersion": "15",
        "labels": metadata.get("labels", {}) | {LABEL: "east"},
        "annotations": metadata.get("annotations", {}) | {ANNOTATION: "east"},
    }
    assert json.loads(edited) == document | {"metadata": expected}
    back = json_edit.edit_metadata(
        edited, MetadataEdit(REMOVED.labels, REMOVED.annotations, lambda version: version[1:])
    )
    assert back == before


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"metadata":{"labels":{"mcproxy.io/cluster":"x","a":"1","mcproxy.io/cluster":"y"}}}',
         "metadata.labels.mcproxy.io/cluster"),
        ('{"metadata":{"labels":{"mcproxy.io/cluster":"x","a":"1","a":"1"}}}', "metadata.labels.a"),
        ('{"metadata":{"labels":{"a":"1","\\u0061":"1"}}}', "metadata.labels.a"),
        ('{"metadata":{"annotations":{ "a":"1","b":"2","a":"3"}}}', "metadata.annotations.a"),
        ('{"metadata":{"resourceVersion":"1","resourceVersion":"1"}}', "metadata.resourceVersion"),
        ('{"metadata":{"resourceVersion":"1","name":"n","resourceVersion":12}}', "metadata.resourceVersion"),
        ('{"metadata":{"generation":12,"generation":1}}', "metadata.generation"),
        ('{"metadata":{"generation":1,"generation":12}}', "metadata.generation"),
        ('{"metadata":{"labels":{}},"a":1,"metadata":{"labels":{}}}', "metadata"),
        ('{"metadata":{},"long":"' + "x" * 20_000 + '","a":1,"a":[1]}', "a"),
    ],
)  # fmt: skip
def test_a_key_that_stands_twice_is_refused_in_the_words_of_kubernetes(body: str, field: str) -> None:
    edit = MetadataEdit(REMOVED.labels, REMOVED.annotations, lambda version: version)
    for text in (body, body.replace(":", " : ")):
        with pytest.raises(JSONLimitExceeded) as caught:
            json_edit.edit_metadata(text.encode(), edit)
        assert str(caught.value) == f'strict decoding error: duplicate field "{field}"'


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "é", "metadata"]), values), max_size=5), indents)
def test_members_are_all_or_none(pairs: list[tuple[str, Any]], indent: Any) -> None:
    text = "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value, indent=indent)}" for name, value in pairs) + "}"
    data = text.encode()
    try:
        found = json_edit.members(data)
    except JSONLimitExceeded:
        assert len(dict(pairs)) < len(pairs)
        return
    assert [(each.name, json.loads(data[each.value : each.end])) for each in found] == pairs


def test_too_many_members() -> None:
    many = ",".join(f'"{number}":"b"' for number in range(10_001)).encode()
    with pytest.raises(JSONLimitExceeded, match=r"more than 5000 members in metadata\.labels"):
        json_edit.edit_metadata(b'{"metadata":{"labels":{"mcproxy.io/cluster":"x",' + many + b"}}}", REMOVED)
    plain = b'{"metadata":{"labels":{' + many + b"}}}"
    assert json_edit.edit_metadata(plain, REMOVED) == plain
    data = b'{"data":{' + many + b'},"metadata":{"labels":{"mcproxy.io/cluster":"x"}}}'
    assert json_edit.edit_metadata(data, REMOVED).endswith(b',"metadata":{}}')


def test_deep_values() -> None:
    with pytest.raises(JSONLimitExceeded, match="nested more than 256"):
        json_edit.edit_metadata(b'{"a":' + b"[" * 256 + b"]" * 256 + b"}", REMOVED)


def test_null_where_labels_are_set_becomes_them() -> None:
    edited = json_edit.edit_metadata(b'{"metadata":{"labels":null,"name":"n"}}', MetadataEdit(ADDED.labels))
    assert edited == b'{"metadata":{"name":"n","labels":{"mcproxy.io/cluster":"east"}}}'
