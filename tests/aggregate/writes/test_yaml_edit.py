"""YAML bodies: only the cluster's label and annotation go, and versions change; all other text stays."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.writes import yaml_edit
from mcproxy.kube.metadata_edit import MetadataEdit
from mcproxy.kube.status import StatusError

LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
EDIT = MetadataEdit({LABEL: None}, {ANNOTATION: None}, lambda version: version.removeprefix("vector-"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# mine\nkind: A\nmetadata:\n  name: n  # its name\n  labels:\n    a: b\n    mcproxy.io/cluster: east\n"
            "spec:\n  on: 0o7\n",
            "# mine\nkind: A\nmetadata:\n  name: n  # its name\n  labels:\n    a: b\nspec:\n  on: 0o7\n",
        ),
        (
            "metadata:\n  labels:\n    mcproxy.io/cluster: east # here\n    a: b\n  name: n",
            "metadata:\n  labels:\n    a: b\n  name: n",
        ),
        ("metadata:\n  name: n\n  labels:\n    mcproxy.io/cluster: east", "metadata:\n  name: n\n"),
        ("metadata:\n  labels:\n    mcproxy.io/cluster: east\n  name: n\n", "metadata:\n  name: n\n"),
        (
            "metadata:\n  finalizers:\n  - a\n  labels:\n    mcproxy.io/cluster: east\n\n\nspec: 1\n",
            "metadata:\n  finalizers:\n  - a\nspec: 1\n",
        ),
        ("metadata:\n  labels:\n    mcproxy.io/cluster: east\nspec: 1\n", "metadata:\n  {}\nspec: 1\n"),
        (
            "metadata:\n  labels:\n    mcproxy.io/cluster: a\n  annotations:\n"
            "    resource.karmada.io/cached-from-cluster: a\nspec: 1\n",
            "metadata:\n  {}\nspec: 1\n",
        ),
        ("metadata: {labels: {mcproxy.io/cluster: east, a: b}, name: n}", "metadata: {labels: {a: b}, name: n}"),
        ("metadata: {labels: {a: b, mcproxy.io/cluster: east}, name: n}", "metadata: {labels: {a: b}, name: n}"),
        ("metadata: {name: n, labels: {mcproxy.io/cluster: east}}", "metadata: {name: n}"),
        (
            '{"metadata":{"name":"n",\n"resourceVersion":"vector-7"}}',
            '{"metadata":{"name":"n",\n"resourceVersion":"7"}}',
        ),
        ("metadata:\n  resourceVersion: vector-7 # old\n", 'metadata:\n  resourceVersion: "7" # old\n'),
        (
            "metadata:\n  annotations:\n    resource.karmada.io/cached-from-cluster: >-\n      east\n    a: b\n",
            "metadata:\n  annotations:\n    a: b\n",
        ),
    ],
)
def test_metadata(before: str, after: str) -> None:
    assert yaml_edit.edit_metadata(before.encode(), EDIT).decode() == after


@pytest.mark.parametrize(
    "body",
    [
        b"metadata:\n  name: n\n",
        b"spec:\n  template:\n    metadata:\n      labels: {mcproxy.io/cluster: east}\n",
        b"not: [yaml",  # nothing of ours is in it: the member says what is wrong
        b"",
    ],
)
def test_all_else_passes_byte_for_byte(body: bytes) -> None:
    assert yaml_edit.edit_metadata(body, EDIT) == body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"metadata: {labels: {mcproxy.io/cluster: east", 400),
        (b"\xffmcproxy.io/cluster", 400),
        (b"[" * 10_000 + b"mcproxy.io/cluster", 400),
        (b"x: &l {mcproxy.io/cluster: a}\nmetadata:\n  name: n\n  labels: *l\n", 400),
        (
            b"mcproxy.io/cluster: 1\na0: &a0 [x]\n"
            + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n + 1, n + 1, n, n) for n in range(64)),
            400,
        ),
        (b"a: b\n---\nmetadata: {labels: {mcproxy.io/cluster: east}}", 400),
        (b"mcproxy.io/cluster: " + b"a" * 300_000, 413),
    ],
)
def test_what_cannot_be_edited_is_refused(body: bytes, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        yaml_edit.edit_metadata(body, EDIT)
    assert caught.value.code == code


def test_label() -> None:
    assert yaml_edit.label(b"metadata:\n  labels:\n    mcproxy.io/cluster: east\n", LABEL) == "east"
    assert yaml_edit.label(b"metadata:\n  labels: [mcproxy.io/cluster]\n", LABEL) is None
    assert yaml_edit.label(b"kind: A", LABEL) is None


def test_preconditions() -> None:
    body = b"kind: DeleteOptions\npreconditions:\n  uid: u\n  resourceVersion: 'vector-7'\n"
    path = ("preconditions", "resourceVersion")
    assert yaml_edit.change_string(body, path, lambda version: version[7:]) == body.replace(b"'vector-7'", b'"7"')


keys = st.sampled_from(["a", "b c", "é", LABEL, ANNOTATION, "-", "#"])
maps = st.dictionaries(keys, st.sampled_from(["x", "1", "no", "# a", "two\nlines", ""]), max_size=3)


@given(
    st.fixed_dictionaries(
        {}, optional={"labels": maps, "annotations": maps, "name": st.just("n"), "finalizers": st.just(["f"])}
    ),
    st.dictionaries(keys, st.sampled_from(["x", ["y"], {"z": "1"}]), max_size=2),
    st.sampled_from([True, False, None]),
    st.sampled_from([2, 4]),
)
def test_what_is_left_is_all_else(
    metadata: dict[str, Any], rest: dict[str, Any], flow: bool | None, indent: int
) -> None:
    document = {**rest, "metadata": metadata, "zz": "end"}
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    text = yaml.dump(
        document, Dumper=dumper, default_flow_style=flow, indent=indent, allow_unicode=True, sort_keys=False
    )
    after = yaml.load(yaml_edit.edit_metadata(text.encode(), EDIT), Loader=yaml.BaseLoader)
    expected = {}
    for name, value in metadata.items():
        if isinstance(value, dict):
            mark = LABEL if name == "labels" else ANNOTATION
            kept = {key: each for key, each in value.items() if key != mark}
            if kept or mark not in value:
                expected[name] = kept
        else:
            expected[name] = value
    assert after == {**rest, "metadata": expected, "zz": "end"}
