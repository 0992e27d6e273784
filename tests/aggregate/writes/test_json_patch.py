"""JSON patches against objects of the aggregate, as members get them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.writes.json_patch import edit_json_patch
from mcproxy.kube.json_edit import MalformedJSON, MetadataEdit

LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
LABEL_PATH = "/metadata/labels/mcproxy.io~1cluster"
ANNOTATION_PATH = "/metadata/annotations/resource.karmada.io~1cached-from-cluster"


def owner_part(version: str) -> str:
    return version.removeprefix("vector-")


EDIT = MetadataEdit({LABEL: None}, {ANNOTATION: None}, owner_part)


def edited(*operations: Any, bare: tuple[str, ...] = ()) -> list[Any]:
    result: list[Any] = json.loads(edit_json_patch(json.dumps(operations).encode(), "east", EDIT, bare=bare))
    return result


def op(kind: str, path: str, **more: Any) -> dict[str, Any]:
    return {"op": kind, "path": path, **more}


class TestVersion:
    @pytest.mark.parametrize("kind", ["test", "replace", "add"])
    def test_the_owners_part_takes_its_place(self, kind: str) -> None:
        path = "/metadata/resourceVersion"
        assert edited(op(kind, path, value="vector-7")) == [op(kind, path, value="7")]

    def test_in_the_whole_metadata_too(self) -> None:
        value = {"name": "n", "resourceVersion": "vector-7", "labels": {LABEL: "east"}}
        assert edited(op("replace", "/metadata", value=value)) == [
            op("replace", "/metadata", value={"name": "n", "resourceVersion": "7"})
        ]
        assert edited(op("replace", "", value={"metadata": value, "data": {}})) == [
            op("replace", "", value={"metadata": {"name": "n", "resourceVersion": "7"}, "data": {}})
        ]


class TestMarks:
    @pytest.mark.parametrize("path", [LABEL_PATH, ANNOTATION_PATH])
    @pytest.mark.parametrize(
        "operation",
        [op("add", "", value="west"), op("replace", "", value="x"), op("remove", ""), op("test", "", value="east")],
    )
    def test_what_is_about_them_is_left_out(self, path: str, operation: dict[str, Any]) -> None:
        assert edited({**operation, "path": path}, op("add", "/data/a", value="1")) == [op("add", "/data/a", value="1")]

    def test_a_test_that_must_fail_fails_at_the_member(self) -> None:
        assert edited(op("test", LABEL_PATH, value="west")) == [op("test", LABEL_PATH, value="west")]

    def test_they_are_taken_out_of_maps(self) -> None:
        value = {"a": "b", LABEL: "east"}
        assert edited(op("test", "/metadata/labels", value=value)) == [op("test", "/metadata/labels", value={"a": "b"})]
        assert edited(op("replace", "/metadata/labels", value=value)) == [
            op("add", "/metadata/labels", value={"a": "b"})
        ]
        assert edited(op("add", "/metadata/annotations", value={ANNOTATION: "x"})) == [
            op("add", "/metadata/annotations", value={})
        ]

    def test_a_map_that_the_member_does_not_have(self) -> None:
        assert edited(op("test", "/metadata/labels", value={LABEL: "east"})) == [
            op("test", "/metadata/labels", value=None)
        ]
        assert edited(op("remove", "/metadata/labels")) == [op("add", "/metadata/labels", value={})]

    def test_a_key_that_is_added_to_such_a_map(self) -> None:
        operations = [op("add", "/metadata/labels/a", value="1"), op("add", "/metadata/labels/b", value="2")]
        assert edited(*operations) == operations
        made = [op("test", "/metadata/labels", value=None), op("add", "/metadata/labels", value={})]
        assert edited(*operations, bare=("labels",)) == [*made, *operations]
        assert edited(*operations, bare=("annotations",)) == operations

    def test_copies_and_moves(self) -> None:
        copy = {"op": "copy", "from": LABEL_PATH, "path": "/metadata/labels/home"}
        assert edited(copy) == [op("add", "/metadata/labels/home", value="east")]
        assert edited({**copy, "op": "move"}) == [op("add", "/metadata/labels/home", value="east")]
        assert edited({"op": "copy", "from": "/data/a", "path": LABEL_PATH}) == []
        assert edited({"op": "move", "from": "/data/a", "path": LABEL_PATH}) == [op("remove", "/data/a")]


class TestLabelsWithin:
    """A client that copies the labels of what it has seen."""

    def test_entries_in_maps_of_labels_and_selectors_are_not_set(self) -> None:
        for pointer in ("/spec/selector", "/spec/selector/matchLabels", "/spec/template/metadata/labels"):
            for kind in ("add", "replace"):
                assert edited(op(kind, f"{pointer}/mcproxy.io~1cluster", value="east")) == []
                value = {LABEL: "east", "a": "b"}
                assert edited(op(kind, pointer, value=value)) == [op(kind, pointer, value={"a": "b"})]
        before: dict[str, Any] = {
            "selector": {LABEL: "east"},
            "template": {"metadata": {"labels": {LABEL: "west", "a": "b"}}},
        }
        after = {"selector": {}, "template": {"metadata": {"labels": {"a": "b"}}}}
        for path in ("/spec", "/items/0"):
            assert edited(op("add", path, value=before)) == [op("add", path, value=after)]
        whole_before = {"metadata": {"labels": {LABEL: "east"}}, "spec": before, "data": before}
        whole = {"metadata": {}, "spec": after, "data": before}
        assert edited(op("replace", "", value=whole_before)) == [op("replace", "", value=whole)]

    def test_copies_and_moves(self) -> None:
        to = "/spec/selector/mcproxy.io~1cluster"
        for kind in ("copy", "move"):
            assert edited({"op": kind, "from": LABEL_PATH, "path": to}) == []
        assert edited({"op": "copy", "from": "/data/a", "path": to}) == []
        assert edited({"op": "move", "from": "/data/a", "path": to}) == [op("remove", "/data/a")]


@pytest.mark.parametrize(
    "body",
    [
        b'[ {"op" : "remove","path":"/data/b"} ]',
        b'[{"op":"add","path":"/metadata/labels/a","value":"b"}]',
        b'[{"op":"remove","path":"/metadata/resourceVersion"}]',
        b'[{"op":"add","path":"/spec/nodeSelector/mcproxy.io~1cluster","value":"b"}]',
        b'[{"op":"remove","path":"/spec/selector/mcproxy.io~1cluster"}]',
        b'[{"op":"add","path":"/data/selector","value":{"mcproxy.io/cluster":"b"}}]',
        b'[{"op":"add","path":"metadata/labels","value":"b"}, 1, null, {"path":1}]',
        b"{}",
        b"[]",
    ],
)
def test_all_else_passes_byte_for_byte(body: bytes) -> None:
    assert edit_json_patch(body, "east", EDIT) is body


@pytest.mark.parametrize("body", [b"[{]", b"[" * 200_000, b"[1"])
def test_what_is_no_patch(body: bytes) -> None:
    try:
        assert edit_json_patch(body, "east", EDIT) == body
    except MalformedJSON:
        return


paths = st.lists(
    st.sampled_from(["metadata", "labels", "annotations", LABEL, ANNOTATION, "a", "data", "-"]), max_size=4
)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "op": st.sampled_from(["add", "replace", "remove", "test", "copy", "move", "x"]),
                "path": paths.map(lambda parts: "".join("/" + part.replace("/", "~1") for part in parts)),
            },
            optional={
                "from": paths.map(lambda parts: "".join("/" + part.replace("/", "~1") for part in parts)),
                "value": st.one_of(
                    st.text(max_size=3),
                    st.dictionaries(st.sampled_from([LABEL, ANNOTATION, "labels", "a"]), st.text(max_size=3)),
                ),
            },
        ),
        max_size=4,
    ),
    st.sets(st.sampled_from(["labels", "annotations"])),
)
def test_no_operation_sets_the_label_or_the_annotation(operations: list[Any], bare: set[str]) -> None:
    for each in edited(*operations, bare=tuple(bare)):
        if each["op"] in ("add", "replace", "copy", "move"):
            assert each["path"] not in (LABEL_PATH, ANNOTATION_PATH)
            if each["path"] == "/metadata/labels" and each["op"] in ("add", "replace"):
                value = each.get("value")
                assert not isinstance(value, dict) or LABEL not in value
