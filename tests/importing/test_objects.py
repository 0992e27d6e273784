"""Reading objects from hostile files: bounded, typed, nothing guessed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mcproxy.config.problem import ConfigErrors
from mcproxy.importing.object_files import MAX_DATA, Fields, UnusableError, objects_in, read_objects

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"}, "spec": {"x": 1}}


def read(tmp_path: Path, text: str | bytes) -> list[tuple[str, str]]:
    file = tmp_path / "objects.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [(each.kind, each.name) for each in read_objects([str(file)])]


def test_documents_lists_and_json(tmp_path: Path) -> None:
    several = (
        f"# first\n{json.dumps(POD)}\n---\n---\nkind: Pod\napiVersion: v1\nmetadata: {{name: b}}\n---\n# nothing\n"
    )
    assert read(tmp_path, several) == [("Pod", "a"), ("Pod", "b")]
    assert read(tmp_path, json.dumps({"kind": "List", "apiVersion": "v1", "items": [POD, POD]})) == [("Pod", "a")] * 2
    typed = {"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "c"}}]}
    assert read(tmp_path, json.dumps(typed, indent=1)) == [("Pod", "c")]
    assert read(tmp_path, "") == []


def test_anchors_are_of_one_document(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="names nothing above"):
        read(tmp_path, "a: &x 1\n---\nb: *x\n")


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x,x]\nb: &b [*a,*a]\n" + "".join(
            f"{chr(i)}: &{chr(i)} [{','.join([f'*{chr(i - 1)}'] * 9)}]\n" for i in range(ord("c"), ord("k"))
        ),
        "[" * 1000,
        "a: *a",
        "a: &a [*a]",
        "!!python/object/apply:os.system [id]",
        "a: b\na: c",
        b"\xff\xfe",
        "a: \x07",
        "a: [1",
    ],
    ids=["bomb", "deep", "dangling", "cycle", "tag", "double", "encoding", "bell", "open"],
)  # fmt: skip
def test_what_is_not_good_yaml_is_refused_with_its_place(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ConfigErrors) as caught:
        read(tmp_path, text)
    assert "objects.yaml:1" in str(caught.value) or "objects.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["7", "[]", "a: b", "kind: Pod\napiVersion: v1", "kind: 7\napiVersion: v1", "kind: List\nitems: [7]",
     "kind: Pod\napiVersion: v1\nmetadata: []", "kind: Pod\napiVersion: v1\nmetadata: {name: 7}"],
)  # fmt: skip
def test_what_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnusableError, match="document 1"):
        read(tmp_path, text)


def test_a_fifo_and_a_device_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (str(tmp_path / "fifo"), "/dev/zero"):
        with pytest.raises(UnusableError, match="regular file"):
            read_objects([path])


def test_too_many_objects_are_refused() -> None:
    with pytest.raises(UnusableError, match="more than"):
        objects_in({"kind": "List", "items": [POD] * 3}, "x", room=2)


def test_types_are_never_guessed() -> None:
    fields = Fields({"t": "a", "n": 5, "b": True, "z": None, "l": ["x"], "m": {"k": "v"}, "f": 1.5}, "spec")
    assert (fields.text("t"), fields.text("z"), fields.integer("n"), fields.boolean("b"), fields.boolean("z")) == (
        "a", "", 5, True, False,
    )  # fmt: skip
    assert (fields.texts("l"), fields.texts("z"), fields.labels("m")) == (["x"], [], {"k": "v"})
    assert list(fields.others("t", "n", "b", "l", "m")) == ["spec.f"]
    for read_as, key in (
        ("text", "n"),
        ("integer", "b"),
        ("integer", "f"),
        ("boolean", "n"),
        ("texts", "m"),
        ("fields", "l"),
    ):
        with pytest.raises(UnusableError, match=f"spec.{key}: is "):
            getattr(fields, read_as)(key)


def test_data_is_bounded() -> None:
    with pytest.raises(UnusableError, match="at most"):
        Fields({"d": "A" * (MAX_DATA * 2)}, "").data("d")
    assert Fields({"d": "aGk=\n"}, "").data("d") == b"hi"
